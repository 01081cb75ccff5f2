"""Decisions of a cycle: what plugins publish, and what becomes of the evictions that they ask."""

import pytest

from koord_descheduler.framework import evictor as decisions_module
from koord_descheduler.framework.evictor import Action, Decisions, NodeDecision, PodDecision
from koord_descheduler.framework.interfaces import EvictOptions
from tests.support.descheduler.framework import NODES, Both, Kit, make_pod


def decided(pod: str, action: Action = Action.EVICT, reason: str = "hot") -> PodDecision:
    return PodDecision(profile="p", plugin="A", pod=pod, node="n1", action=action, reason=reason)


NODE = NodeDecision(profile="p", plugin="A", node="n1", verdict="high", reason="cpu")


def test_sources_are_asked_when_decisions_are_wanted() -> None:
    found = Decisions()
    found.publish(lambda: [NODE])  # before the first cycle: to none
    found.begin(1.0)
    asked = []

    def source() -> list[NodeDecision | PodDecision]:
        asked.append(1)
        return [NODE, decided("default/a")]

    found.publish(source)
    assert not asked
    assert found.cycles[-1].nodes() == [NODE]
    assert found.cycles[-1].pods() == [decided("default/a")]


def test_what_no_plugin_published_follows() -> None:
    found = Decisions()
    found.settle(decided("default/early"))  # before the first cycle: nowhere
    found.begin(1.0)
    found.settle(decided("default/b", reason="old"))
    found.publish(lambda: [decided("default/a", Action.STAY, "small")])

    assert found.cycles[-1].pods() == [
        decided("default/a", Action.STAY, "small"),
        decided("default/b", reason="old"),
    ]


def test_what_became_of_an_eviction_wins() -> None:
    """With both reasons; where both agree, the plugin's own says more."""
    found = Decisions()
    found.begin(1.0)
    found.publish(lambda: [decided("default/a"), decided("default/b")])
    found.settle(decided("default/a", Action.REFUSED, "limit"))
    found.settle(decided("default/b", reason="short"))

    assert found.cycles[-1].pods() == [
        decided("default/a", Action.REFUSED, "hot; limit"),
        decided("default/b"),
    ]


def test_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions_module, "MAX_DECISIONS", 3)
    found = Decisions()
    found.begin(1.0)
    found.publish(lambda: [decided(f"default/a{at}") for at in range(5)])
    for at in range(5):
        found.settle(decided(f"default/b{at}"))

    assert [one.pod for one in found.cycles[-1].pods()] == [
        "default/a0",
        "default/a1",
        "default/a2",
    ]
    assert len(found.cycles[-1].outcomes) == 3


async def test_the_proxy_settles_every_eviction(kit: Kit) -> None:
    """Evicted, refused by a limit, refused by the evict plugin, failed in it."""
    pods = {name: make_pod(name) for name in ("a", "refused", "raises", "late")}
    kit.place(*pods.values())
    kit = Kit(kit.clock, per_node=1)

    async def act(plugin: Both, nodes: object) -> None:
        evictor = plugin.handle.evictor()
        for name in ("refused", "raises", "a", "late"):
            await evictor.evict(pods[name], EvictOptions(reason="hot"))

    profile = await kit.profile(balance=("A",), args={"A": {"balance": act}})
    kit.decisions.begin(0.0)
    await profile.run_balance_plugins(NODES)

    found = kit.decisions.cycles[-1].pods()
    assert [(one.profile, one.plugin, one.pod, one.node) for one in found] == [
        ("p", "A", f"default/{name}", "n1") for name in ("refused", "raises", "a", "late")
    ]
    assert [(one.action, one.reason) for one in found] == [
        (Action.REFUSED, "Evict did not evict it"),
        (Action.REFUSED, "Evict failed: ValueError('no')"),
        (Action.EVICT, "hot"),
        (Action.REFUSED, "the limit of evictions, node, is reached"),
    ]
