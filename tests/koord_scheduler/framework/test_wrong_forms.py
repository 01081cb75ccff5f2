"""Wrong forms of plugins, as strangers write them: each is named where it is registered."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from koord.cluster.hypothetical import HypotheticalCluster
from koord.component.plugins.discovery import discover
from koord.component.plugins.registry import PluginError
from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.framework.profile import ProfileError, build_profile
from koord_scheduler.plugin import (
    Action,
    BindPlugin,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    Plugin,
    PluginRegistry,
    PreBindPlugin,
    ReservePlugin,
    ScorePlugin,
    SharedPart,
    Status,
    View,
)
from koord_scheduler.plugin.koordinator import PreferNodesPlugin
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, fake_services, make_pod


class Made:
    def __init__(self, args: object, handle: Handle) -> None: ...


class SyncPreBind(Made, PreBindPlugin):
    def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:  # type: ignore[override]
        """As one writes it who has not read on."""


class SyncBind(Made, BindPlugin):
    def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:  # type: ignore[override]
        """The same."""


class SyncClose(Made, ScorePlugin):
    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return 1

    def close(self) -> None:  # type: ignore[override]
        """The same."""


class AsyncFilter(Made, FilterPlugin):
    async def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> None:  # type: ignore[override]
        """As one writes it who awaits a server."""


class Unfinished(Made, ReservePlugin):
    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """And no unreserve."""


class OtherParameters(Made, FilterPlugin):
    def filter(self, pod: ClusterPod, node: NodeInfo) -> None:  # type: ignore[override]
        """Without the state."""


class NoMethod(Made, ScorePlugin):
    score = 7  # type: ignore[assignment]


class WithoutInterface(Made, Plugin):
    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> None:
        """It would never be called."""


class NoPlugin(Made):
    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> None:
        """The same."""


WRONG: dict[type, str] = {
    SyncPreBind: "wanted async def pre_bind(self, state, pod, node_name), found a plain function; "
    "write async def",
    SyncBind: "wanted async def bind(self, state, pod, node_name), found a plain function",
    SyncClose: "wanted async def close(self), found a plain function",
    AsyncFilter: "wanted def filter(self, state, pod, node), found async def; it is not awaited: "
    "write def",
    Unfinished: "wanted def unreserve(self, state, pod, node_name), found none: it is abstract",
    OtherParameters: "wanted def filter(self, state, pod, node), found filter(self, pod",
    NoMethod: "wanted def score(self, state, pod, node), found 7",
    WithoutInterface: "wanted a class with an interface of koord_scheduler.plugin",
    NoPlugin: "wanted a class derived from interfaces of koord_scheduler.plugin",
}


@pytest.mark.parametrize("plugin", WRONG)
def test_a_class_is_checked_when_it_is_registered(plugin: Any) -> None:
    """And not when the first pod is tried."""
    with pytest.raises(PluginError) as refused:
        PluginRegistry().register("Odd", plugin)

    assert str(refused.value).startswith(f"plugin Odd from {__file__}:")
    assert WRONG[plugin] in str(refused.value)


@pytest.mark.parametrize("plugin", [plugin for plugin in WRONG if plugin is not Unfinished])
async def test_what_a_function_makes_is_checked_when_it_is_made(plugin: Any) -> None:
    """That is at the start; before it nobody knows what it makes."""

    def make(args: object, handle: Handle) -> Any:
        return plugin(args, handle)

    with pytest.raises(Exception, match='plugin "make" from') as refused:
        async with PluginHarness(make, points=["filter"]):
            raise AssertionError("it was taken")
    assert "\n" not in str(refused.value)


class NotesInAList(Made, FilterPlugin):
    filter_changes = []  # type: ignore[assignment]  # noqa: RUF012

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None


async def test_a_log_of_changed_rows_is_checked_when_a_plugin_is_made() -> None:
    """It is set with the plugin's other fields."""
    with pytest.raises(Exception, match='plugin "NotesInAList" from') as refused:
        async with PluginHarness(NotesInAList):
            raise AssertionError("it was taken")
    assert "wanted ChangedRows() as filter_changes, found []" in str(refused.value)


def test_what_a_decorator_has_wrapped_is_what_it_wraps() -> None:
    """A retry around a coroutine function gives a coroutine, whatever its own form is."""
    from functools import wraps

    def retried(method: Any) -> Any:
        @wraps(method)
        def around(*args: Any) -> Any:
            return method(*args)

        return around

    class Retries(Made, PreBindPlugin):
        @retried
        async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
            """Anything."""

    class Static(Made, ScorePlugin):
        @staticmethod
        def score(state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:  # type: ignore[override]
            return 1

    registry = PluginRegistry()
    registry.register("Retries", Retries)
    registry.register("Static", Static)
    assert len(registry) == 2


def registers(*events: Any) -> type[Plugin]:
    class Registers(Made, FilterPlugin, EnqueueExtensions):
        def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
            return None

        def events_to_register(self) -> Iterable[HintedEvent]:
            return events

    return Registers


async def helps(pod: ClusterPod, old: object, new: object) -> None: ...


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ClusterEvent("Nodes", Action.ADD), "found 'Nodes'; the nearest is Node"),
        (ClusterEvent("licences", Action.ADD), "or of a kind as resource.version.group"),
        (ClusterEvent("Node", "Add"), "wanted an Action, such as Action.ADD, found 'Add'"),  # type: ignore[arg-type]
        (ClusterEvent("Node", Action(0)), "wanted an Action"),
        ("Node", "wanted HintedEvent(ClusterEvent(…)), found"),
    ],
    ids=str,
)
async def test_events_that_never_come_are_named_at_the_start(event: Any, text: str) -> None:
    """A pod that waits for one would wait for five minutes each time."""
    with pytest.raises(Exception, match='plugin "Registers"') as refused:
        async with PluginHarness(registers(HintedEvent(event))):
            raise AssertionError("it was taken")
    assert text in str(refused.value)


async def test_a_hint_is_a_function_that_is_not_awaited() -> None:
    event = ClusterEvent("Node", Action.ADD)
    with pytest.raises(Exception, match=r"wanted def hint\(pod, old, new\) for events of Node"):
        async with PluginHarness(registers(HintedEvent(event, helps))):  # type: ignore[arg-type]
            raise AssertionError("it was taken")


async def test_a_kind_may_be_named_in_full() -> None:
    event = HintedEvent(ClusterEvent("licences.v1alpha1.example.com", Action.ALL))
    async with PluginHarness(registers(event)) as harness:
        assert harness.decide(make_pod("web")).status.rejected


class SaysText(Made, FilterPlugin):
    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return "no room"  # type: ignore[return-value]


class PrefersText(Made, PreferNodesPlugin, FilterPlugin):
    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None

    def prefer_nodes(self, *args: Any) -> Any:
        return "a"


class RemovesOther(Made, FilterPlugin):
    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        HypotheticalCluster(node.view).remove("default/other", node.name)
        return None


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (SaysText, "wanted a Status or None, found 'no room'; return Status.unschedulable(…)"),
        (PrefersText, "wanted a list of names of nodes, found 'a'"),
        (
            RemovesOther,
            "pod default/other: wanted one on node a, found none of that name there",
        ),
    ],
)
async def test_what_only_an_attempt_shows_says_what_was_wanted(plugin: Any, text: str) -> None:
    """In the event of the pod, and in the log."""
    cluster = fake_cluster()
    cluster.node("a")
    cluster.node("b")
    async with PluginHarness(plugin, cluster) as harness:
        decided = harness.decide(make_pod("web"))
    assert (decided.node, decided.status.plugin) == (None, plugin.__name__)
    assert text in decided.message


def test_a_part_that_derives_from_the_protocol_has_its_methods() -> None:
    """One that is ready at once need not say so."""

    class Jobs(SharedPart):
        """It has nothing of its own."""

    services = fake_services(fake_cluster())
    assert isinstance(services.shared.get("jobs", Jobs), Jobs)


def test_a_view_says_which_node_it_does_not_have() -> None:
    cluster = fake_cluster()
    cluster.node("a")
    view: View = cluster.state.view()
    with pytest.raises(KeyError, match="node b: wanted one of the view") as found:
        HypotheticalCluster(view).add(make_pod("web"), "b")
    assert str(found.value).startswith("node b: ")


async def test_an_import_error_ends_what_the_start_says() -> None:
    """Once, in one line, with the entry point that it is from."""

    class Lost(EntryPoint):
        def load(self) -> Any:
            raise ModuleNotFoundError("No module named 'licences'")

    registry, services = PluginRegistry(), fake_services(fake_cluster())
    discover(registry, [Lost("Licences", "shop:Licences", PluginRegistry.group)])
    profile = Profile(
        scheduler_name="mine",
        plugins={Point.FILTER: (EnabledPlugin("Licences"),)},
    )
    with pytest.raises(ProfileError) as refused:
        await build_profile(profile, registry, services)

    assert refused.value.errors[0] == (
        'plugin "Licences" cannot be used: Licences = shop:Licences: '
        "ModuleNotFoundError(\"No module named 'licences'\")"
    )
