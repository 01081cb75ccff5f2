"""Performance counters of cgroups: perf_event_open(2), all tasks of a group, CPU by CPU.

Source: man 2 perf_event_open; linux/perf_event.h.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from koordlet.host.errors import KernelFileError, Unsupported, Vanished

NEEDS = "hardware counters: in a virtual machine, a hypervisor that passes them on"
_REFUSED = (
    "run as root or with the capability CAP_PERFMON, and with a seccomp profile that lets it call "
    "perf_event_open"
)
_CALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_OF_GROUP, _CLOSE_ON_EXEC = 1 << 2, 1 << 3  # PERF_FLAG_PID_CGROUP, PERF_FLAG_FD_CLOEXEC
_ENABLED, _RUNNING, _GROUPED = 1 << 0, 1 << 1, 1 << 3  # PERF_FORMAT_*
_ATTRIBUTES = struct.Struct("IIQQQQQIIQ")  # perf_event_attr of the first version, 64 bytes
_ONE = struct.Struct("QQQ")  # value, time enabled, time running

_libc = ctypes.CDLL(None, use_errno=True)


class PerfEvent(NamedTuple):
    """A counted event: perf_event_attr.type and config."""

    type: int
    config: int


CYCLES, INSTRUCTIONS = PerfEvent(0, 0), PerfEvent(0, 1)  # PERF_TYPE_HARDWARE


class GroupCounters:
    """Counts events of a cgroup from its making until it is closed; holds a descriptor each.

    Any thread may use it, one at a time.
    """

    def __init__(
        self, directory: Path, cpus: Sequence[int], events: Sequence[PerfEvent], *, grouped: bool
    ) -> None:
        """Begin to count on these CPUs; one that went offline meanwhile is left out.

        directory is that of the group in the hierarchy of the controller perf_event. grouped:
        all events of a CPU are counted at the same time or not at all, so that their ratio is
        right when there are fewer counters than events.

        Raises:
            Unsupported: the machine does not count that.
            Vanished: the group has ended.
            KernelFileError: it may not be counted, or descriptors ran out.
        """
        self._path = os.fspath(directory)
        self._grouped = grouped
        self._events = len(events)
        self._descriptors: list[tuple[int, ...]] = []  # by CPU: of each event
        with ExitStack() as opened:
            opened.callback(self.close)
            group = self._open_directory()
            opened.callback(os.close, group)
            for cpu in cpus:
                self._open_cpu(group, cpu, events)
            if not self._descriptors:
                raise Unsupported.here(self._path, f"none of {len(cpus)} CPUs that counts", NEEDS)
            os.close(group)
            opened.pop_all()

    def read(self) -> list[float]:
        """Return the count of each event until now.

        What was counted for a part of the time only is extrapolated to all of it.

        Raises:
            KernelFileError: it cannot be read.
        """
        try:
            counts = [self._read_cpu(descriptors) for descriptors in self._descriptors]
        except OSError as err:
            raise KernelFileError.from_os_error(self._path, err) from err
        return [sum(counted) for counted in zip(*counts, strict=True)]

    def close(self) -> None:
        """End counting; it may be called twice."""
        for descriptors in self._descriptors:
            for descriptor in descriptors:
                os.close(descriptor)
        self._descriptors = []

    def _open_directory(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as err:
            wanted, hint = "a cgroup to count", "it has ended"
            raise Vanished(self._path, wanted=wanted, found="none", hint=hint) from err
        except OSError as err:
            raise KernelFileError.from_os_error(self._path, err) from err

    def _open_cpu(self, group: int, cpu: int, events: Sequence[PerfEvent]) -> None:
        opened: list[int] = []
        try:
            for event in events:
                leader = opened[0] if opened and self._grouped else -1
                opened.append(_open(event, group, cpu, leader, grouped=self._grouped))
        except OSError as err:
            for descriptor in opened:
                os.close(descriptor)
            if err.errno != errno.ENODEV:
                raise _perf_error(self._path, err) from err
        else:
            self._descriptors.append(tuple(opened))

    def _read_cpu(self, descriptors: Sequence[int]) -> list[float]:
        if self._grouped:
            data = os.read(descriptors[0], 8 * (3 + self._events))
            number, enabled, running, *values = struct.unpack(f"{len(data) // 8}Q", data)
            return [extrapolated(value, enabled, running) for value in values[:number]]
        return list(self._read_each(descriptors))

    @staticmethod
    def _read_each(descriptors: Sequence[int]) -> Iterator[float]:
        for descriptor in descriptors:
            yield extrapolated(*_ONE.unpack(os.read(descriptor, _ONE.size)))


def extrapolated(value: int, enabled: int, running: int) -> float:
    """Return what was counted in all of the time, given the part of it (ns) that was counted."""
    return value * (enabled / running) if enabled and running else float(value)


def _open(event: PerfEvent, group: int, cpu: int, leader: int, *, grouped: bool) -> int:
    """Return the descriptor of a counter. Raises OSError."""
    number = _CALL.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    read_format = _ENABLED | _RUNNING | (_GROUPED if grouped else 0)
    attributes = _ATTRIBUTES.pack(
        event.type, _ATTRIBUTES.size, event.config, 0, 0, read_format, 0, 0, 0, 0
    )
    descriptor = _libc.syscall(
        number,
        ctypes.create_string_buffer(attributes, len(attributes)),
        ctypes.c_long(group),
        ctypes.c_long(cpu),
        ctypes.c_long(leader),
        ctypes.c_long(_OF_GROUP | _CLOSE_ON_EXEC),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)


def _perf_error(path: str, err: OSError) -> KernelFileError:
    found = err.strerror or repr(err)
    if err.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENOSYS):
        return Unsupported.here(path, found, NEEDS)
    if err.errno == errno.EBADF:
        return Unsupported.here(path, "no group of the controller perf_event", "it mounted")
    if err.errno in (errno.EPERM, errno.EACCES):
        return KernelFileError(path, wanted="to count its cycles", found=found, hint=_REFUSED)
    return KernelFileError.from_os_error(path, err)
