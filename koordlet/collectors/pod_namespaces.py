"""The network interfaces of pods, each read in the pod's own network namespace."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from koordlet.collectors.engine.base import Tick
from koordlet.host.net.netfiles import InterfaceCounters
from koordlet.host.net.network import process_interfaces
from koordlet.host.proc.namespaces import INIT, network_namespace
from koordlet.host.resources import CGROUP_PROCS
from koordlet.statesinformer.model import PodMeta

LOOK_AGAIN = 10  # rounds until a pod without a namespace of its own is looked at again


class Interfaces(NamedTuple):
    """The network namespace of a process, as it sees it."""

    pid: int
    inode: int  # unique among namespaces while they live; a new one may get that of an ended one
    counters: Mapping[str, InterfaceCounters]
    at: float  # monotonic seconds of the reading


class PodNamespaces:
    """Remembers a process per pod, and looks for another one when it has ended.

    Any process in the pod's cgroups will do: all containers of a pod share its sandbox's network
    namespace. A pod in the node's own namespace has none: the traffic there is not the pod's.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[str, tuple[int, int]] = {}  # process and namespace by pod UID
        self._look_again: dict[str, int] = {}  # round before which there is nothing to find
        self._round = 0

    def read(self, tick: Tick) -> Iterator[tuple[PodMeta, Interfaces]]:
        """Yield the pods with interfaces of their own.

        None when the node's namespace cannot be distinguished from theirs.
        """
        self._round += 1
        node = tick.call("node network namespace", lambda: network_namespace(self._proc, INIT))
        if node is None:
            return
        uids = {pod.uid for pod in tick.pods}
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}
        self._look_again = {uid: when for uid, when in self._look_again.items() if uid in uids}
        for pod in tick.pods:
            found = self._interfaces(tick, pod, node[0])
            if found is not None:
                yield pod, found

    def _interfaces(self, tick: Tick, pod: PodMeta, node: int) -> Interfaces | None:
        uid = pod.uid
        known = self._known.get(uid)
        if known is not None:
            found = self._see(tick, known[0])
            if found is not None and found.inode == known[1]:
                return found
            del self._known[uid]
        if pod.pod.host_network or self._look_again.get(uid, 0) > self._round:
            return None
        found = self._search(tick, pod)
        if found is None or found.inode == node:
            self._look_again[uid] = self._round + LOOK_AGAIN
            return None
        self._known[uid] = found.pid, found.inode
        return found

    def _search(self, tick: Tick, pod: PodMeta) -> Interfaces | None:
        for group in (pod.cgroup, *(container.cgroup for container in pod.containers)):
            for pid in tick.get(CGROUP_PROCS, group) or ():
                found = self._see(tick, pid)
                if found is not None:
                    return found
        return None

    def _see(self, tick: Tick, pid: int) -> Interfaces | None:
        answer = tick.call(f"network of {pid}", lambda: process_interfaces(self._proc, pid))
        if answer is None:
            return None
        (inode, counters), at = answer
        return Interfaces(pid, inode, counters, at)
