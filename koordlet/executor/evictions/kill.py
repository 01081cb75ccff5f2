"""Kills all processes of a pod: the last resort behind the Eviction API."""

import errno
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from koord.util.clock import Clock
from koord.util.errors import KoordletError
from koordlet.executor.evictions.eviction import Killing
from koordlet.executor.kernel.worker import Worker
from koordlet.host.cgroups.cgroupfiles import parse_ids
from koordlet.host.cgroups.cgroupfs import CgroupFs

ATTEMPTS = 20
PAUSE = 0.1  # seconds between attempts: what is killed needs a moment to be gone
AT_ONCE = 128  # processes whose descriptors are held at a time


class KillRefused(KoordletError):
    """What was asked for is not killed."""


class PodKiller:
    """Kills the pods of one host.

    A process is signalled through a descriptor that was opened while it was, and that is used only
    if it still is, a member of the cgroup: a pid that was reused in between is never hit. On v2 the
    kernel kills the whole cgroup at once (cgroup.kill), which does not take CAP_KILL.
    """

    def __init__(self, cgroups: CgroupFs, worker: Worker, clock: Clock) -> None:
        self._root = cgroups.hierarchy("cpu", cgroups.version("cpu"))
        self._worker = worker
        self._clock = clock

    async def kill(self, group: str, uid: str) -> Killing:
        """Kill all processes in the cgroup of the pod with this uid, and see that it is empty.

        Goes on until none is left, as a process may start others meanwhile; at most two seconds.
        """
        killed: set[int] = set()
        problem = ""
        try:
            directory = self._root / checked_group(group, uid)
            for _ in range(ATTEMPTS):
                left, problem = await self._worker.do(lambda: _kill_members(directory))
                if not left:
                    return Killing(len(killed))
                killed |= left
                await self._clock.sleep(PAUSE)
        except KillRefused as err:
            return Killing(0, str(err))
        left = await self._worker.do(lambda: set(_members(directory)))
        if not left:
            return Killing(len(killed))
        gone = len(killed - left)
        return Killing(gone, problem or f"{len(left)} processes have not ended after SIGKILL")


def checked_group(group: str, uid: str) -> str:
    """Return the cgroup if its name is that of the pod.

    Raises:
        KillRefused: it is another one, above all one that holds more than this pod.
    """
    *above, name = group.split("/")
    if not uid or not above or {"", ".", ".."} & {*above, name}:
        raise KillRefused(f"wanted the cgroup of a pod, found {group!r}")
    if uid not in name and uid.replace("-", "_") not in name:
        raise KillRefused(f"wanted the cgroup of the pod {uid}, found {group!r}")
    return group


def _kill_members(directory: Path) -> tuple[set[int], str]:
    """Kill once; return who was there before, and what went wrong."""
    pids = set(_members(directory))
    if os.getpid() in pids:
        raise KillRefused("this is the pod of koordlet itself")
    if not pids or _kill_cgroup(directory):
        return pids, ""
    ordered = sorted(pids)
    some = (ordered[first : first + AT_ONCE] for first in range(0, len(ordered), AT_ONCE))
    problems = {problem for pids_at_once in some for problem in _kill(pids_at_once, directory)}
    return pids, "; ".join(sorted(problems))


def _kill_cgroup(directory: Path) -> bool:
    """Have the kernel kill everything in it; False: it cannot (v1, or older than 5.14)."""
    try:
        descriptor = os.open(directory / "cgroup.kill", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"1")
        finally:
            os.close(descriptor)
    except OSError as err:
        return err.errno == errno.ENODEV  # it is gone
    return True


def _kill(pids: Iterable[int], directory: Path) -> Iterator[str]:
    """Signal those that are members now and were when their descriptor was opened."""
    with ExitStack() as held:
        descriptors: dict[int, int] = {}
        for pid in pids:
            if pid == 0:
                yield "some processes are hidden from koordlet; run it in the host's pid namespace"
                continue
            try:
                descriptors[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
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
