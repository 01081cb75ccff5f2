"""Registered, merged and discovered plugins."""

import sys
import types
from collections.abc import Sequence
from importlib.metadata import EntryPoint

import pytest

from koord.cluster.facts import ClusterNode, ClusterPod
from koord.component.plugins.discovery import discover
from koord.component.plugins.registry import PluginError
from koord_descheduler.framework.profile import PluginRegistry
from koord_descheduler.plugin import (
    BalancePlugin,
    DeschedulePlugin,
    EvictPlugin,
    FilterPlugin,
    Handle,
    Plugin,
)
from tests.support.descheduler.framework import Both, Recording


def test_a_name_twice_is_refused_with_both_sources() -> None:
    """The first plugin stays."""
    registry = PluginRegistry()
    registry.register("A", Both)
    with pytest.raises(PluginError, match="wanted a free name") as caught:
        registry.register("A", Recording)

    assert str(caught.value).count(__file__) == 2
    entry = registry.get("A")
    assert entry is not None
    assert entry.plugin is Both


def test_unregister_takes_out_what_is_there_and_only_that() -> None:
    """Its name is free again."""
    registry = PluginRegistry()
    registry.register("A", Both)
    registry.unregister("A")
    assert registry.get("A") is None
    registry.register("A", Recording)
    with pytest.raises(PluginError, match="no plugin named 'B' exists; registered are: A"):
        registry.unregister("B")


def test_merge_adds_all_or_nothing_and_keeps_the_sources() -> None:
    """All names that are taken are in the message."""
    registry, other = PluginRegistry(), PluginRegistry()
    registry.register("A", Both)
    other.from_source("shop 1.0").register("B", Both)
    registry.merge(other)
    assert [entry.name for entry in registry] == ["A", "B"]
    assert registry.get("B") == other.get("B")

    again = PluginRegistry()
    for name in ("C", "A", "B"):
        again.from_source("other 2.0").register(name, Both)
    with pytest.raises(PluginError, match=r"A from other 2\.0.*B from other 2\.0, .* shop 1\.0"):
        registry.merge(again)
    assert registry.get("C") is None


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 64, 5, None, "a/b", "ä"])
def test_a_name_that_no_profile_could_use_is_refused(name: object) -> None:
    """A name is a key in the configuration, a label of metrics, and part of logs."""
    with pytest.raises(PluginError, match="wanted a name"):
        PluginRegistry().register(name, Both)  # type: ignore[arg-type]


@pytest.mark.parametrize("factory", [None, "text", lambda: None, lambda args: None])
def test_a_factory_that_cannot_take_args_and_handle_is_refused(factory: object) -> None:
    """When it is registered, not in the middle of a start."""
    with pytest.raises(PluginError, match=r"wanted a factory\(args, handle\)"):
        PluginRegistry().register("A", factory)  # type: ignore[arg-type]


def test_entry_points_are_classes_or_functions_that_register(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that cannot be imported is known by name, with the reason, and keeps none away."""
    module = types.ModuleType("shop_plugins")
    module.Balance = Both  # type: ignore[attr-defined]
    module.number = 5  # type: ignore[attr-defined]

    def register(registry: PluginRegistry) -> None:
        registry.register("One", Both)
        registry.register("Two", Recording)

    module.register = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_plugins", module)
    group = PluginRegistry.group
    entries = [
        EntryPoint("Class", "shop_plugins:Balance", group),
        EntryPoint("Function", "shop_plugins:register", group),
        EntryPoint("Missing", "shop_plugins:nothing", group),
        EntryPoint("Number", "shop_plugins:number", group),
    ]
    registry = PluginRegistry()

    assert discover(registry, entries) == []
    assert [entry.name for entry in registry] == ["Class", "One", "Two", "Missing", "Number"]
    broken = {entry.name for entry in registry if entry.error}
    assert broken == {"Missing", "Number"}
    number = registry.get("Number")
    assert number is not None
    assert "wanted a class derived from Plugin" in number.error


class SyncBalance(BalancePlugin):
    def __init__(self, args: object, handle: Handle) -> None: ...

    def balance(self, nodes: Sequence[ClusterNode]) -> None:  # type: ignore[override]
        """As one writes it who has not read on."""


class SyncDeschedule(DeschedulePlugin):
    def __init__(self, args: object, handle: Handle) -> None: ...

    def deschedule(self, nodes: Sequence[ClusterNode]) -> None:  # type: ignore[override]
        """The same."""


class AsyncFilter(FilterPlugin):
    def __init__(self, args: object, handle: Handle) -> None: ...

    async def filter(self, pod: ClusterPod) -> bool:  # type: ignore[override]
        return True

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        return True


class Unfinished(FilterPlugin):
    def __init__(self, args: object, handle: Handle) -> None: ...

    def filter(self, pod: ClusterPod) -> bool:
        return True


class WithoutOptions(EvictPlugin):
    def __init__(self, args: object, handle: Handle) -> None: ...

    async def evict(self, pod: ClusterPod) -> bool:  # type: ignore[override]
        return True


class WithoutInterface(Plugin):
    def __init__(self, args: object, handle: Handle) -> None: ...

    async def balance(self, nodes: Sequence[ClusterNode]) -> None: ...


class NoPlugin:
    def __init__(self, args: object, handle: Handle) -> None: ...


WRONG = {
    SyncBalance: "wanted async def balance(self, nodes), found a plain function; write async def",
    SyncDeschedule: "wanted async def deschedule(self, nodes), found a plain function",
    AsyncFilter: "wanted def filter(self, pod), found async def; it is not awaited: write def",
    Unfinished: "wanted def pre_eviction_filter(self, pod), found none: it is abstract still",
    WithoutOptions: "wanted async def evict(self, pod, options), found evict(self, pod",
    WithoutInterface: "wanted a class with an interface of koord_descheduler.plugin",
    NoPlugin: "wanted a class derived from interfaces of koord_descheduler.plugin",
}


@pytest.mark.parametrize("plugin", WRONG)
def test_a_wrong_form_is_named_where_it_is_registered(plugin: type) -> None:
    """And not when the first round calls it."""
    with pytest.raises(PluginError) as refused:
        PluginRegistry().register("Odd", plugin)

    assert str(refused.value).startswith("plugin Odd from ")
    assert WRONG[plugin] in str(refused.value)
