"""What is kept of pods and nodes: what the plugins that profiles enable declare."""

from typing import Any

from koord.cluster.keptfields import NO_FIELDS, KeptFields, reads
from koord_scheduler.config.profiles import Point, Profile
from koord_scheduler.framework.profile import PluginRegistry, fields_read
from koord_scheduler.plugin import (
    ClusterPod,
    CycleState,
    FilterPlugin,
    Handle,
    NodeInfo,
    ReservePlugin,
    Status,
    pod_changes,
)
from koord_scheduler.plugin.testing import ProfileHarness, fake_cluster, make_pod

SEAT, DESK = "example.com/seat", "example.com/desk"


@reads(pod_annotations={SEAT: 10}, containers=True)
class Seats(FilterPlugin):
    """Remembers the pod that it has seen last."""

    seen: list[ClusterPod]

    def __init__(self, args: Any, handle: Any) -> None:
        self.seen = []

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        self.seen += [pod, *node.pods]
        return None


@reads(pod_annotations={DESK: 10})
class Desks(Seats):
    """As Seats, of which it has the declaration, too."""


def config(*enabled: str) -> dict[str, Any]:
    plugins = {
        "multiPoint": {"disabled": [{"name": "*"}]},
        "filter": {"enabled": [{"name": name} for name in enabled]},
        "queueSort": {"enabled": [{"name": "OldestFirst"}]},
        "bind": {"enabled": [{"name": "RecordingBinder"}]},
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "test", "plugins": plugins}],
    }


def test_only_what_enabled_plugins_declare_is_kept() -> None:
    plugins = {"Seats": Seats, "Desks": Desks}
    registry = PluginRegistry()
    for name, factory in plugins.items():
        registry.register(name, factory)

    def fields(*enabled: str) -> KeptFields:
        harness = ProfileHarness(config(*enabled), fake_cluster(), plugins)
        return fields_read(harness.configuration.profiles, registry)

    assert fields() == NO_FIELDS
    assert fields("Seats") == KeptFields(pod_annotations={SEAT: 10}, containers=True)
    assert fields("Desks", "Seats").pod_annotations == {SEAT: 10, DESK: 10}


async def test_the_kit_keeps_what_plugins_declare_and_nothing_else() -> None:
    """Of pods before and after the plugin is made, and of the pod that is tried."""
    cluster, both = fake_cluster(), {SEAT: "1", DESK: "2"}
    cluster.node("n")
    cluster.pod("before", "n", annotations=both)
    async with ProfileHarness(config("Seats"), cluster, {"Seats": Seats}) as harness:
        cluster.pod("after", "n", annotations=both)
        harness.decide(make_pod("tried", annotations=both, containers=True))
        found = harness.plugin("Seats")
        assert isinstance(found, Seats)
        assert {pod.name for pod in found.seen} == {"tried", "before", "after"}
        assert {pod.annotations for pod in found.seen} == {((SEAT, "1"),)}
        assert all(pod.spec.containers is not None for pod in found.seen)
    async with ProfileHarness(config(), cluster, {"Seats": Seats}) as harness:
        kept = cluster.state.pod("default/before")
        assert kept is not None
        assert (kept.annotations, kept.spec.containers) == ((), None)


async def test_a_value_beyond_its_bound_is_refused_in_the_kit_as_by_the_decoder() -> None:
    cluster = fake_cluster()
    cluster.node("n")
    async with ProfileHarness(config("Seats"), cluster, {"Seats": Seats}) as harness:
        decided = harness.decide(make_pod("tried", annotations={SEAT: "x" * 11}))
        assert decided.node is None
        assert f"annotation {SEAT}: 11 bytes of at most 10" in decided.message


def test_a_profile_may_name_what_is_not_registered() -> None:
    """That is an error when it is built, not before."""
    harness = ProfileHarness(config("Seats"), fake_cluster(), {"Seats": Seats})
    assert fields_read(harness.configuration.profiles, PluginRegistry()) == NO_FIELDS
    assert isinstance(harness.configuration.profiles[0], Profile)
    assert harness.configuration.profiles[0].enabled(Point.FILTER)


@reads(pod_annotations={SEAT: 10})
class Chooses(FilterPlugin, ReservePlugin):
    """Chooses in Reserve, and writes it into annotations, one of which it does not declare."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.cluster = handle.services.cluster
        self.assumed: list[tuple[tuple[str, str], ...]] = []

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        self.assumed += [one.annotations for one in node.pods]
        return None

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        pod_changes(state).annotations.update({SEAT: "3", DESK: "4"})
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Nothing is kept."""


async def test_what_reserve_chooses_is_in_the_kits_cluster_if_it_is_declared() -> None:
    """A plugin that forgets to declare what it writes sees that in its first test."""
    cluster = fake_cluster()
    cluster.node("n")
    points = config("Chooses")
    points["profiles"][0]["plugins"]["reserve"] = {"enabled": [{"name": "Chooses"}]}
    async with ProfileHarness(points, cluster, {"Chooses": Chooses}) as harness:
        assert (await harness.schedule(make_pod("web"))).node == "n"
        bound = cluster.state.pod("default/web")
        assert bound is not None
        assert bound.annotations == ((SEAT, "3"),)
