"""Pods that wait for a node that they have: nominated pods, and reserved pods before Permit."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View
from koord.util import goformat
from koord.util.clock import Clock
from koord_scheduler.framework.status import MAX_PERMIT_WAIT, SUCCESS, Status


class Nominator:
    """Nominated pods by node. A pod is nominated to one node at a time."""

    def __init__(self) -> None:
        self.others: Nominator | None = None
        """Pods that other schedulers have nominated; they go before ours of lower priority.

        None, unless the feature gate CrossSchedulerNomination is on.
        """
        self.suffices = False
        """Whether a node that a pod fits beside nominated pods need not fit without them.

        The feature gate SkipFilterWithNominatedPods; DefaultPreemption asks both all the same.
        """
        self._version = 0
        self._by_node: dict[str, dict[str, ClusterPod]] = {}  # by key of the pod
        self._nodes: dict[str, str] = {}  # by key of the pod

    def __len__(self) -> int:
        return len(self._nodes) + (0 if self.others is None else len(self.others))

    @property
    def version(self) -> int:
        """Another number after each change that matters to other pods."""
        return self._version + (0 if self.others is None else self.others.version)

    def nominate(self, pod: ClusterPod, node: str) -> None:
        """Nominate a pod to a node, and to no other any more."""
        self.forget(pod.key)
        self._nodes[pod.key] = node
        self._by_node.setdefault(node, {})[pod.key] = pod
        self._version += 1

    def update(self, pod: ClusterPod) -> None:
        """Take over a changed pod, if it is nominated; another one of its name is not."""
        node = self._nodes.get(pod.key)
        if node is None:
            return
        known = self._by_node[node][pod.key]
        if known.uid == pod.uid:
            self._by_node[node][pod.key] = pod
            if _weight(known) != _weight(pod):
                self._version += 1
        else:
            self.forget(pod.key)

    def forget(self, key: str) -> None:
        """End a nomination; of a pod, namespace/name, without one nothing changes."""
        node = self._nodes.pop(key, None)
        if node is not None:
            pods = self._by_node[node]
            del pods[key]
            if not pods:
                del self._by_node[node]
            self._version += 1

    def node_of(self, key: str) -> str | None:
        """The node that a pod is nominated to; None: none."""
        return self._nodes.get(key)

    def pods_of(self, node: str) -> tuple[ClusterPod, ...]:
        """The pods that are nominated to a node."""
        return tuple(self._by_node.get(node, {}).values())

    def nominated_pods(self, pod: ClusterPod) -> Mapping[str, Sequence[ClusterPod]]:
        """Return the other nominated pods that go first, by node: of equal or higher priority.

        Of the pods of other schedulers, only those of higher priority.
        """
        found = self.of_priority(pod.priority or 0)
        node = self._nodes.get(pod.key)
        if node in found:
            found[node] = [one for one in found[node] if one.key != pod.key]
            if not found[node]:
                del found[node]
        return found

    def of_priority(self, least: int) -> dict[str, list[ClusterPod]]:
        """Return nominated pods by node: of at least this priority; of other schedulers, above."""
        found = {} if self.others is None else self.others.of_priority(least + 1)
        for node, pods in self._by_node.items():
            first = [one for one in pods.values() if (one.priority or 0) >= least]
            if first:
                found[node] = [*first, *found.get(node, ())]
        return found

    def nominated_pods_on(self, pod: ClusterPod, node: str) -> Sequence[ClusterPod]:
        """Return nominated_pods of one node."""
        least = pod.priority or 0
        pods = self._by_node.get(node, {})
        found = [
            one for key, one in pods.items() if key != pod.key and (one.priority or 0) >= least
        ]
        if self.others is not None:
            pods = self.others._by_node.get(node, {})
            found += [one for one in pods.values() if (one.priority or 0) > least]
        return found


def _weight(pod: ClusterPod) -> tuple[object, ...]:
    """Return the facts of a pod that may matter to other pods."""
    return pod.label_set, pod.spec, pod.priority, pod.claims, pod.annotations


MAX_PRIORITIES = 8  # whose clusters are cached: 1 KB for each nominated pod


class NominatedPods:
    """Clusters in which nominated pods are on their nodes, those that go before a given pod."""

    def __init__(self, nominator: Nominator) -> None:
        self._nominator = nominator
        self._version = nominator.version
        self._by_priority: OrderedDict[int, HypotheticalCluster] = OrderedDict()

    def of(self, pod: ClusterPod, nodes: View) -> HypotheticalCluster | None:
        """Return the nodes with the nominated pods that go before a pod; None: there are none.

        It is right until the next call.
        """
        nominator = self._nominator
        if not len(nominator):
            return None
        if nominator.node_of(pod.key) is not None:  # it does not go before itself
            return _with_pods(nodes, nominator.nominated_pods(pod))
        if nominator.version != self._version:
            self._version = nominator.version
            for priority, cluster in self._by_priority.items():
                cluster.expect(nominator.of_priority(priority))
        priority = pod.priority or 0
        found = self._by_priority.get(priority)
        if found is None:
            found = self._by_priority[priority] = _with_pods(nodes, nominator.of_priority(priority))
            if len(self._by_priority) > MAX_PRIORITIES:
                self._by_priority.popitem(last=False)
        self._by_priority.move_to_end(priority)
        found.rebase(nodes)
        return found

    def on_node(self, pod: ClusterPod, node: str, nodes: View) -> HypotheticalCluster | None:
        """Return the same with the pods of one node only."""
        found = self._nominator.nominated_pods_on(pod, node)
        return _with_pods(nodes, {node: found}) if found else None


def _with_pods(nodes: View, pods: Mapping[str, Sequence[ClusterPod]]) -> HypotheticalCluster:
    found = HypotheticalCluster(nodes)
    found.expect(pods)
    return found


class WaitingPod:
    """A pod, and the plugins that have not allowed it yet. Each has its own time."""

    def __init__(self, pod: ClusterPod, waits: Mapping[str, float], clock: Clock) -> None:
        """waits: seconds by plugin, at most MOST_PERMIT_WAIT each."""
        self.pod = pod
        self._done: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._timers: dict[str, asyncio.Future[None]] = {}
        for plugin, wanted in waits.items():
            seconds = min(wanted, MAX_PERMIT_WAIT)
            timer = self._timers[plugin] = clock.timer(seconds)
            timer.add_done_callback(partial(self._expire, plugin, seconds))

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        """The plugins that have not allowed it."""
        return tuple(self._timers)

    def allow(self, plugin: str) -> None:
        """A plugin gives its permit; with the last one the pod goes on."""
        timer = self._timers.pop(plugin, None)
        if timer is None:
            return
        timer.cancel()
        if not self._timers:
            self._end(SUCCESS)

    def reject(self, plugin: str, message: str) -> bool:
        """Reject the pod in the name of a plugin; return whether it was in time."""
        return self._end(Status.unschedulable(message).of(plugin))

    async def wait(self) -> Status:
        """Return how it ended: Success, or a rejection that names its plugin."""
        return await asyncio.shield(self._done)

    def _expire(self, plugin: str, seconds: float, timer: "asyncio.Future[None]") -> None:
        if timer.cancelled():
            return
        waited = goformat.format_duration(seconds)
        self.reject(plugin, f"rejected due to timeout after waiting {waited} at plugin {plugin}")

    def _end(self, status: Status) -> bool:
        if self._done.done():
            return False
        self._done.set_result(status)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        return True


class WaitingPods:
    """All pods that wait, by uid."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: dict[str, WaitingPod] = {}

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(tuple(self._pods.values()))

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def add(self, pod: ClusterPod, waits: Mapping[str, float]) -> WaitingPod:
        """Make a pod wait for plugins, each so many seconds."""
        waiting = self._pods[pod.uid] = WaitingPod(pod, waits, self._clock)
        return waiting

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def reject(self, uid: str, message: str) -> bool:
        """Reject a pod, without a plugin's name; return whether it has waited."""
        waiting = self._pods.get(uid)
        return waiting is not None and waiting.reject("", message)
