"""The two files by which the agent terway-qos learns rates and pods: read, written whole, removed.

Source: Koordinator, runtimehooks terwayqos.
"""

import errno
import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from koord.util.errors import UnsafeFile
from koord.util.ownedfiles import replace_in, temporary_of
from koordlet.host.errors import KernelFileError, TooLarge, Unsupported
from koordlet.host.paths import HostPaths, check_mount_source
from koordlet.host.resource import ABSENT, ObjectKey, Text, optional_text

TERWAY_DIRECTORY = "/var/lib/terway/qos"  # on the node
MAX_BYTES = 1 << 20  # bytes
TERWAY_NEEDS = (
    f"the directory {TERWAY_DIRECTORY} of the node, and the agent terway-qos, which reads it"
)

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RATES = re.compile(r"([a-z][a-z0-9_]{0,63} [0-9]{1,20}(\n|\Z)){0,64}", re.ASCII)


def parse_terway_file(data: bytes) -> str:
    """Return what a reader has found as text. Raises ValueError: it is neither of the two forms."""
    return _text(data.decode("utf-8").removesuffix("\n"))


def is_terway_content(text: str) -> bool:
    """Accept lines of rates, or an object of pods."""
    if len(text) > MAX_BYTES:
        return False
    if _RATES.fullmatch(text):
        return True
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def may_have_been_found(text: str) -> bool:
    """Whether it may have been there before, and be restored."""
    return text == ABSENT or is_terway_content(text)


def _text(text: str) -> str:
    if not isinstance(text, str) or not may_have_been_found(text):
        raise ValueError(f"wanted rates or pods of terway-qos, found {text!r:.60}")
    return text


CONTENT_TEXT: Text[str] = optional_text(Text(_text, parse_terway_file, _text))


class TerwayFileReader:
    """An ObjectReader; see koordlet.host.objects."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths

    def path(self, name: str) -> str:
        """The path of one of the files, as this process sees it."""
        return f"{directory_of(self._paths)}/{name}".removesuffix("/")

    def read(self, name: str) -> bytes:
        """Return the content of a file as a line; raises as ObjectReader.read does."""
        directory = open_directory(self._paths)
        try:
            return _read(directory, name, self.path(name)) + b"\n"
        except FileNotFoundError:
            return f"{ABSENT}\n".encode()
        except OSError as err:
            raise KernelFileError.from_os_error(self.path(name), err) from err
        finally:
            os.close(directory)


def directory_of(paths: HostPaths) -> Path:
    """The directory, as this process sees it."""
    return paths.root / TERWAY_DIRECTORY[1:]


def open_directory(paths: HostPaths) -> int:
    """Open the directory, in which nobody but root, or this process's user, may write.

    Raises:
        Unsupported: there is none.
        KernelFileError: another user can replace what is in it.
    """
    path = directory_of(paths)
    try:
        check_mount_source(paths.root, TERWAY_DIRECTORY)
        opened = _open_own(path)
    except FileNotFoundError as err:
        raise Unsupported.here(str(path), "no such directory", TERWAY_NEEDS) from err
    except UnsafeFile as err:
        raise KernelFileError(
            path,
            wanted="a directory that only root can change",
            found=str(err),
            hint="nothing is written there",
        ) from err
    except OSError as err:
        raise KernelFileError.from_os_error(str(path), err) from err
    return opened


def _open_own(path: Path) -> int:
    """Open a directory that others may not write. Raises OSError."""
    opened = os.open(path, _DIRECTORY_FLAGS)
    if os.fstat(opened).st_mode & _OTHERS_WRITE:
        os.close(opened)
        raise UnsafeFile(path, "that others may write it", "chmod go-w")
    return opened


def _read(directory: int, name: str, path: str) -> bytes:
    """Return a whole file of an open directory. Raises OSError, TooLarge."""
    fd = os.open(name, _FILE_FLAGS, dir_fd=directory)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UnsafeFile(Path(path), "no plain file", "remove it")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise TooLarge(
            path, wanted="a small text file", found=f"more than {MAX_BYTES} bytes", hint="remove it"
        )
    return data


_MODE = 0o644  # as Koordinator: its reader may be another user


class TerwayFileWriter:
    """The ObjectWriter of terway-qos's files; see koordlet.host.object_writers."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths

    def identity(self, key: ObjectKey) -> int:
        """Return the inode of the directory, as the file comes and goes. Raises OSError."""
        return os.stat(directory_of(self._paths), follow_symlinks=False).st_ino

    def write(self, key: ObjectKey, identity: int, content: str) -> None:
        """Replace the whole file, or remove it; raises as ObjectWriter.write does."""
        name = key.target.place
        directory = open_directory(self._paths)
        try:
            if os.fstat(directory).st_ino != identity:
                raise FileNotFoundError(errno.ENOENT, "the directory was made anew")
            if content == ABSENT:
                for each in (temporary_of(name), name):  # a crash may have left the first
                    with suppress(FileNotFoundError):
                        os.unlink(each, dir_fd=directory)
            else:
                replace_in(directory, name, content.encode(), _MODE)
        finally:
            os.close(directory)
