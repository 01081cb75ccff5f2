"""Hooks of quotas (worked example 46, and what they follow)."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koord.api.elasticquota import NAME
from koord_scheduler_plugins.elastic_quota import hooks
from koord_scheduler_plugins.elastic_quota.hooks import (
    GROUP,
    HookPlugin,
    QuotaHook,
    QuotaInfo,
    QuotaReader,
)
from koord_scheduler_plugins.elastic_quota.plugin import ElasticQuotaArgs
from tests.koord_scheduler.plugins.elastic_quota.test_elastic_quota import World
from tests.support.clusters import pod, read_pod

MADE: list["Slots"] = []


class Slots(QuotaHook):
    """Admits so many pods of a quota, whatever they request."""

    def __init__(self, reader: QuotaReader, key: str, args: Any) -> None:
        self.reader, self.key, self.slots = reader, key, args["slots"]
        self.pods: dict[str, set[str]] = {}
        self.quotas: list[str] = []
        MADE.append(self)

    def check_pod(self, quota: QuotaInfo, pod: Any) -> str:
        if pod.name == "broken":
            raise ValueError("what is that?")
        return "no slot" if len(self.pods.get(quota.name, ())) >= self.slots else ""

    def quota_changed(self, old: Any, new: Any) -> None:
        self.quotas.append(f"{'-' if new is None else '+'}{(new or old).name}")

    def pod_changed(self, quota: str, old: Any, new: Any) -> None:
        there = self.pods.setdefault(quota, set())
        there.discard((old or new).name)
        if new is not None:
            there.add(new.name)

    def status_annotations(self, quota: QuotaInfo) -> dict[str, str]:
        return {"example.com/slots": f"{len(self.pods.get(quota.name, ()))}/{self.slots}"}


def no_hook(reader: QuotaReader, key: str, args: Any) -> Any:
    return 7


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    there = [EntryPoint(name, f"{__name__}:{name}", GROUP) for name in ("Slots", "no_hook")]

    def find(*, group: str, name: str = "") -> list[EntryPoint]:
        return [one for one in there if group == GROUP and name in ("", one.name)]

    monkeypatch.setattr(hooks, "entry_points", find)


def entry(slots: int = 1, factory: str = "Slots") -> HookPlugin:
    return HookPlugin(key="h1", factory_key=factory, factory_args={"slots": slots})


async def test_a_hook_rejects_a_pod_that_its_quota_has_room_for() -> None:
    """Worked example 46. When a pod of the quota has gone the next one is tried."""
    world = await World().begin(8, hook_plugins=(entry(),))
    world.quota("a", "8")
    first = world.add("p", "a")
    await world.settle()
    world.add("q", "a", priority=9)
    await world.settle()
    assert (world.bound, world.leaving) == (["p"], [])
    assert "CheckPod failed for hook plugin h1, err: no slot" in world.message("q")
    world.api.delete_pod(first)
    await world.settle()
    await world.advance(15.0)
    assert world.bound == ["p", "q"]
    await world.end()


async def test_hooks_are_asked_also_where_nobody_uses_quotas() -> None:
    world = await World().begin(8, hook_plugins=(entry(slots=0),))
    world.add("p")
    await world.settle()
    assert world.bound == []
    await world.end()


async def test_a_hook_that_fails_keeps_its_pod_and_no_other() -> None:
    world = await World().begin(8, hook_plugins=(entry(),))
    world.quota("a", "8")
    world.add("broken", "a")
    world.add("p", "a")
    await world.settle()
    assert world.bound == ["p"]
    assert "h1, err: ValueError: what is that?" in world.message("broken")
    await world.end()


async def test_hooks_follow_quotas_and_the_pods_on_nodes() -> None:
    """Also a pod that gets another quota; the reader has what is used."""
    world = await World().begin(8, hook_plugins=(entry(slots=9),))
    for name in "ab":
        world.quota(name, "8")
    key = world.add("p", "a")
    await world.settle()
    (hook,) = MADE
    assert hook.pods == {"a": {"p"}}
    info = hook.reader.quota("a")
    assert info is not None
    assert (info.used["cpu"], info.parent) == (1000, "koordinator-root-quota")
    children = [one.name for one in hook.reader.children("koordinator-root-quota")]
    assert [name for name in children if name in "ab"] == ["a", "b"]
    world.api.change(key, metadata={"labels": {"quota.scheduling.koordinator.sh/name": "b"}})
    await world.settle()
    assert hook.pods == {"a": set(), "b": {"p"}}
    world.api.delete_pod(key)
    world.drop("b")
    await world.settle()
    assert hook.pods == {"a": set(), "b": set()}
    assert hook.quotas == ["+a", "+b", "-b"]
    await world.end()


async def test_a_pod_that_gives_up_its_node_leaves_the_hook() -> None:
    """One that is assumed counts at once, also while its object is written without a node."""
    world = await World().begin(8, hook_plugins=(entry(),))
    world.quota("a", "8")
    (hook,), one = MADE, read_pod(pod("p", labels={NAME: "a"}))
    there = replace(one, node="n0")
    known = world.plugin.tracker.hooks
    assert known is not None
    known.reserved(there)
    known.pod_changed(one, one)
    assert hook.pods == {"a": {"p"}}
    known.unreserved(there)
    assert hook.pods == {"a": set()}
    known.reserved(there)
    known.pod_changed(one, there)
    known.pod_changed(there, replace(there, uid="anew", node=""))
    assert hook.pods == {"a": set()}
    await world.end()


async def test_the_status_has_what_hooks_add_to_it() -> None:
    world = await World().begin(8, hook_plugins=(entry(),))
    world.quota("a", "8")
    world.add("p", "a")
    await world.settle()
    assert world.plugin.tracker.hooks is not None
    assert world.plugin.tracker.hooks.annotations("a") == {"example.com/slots": "1/1"}
    await world.end()


async def test_the_hook_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs/koordinator-plugins.md").read_text()
    begin = "from koord_scheduler_plugins.elastic_quota.hooks"
    found = re.search(rf"```python\n({begin}.*?)```", page, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    monkeypatch.setattr(sys.modules[__name__], "Slots", names["Slots"])
    world = await World().begin(8, hook_plugins=(entry(slots=2),))
    world.quota("a", "8")
    for name in "pqr":
        world.add(name, "a")
    await world.settle()
    assert world.bound == ["p", "q"]
    await world.end()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (HookPlugin(factory_key="Slots"), "hook plugin key is empty"),
        (HookPlugin(key="h"), "hook plugin h: factoryKey is empty"),
    ],
)
def test_entries_are_checked(wrong: HookPlugin, text: str) -> None:
    assert [text in str(one) for one in ElasticQuotaArgs(hook_plugins=(wrong,)).validate()] == [
        True
    ]


def test_keys_are_unique() -> None:
    (problem,) = ElasticQuotaArgs(hook_plugins=(entry(), entry())).validate()
    assert "h1 is there twice" in str(problem)


@pytest.mark.parametrize(
    ("factory", "text"),
    [("Gone", "installed are: Slots, no_hook"), ("no_hook", "wanted a QuotaHook, found 7")],
)
async def test_a_hook_that_cannot_be_made_ends_the_start(factory: str, text: str) -> None:
    with pytest.raises(Exception, match=text):
        await World().begin(1, hook_plugins=(entry(factory=factory),))
