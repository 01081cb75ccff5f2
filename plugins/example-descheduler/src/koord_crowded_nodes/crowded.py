"""Moves pods off nodes that have too many of them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from koord.plugin.args import FieldError, Int32, invalid, takes_args
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    EvictOptions,
    Handle,
    HypotheticalCluster,
    NodeDecision,
    PodDecision,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CrowdedNodesArgs:
    """The mark above which a node is crowded, and the limit of evictions in one cycle."""

    high_percent: float = 90.0  # of the pods that a node can hold
    most_pods: Int32 = 5  # that leave one node in one cycle

    def validate(self) -> Iterator[FieldError]:
        if not 0 < self.high_percent <= 100:
            yield invalid(("highPercent",), self.high_percent, "wanted 0 to 100 percent")
        if self.most_pods < 1:
            yield invalid(("mostPods",), self.most_pods, "wanted at least 1 pod")


@dataclass(frozen=True, slots=True)
class PodCount:
    """The pods of a node against what it can hold."""

    node: str
    pods: int
    most: int  # that it can hold
    high: int  # above which it is crowded

    @property
    def surplus(self) -> int:
        """How many pods are too many; not above 0: none."""
        return self.pods - self.high


def pod_count_of(node: ClusterNode, pods: int, high_percent: float) -> PodCount | None:
    """Count a node; None: it does not say what it can hold. Pure."""
    most = dict(node.allocatable).get("pods", 0)
    return PodCount(node.name, pods, most, int(most * high_percent / 100)) if most else None


def newest_first(pods: Sequence[ClusterPod]) -> list[ClusterPod]:
    """The order in which pods leave: what is newest has least to lose. Pure."""
    return sorted(pods, key=lambda pod: (-(pod.created or 0.0), pod.key))


def place(pod: ClusterPod, cluster: HypotheticalCluster, targets: Collection[str]) -> str | None:
    """Move a pod to the first target that it fits on; None: to none, and it stays. Pure."""
    mask, view = cluster.fits(pod), cluster.view()
    for name in targets:
        row = view.row(name)
        if row is not None and mask[row]:
            cluster.move(pod, row)
            return name
    return None


@takes_args(CrowdedNodesArgs)
class CrowdedNodes(BalancePlugin):
    """Evicts the newest pods of crowded nodes that fit on nodes with more free places."""

    def __init__(self, args: CrowdedNodesArgs, handle: Handle) -> None:
        self._args, self._handle = args, handle

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        services = self._handle.services
        counts = [count for node in nodes if (count := self._count(node)) is not None]
        services.decisions.publish(lambda: map(self._judged, counts))
        cluster = HypotheticalCluster(services.cluster.view())
        room = {count.node: -count.surplus for count in counts if count.surplus < 0}
        for count in counts:
            if count.surplus > 0:
                moved = await self._relieve(count, cluster, room)
                services.decisions.publish(lambda moved=moved: iter(moved))  # type: ignore[misc]

    def _count(self, node: ClusterNode) -> PodCount | None:
        pods = len(self._handle.list_pods_on_node(node.name))
        return pod_count_of(node, pods, self._args.high_percent)

    async def _relieve(
        self, count: PodCount, cluster: HypotheticalCluster, room: dict[str, int]
    ) -> list[PodDecision]:
        """Evict the surplus; room: how many pods each of the other nodes may get."""
        evictor, found = self._handle.evictor(), list[PodDecision]()
        wanted = min(count.surplus, self._args.most_pods)
        pods = self._handle.list_pods_on_node(count.node, evictor.filter)
        for pod in newest_first(pods):
            if wanted <= 0:
                break
            target = place(pod, cluster, sorted(room, key=lambda name: (-room[name], name)))
            if target is None:
                found.append(self._decided(pod, Action.STAY, "no node with room takes it"))
                continue
            options = EvictOptions(reason=f"{count.node} has {count.pods} of {count.most} pods")
            done = evictor.pre_eviction_filter(pod) and await evictor.evict(pod, options)
            if not done:
                cluster.add(cluster.remove(pod.key, target), count.node)
                found.append(self._decided(pod, Action.REFUSED, "it could not be evicted", target))
                continue
            wanted -= 1
            room[target] -= 1
            if room[target] == 0:
                del room[target]
            found.append(self._decided(pod, Action.EVICT, options.reason, target))
        return found

    def _judged(self, count: PodCount) -> NodeDecision:
        return NodeDecision(
            profile=self._handle.profile,
            plugin=self.name,
            node=count.node,
            verdict="crowded" if count.surplus > 0 else "roomy",
            reason=f"it has {count.pods} of {count.most} pods",
            facts={"pods": count.pods, "high_pods": count.high},
            hint=f"highPercent: {100 * count.pods / count.most:.0f}",
        )

    def _decided(
        self, pod: ClusterPod, action: Action, reason: str, *candidates: str
    ) -> PodDecision:
        return PodDecision(
            profile=self._handle.profile,
            plugin=self.name,
            pod=pod.key,
            node=pod.node,
            action=action,
            reason=reason,
            candidates=candidates,
        )
