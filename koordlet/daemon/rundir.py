"""The run directory: where the daemon keeps what must outlive its process, one daemon at a time."""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from koord.util.errors import KoordError, UnsafeFile
from koord.util.owneddir import OwnedDirectory

HOST_RUN_DIR = Path("/run/koordlet")
CONTAINER_RUN_DIR = Path("/host-var-run-koordlet")


class RunDirError(KoordError):
    """The run directory cannot be used."""


def default_run_dir(*, host_mode: bool, uid: int, environ: Mapping[str, str]) -> Path:
    """Return the directory of state when --run-dir is not given.

    Without root it is below XDG_RUNTIME_DIR, or in /tmp under a name of this user's own.
    """
    if not host_mode:
        return CONTAINER_RUN_DIR
    if uid == 0:
        return HOST_RUN_DIR
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "koordlet"
    return Path(f"/tmp/koordlet-{uid}")  # noqa: S108 - RunDir.open checks its owner


class RunDirHeld(RunDirError):
    """A daemon is at work there. holder: its process, as far as known."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"{path}: wanted the run directory for this daemon alone, found it held by "
            f"process {holder}; stop that one or give this one its own --run-dir"
        )
        self.holder = holder


class RunDir:
    """An exclusively held run directory. Use `with RunDir.open(path) as run_dir:`."""

    def __init__(self, directory: OwnedDirectory, lock: int) -> None:
        self.directory = directory
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> "RunDir":
        """Open the directory, which create makes (0750) when needed, and take its lock.

        Raises:
            RunDirHeld: another daemon has it.
            RunDirError: not creatable, read-only, or another user could change it.
        """
        try:
            directory = OwnedDirectory.open(path, create=create)
            lock = (directory / "lock").open(os.O_RDWR | os.O_CREAT)
        except OSError as err:
            raise _unusable(path, err) from err
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            directory.close()
            raise RunDirHeld(path, holder if holder.isdigit() else "unknown") from err
        _note_pid(lock)
        return cls(directory, lock)

    def close(self) -> None:
        """Release the lock; the files stay."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            self.directory.close()

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _note_pid(lock: int) -> None:
    """Leave our pid for the message of a second daemon; a full disk may refuse it."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass


def _unusable(path: Path, err: OSError) -> RunDirError:
    if isinstance(err, UnsafeFile):
        return RunDirError(f"{path}: cannot be the run directory: {err}")
    return RunDirError(
        f"{path}: wanted a writable run directory, found {err.strerror}; "
        "mount or create it writable for this user, or give another --run-dir"
    )
