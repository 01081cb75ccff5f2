"""The environment of the daemon: mode, host or container paths, and the run directory.

koordletctl imports it: it imports nothing large.
"""

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from koord.util.errors import KoordError, UnsafeFile
from koord.util.ownedfiles import OwnedDirectory

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


IN_CLUSTER_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True)
class Mode:
    """The two choices everything else follows from, and why they were made."""

    standalone: bool  # no API server: states come from files and from the cgroup tree
    host_mode: bool  # paths as on the host; otherwise as Koordinator's DaemonSet mounts them
    reason: str


def detect_mode(
    environ: Mapping[str, str],
    *,
    standalone: bool | None,
    kubeconfig: str,
    token: Path = IN_CLUSTER_TOKEN,
) -> Mode:
    """Decide the mode; standalone is the flag's value, None when it was not given.

    Without the flag the daemon stands alone when no API server is configured: no kubeconfig
    (flag, KUBECONFIG, ~/.kube/config) and no in-cluster token. agent_mode=hostMode, as in
    Koordinator, asks for host paths; a standalone daemon uses them unless agent_mode says else.
    """
    agent_mode = environ.get("agent_mode", "")
    if standalone is None:
        found = _api_access(environ, kubeconfig, token)
        standalone, reason = not found, found or "no kubeconfig and no in-cluster token"
    else:
        reason = f"--standalone={str(standalone).lower()}"
    host_mode = agent_mode == "hostMode" or (standalone and not agent_mode)
    return Mode(standalone, host_mode, reason)


def _api_access(environ: Mapping[str, str], kubeconfig: str, token: Path) -> str:
    """Return what configures the API server, in the order of Koordinator's client; "": nothing."""
    if kubeconfig:
        return f"--kubeconfig={kubeconfig}"
    if environ.get("KUBECONFIG"):
        return f"KUBECONFIG={environ['KUBECONFIG']}"
    if environ.get("KUBERNETES_SERVICE_HOST") and token.exists():
        return f"in-cluster token {token}"
    home = Path(environ.get("HOME", "/nonexistent")) / ".kube" / "config"
    return str(home) if home.exists() else ""
