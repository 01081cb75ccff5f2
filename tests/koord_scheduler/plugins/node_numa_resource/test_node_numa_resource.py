"""NodeNUMAResource, from PreFilter to the annotation of the pod."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.annotations import RESOURCE_SPEC, RESOURCE_STATUS
from koord.api.machine import format_cpulist, parse_cpulist
from koord.api.nodetopology import NUMA_TOPOLOGY_SPEC, BindPolicy
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import POD
from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterPod,
    Code,
    CycleState,
    EventResource,
    NodeInfo,
    Status,
)
from koord_scheduler.plugin.koordinator import PluginRequest
from koord_scheduler.plugin.testing import (
    FakeCluster,
    PluginHarness,
    assert_forms_agree,
    fake_cluster,
    make_node,
    make_pod,
)
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.default_preemption import DefaultPreemption
from koord_scheduler_plugins.node_numa_resource.allocation import Need
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from koord_scheduler_plugins.node_numa_resource.pods import (
    completed_spec,
    demand_of,
)
from koord_scheduler_plugins.node_numa_resource.topology import AMPLIFICATION
from tests.support.scheduler.numa import held, topology_object

PREFIX = "node.koordinator.sh"
KUBELET = "kubelet.koordinator.sh/cpu-manager-policy"
FULL, SPREAD = BindPolicy
BIND, POLICY = f"{PREFIX}/cpu-bind-policy", f"{PREFIX}/numa-topology-policy"
STRATEGY = f"{PREFIX}/numa-allocate-strategy"


def pod_of(
    name: str = "web",
    cpu: float | str = 4,
    *,
    qos: str = "LSR",
    spec: Mapping[str, str] | None = None,
    numa: Mapping[str, str] | None = None,
    memory: Any = 0,
    annotations: Mapping[str, str] | None = None,
    **facts: Any,
) -> ClusterPod:
    annotated = dict(annotations or {})
    if spec is not None:
        annotated[RESOURCE_SPEC] = json.dumps(spec)
    if numa is not None:
        annotated[NUMA_TOPOLOGY_SPEC] = json.dumps(numa)
    labels = {"koordinator.sh/qosClass": qos, **facts.pop("labels", {})}
    facts = {"phase": "Pending", "priority": 9999, **facts}
    return make_pod(name, cpu=cpu, memory=memory, labels=labels, annotations=annotated, **facts)


def preferred(policy: str) -> dict[str, str]:
    return {"preferredCPUBindPolicy": policy}


def required(policy: str) -> dict[str, str]:
    return {"requiredCPUBindPolicy": policy}


@pytest.mark.parametrize(
    ("pod", "default", "wanted"),
    [
        pytest.param(pod_of(spec=preferred("FullPCPUs")), FULL, (None, FULL), id="F1"),
        pytest.param(pod_of(qos="LSE", spec=preferred("FullPCPUs")), FULL, (None, FULL), id="F2"),
        pytest.param(pod_of(spec=required("FullPCPUs")), FULL, (FULL, FULL), id="F3"),
        pytest.param(pod_of(spec=required("Default")), SPREAD, (SPREAD, SPREAD), id="F4"),
        pytest.param(pod_of(), FULL, (None, FULL), id="F5"),
        pytest.param(pod_of(), None, None, id="F6"),
        pytest.param(
            pod_of(qos="BE", priority=5000, spec=preferred("FullPCPUs")), FULL, None, id="F7"
        ),
        pytest.param(
            pod_of(cpu="4500m", spec=preferred("FullPCPUs")),
            FULL,
            "the requested CPUs must be integer",
            id="F8",
        ),
        pytest.param(pod_of(qos="LSE", cpu="4500m", spec=preferred("test")), FULL, None, id="F9"),
        pytest.param(pod_of(qos="LS", spec=required("FullPCPUs")), FULL, None, id="F11"),
        pytest.param(
            pod_of(labels={"koordinator.sh/priority-class": "koord-mid"}), FULL, None, id="F12"
        ),
        pytest.param(pod_of(spec=required("ConstrainedBurst")), FULL, None, id="no binding"),
    ],
)
def test_what_a_pod_asks_for(pod: ClusterPod, default: BindPolicy | None, wanted: object) -> None:
    found = demand_of(pod, default)
    if isinstance(found, Status):
        assert found.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        assert found.message == wanted
    elif wanted is None:
        assert not found.binds
    else:
        assert found.binds
        assert (found.required, found.preferred) == wanted


@pytest.mark.parametrize("key", [RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC])
@pytest.mark.parametrize("text", ["x", "[]", '{"numaTopologyPolicy":1,"requiredCPUBindPolicy":1}'])
def test_annotations_that_cannot_be_read_are_not_retried(key: str, text: str) -> None:
    found = demand_of(pod_of(annotations={key: text}), FULL)
    assert isinstance(found, Status)
    assert found.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert key in found.message


class Cluster:
    """A cluster of nodes with NodeResourceTopology objects, and the plugin."""

    def __init__(self, args: Mapping[str, Any] | None = None) -> None:
        self.cluster: FakeCluster = fake_cluster()
        self.harness = PluginHarness(
            NodeNUMAResource,
            self.cluster,
            args=args,
            extra_plugins={"DefaultPreBind": DefaultPreBind},
        )

    def node(
        self,
        name: str = "n1",
        shape: str = "2x1x4x2",
        *,
        cpu: object = 96,
        memory: str = "512Gi",
        labels: Mapping[str, str] | None = None,
        ratio: object = None,
        topology: bool = True,
        **facts: Any,
    ) -> None:
        annotated = {} if ratio is None else {AMPLIFICATION: json.dumps({"cpu": ratio})}
        self.cluster.apply(
            {
                "kind": "Node",
                "metadata": {"name": name, "labels": dict(labels or {}), "annotations": annotated},
                "status": {
                    "allocatable": {"cpu": str(cpu), "memory": memory, "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
        if topology:
            self.report(name, shape, **facts)

    def report(self, name: str = "n1", shape: str = "2x1x4x2", **facts: Any) -> None:
        self.harness.informers.apply(TOPOLOGIES, topology_object(name, shape, **facts))

    def placed(
        self, name: str, node: str, cpu: object, annotations: Mapping[str, str], **facts: Any
    ) -> None:
        self.cluster.pod(name, node, cpu=cpu, annotations=annotations, **facts)

    async def place(self, pod: ClusterPod) -> str:
        """The node and what the pod got there, or why it has none."""
        self.harness.server.answer(lambda call: {})
        found = await self.harness.schedule(pod)
        if found.node is None:
            return found.status.message
        now = self.cluster.state.pod(pod.key)
        assert now is not None
        return f"{found.node} {dict(now.annotations).get(RESOURCE_STATUS, '')}".strip()

    def status(self, pod: ClusterPod, node: str = "n1") -> str:
        """Why Filter rejects a node; "": it passes."""
        return self.harness.decide(pod).rejections.get(node, "")

    def scores(self, pod: ClusterPod) -> Mapping[str, int]:
        return self.harness.decide(pod).scores.get("NodeNUMAResource", {})


FULL_ONLY, SPREAD_ONLY = {BIND: "FullPCPUsOnly"}, {BIND: "SpreadByPCPUs"}
STATIC = {KUBELET: {"policy": "static", "options": {"full-pcpus-only": "true"}}}
SMT = "node(s) requested cpus not multiple cpus per core"
CONFLICT = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
SINGLE_NODE = {POLICY: "SingleNUMANode"}


@pytest.mark.parametrize(
    ("node", "pod", "wanted"),
    [
        pytest.param({"topology": False}, pod_of(), "node(s) invalid CPU Topology", id="G1"),
        pytest.param({"labels": FULL_ONLY}, pod_of(cpu=5), SMT, id="G2"),
        pytest.param({"labels": FULL_ONLY}, pod_of(cpu=5, qos="LS"), SMT, id="G3"),
        pytest.param(
            {"labels": FULL_ONLY},
            pod_of(cpu="5200m", qos="LS"),
            "the requested CPUs must be integer",
            id="G4",
        ),
        pytest.param({"labels": FULL_ONLY}, pod_of(), "", id="G5"),
        pytest.param({"labels": FULL_ONLY}, pod_of(spec=preferred("SpreadByPCPUs")), "", id="G6"),
        pytest.param(
            {"labels": SPREAD_ONLY}, pod_of(spec=required("FullPCPUs")), CONFLICT, id="G7"
        ),
        pytest.param({"annotations": STATIC}, pod_of(cpu=5), SMT, id="G8"),
        pytest.param(
            {"annotations": STATIC}, pod_of(spec=required("SpreadByPCPUs")), CONFLICT, id="G9"
        ),
        pytest.param({"annotations": STATIC}, pod_of(spec=required("FullPCPUs")), "", id="G10"),
        pytest.param({}, pod_of(cpu=5, spec=required("FullPCPUs")), SMT, id="G11"),
        pytest.param(
            {"labels": SINGLE_NODE, "ratio": 1.5},
            pod_of(spec=required("FullPCPUs")),
            "",
            id="G12",
        ),
        pytest.param(
            {"labels": {POLICY: "Restricted"}},
            pod_of(numa={"numaTopologyPolicy": "BestEffort"}),
            "node(s) NUMA Topology policy not match",
            id="G13",
        ),
        pytest.param(
            {"zones": False},
            pod_of(qos="LS", numa={"numaTopologyPolicy": "Restricted"}),
            "node(s) missing NUMA resources",
            id="G17",
        ),
        pytest.param({}, pod_of(cpu=17), "not enough cpus available to satisfy request", id="V4"),
    ],
)
async def test_filter(node: Mapping[str, Any], pod: ClusterPod, wanted: str) -> None:
    cluster = Cluster()
    cluster.node(**node)
    async with cluster.harness:
        assert cluster.status(pod) == wanted
        assert_forms_agree(cluster.harness.subject, pod, cluster.cluster.state.view())


AMPLIFIED = "Insufficient amplified cpu"


@pytest.mark.parametrize(
    ("ratio", "share", "bound", "pod", "wanted"),
    [
        pytest.param(2.0, 4, 0, pod_of(cpu=0, memory="1Gi", qos="LS"), "", id="A1"),
        pytest.param(1.0, 32, 0, pod_of(cpu=32, qos="LS"), "", id="A2"),
        pytest.param(2.0, 32, 0, pod_of(cpu=32, qos="LS"), "", id="A3"),
        pytest.param(2.0, 64, 0, pod_of(cpu=32, qos="LS"), AMPLIFIED, id="A4"),
        pytest.param(2.0, 0, 32, pod_of(cpu=32, qos="LS"), AMPLIFIED, id="A5"),
        pytest.param(2.0, 32, 0, pod_of(cpu=32), AMPLIFIED, id="A6"),
        pytest.param(2.0, 0, 32, pod_of(cpu=32), AMPLIFIED, id="A7"),
        pytest.param(
            "x", 0, 0, pod_of(cpu=1, qos="LS"), "node(s) invalid CPU amplification ratio", id="A8"
        ),
    ],
)
async def test_amplified_cpu(
    ratio: object, share: int, bound: int, pod: ClusterPod, wanted: str
) -> None:
    cluster = Cluster()
    cluster.node(shape="2x1x8x2", cpu=64, ratio=ratio)
    if share:
        cluster.placed("share", "n1", share, {})
    if bound:
        cluster.placed("bound", "n1", bound, held(f"0-{bound - 1}"))
    async with cluster.harness:
        assert cluster.status(pod) == wanted
        assert_forms_agree(cluster.harness.subject, pod, cluster.cluster.state.view())


def status_of(cpus: str = "", **numa: Mapping[str, str]) -> str:
    found: dict[str, object] = {"cpuset": cpus} if cpus else {}
    if numa:
        found["numaNodeResources"] = [
            {"node": int(node[1:]), "resources": resources} for node, resources in numa.items()
        ]
    return json.dumps(found, separators=(",", ":"))


async def test_a_pod_gets_cpus() -> None:
    cluster = Cluster()
    cluster.node(labels=SPREAD_ONLY)
    async with cluster.harness:
        ls = pod_of("ls", qos="LS")
        assert await cluster.place(ls) == f"n1 {status_of('0,2,4,6')}"  # V2
        batch = pod_of(
            "be",
            cpu=0,
            qos="BE",
            priority=5000,
            spec=None,
            memory="1Gi",
        )
        assert await cluster.place(batch) == "n1"  # V3
        assert await cluster.place(pod_of("lsr")) == f"n1 {status_of('1,3,5,7')}"


@pytest.mark.parametrize(("strategy", "wanted"), [("Least", "16-19"), ("Most", "4-7")])
async def test_the_strategy_of_a_node(strategy: str, wanted: str) -> None:
    cluster = Cluster()
    cluster.node(shape="2x1x8x2", labels={STRATEGY: f"{strategy}Allocated"})
    cluster.placed("a", "n1", 4, held("0-3"))
    async with cluster.harness:
        assert await cluster.place(pod_of()) == f"n1 {status_of(wanted)}"  # V5


@pytest.mark.parametrize(
    ("taken", "cpu", "policy", "wanted"),
    [
        pytest.param("", 4, "FullPCPUs", "0-1,16-17", id="two cores"),
        pytest.param("", 6, "FullPCPUs", "0-1,16-19", id="the second one has the rest"),
        pytest.param("0-3", 6, "FullPCPUs", "4-5,16-19", id="the emptier one has the rest"),
        pytest.param("16-19", 6, "FullPCPUs", "0-3,20-21", id="the emptier one is the first"),
        pytest.param("0-13", 8, "FullPCPUs", "14-21", id="as many as there are"),
        pytest.param("", 5, "SpreadByPCPUs", "0,2,16,18,20", id="threads of different cores"),
    ],
)
async def test_cpus_that_are_divided_evenly(taken: str, cpu: int, policy: str, wanted: str) -> None:
    """Koordinator's documents name the strategy, and its plugin does not have it."""
    cluster = Cluster()
    cluster.node(shape="2x1x8x2", labels={STRATEGY: "DistributeEvenly"})
    if taken:
        cluster.placed("a", "n1", len(parse_cpulist(taken)), held(taken))
    async with cluster.harness:
        pod = pod_of(cpu=cpu, spec=preferred(policy))
        assert await cluster.place(pod) == f"n1 {status_of(wanted)}"


@pytest.mark.parametrize(
    ("exclusive", "taken", "wanted"),
    [
        pytest.param("Preferred", 4, 2, id="two have one each, with one pod alone"),
        pytest.param("Preferred", 7, 0, id="where they have too little, others do"),
        pytest.param("", 4, 0, id="what is not asked for counts by CPUs alone"),
    ],
)
async def test_numa_nodes_of_its_own_are_preferred(exclusive: str, taken: int, wanted: int) -> None:
    """Of four NUMA nodes two belong to one pod together, and are the emptiest."""
    cluster = Cluster()
    cluster.node(shape="2x2x4x2", cpu=32)
    cluster.placed("x", "n1", 2, held("", {0: {"cpu": "1"}, 1: {"cpu": "1"}}))
    cluster.placed("y", "n1", taken, held("", {2: {"cpu": str(taken)}}))
    cluster.placed("z", "n1", taken, held("", {3: {"cpu": str(taken)}}))
    spec = {"numaTopologyPolicy": "SingleNUMANode", "singleNUMANodeExclusive": exclusive}
    async with cluster.harness:
        pod = pod_of("c", 2, qos="LS", numa=spec)
        assert await cluster.place(pod) == f"n1 {status_of(**{f'n{wanted}': {'cpu': '2'}})}"


async def test_one_after_the_other() -> None:
    """18.17 (a), and what is given back is there again."""
    cluster = Cluster()
    cluster.node()
    full, spread = required("FullPCPUs"), required("SpreadByPCPUs")
    async with cluster.harness:
        for name, pod, wanted in (
            ("a", {"spec": preferred("FullPCPUs")}, "0-3"),
            ("b", {"spec": preferred("FullPCPUs")}, "8-11"),
            ("c", {"cpu": 2, "spec": spread}, "4,6"),
            ("d", {"spec": full}, "12-15"),
        ):
            assert await cluster.place(pod_of(name, **pod)) == f"n1 {status_of(wanted)}"
        refused = await cluster.place(pod_of("e", 2, spec=full))
        assert refused.endswith("not enough cpus available to satisfy request.")
        assert await cluster.place(pod_of("f", 2)) == f"n1 {status_of('5,7')}"
        cluster.cluster.delete("Pod", "default/d")
        assert await cluster.place(pod_of("e", 2, spec=full)) == f"n1 {status_of('12-13')}"


async def test_numa_nodes_of_share_pods() -> None:
    """18.17 (d)."""
    cluster = Cluster()
    cluster.node(memory="32Gi", cpu=16)
    cluster.report(memory="16Gi")
    single, restricted = ({"numaTopologyPolicy": one} for one in ("SingleNUMANode", "Restricted"))
    async with cluster.harness:
        amounts = {"cpu": "3", "memory": "4Gi"}
        first = pod_of("a", 3, qos="LS", memory="4Gi", numa=single)
        assert await cluster.place(first) == f"n1 {status_of(n0=amounts)}"
        second = pod_of("b", 3, qos="LS", memory="4Gi", numa=single)
        assert await cluster.place(second) == f"n1 {status_of(n1=amounts)}"
        third = pod_of("c", 6, qos="LS", memory="8Gi", numa=single)
        assert cluster.status(third) == (
            "Unaligned NUMA Hint cause cpu prefer [11] among [11],memory prefer [11] among [11]"
        )
        third = pod_of("c", 6, qos="LS", memory="8Gi", numa=restricted)
        assert await cluster.place(third) == f"n1 {status_of(n0=amounts, n1=amounts)}"


async def test_numa_nodes_of_its_own() -> None:
    """18.17 (e): by CPUs, and, unlike upstream, by amounts as well."""
    cluster = Cluster()
    cluster.node(shape="2x1x8x2", cpu=32)
    cluster.placed("x", "n1", 2, held("0-1"))
    cluster.placed("y", "n1", 2, held("2,16"))
    single, restricted = ({"numaTopologyPolicy": one} for one in ("SingleNUMANode", "Restricted"))
    wide = pod_of("w", 20, qos="LS", numa=restricted)
    async with cluster.harness:
        assert "Unaligned" in cluster.status(pod_of(numa=single))
        assert cluster.status(wide) == ""
        preferred_only = {**single, "singleNUMANodeExclusive": "Preferred"}
        assert cluster.status(pod_of(numa=preferred_only)) == ""
        cluster.cluster.delete("Pod", "default/y")
        assert cluster.status(pod_of(numa=single)) == ""
        assert "Unaligned" in cluster.status(wide)
        cluster.placed("z", "n1", 2, held("", {0: {"cpu": "1"}, 1: {"cpu": "1"}}))
        assert cluster.status(pod_of(numa=single)) == ""
        strict = {**single, "singleNUMANodeExclusive": "Required"}
        assert "Unaligned" in cluster.status(pod_of(numa=strict))


async def test_an_amplified_node() -> None:
    """18.17 (f)."""
    cluster = Cluster()
    cluster.node(cpu=24, ratio=1.5)
    async with cluster.harness:
        assert await cluster.place(pod_of("bound", 8)) == f"n1 {status_of('0-7')}"
        cluster.placed("share", "n1", 10, {})
        assert cluster.status(pod_of("a", 3, qos="LS")) == AMPLIFIED
        assert cluster.status(pod_of("b", 2, qos="LS")) == ""


async def test_a_topology_that_comes_late_loses_nothing() -> None:
    cluster = Cluster()
    cluster.node(topology=False)
    cluster.placed("a", "n1", 4, held("0-3"))
    async with cluster.harness:
        assert cluster.status(pod_of()) == "node(s) invalid CPU Topology"
        cluster.report()
        assert await cluster.place(pod_of()) == f"n1 {status_of('8-11')}"
        again = pod_of("late")
        cluster.harness.informers.apply(TOPOLOGIES, topology_object("n1", "1x1x4x2"))
        assert await cluster.place(again) == f"n1 {status_of('4-7')}"  # CPUs 8-11 have gone
        cluster.report()
        assert await cluster.place(pod_of("more")) == f"n1 {status_of('12-15')}"


async def test_a_topology_that_goes_takes_no_allocation_along() -> None:
    """T8: without it no pod gets CPUs; when it comes back, those of pods are still theirs."""
    cluster = Cluster()
    cluster.node()
    cluster.placed("a", "n1", 4, held("0-3"))
    async with cluster.harness:
        cluster.harness.informers.delete(TOPOLOGIES, "n1")
        assert cluster.status(pod_of()) == "node(s) invalid CPU Topology"
        cluster.report()
        assert await cluster.place(pod_of()) == f"n1 {status_of('8-11')}"


async def test_a_pod_without_requests_is_skipped() -> None:
    """F10."""
    cluster = Cluster()
    cluster.node(labels=SINGLE_NODE)
    async with cluster.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        pod = pod_of(cpu=0, qos="LSE", spec=required("FullPCPUs"))
        found = plugin.pre_filter(CycleState(), pod, cluster.cluster.state.view())
        assert found is not None
        assert found.code is Code.SKIP


@pytest.mark.parametrize(
    ("there", "gone", "come", "free"),
    [
        pytest.param((), (), ("0-1,8-9",), "2-7,10-15", id="P1"),
        pytest.param(("0-1,8-9",), ("a",), (), "0-15", id="P2"),
        pytest.param((), ("x",), ("0-1,8-9",), "0-15", id="P3"),
        pytest.param(("0-3",), ("a",), ("2-5",), "0-1,6-15", id="P4"),
        pytest.param(("0-3", "2-5"), ("a",), (), "0-1,6-15", id="CPUs that two pods have"),
    ],
)
async def test_cpus_of_pods_that_come_and_go_in_a_what_if(
    there: tuple[str, ...], gone: tuple[str, ...], come: tuple[str, ...], free: str
) -> None:
    """Spec 08, 14. there and come: CPUs of pods a and b, x and y. gone: those that leave last."""
    cluster = Cluster()
    cluster.node()
    for name, cpus in zip("ab", there, strict=False):
        cluster.placed(name, "n1", 4, held(cpus))
    async with cluster.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        what_if = HypotheticalCluster(cluster.cluster.state.view())
        for name, cpus in zip("xy", come, strict=False):
            what_if.add(make_pod(name, node="n1", cpu=4, annotations=held(cpus)), "n1")
        for name in gone:
            what_if.remove(f"default/{name}", "n1")
        view = what_if.view()
        plugin.table.follow(view)
        assert format_cpulist(plugin.table.machine(view, 0).free) == free


async def test_cpus_of_a_pod_that_ends_are_free() -> None:
    """18.16."""
    cluster = Cluster()
    cluster.node()
    async with cluster.harness:
        for change in ({"phase": "Succeeded"}, {"phase": "Failed"}, {"node": ""}):
            cluster.placed("a", "n1", 16, held("0-15"))
            assert cluster.status(pod_of()) != ""
            node = change.pop("node", "n1")
            cluster.placed("a", node, 16, held("0-15"), **change)
            assert cluster.status(pod_of()) == ""


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        pytest.param({"node": ""}, "0-3", id="pending"),
        pytest.param({"annotations": {}}, "0-3", id="no status"),
        pytest.param({"phase": "Succeeded"}, "0-3", id="finished"),
        pytest.param({}, "8-11", id="running"),
        pytest.param({"annotations": {RESOURCE_STATUS: "x"}}, "0-3", id="unreadable"),
        pytest.param({"cpu": 2}, "0-3", id="more than it requests"),
    ],
)
async def test_what_pods_hold(change: Mapping[str, Any], wanted: str) -> None:
    facts: dict[str, Any] = {"node": "n1", "cpu": 4, "annotations": held("0-3"), **change}
    cluster = Cluster()
    cluster.node()
    cluster.node("other", topology=False)
    cluster.cluster.pod("a", facts.pop("node"), **facts)
    async with cluster.harness:
        assert await cluster.place(pod_of()) == f"n1 {status_of(wanted)}"


async def test_an_annotation_that_a_pod_comes_with_gives_it_nothing() -> None:
    cluster = Cluster()
    cluster.node()
    async with cluster.harness:
        share = pod_of("a", 4, qos="LS", annotations=held("0-3"))
        assert await cluster.place(share) == "n1"
        bound = pod_of("b", annotations=held("0-15"))
        assert await cluster.place(bound) == f"n1 {status_of('0-3')}"


@pytest.mark.parametrize(
    ("before", "need", "after"),
    [
        pytest.param(preferred("SpreadByPCPUs"), (SPREAD, False), None, id="B1"),
        pytest.param(preferred("Default"), (SPREAD, False), preferred("SpreadByPCPUs"), id="B2"),
        pytest.param(required("SpreadByPCPUs"), (SPREAD, True), None, id="B3"),
        pytest.param(
            {**required("SpreadByPCPUs"), **preferred("Default")},
            (SPREAD, True),
            {**required("SpreadByPCPUs"), **preferred("SpreadByPCPUs")},
            id="B4",
        ),
        pytest.param(
            {
                **required("SpreadByPCPUs"),
                **preferred("Default"),
                "preferredCPUExclusivePolicy": "PCPULevel",
            },
            (SPREAD, True),
            {
                **required("SpreadByPCPUs"),
                **preferred("SpreadByPCPUs"),
                "preferredCPUExclusivePolicy": "PCPULevel",
            },
            id="B5",
        ),
        pytest.param(None, (FULL, True), required("FullPCPUs"), id="B6"),
        pytest.param(None, (FULL, False), preferred("FullPCPUs"), id="B7"),
    ],
)
def test_the_policy_that_was_used_is_said(
    before: Mapping[str, str] | None,
    need: tuple[BindPolicy, bool],
    after: Mapping[str, str] | None,
) -> None:
    text = "" if before is None else json.dumps(before)
    had = Need(requests={}, cpus=4, policy=need[0], required=need[1])
    found = completed_spec(text, had)
    assert (None if found is None else json.loads(found)) == after


MOST = {
    "scoringStrategy": {"type": "MostAllocated"},
    "numaScoringStrategy": {"type": "LeastAllocated"},
}


@pytest.mark.parametrize(
    ("policy", "cpu", "wanted"),
    [("SingleNUMANode", 21, (35, 31)), ("Restricted", 50, (63, 54))],
)
async def test_scores_of_numa_nodes(policy: str, cpu: int, wanted: tuple[int, int]) -> None:
    cluster = Cluster(
        {
            "scoringStrategy": {"type": "MostAllocated"},
            "numaScoringStrategy": {"type": "MostAllocated"},
        }
    )
    labels = {POLICY: policy}
    cluster.node("a", "2x1x26x2", cpu=104, memory="256Gi", labels=labels)
    cluster.report("a", "2x1x26x2", memory="128Gi")
    cluster.node("b", "1x1x32x2", cpu=64, memory="128Gi", labels=labels)
    cluster.report("b", "1x1x32x2", memory="128Gi")
    pod = pod_of(cpu=cpu, memory="40Gi", qos="LS")
    async with cluster.harness:
        assert tuple(cluster.scores(pod).values()) == wanted


@pytest.mark.parametrize(
    ("cpu", "nodes", "wanted"), [(4, 16, 25), (8, 16, 50), (16, 16, 100), (2, 16, 12), (16, 32, 50)]
)
async def test_scores_of_cpu_alone(cpu: int, nodes: int, wanted: int) -> None:
    cpu_only = [{"name": "cpu", "weight": 1}]
    cluster = Cluster({"scoringStrategy": {"type": "MostAllocated", "resources": cpu_only}})
    for name in ("a", "b"):
        cluster.node(name, f"2x1x{nodes // 4}x2", cpu=nodes)
    pod = pod_of(cpu=cpu)
    async with cluster.harness:
        assert set(cluster.scores(pod).values()) == {wanted}
        assert_forms_agree(cluster.harness.subject, pod, cluster.cluster.state.view())


@pytest.mark.parametrize(
    ("bound", "binds", "most", "least"),
    [
        (False, False, None, (31, 72)),
        (True, False, (68, 35), (31, 64)),
        (False, True, (68, 30), (31, 68)),
        (True, True, (68, 38), (31, 61)),
    ],
)
async def test_scores_of_amplified_nodes(
    bound: bool, binds: bool, most: tuple[int, int] | None, least: tuple[int, int]
) -> None:
    for kind, wanted in (("MostAllocated", most), ("LeastAllocated", least)):
        cluster = Cluster({"scoringStrategy": {"type": kind}})
        cluster.node("node1", "2x1x8x2", cpu=32, memory="40Gi", ratio=1)
        cluster.node("node2", "2x1x16x2", cpu=128, memory="60Gi", ratio=2)
        for node in ("node1", "node2"):
            annotations = held("0-19") if bound else {}
            cluster.placed(f"at-{node}", node, 20, annotations, memory="4Gi")
        pod = pod_of(cpu=8, memory="16Gi", qos="LSR" if binds else "LS")
        async with cluster.harness:
            found = cluster.scores(pod)
            assert wanted is None or (found["node1"], found["node2"]) == wanted
            assert_forms_agree(cluster.harness.subject, pod, cluster.cluster.state.view())


async def test_a_pod_that_requests_nothing_scores_0() -> None:
    cluster = Cluster()
    cluster.node("a")
    cluster.node("b")
    async with cluster.harness:
        assert cluster.scores(pod_of(cpu=0)) == {"a": 0, "b": 0}


async def test_the_numa_node_that_the_strategy_prefers() -> None:
    """18.11: 4 CPUs on a node of which one NUMA node has 4 CPUs in use, the other one 40."""
    for kind, full, wanted in (
        ("MostAllocated", "40", 1),
        ("LeastAllocated", "40", 0),
        ("MostAllocated", "52", 0),
    ):
        cluster = Cluster({"numaScoringStrategy": {"type": kind}})
        cluster.node(shape="2x1x26x2", cpu=104, memory="256Gi", labels=SINGLE_NODE)
        cluster.report("n1", "2x1x26x2", memory="128Gi")
        cluster.placed("a", "n1", 44, held("", {0: {"cpu": "4"}, 1: {"cpu": full}}))
        cluster.placed("b", "n1", 8, {})
        if full == "52":
            cluster.placed("c", "n1", 12, held("", {1: {"cpu": "12"}}))
            cluster.placed("a", "n1", 44, held("", {0: {"cpu": "4"}, 1: {"cpu": "40"}}))
        async with cluster.harness:
            amounts = {"cpu": "4", "memory": "40Gi"}
            found = await cluster.place(pod_of(qos="LS", memory="40Gi"))
            assert found == f"n1 {status_of('', **{f'n{wanted}': amounts})}"


async def test_a_pod_that_leaves_in_a_what_if_gives_its_cpus_back() -> None:
    cluster = Cluster()
    cluster.node()
    cluster.placed("victim", "n1", 16, held("0-15"), priority=1)
    async with cluster.harness:
        decided = cluster.harness.decide(pod_of())
        assert decided.candidates == ("n1",)
        assert decided.rejections == {"n1": "not enough cpus available to satisfy request"}


async def test_pods_are_preempted_for_their_cpus() -> None:
    """Two victims of 4 CPUs each hold whole cores; the fewest that are needed leave."""
    cluster = fake_cluster()
    cluster.node("n1", cpu=64)
    cluster.pod("low", "n1", cpu=4, annotations=held("0-3"), priority=1)
    cluster.pod("lower", "n1", cpu=4, annotations=held("4-7"), priority=0)
    cluster.pod("high", "n1", cpu=8, annotations=held("8-15"), priority=99999)
    harness = PluginHarness(
        NodeNUMAResource, cluster, extra_plugins={"DefaultPreemption": DefaultPreemption}
    )
    harness.informers.apply(TOPOLOGIES, topology_object("n1"))
    async with harness:
        found = await harness.schedule(pod_of(spec=required("FullPCPUs")))
        assert found.nominated == "n1"
        assert [pod.name for pod in found.victims] == ["lower"]


async def test_what_helps() -> None:
    cluster = Cluster()
    cluster.node()
    gone = ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE)
    async with cluster.harness as harness:
        waits = pod_of(cpu=17)
        had = make_pod("a", node="n1", cpu=4, annotations=held("0-3"))
        assert harness.is_retried_after(waits, gone, had, None)
        assert not harness.is_retried_after(waits, gone, make_pod("b", node="n1", cpu=4), None)
        name, same = "NodeNUMAResource", topology_object("n1")
        assert not harness.is_retried_by(waits, name, TOPOLOGIES, same)
        assert harness.is_retried_by(waits, name, TOPOLOGIES, topology_object("n1", "2x1x16x2"))
        labelled = ClusterEvent(EventResource.NODE, Action.UPDATE_NODE_LABEL)
        assert harness.is_retried_after(waits, labelled, make_node("n1"), make_node("n1"))


async def test_pods_that_ask_for_nothing_are_skipped_on_plain_nodes() -> None:
    cluster = Cluster()
    cluster.node()
    async with cluster.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        assert harness.decide(pod_of(qos="LS")).feasible == ("n1",)
        assert not plugin.table.has_special
        cluster.node("n2", labels=FULL_ONLY)
        assert harness.decide(pod_of(qos="LS", cpu=3)).feasible == ("n1",)


@pytest.mark.parametrize("known", [False, True])
async def test_a_what_if_does_not_hide_what_has_changed_on_its_node(known: bool) -> None:
    """known: the nodes were followed before; otherwise all are looked at."""
    cluster = Cluster()
    cluster.node()
    cluster.node("n2")
    async with cluster.harness as harness:
        plugin, state = harness.subject, cluster.cluster.state
        assert isinstance(plugin, NodeNUMAResource)
        if known:
            plugin.table.follow(state.view())
        cluster.placed("p", "n1", 4, held("0-3"))
        what_if = HypotheticalCluster(state.view())
        what_if.add(make_pod("plain"), "n1")
        plugin.table.follow(what_if.view())
        plugin.table.follow(state.view())
        row = state.view().row("n1")
        assert plugin.table.column("bound")[row] == 4
        cluster.cluster.pod("other", "n1", cpu=1)
        cluster.node("n2", ratio=1.5)
        plugin.table.follow(state.view())
        assert plugin.table.has_special
        cluster.cluster.state.remove(POD, "default/p")
        plugin.table.follow(state.view())
        assert plugin.table.column("bound")[row] == 0


async def test_the_rest_endpoint() -> None:
    cluster = Cluster()
    cluster.node(ratio=1.5, annotations={KUBELET: {"policy": "static", "reservedCPUs": "0-1"}})
    amounts = {0: {"cpu": "4"}}
    cluster.placed("p", "n1", 4, held("2-5", amounts))
    async with cluster.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        [endpoint] = plugin.endpoints()
        found: Any = await endpoint.answer(PluginRequest(parameters={"node": "n1"}))
        assert found["reservedCPUs"] == "0-1"
        assert found["availableCPUs"] == "6-15"
        assert [one["resources"]["cpu"] for one in found["numaNodeResources"]] == ["9", "12"]
        assert found["allocatedNUMANodeResources"] == [{"node": 0, "resources": {"cpu": "6"}}]
        assert [one["resources"]["cpu"] for one in found["remainingNUMANodeResources"]] == [
            "3",
            "12",
        ]
        assert found["allocatedPods"][0]["cpuset"] == "2-5"
        assert found["cpuTopology"]["cpuDetails"]["2"]["refCount"] == 1
        with pytest.raises(LookupError):
            await endpoint.answer(PluginRequest(parameters={"node": "n9"}))
        cluster.node("bare", topology=False)
        with pytest.raises(ValueError, match="invalid topology"):
            await endpoint.answer(PluginRequest(parameters={"node": "bare"}))


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({"defaultCPUBindPolicy": "InvalidPolicy"}, "must specified CPU bind policy"),
        ({"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}}, "valid range"),
        ({"numaScoringStrategy": {"resources": [{"name": "cpu", "weight": -1}]}}, "valid range"),
        ({"scoringStrategy": {"type": "Other"}}, "not supported"),
    ],
)
def test_bad_args(args: Mapping[str, Any], wanted: str) -> None:
    with pytest.raises(Exception, match=wanted):
        PluginHarness(NodeNUMAResource, args=args)


@pytest.mark.parametrize("policy", ["", "FullPCPUs", "SpreadByPCPUs"])
def test_good_args(policy: str) -> None:
    PluginHarness(NodeNUMAResource, args={"defaultCPUBindPolicy": policy})


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        (pod_of(qos="LS"), []),
        (pod_of(cpu=2), ["1 of 2 nodes have no CPU topology"]),
        (pod_of(cpu=9), ["1 of 2", "9 CPUs of its own are requested, and at most 8 are free"]),
        (
            pod_of(spec=required("FullPCPUs")),
            ["1 of 2", "4 CPUs of whole cores are requested, and at most 0 are free on one node; "],
        ),
        (pod_of(cpu=8, spec=required("SpreadByPCPUs")), ["1 of 2"]),
        (pod_of(annotations={RESOURCE_SPEC: "x"}), []),
    ],
)
async def test_advice(pod: ClusterPod, wanted: list[str]) -> None:
    """Of each core one CPU is in use."""
    cluster = Cluster()
    cluster.node()
    cluster.node("bare", topology=False)
    cluster.placed("a", "n1", 8, held("0,2,4,6,8,10,12,14"))
    async with cluster.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        found = list(plugin.pending_advice(pod))
        assert len(found) == len(wanted)
        assert all(text.startswith(start) for text, start in zip(found, wanted, strict=True))


async def test_fragmentation_by_numa_node_is_named() -> None:
    """Of each NUMA node 4 CPUs are left: 8 together, but 6 on none."""
    cluster = Cluster()
    cluster.node(labels=SINGLE_NODE)
    cluster.placed("a", "n1", 8, held("0-3,8-11", {0: {"cpu": "4"}, 1: {"cpu": "4"}}))
    async with cluster.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        assert harness.decide(pod_of(cpu=6)).node is None
        (text,) = plugin.pending_advice(pod_of(cpu=6, qos="LS"))
        assert text.startswith(
            "6000m CPU of one NUMA node is requested, and at most 4000m are left on one: CPU is "
            "fragmented by NUMA node on 1 nodes"
        )
        assert list(plugin.pending_advice(pod_of(cpu=4, qos="LS"))) == []
        assert list(plugin.pending_advice(pod_of(cpu=10, qos="LS"))) == []


async def test_the_parts_of_a_node() -> None:
    """Socket, NUMA node and core of each CPU, and who has it."""
    cluster = Cluster()
    reserved = {"kubelet.koordinator.sh/cpu-manager-policy": {"reservedCPUs": "8"}}
    cluster.node(annotations=reserved)
    cluster.placed("a", "n1", 2, held("0-1", {0: {"cpu": "2"}}))
    cluster.placed("liar", "n1", 1, held("2-7"))
    async with cluster.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        first, second, *cpus = plugin.node_parts(NodeInfo(cluster.cluster.state.view(), 0))
        assert (first.name, first.pods, first.used) == ("NUMA node 0", ("default/a",), 0.25)
        assert first.note == "left: cpu 6, memory 32Gi"
        assert (second.name, second.pods) == ("NUMA node 1", ())
        assert [(one.name, one.pods, one.note) for one in cpus if one.pods or one.note] == [
            ("CPU 0", ("default/a",), ""),
            ("CPU 1", ("default/a",), ""),
            ("CPU 8", (), "reserved"),
        ]
        assert cpus[9].place == ("socket 1", "NUMA node 1", "core 4")
        assert len(cpus) == 16


HINTED = {"scheduling.koordinator.sh/scheduling-hint": '{"extensions":{"NodeNUMAResource":{}}}'}


def designated(
    cpu: int, cpus: str, numa: Mapping[int, Any] | None = None, **spec: Any
) -> ClusterPod:
    """A pod that comes with its CPUs."""
    plain = pod_of(cpu=cpu, **spec)
    texts = {**dict(plain.annotations), **held(cpus, numa), **HINTED}
    return msgspec.structs.replace(plain, annotations=tuple(sorted(texts.items())))


@pytest.mark.parametrize(
    ("pod", "status", "labels"),
    [
        (designated(4, "0-3", {0: {"cpu": "4"}}), "", {}),
        (designated(4, "0-3", {0: {"cpu": "4"}}), "", SINGLE_NODE),  # G14
        (designated(4, "0-3"), "", SINGLE_NODE),  # G15
        (designated(4, "20-23"), "not enough cpus available to satisfy request", SINGLE_NODE),
        (designated(4, "4-7"), "not enough cpus available to satisfy request", {}),  # one is used
        (designated(4, "0-1"), "not enough cpus available to satisfy request", {}),
        (designated(2, "0,2", spec=required(BindPolicy.FULL_PCPUS)), "insufficient CPUs", {}),
        (designated(2, "0-1", spec=required(BindPolicy.FULL_PCPUS)), "", {}),
        (designated(4, "0-3", {9: {"cpu": "4"}}), "insufficient resources on NUMA Node", {}),
    ],
)
async def test_cpus_that_a_pod_comes_with(
    pod: ClusterPod, status: str, labels: dict[str, str]
) -> None:
    """It gets these, or none."""
    cluster = Cluster()
    cluster.node(labels=labels)
    cluster.placed("other", "n1", 1, held("7"))
    before = json.loads(dict(pod.annotations)[RESOURCE_STATUS])
    async with cluster.harness as harness:
        harness.server.answer(lambda call: {})
        done = await harness.schedule(pod)
        if status:
            assert done.node is None
            assert status in done.status.message
            return
        assert done.node == "n1"
        bound = cluster.cluster.state.pod(pod.key)
        assert bound is not None
        assert json.loads(dict(bound.annotations)[RESOURCE_STATUS]) == before


async def test_only_so_many_nodes_are_tried() -> None:
    """Of 200 nodes with a NUMA policy 64 are tried, and all of them while none is good."""
    cluster = Cluster()
    for number in range(200):
        cluster.node(f"n{number}", labels=SINGLE_NODE)
    async with cluster.harness as harness:
        decided = harness.decide(pod_of())
        assert len(decided.feasible) >= 64
        assert harness.decide(pod_of(cpu=9)).feasible == ()
        for number in range(199):
            cluster.placed(f"p{number}", f"n{number}", 16, held("0-7", {1: {"cpu": "8"}}))
        assert harness.decide(pod_of()).feasible == ("n199",)


PODS = st.builds(
    pod_of,
    cpu=st.sampled_from([0, 1, 2, 3, 4, 5, 8, 17, "1500m"]),
    memory=st.sampled_from([0, "1Gi", "40Gi"]),
    qos=st.sampled_from(["LSR", "LSE", "LS", "BE"]),
    spec=st.none()
    | st.builds(required, st.sampled_from(BindPolicy))
    | st.builds(preferred, st.sampled_from(BindPolicy)),
    numa=st.none() | st.fixed_dictionaries({"numaTopologyPolicy": st.sampled_from(["BestEffort"])}),
)
LABELS = st.sampled_from([{}, FULL_ONLY, SPREAD_ONLY, {POLICY: "BestEffort"}])


@settings(max_examples=60)
@given(
    pod=PODS,
    nodes=st.lists(
        st.tuples(
            LABELS,
            st.sampled_from([None, 1.5, "x"]),
            st.sampled_from(["2x1x4x2", "1x1x4x1", ""]),
            st.sets(st.integers(0, 15), max_size=8),
        ),
        min_size=1,
        max_size=4,
    ),
)
async def test_the_forms_agree_and_what_passes_gets_its_cpus(
    pod: ClusterPod, nodes: list[tuple[dict[str, str], object, str, set[int]]]
) -> None:
    cluster = Cluster()
    for number, (labels, ratio, shape, taken) in enumerate(nodes):
        name = f"n{number}"
        cluster.node(name, shape or "1x1x1x1", labels=labels, ratio=ratio, topology=bool(shape))
        if taken:
            cpus = ",".join(map(str, sorted(taken)))
            cluster.placed(f"p{number}", name, 16, held(cpus))
    async with cluster.harness as harness:
        decided = harness.decide(pod)
        if not decided.status.ok and decided.filtered == ():
            return  # PreFilter rejects it
        assert_forms_agree(harness.subject, pod, cluster.cluster.state.view())
        harness.server.answer(lambda call: {})
        placed = await harness.schedule(pod)
        assert (placed.node is not None) == bool(decided.feasible)
        now = cluster.cluster.state.pod(pod.key)
        if placed.node is not None and now is not None:
            text = dict(now.annotations).get(RESOURCE_STATUS, "{}")
            given_cpus = parse_cpulist(json.loads(text).get("cpuset", ""))
            assert not given_cpus & nodes[int(placed.node[1:])][3]
