"""Kills all processes of a pod: the last resort behind the Eviction API."""

import errno
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from koord.util.clock import Clock
from koord.util.errors import KoordError
from koordlet.executor.evictions.eviction import KillResult
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.kernel.view import Worker
from koordlet.host.cgroups.cgroupfiles import parse_ids
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.resources import CGROUP_PROCS

KILL_ATTEMPTS = 20  # a process that forks while it is killed leaves children for the next one
KILL_RETRY_PAUSE = 0.1  # seconds between attempts: what is killed needs a moment to be gone
PIDS_PER_BATCH = 128  # processes whose descriptors are held at a time


class KillRefused(KoordError):
    """The target is not killed."""


class PodKiller:
    """Kills the pods of one host.

    A process is signalled through a descriptor that was opened while it was, and that is used only
    if it still is, a member of the cgroup: a pid that was reused in between is never hit. On v2 the
    kernel kills the whole cgroup at once (cgroup.kill), which does not take CAP_KILL.
    """

    def __init__(self, host: Host, worker: Worker, clock: Clock) -> None:
        self._host = host
        self._values = KernelValues(host)
        self._worker = worker
        self._clock = clock

    async def kill(self, group: str, uid: str) -> KillResult:
        """Kill all processes in the cgroup of the pod with this uid, and see that it is empty.

        Goes on until none is left, as a process may start others meanwhile; at most two seconds.
        """
        killed: set[int] = set()
        problem = ""
        try:
            check_group(group, uid)
            directory = Path(self._host.path(CGROUP_PROCS, group)).parent
            for _ in range(KILL_ATTEMPTS):
                left, problem = await self._worker.do(lambda: self._kill_members(group, directory))
                if not left:
                    return KillResult(len(killed))
                killed |= left
                await self._clock.sleep(KILL_RETRY_PAUSE)
        except KillRefused as err:
            return KillResult(0, str(err))
        left = await self._worker.do(lambda: set(_members(directory)))
        if not left:
            return KillResult(len(killed))
        gone = len(killed - left)
        return KillResult(gone, problem or f"{len(left)} processes have not ended after SIGKILL")

    def _kill_members(self, group: str, directory: Path) -> tuple[set[int], str]:
        """Kill once; return the processes found before, and what went wrong."""
        pids = set(_members(directory))
        if os.getpid() in pids:
            raise KillRefused("this is the pod of koordlet itself")
        if not pids or self._kill_cgroup(group):
            return pids, ""
        ordered = sorted(pids)
        some = (
            ordered[first : first + PIDS_PER_BATCH]
            for first in range(0, len(ordered), PIDS_PER_BATCH)
        )
        problems = {problem for pids_at_once in some for problem in _kill(pids_at_once, directory)}
        return pids, "; ".join(sorted(problems))

    def _kill_cgroup(self, group: str) -> bool:
        try:
            return self._values.kill(group)
        except KernelFileError as err:
            raise KillRefused(str(err)) from err


def check_group(group: str, uid: str) -> None:
    """See that the name of a cgroup is that of the pod.

    Raises:
        KillRefused: it is another one, above all one that holds more than this pod.
    """
    *above, name = group.split("/")
    if not uid or not above or {"", ".", ".."} & {*above, name}:
        raise KillRefused(f"wanted the cgroup of a pod, found {group!r}")
    if uid not in name and uid.replace("-", "_") not in name:
        raise KillRefused(f"wanted the cgroup of the pod {uid}, found {group!r}")


def _kill(pids: Iterable[int], directory: Path) -> Iterator[str]:
    """Signal those that are members now and were when their descriptor was opened."""
    with ExitStack() as held:
        # A number may name another process by the time of the signal: a descriptor cannot, so all
        # are opened first, and only those that are still members get the signal.
        descriptors: dict[int, int] = {}
        for pid in pids:
            if pid == 0:
                yield "some processes are hidden from koordlet; run it in the host's pid namespace"
                continue
            try:
                descriptors[pid] = os.pidfd_open(pid)
            except ProcessLookupError:  # it has ended by itself
                continue
            except OSError as err:
                yield _problem(err)
                continue
            held.callback(os.close, descriptors[pid])
        for pid in set(_members(directory)) & descriptors.keys():
            try:
                signal.pidfd_send_signal(descriptors[pid], signal.SIGKILL)
            except ProcessLookupError:
                continue
            except OSError as err:
                yield _problem(err)


def _problem(err: OSError) -> str:
    hint = "; add the capability KILL" if isinstance(err, PermissionError) else ""
    return f"SIGKILL: {err.strerror}{hint}"


def _members(directory: Path) -> Iterator[int]:
    """The processes in a cgroup and all below it; none when it is gone.

    Raises:
        KillRefused: the list cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            below = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from parse_ids((directory / "cgroup.procs").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as err:
        if isinstance(err, OSError) and err.errno == errno.ENODEV:
            return
        raise KillRefused(f"{directory}/cgroup.procs: wanted process ids, found {err}") from err
    for child in below:
        yield from _members(child)
