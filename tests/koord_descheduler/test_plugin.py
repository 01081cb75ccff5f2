"""A plugin that knows nothing but the public face, run as a third party's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import koord_descheduler.plugin
from koord.api.labelselector import LabelSelector
from koord.plugin import OptionError
from koord_descheduler.framework.profile import ProfileError
from koord_descheduler.plugin import (
    BalancePlugin,
    ClusterNode,
    EvictOptions,
    Handle,
    Namespaces,
    PluginRegistry,
    Status,
    pods_in,
)
from tests.support.descheduler.framework import NODES, Kit, make_pod


class DrainShop(BalancePlugin):
    """Moves the pods of one app off all nodes."""

    def __init__(self, args: Any, handle: Handle) -> None:
        app = (args or {}).get("app")
        if not app:
            raise OptionError("app", app, "name the app whose pods should move")
        self._named = pods_in(Namespaces(exclude=("kube-system",)), LabelSelector({"app": app}))
        self._handle = handle

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        evictor = self._handle.evictor()
        for node in nodes:
            for pod in self._handle.list_pods_on_node(node.name, self._named):
                if evictor.filter(pod) and evictor.pre_eviction_filter(pod):
                    await evictor.evict(pod, EvictOptions(reason=f"drain {node.name}"))
        return None


def register(registry: PluginRegistry) -> None:
    """As the entry point of the package names it."""
    registry.register("DrainShop", DrainShop)


async def test_a_plugin_needs_only_the_public_face(kit: Kit) -> None:
    """Filters, lists, evicts within the limits, gives a reason."""
    register(kit.registry)
    kit.place(
        make_pod("a", labels={"app": "shop"}),
        make_pod("b", labels={"app": "bank"}),
        make_pod("c", labels={"app": "shop"}, namespace="kube-system"),
        make_pod("d", labels={"app": "shop"}, phase="Succeeded"),
        make_pod("e", labels={"app": "shop"}, node="n2"),
    )
    evicted: list[tuple[str, EvictOptions]] = []
    args = {"DrainShop": {"app": "shop"}, "Evict": {"evicted": evicted}}
    profile = await kit.profile(balance=("DrainShop",), args=args)

    assert (await profile.run_balance_plugins(NODES)).ok
    assert evicted == [
        ("a", EvictOptions(plugin_name="DrainShop", reason="drain n1")),
        ("e", EvictOptions(plugin_name="DrainShop", reason="drain n2")),
    ]


async def test_args_that_a_plugin_refuses_are_in_the_message(kit: Kit) -> None:
    """With the plugin and its source."""
    register(kit.registry)
    with pytest.raises(ProfileError, match=r"DrainShop.*app: found None; name the app") as caught:
        await kit.profile(balance=("DrainShop",))

    assert Path(__file__).name in str(caught.value)


def test_the_face_has_what_it_lists() -> None:
    """Sorted, each once."""
    names = koord_descheduler.plugin.__all__
    assert sorted(set(names)) == sorted(names)
    assert all(hasattr(koord_descheduler.plugin, name) for name in names)
