"""Read and write kernel values as text, each in the very cgroup or process of its target."""

import errno
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from koordlet.executor.claims.claim import Key, levels_of_root
from koordlet.executor.journal import StepHook, ignore_step
from koordlet.host.errors import KernelFileError, NoSuchDevice, Unsupported
from koordlet.host.host import Host
from koordlet.host.object_writers import ObjectWriter, make_writer
from koordlet.host.processes import check_process
from koordlet.host.resctrl import last_status
from koordlet.host.resource import Level, ObjectKind, Root, Text
from koordlet.host.resources import CGROUP_PROCS, CPUSET_CPUS, RESCTRL_L3, RESCTRL_MB

# Neither made nor cut nor reached through a link; a pipe in its place must not hang.
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_RESCTRL = (RESCTRL_L3, RESCTRL_MB)
_NO_LIMIT = "-1"
_TEXT_BYTES = 64  # of a limit
_GROUPS = (Root.CGROUP, Root.RESCTRL)  # whose directories come and go


@dataclass(frozen=True, slots=True)
class FoundValue:
    """A value that was read: its text, and its identity.

    That is the inode of its cgroup (0: it is in none), or what its object writer calls its
    identity.
    """

    text: str
    inode: int


class _WritePlace(NamedTuple):
    text: Text[Any]
    directory: str
    name: str


class KernelValues:
    """Reads and writes the values of one host. For one thread, the one that reads this host."""

    def __init__(
        self,
        host: Host,
        step: StepHook = ignore_step,
        object_writers: Mapping[ObjectKind, ObjectWriter] | None = None,
    ) -> None:
        """object_writers: the writers of those kinds, in place of the default ones."""
        self._host = host
        self._object_writers = dict(object_writers or {})
        self._step = step
        self._raw: dict[Key, tuple[bytes, str]] = {}  # what was read last, and its text

    def reject_reason(self, key: Key, original: str) -> str:
        """Return why a value that a file says is ours must not be restored; "": it may be.

        Write access to the journal must not allow more than the table of values does.
        """
        target = key.target
        if not target.is_valid:
            return f"its place {target.place!r:.80} is not below the root, or not of its level"
        try:
            file = self._host.file(key.resource)
        except Unsupported:
            return ""  # there is nothing to write
        if target.level not in levels_of_root(file):
            return f"a {target.level.value} has no such value"
        if not file.may_restore(original):
            return f"its original {original!r:.60} is not such a value"
        return ""

    def is_copied(self, key: Key) -> bool:
        """Whether a new group here has the value of the one above; see File.copied."""
        try:
            return self._host.file(key.resource).copied
        except Unsupported:
            return False

    def text(self, key: Key) -> Text[Any]:
        """How a value is written here.

        Raises:
            Unsupported: this cgroup version has none, or it is read only.
        """
        file = self._host.file(key.resource)
        if file.text is None:
            path = self._host.path(key.resource, _group(key))
            raise Unsupported.here(path, "that it is read only", "another row of the table")
        return file.text

    def made(self, key: Key) -> str | None:
        """Return the text for which the kernel makes up another one; None: there is none."""
        try:
            return self.text(key).kernel_generated or None
        except Unsupported:
            return None

    def text_of(self, key: Key, value: Any) -> str:
        """Return the text of a value to be written.

        Raises:
            Unsupported: as text.
            KernelFileError: it is not a value of this kind.
        """
        text, allowed = self.text(key), self._host.file(key.resource).validate
        try:
            found = text.of(value)
        except ValueError as err:
            raise self._unusable(key, str(err)) from err
        if allowed is not None and not allowed(found):
            raise self._unusable(key, f"{found!r}, which is out of its range")
        return found

    def value_of(self, key: Key, text: str) -> Any:
        """Return the value of a text, None when it has none: the weight of an idle group."""
        try:
            return self.text(key).value(text)
        except (ValueError, Unsupported):
            return None

    def read(self, key: Key) -> FoundValue:
        """Return the value now in the kernel.

        Raises:
            Unsupported: there is no such file, or it is read only.
            Vanished: the cgroup or process has ended.
            KernelFileError: it cannot be read, or not understood.
        """
        raw = self._host.bind(key.resource, _group(key)).text()
        last = self._raw.get(key)
        if last is None or last[0] != raw:
            last = self._raw[key] = (raw, self._shown(key, raw))
        return FoundValue(last[1], self._inode(key))

    def write(self, key: Key, inode: int, text: str) -> str:
        """Set a value that was read, and return what the kernel has then, as it may round.

        Raises:
            Vanished: the cgroup or process has ended, also if there is another one of its name.
            NoSuchDevice: of a value by device; the lines of other devices are set.
            KernelFileError: the kernel refuses; nothing has changed.
        """
        if (object_writer := self._object_writer(key)) is not None:
            return self._write_object(object_writer, key, inode, text)
        place = self._place(key)
        path = f"{place.directory}/{place.name}"
        content = place.text.content(text, self._raw[key][0])
        self._step(f"before writing {path}")
        missing = ""
        try:
            for line in content.split("\n") if place.text.by_line else [content]:
                try:
                    self._write(place, key, inode, f"{line}\n".encode())
                except OSError as err:
                    if err.errno != errno.ENODEV or not self._lacks_device(place, inode):
                        raise
                    missing = line
        except OSError as err:
            if err.errno == errno.ENOSPC and not text:
                return self.write(key, inode, self._all_cpus(key))
            detail = last_status(self._host.paths) if key.resource in _RESCTRL else ""
            wanted = f"to write {content!r}"
            raise KernelFileError.from_write_error(path, err, wanted, detail) from err
        self._step(f"written {path}")
        if missing:
            raise NoSuchDevice(
                path,
                wanted=f"to write {missing!r}",
                found="no such device",
                hint="name one that is there; a whole block device, not a partition",
            )
        found = self.read(key).text
        self._step(f"read back {path}")
        return found

    def _write_object(self, object_writer: ObjectWriter, key: Key, identity: int, text: str) -> str:
        """Write a value that is not a file, through its object writer."""
        path, content = self._host.path(key.resource, _group(key)), self.text(key)
        wanted = content.content(text, self._raw[key][0])
        self._step(f"before writing {path}")
        try:
            object_writer.write(key, identity, wanted)
        except OSError as err:
            raise KernelFileError.from_write_error(path, err, f"to set {wanted!r:.200}") from err
        self._step(f"written {path}")
        found = self.read(key).text
        self._step(f"read back {path}")
        return found

    def _object_writer(self, key: Key) -> ObjectWriter | None:
        """Return the object writer of the value; None: it is a file."""
        root = self._host.file(key.resource).root
        if not isinstance(root, ObjectKind):
            return None
        object_writer = self._object_writers.get(root)
        if object_writer is None:
            object_writer = self._object_writers[root] = make_writer(root, self._host.paths)
        return object_writer

    def kill(self, group: str) -> bool:
        """Kill all processes of a cgroup and of those below it, at once.

        Return False where it cannot: cgroup v1, kernels older than 5.14.

        Raises:
            KernelFileError: cgroup.kill is not the kernel's; nothing was written.

        Source: kernel docs, admin-guide/cgroup-v2.
        """
        directory = self._host.path(CGROUP_PROCS, group).rpartition("/")[0]
        try:
            opened = os.open(directory, _DIRECTORY)
            try:
                self._write_file(opened, f"{directory}/cgroup.kill", Root.CGROUP, b"1\n")
            finally:
                os.close(opened)
        except OSError as err:
            return err.errno == errno.ENODEV  # the cgroup has ended
        return True

    def _all_cpus(self, key: Key) -> str:
        """Return the text to write in place of no CPUs, which means those of the group above.

        A group with processes that was given CPUs cannot ask for none again. All CPUs come to the
        same. Raises KernelFileError.
        """
        return self.text_of(key, self._host.read(CPUSET_CPUS))

    def _lacks_device(self, place: _WritePlace, inode: int) -> bool:
        """Whether ENODEV is about the device of a line, as the cgroup is there. Raises OSError."""
        return place.text.by_line and os.stat(place.directory).st_ino == inode

    def forget(self, key: Key) -> None:
        """This value is not looked at any more."""
        self._raw.pop(key, None)

    def forget_all_but(self, keys: Collection[Key]) -> None:
        """Only these values are looked at again and again."""
        self._raw = {key: raw for key, raw in self._raw.items() if key in keys}

    def _unusable(self, key: Key, found: str) -> KernelFileError:
        return KernelFileError(
            self._host.path(key.resource, _group(key)),
            wanted=f"{key.resource.name} ({key.resource.unit})",
            found=found,
            hint="it is not written; look at the plugin that claims it",
        )

    def _shown(self, key: Key, raw: bytes) -> str:
        try:
            return self.text(key).shown(raw)
        except ValueError as err:
            raise KernelFileError(
                self._host.path(key.resource, _group(key)),
                wanted=f"{key.resource.name} ({key.resource.unit})",
                found=f"unusable text: {err}",
                hint="it is left as it is, and tried again",
            ) from err

    def _inode(self, key: Key) -> int:
        """The identity of a value that is there; see Found. Raises Vanished."""
        if (object_writer := self._object_writer(key)) is not None:
            path = self._host.path(key.resource, _group(key))
            try:
                return object_writer.identity(key)
            except OSError as err:
                raise KernelFileError.from_write_error(path, err, "to look at it") from err
        place = self._place(key)
        try:
            if key.target.level is Level.PROCESS:
                os.close(self._open(place, key, 0))
            if self._host.file(key.resource).root not in _GROUPS:
                return 0
            return os.stat(place.directory).st_ino
        except OSError as err:
            raise KernelFileError.from_write_error(place.directory, err, "to look at it") from err

    def _write(self, place: _WritePlace, key: Key, inode: int, content: bytes) -> None:
        file, path = self._host.file(key.resource), f"{place.directory}/{place.name}"
        if isinstance(file.root, ObjectKind):  # the caller asks for its writer first
            raise TypeError(f"{key.resource.name} is no file")
        directory = self._open(place, key, inode)
        try:
            if file.follower and self._follows(key, directory, file.follower):
                follower = f"{place.directory}/{file.follower}"
                self._write_both(directory, path, follower, content, self._raw[key][0])
            else:
                self._write_file(directory, path, file.root, content)
        finally:
            os.close(directory)

    def _follows(self, key: Key, directory: int, follower: str) -> bool:
        """Whether a runtime has set the other file to the limit that was read last.

        It does so with each limit that it sets itself, for its own reasons or for ours by NRI.
        """
        raw, shown = self._raw[key]
        if shown == _NO_LIMIT:
            return False
        try:
            opened = os.open(follower, _READ, dir_fd=directory)
        except OSError:
            return False
        try:
            return os.read(opened, _TEXT_BYTES).strip() == raw.strip()
        except OSError:
            return False
        finally:
            os.close(opened)

    def _write_both(
        self, directory: int, path: str, follower: str, content: bytes, before: bytes
    ) -> None:
        """Set a limit and what follows it, the higher one first. Raises as _write_file."""
        try:
            self._write_file(directory, path, Root.CGROUP, content)
        except OSError as err:
            if err.errno != errno.EINVAL:
                raise
            self._write_file(directory, follower, Root.CGROUP, content)
            try:
                self._write_file(directory, path, Root.CGROUP, content)
            except OSError:
                self._write_file(directory, follower, Root.CGROUP, before)
                raise
        else:
            with suppress(OSError):  # more is in use: it stays as it is
                self._write_file(directory, follower, Root.CGROUP, content)

    def _write_file(self, directory: int, path: str, root: Root, content: bytes) -> None:
        """Write a file of an open directory in one write. Raises OSError, KernelFileError."""
        fd = os.open(path.rpartition("/")[2], _WRITE, dir_fd=directory)
        try:
            self._host.paths.check(fd, root, path)
            if self._host.paths.laid_out:
                os.ftruncate(fd, 0)  # which a kernel file does not need
            os.write(fd, content)
        finally:
            os.close(fd)

    def _open(self, place: _WritePlace, key: Key, inode: int) -> int:
        """Open the directory of the target's group or process. Raises OSError."""
        directory = os.open(place.directory, _DIRECTORY)
        try:
            if inode and os.fstat(directory).st_ino != inode:
                raise FileNotFoundError(errno.ENOENT, "another cgroup of the same name")
            if key.target.level is Level.PROCESS:
                check_process(directory, key.target)
        except OSError:
            os.close(directory)
            raise
        return directory

    def _place(self, key: Key) -> _WritePlace:
        path = self._host.path(key.resource, _group(key))
        directory, _, name = path.rpartition("/")
        return _WritePlace(self.text(key), directory, name)


def _group(key: Key) -> str:
    """The group argument of a value's path. Raises KernelFileError: it is not below the root."""
    if not key.target.is_valid:
        raise KernelFileError(
            key.target.place,
            wanted="a place below the root of its file system",
            found=repr(key.target.place[:80]),
            hint="it is neither read nor written",
        )
    return "" if key.target.level is Level.NODE else key.target.place
