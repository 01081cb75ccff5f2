"""BusyNode, tested with koordlet's kit: no daemon, no cluster, no waiting."""

import pytest
from koordlet_busy_node import BusyNode, BusyOptions, busiest

from koord.api.node import Node
from koord.plugin import OptionError
from koordlet.plugin import kinds
from koordlet.plugin.testing import PluginHarness, make_pod


def harness(*args: str) -> PluginHarness:
    """The plugin on a node of four cores with three pods."""
    harness = PluginHarness(
        BusyNode(),
        args=["--busy-node-window=10s", *args],
        pods=[make_pod(name, namespace="shop") for name in ("web", "db", "batch")],
    )
    harness.states.set_node(Node("n1", capacity={"cpu": "4"}))
    return harness


async def test_a_busy_node_names_its_busiest_pods() -> None:
    """The beginning and the end of an episode are logged once each."""
    async with harness("--busy-node-top=2") as node:
        for pod, cores in (("web", 1.5), ("db", 0.5), ("batch", 1.8)):
            node.hold(kinds.POD_CPU_USAGE, cores, pod)
        await node.rounds(4)
        assert node.log.named("node.busy") == [{"pods": {"shop/batch": 1.8, "shop/web": 1.5}}]
        assert node.metric("busy") == 1

        node.hold(kinds.POD_CPU_USAGE, 0.1, "batch")
        await node.rounds(3)
        (calm,) = node.log.named("node.calm")
        assert calm["cores"] < 3.2
        assert node.metric("episodes_total") == 1


async def test_a_calm_node_says_nothing() -> None:
    """Below the share, and without any measurement, nothing is logged."""
    async with harness() as node:
        await node.rounds(1)
        node.hold(kinds.POD_CPU_USAGE, 3.1, "web")
        await node.rounds(5)
        assert node.log.events == []


async def test_a_round_is_cheap() -> None:
    """With 300 pods the event loop is held for a few milliseconds only."""
    async with harness() as node:
        for number in range(300):
            node.hold(kinds.POD_CPU_USAGE, 0.01, f"pod-{number}")
        await node.rounds(10)
        assert node.cost.cpu_per_round < 0.02


@pytest.mark.parametrize("options", [{"share": 0.0}, {"share": 1.5}, {"top": 0}])
def test_bad_options(options: dict[str, float]) -> None:
    """A bad flag stops the plugin at its setup."""
    with pytest.raises(OptionError):
        BusyOptions(**options)


def test_busiest() -> None:
    """Most first; ties by name, so that the result is always the same."""
    assert busiest({"a": 1.0, "b": 3.0, "c": 1.0}, 2) == [("b", 3.0), ("c", 1.0)]
