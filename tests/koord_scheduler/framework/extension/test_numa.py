"""NUMA admission by the hints of several plugins."""

import pytest

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.extension.numa import (
    Hints,
    NUMANodeUse,
    NUMATopologyHint,
    NUMATopologyHintProvider,
    NUMATopologyPolicy,
    TopologyManager,
)
from koord_scheduler.framework.interfaces import FilterPlugin
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.status import Code, CycleState, Status
from koord_scheduler.framework.types import NodeInfo
from tests.support.scheduler.framework import Kit, make_pod, make_view

BEST, _, SINGLE = NUMATopologyPolicy
NODE = NodeInfo(make_view(a="8"), 0)


def hint(*nodes: int, preferred: bool = True, score: int = 0) -> NUMATopologyHint:
    return NUMATopologyHint(frozenset(nodes), preferred, score)


class Has(NUMATopologyHintProvider, FilterPlugin):
    """Has a resource on some NUMA nodes; as a third party's plugin would."""

    def __init__(self, log: list[str], answer: Hints | Status | None = None) -> None:
        self.log = log
        self.answer = answer
        self.refuses: Status | None = None

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None

    def pod_topology_hints(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Hints | Status | None:
        self.log.append(f"{self.name} hints")
        return self.answer

    def allocate(
        self, state: CycleState, affinity: NUMATopologyHint, pod: ClusterPod, node: NodeInfo
    ) -> Status | None:
        self.log.append(f"{self.name} {sorted(affinity.nodes or ())}")
        return self.refuses


async def manager(*plugins: Has) -> TopologyManager:
    names = ("Cpus", "Gpus")
    kit = Kit()
    profile = await kit.profile(filter=dict(zip(names, plugins, strict=False)))
    with pytest.raises(LookupError):
        profile.handle.numa()
    NodeSearch(profile, kit.services.nominator)
    found = profile.handle.numa()
    assert profile.handle.numa() is found
    return found


async def test_providers_are_asked_in_the_order_of_the_profile_and_once_for_hints() -> None:
    log: list[str] = []
    cpus, gpus = Has(log, {"cpu": [hint(0), hint(1)]}), Has(log, {"gpu": [hint(1)]})
    numa, state = await manager(cpus, gpus), CycleState()
    assert numa.admit(state, make_pod(), NODE, (0, 1), SINGLE).ok
    assert numa.affinity(state, "a") == hint(1)
    assert log == ["Cpus hints", "Gpus hints", "Cpus [1]", "Gpus [1]"]
    log.clear()
    assert numa.admit(state, make_pod(), NODE, (0, 1), SINGLE).ok
    assert log == ["Cpus [1]", "Gpus [1]"]  # in Reserve it is what Filter has found
    log.clear()
    assert numa.admit(state.clone(), make_pod(), NODE, (0, 1), SINGLE).ok
    assert log[0] == "Cpus hints"  # a what-if has other pods on the node


async def test_who_rejects_is_heard_and_failures_end_the_cycle() -> None:
    log: list[str] = []
    cpus, gpus = Has(log, Status.unschedulable("no cores")), Has(log, {"gpu": [hint(1)]})
    numa, state = await manager(cpus, gpus), CycleState()
    found = numa.admit(state, make_pod(), NODE, (0, 1), BEST)
    assert (found.code, found.reasons) == (Code.UNSCHEDULABLE, ("no cores",))
    cpus.answer = {"cpu": [hint(0)]}
    found = numa.admit(state, make_pod(), NODE, (0, 1), SINGLE)
    reason = "Unaligned NUMA Hint cause cpu prefer [01] among [01],gpu prefer [10] among [10]"
    assert found.reasons == (reason,)
    cpus.answer, gpus.refuses = None, Status.unschedulable("Unsatisfied NUMA gpu")
    found = numa.admit(state, make_pod(), NODE, (0, 1), SINGLE)
    assert (found.plugin, found.reasons) == ("Gpus", ("Unsatisfied NUMA gpu",))
    assert numa.affinity(state, "a") is None
    cpus.answer = 7  # type: ignore[assignment]
    assert numa.admit(state, make_pod(), NODE, (0, 1), SINGLE).code is Code.ERROR


async def test_numa_nodes_of_its_own_are_not_those_that_another_pod_has_with_others() -> None:
    numa = await manager(Has([], {"cpu": [hint(0), hint(1)]}), Has([]))
    state, uses = CycleState(), {0: NUMANodeUse.SHARED}
    found = numa.admit(state, make_pod(), NODE, (0, 1), SINGLE, exclusive=True, uses=uses)
    assert found.ok
    assert numa.affinity(state, "a") == hint(1)
