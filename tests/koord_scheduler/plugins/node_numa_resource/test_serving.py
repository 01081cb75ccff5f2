"""What nodes report about CPUs: events on Nodes, and metrics."""

from collections.abc import Mapping

import pytest

from koord.plugin.kube import EventType
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from koord_scheduler_plugins.node_numa_resource.serving import PinningKubelets
from koord_scheduler_plugins.node_numa_resource.topology import (
    NO_REPORT,
    MachineReport,
    read_machine,
)
from tests.support.scheduler.numa import held, topology_object

KUBELET = "kubelet.koordinator.sh/cpu-manager-policy"
STATIC = {"policy": "static"}


def lsr(name: str, cpu: int = 2, qos: str = "LSR") -> ClusterPod:
    labels = {"koordinator.sh/qosClass": qos}
    return make_pod(name, cpu=cpu, labels=labels, priority=9999, phase="Pending")


class Scheduler:
    """One node of 16 CPUs, whose kubelet reports what a test says."""

    def __init__(self) -> None:
        self.cluster = fake_cluster()
        self.cluster.node("n1", cpu=64)
        self.harness = PluginHarness(
            NodeNUMAResource,
            self.cluster,
            extra_plugins={"DefaultPreBind": DefaultPreBind},
        )

    def report(self, kubelet: Mapping[str, object] | None) -> None:
        annotations = {} if kubelet is None else {KUBELET: kubelet}
        self.harness.informers.apply(TOPOLOGIES, topology_object("n1", annotations=annotations))

    async def place(self, pod: ClusterPod) -> None:
        self.harness.server.answer(lambda call: {})
        assert (await self.harness.schedule(pod)).node == "n1"

    @property
    def reasons(self) -> list[str]:
        return [one.reason for one in self.harness.events if one.about.kind == "Node"]


async def test_a_node_is_reported_whose_kubelet_pins_cpus_too() -> None:
    """Once for each change of what the kubelet says, with the first pod that is bound then."""
    scheduler = Scheduler()
    scheduler.report(STATIC)
    async with scheduler.harness as harness:
        assert scheduler.reasons == []
        await scheduler.place(lsr("a"))
        await scheduler.place(lsr("b"))
        assert scheduler.reasons == ["KubeletPinsCPUs"]
        event = harness.events[-1]
        assert (event.type, event.about.name) == (EventType.WARNING, "n1")
        assert event.message.startswith("the kubelet has the CPU manager policy static")

        scheduler.report(STATIC | {"reservedCPUs": "14-15"})
        assert len(scheduler.reasons) == 1
        await scheduler.place(lsr("c"))
        await scheduler.place(lsr("d"))
        assert len(scheduler.reasons) == 2


@pytest.mark.parametrize("kubelet", [None, {}, {"policy": "none"}, {"policy": "other"}])
async def test_a_kubelet_that_pins_none_is_not_reported(
    kubelet: Mapping[str, object] | None,
) -> None:
    scheduler = Scheduler()
    scheduler.report(kubelet)
    async with scheduler.harness:
        await scheduler.place(lsr("a"))
        assert scheduler.reasons == []


async def test_pods_without_cpus_of_their_own_are_no_reason() -> None:
    scheduler = Scheduler()
    scheduler.report(STATIC)
    async with scheduler.harness:
        await scheduler.place(lsr("a", qos="LS"))
        assert scheduler.reasons == []


def report_of(name: str) -> MachineReport:
    return read_machine(topology_object(name, annotations={KUBELET: STATIC}))


async def test_events_of_many_nodes_are_spread_over_time() -> None:
    """20 of a minute; what is left out comes with the node's next pod."""
    clock, told = SimulatedClock(), list[str]()
    kubelets = PinningKubelets(lambda event: told.append(event.about.name), clock)
    reports = [report_of(f"n{number}") for number in range(50)]
    for report in reports:
        kubelets.bind_cpus(report)
    assert len(told) == 20
    await clock.advance(60.0)
    for report in reports:
        kubelets.bind_cpus(report)
    assert len(told) == 40
    assert len(set(told)) == 40


def test_a_node_that_has_gone_is_reported_again() -> None:
    told = list[str]()
    kubelets = PinningKubelets(lambda event: told.append(event.about.name), SimulatedClock())
    for _ in range(2):
        report = report_of("n1")
        kubelets.take_report(None, report)
        kubelets.bind_cpus(report)
        kubelets.bind_cpus(NO_REPORT)
        kubelets.take_report(report, None)
    assert told == ["n1", "n1"]


@pytest.mark.parametrize(
    ("cpus", "reserved", "wanted"),
    [
        pytest.param("", "", 0, id="nothing is used"),
        pytest.param("0-3", "", 0, id="whole cores"),
        pytest.param("0,2,4", "", 3, id="one thread of three cores"),
        pytest.param("0", "1", 0, id="the other thread is reserved"),
        pytest.param("", "0", 1, id="one thread is reserved"),
    ],
)
async def test_fragmented_cores_are_counted(cpus: str, reserved: str, wanted: int) -> None:
    scheduler = Scheduler()
    scheduler.report({"reservedCPUs": reserved} if reserved else None)
    if cpus:
        scheduler.cluster.pod("a", "n1", cpu=4, annotations=held(cpus))
    async with scheduler.harness as harness:
        plugin = harness.subject
        assert isinstance(plugin, NodeNUMAResource)
        plugin.table.follow(scheduler.cluster.state.view())
        assert harness.metric("scheduler_numa_fragmented_cores") == wanted
