"""Files written whole, in directories that only root and this process's user can change."""

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from koord.util.errors import KoordError, UnsafeFile
from koord.util.filewatch import FileReadError

_HINTS = {
    errno.ENOSPC: "free some space on that file system",
    errno.EDQUOT: "raise the quota or free some space",
    errno.EROFS: "mount it writable, or choose another path",
    errno.EACCES: "give this user the right to write to the directory, or choose another path",
    errno.EPERM: "give this user the right to write to the directory, or choose another path",
    errno.ENOENT: "create the directory, or choose another path",
    errno.ENOTDIR: "choose a path in a directory",
    errno.EISDIR: "choose the path of a file, not of a directory",
}


class FileWriteError(KoordError):
    """A file could not be written; the one that was there before is untouched."""

    def __init__(self, path: Path, error: OSError) -> None:
        if isinstance(error, UnsafeFile):
            super().__init__(str(error))
        else:
            hint = _HINTS.get(error.errno or 0, "check the directory")
            super().__init__(f"{path}: cannot be written: {error.strerror or error}; {hint}")
        self.path = path
        self.errno = error.errno


def write_atomic(path: Path, data: bytes, mode: int = 0o640) -> None:
    """Replace the file in one step and make it durable. Blocks: not for the event loop.

    Raises:
        FileWriteError: it did not work; no temporary file is left behind.
    """
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            replace_in(directory, path.name, data, mode)
        finally:
            os.close(directory)
    except OSError as err:
        raise FileWriteError(path, err) from err


def replace_in(directory: int, name: str, data: bytes, mode: int) -> None:
    """Replace a file atomically in an open directory; see write_atomic.

    Raises:
        OSError: the file could not be written.
    """
    # One writer per path is assumed (the run directory is locked), so a fixed name does, and what a
    # crash leaves behind is replaced by the next attempt instead of piling up.
    temporary = temporary_of(name)
    try:
        _write_durably(directory, temporary, data, mode)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)


def temporary_of(name: str) -> str:
    """The name under which a file is written; only after a crash there is such a file."""
    return f".{name}.tmp"


def _write_durably(directory: int, name: str, data: bytes, mode: int) -> None:
    # A file planted under the temporary name must be neither followed nor reused.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(name, flags, mode, dir_fd=directory)
    try:
        os.fchmod(fd, mode)  # whatever the umask and an older file say
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


DIRECTORY_MODE = 0o750
FILE_MODE = 0o640

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40  # in one path, as the kernel allows
_REMOVE = "find the process or user that made it, remove it, or choose another directory"
_MODE = "take the write permission of group and others away (chmod go-w), or choose another one"


class OwnedDirectory:
    """An open directory that only root and this process's user can write to.

    Use open; `directory / name` is a path in it. Any thread may use it until close.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def open(
        cls, path: Path, *, create: bool = True, shared_parents: bool = False
    ) -> "OwnedDirectory":
        """Open a directory, after it and all above it were found to be safe.

        create makes what is missing, with mode 0750. Above it, directories that others may write to
        must be sticky (/tmp), and links are followed only if root or this user made them.
        shared_parents accepts directories above that a group may write to, as /var/log is.

        Raises:
            UnsafeFile: another user could change it, or what it leads to.
            OSError: it is not there, or cannot be made or read.
        """
        return cls(path, _walk(Path(os.path.abspath(path)), create, shared_parents))

    def __truediv__(self, name: str) -> "OwnedPath":
        return OwnedPath(self, name)

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        """Return the sorted names of what is in it. Raises OSError."""
        return sorted(os.listdir(self.descriptor))

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class OwnedPath:
    """A name in such a directory, whether or not there is a file of that name."""

    directory: OwnedDirectory
    name: str

    @property
    def path(self) -> Path:
        """The path for messages; opening a file by this path would skip the checks."""
        return self.directory.path / self.name

    def __str__(self) -> str:
        return str(self.path)

    def sibling(self, name: str) -> "OwnedPath":
        """Return another name in the same directory."""
        return OwnedPath(self.directory, name)

    def open(self, flags: int, mode: int = FILE_MODE) -> int:
        """Return a descriptor of the regular file; the caller closes it.

        O_TRUNC takes effect after the checks.

        Raises:
            UnsafeFile: it is a link, has several names, or is or may be written by another user.
            OSError: it cannot be opened.
        """
        safe = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.name, safe, mode, dir_fd=self.directory.descriptor)
        except OSError as err:
            if err.errno == errno.ELOOP:
                raise UnsafeFile(self.path, "a link, which is not followed", _REMOVE) from err
            raise
        try:
            _check_file(self.path, os.fstat(descriptor))
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def exists(self) -> bool:
        """Return whether there is something of that name, of whatever kind."""
        try:
            self.stat()
        except OSError:
            return False
        return True

    def stat(self) -> os.stat_result:
        """Return what is known of the name itself: links are not followed. Raises OSError."""
        return os.stat(self.name, dir_fd=self.directory.descriptor, follow_symlinks=False)

    @property
    def address(self) -> str:
        """The address of a Unix socket of that name: a path, but through the descriptor."""
        return f"/proc/self/fd/{self.directory.descriptor}/{self.name}"

    def read(self, max_bytes: int) -> bytes | None:
        """Return the file's content; None: there is no such file.

        Raises:
            UnsafeFile: as open.
            FileReadError: it cannot be read, or is larger than max_bytes.
        """
        try:
            descriptor = self.open(os.O_RDONLY)
        except FileNotFoundError:
            return None
        except UnsafeFile:
            raise
        except OSError as err:
            raise FileReadError(self.path, err.strerror or str(err)) from err
        try:
            with open(descriptor, "rb") as file:
                data = file.read(max_bytes + 1)
        except OSError as err:
            raise FileReadError(self.path, err.strerror or str(err)) from err
        if len(data) > max_bytes:
            raise FileReadError(self.path, f"larger than {max_bytes} bytes")
        return data

    def write(self, data: bytes, mode: int = FILE_MODE) -> None:
        """Replace the file in one step and make it durable. Blocks: not for the event loop.

        What stood under the name before is neither opened nor followed.

        Raises:
            FileWriteError: it did not work; no temporary file is left behind.
        """
        try:
            replace_in(self.directory.descriptor, self.name, data, mode)
        except OSError as err:
            raise FileWriteError(self.path, err) from err

    def rename(self, name: str) -> None:
        """Give the file another name in its directory, in place of what has it. Raises OSError."""
        directory = self.directory.descriptor
        os.replace(self.name, name, src_dir_fd=directory, dst_dir_fd=directory)

    def unlink(self) -> None:
        """Remove the name if it is there. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.directory.descriptor)

    def make_directory(self) -> OwnedDirectory:
        """Open the directory of that name; make it, with mode 0750, if there is none.

        Raises:
            UnsafeFile: a link, or another user's, or others may write to it.
            OSError: it cannot be made or read.
        """
        above = self.directory.descriptor
        descriptor = _open_or_make(above, self.name, self.path, create=True)
        try:
            _check_directory(self.path, os.fstat(descriptor))
            return OwnedDirectory(self.path, _readable(descriptor))
        finally:
            os.close(descriptor)


def _walk(path: Path, create: bool, shared_parents: bool) -> int:
    """Return a descriptor of a directory, each step to it safe. Raises OSError."""
    here = os.open("/", _STEP)
    seen, links, steps = Path("/"), 0, list(reversed(path.parts[1:]))
    try:
        while True:
            found = os.fstat(here)
            if not steps:
                _check_directory(seen, found)
                return _readable(here)
            _check_above(seen, found, shared_parents)
            name = steps.pop()
            if target := _link(here, name, seen / name, last=not steps):
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                steps += reversed(Path(target).parts)
                continue
            below = _open_or_make(here, name, seen / name, create=create)
            os.close(here)
            here = below
            seen = Path("/") if name == "/" else Path(os.path.normpath(seen / name))
    finally:
        os.close(here)


def _link(above: int, name: str, path: Path, *, last: bool) -> str:
    """Return where a link leads that may be followed; "": it is none. Raises UnsafeFile."""
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    except OSError:
        return ""
    if not stat.S_ISLNK(found.st_mode):
        return ""
    if last:
        raise UnsafeFile(path, "a link, which is not followed", _REMOVE)
    _check_owner(path, found)
    return os.readlink(name, dir_fd=above)


def _open_or_make(above: int, name: str, path: Path, *, create: bool) -> int:
    try:
        return os.open(name, _STEP, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
    except NotADirectoryError as err:
        raise UnsafeFile(path, "a link or file in place of a directory", _REMOVE) from err
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, DIRECTORY_MODE, dir_fd=above)
    return os.open(name, _STEP, dir_fd=above)


def _readable(directory: int) -> int:
    """Return a second descriptor, with which a directory can be listed and synced."""
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)


def _check_above(path: Path, found: os.stat_result, shared: bool) -> None:
    _check_owner(path, found)
    others = stat.S_IWOTH if shared else _OTHERS_WRITE
    if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
        raise UnsafeFile(path, _writable(found), _MODE)


def _check_directory(path: Path, found: os.stat_result) -> None:
    _check_owner(path, found)
    if found.st_mode & _OTHERS_WRITE:
        raise UnsafeFile(path, _writable(found), _MODE)


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(path, "something else than a regular file", _REMOVE)
    _check_owner(path, found)
    if found.st_nlink > 1:
        raise UnsafeFile(path, f"a file with {found.st_nlink} names (hard links)", _REMOVE)
    if found.st_mode & _OTHERS_WRITE:
        raise UnsafeFile(path, _writable(found), _REMOVE)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise UnsafeFile(path, f"user {found.st_uid} as its owner", _REMOVE)


def _writable(found: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(found.st_mode):04o}, which lets other users write there"
