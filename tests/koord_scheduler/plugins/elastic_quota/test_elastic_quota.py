"""A life of quotas in the scheduler: pods are admitted, wait, and are tried again."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from koord.api.elasticquota import (
    ALLOW_LENT_RESOURCE,
    IS_ROOT,
    NAME,
    NAMESPACES,
    PARENT,
    PREEMPTIBLE,
    TOTAL_RESOURCE,
    TREE_ID,
    read_elastic_quota,
)
from koord.api.podgroup import LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord.cluster.account import Account
from koord.cluster.hypothetical import HypotheticalCluster
from koord.plugin import KoordError
from koord.util.health import Health
from koord_scheduler.framework.extension.providers import PluginRequest
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreBindExtensions, PreBindPlugin
from koord_scheduler.framework.status import CycleState, Status
from koord_scheduler_plugins.coscheduling.plugin import Coscheduling, CoschedulingArgs
from koord_scheduler_plugins.elastic_quota.plugin import ElasticQuota, ElasticQuotaArgs
from koord_scheduler_plugins.elastic_quota.quotas import start
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS, sum_of_nodes
from tests.koord_scheduler.plugins.elastic_quota.test_quotas import shown
from tests.support.clusters import pod, read_pod
from tests.support.scheduler.loop import Loop

GANG_POINTS = ("preEnqueue", "preFilter", "reserve", "permit", "preBind", "postFilter")


class Applies(PreBindPlugin, PreBindExtensions):
    """Lets plugins change pods, and forgets it."""

    async def pre_bind(self, state: Any, pod: Any, node_name: str) -> Status | None:
        return None

    async def apply_patch(self, state: Any, pod: Any, changes: Any) -> Status | None:
        return None


class World(Loop):
    """A scheduler with the plugin, and nodes with so many cores."""

    async def begin(self, *cores: int, gangs: bool = False, **args: Any) -> "World":
        def make(_: object, handle: Handle) -> ElasticQuota:
            self.plugin = ElasticQuota(ElasticQuotaArgs(**args), handle)
            return self.plugin

        self.registry.register("ElasticQuota", make)
        points: dict[str, dict[str, Any]] = {
            point: {"ElasticQuota": None} for point in ("preFilter", "postFilter", "reserve")
        }
        if gangs:
            self.registry.register(
                "Coscheduling", lambda _, handle: Coscheduling(CoschedulingArgs(), handle)
            )
            for point in GANG_POINTS:
                points[point] = {"Coscheduling": None, **points.get(point, {})}
            points["preBind"]["Applies"] = Applies()
        await self.build(**points)
        for number, cpu in enumerate(cores):
            self.api.add_node(f"n{number}", cpu=str(cpu))
        await self.start()
        self._parts = asyncio.create_task(self.services.shared.run(self.stop, self.clock, Health()))
        await self.settle()
        return self

    async def end(self) -> None:
        await super().end()
        await self._parts

    def quota(
        self,
        name: str,
        high: str,
        low: str = "0",
        *,
        parent: str = "",
        lends: bool = True,
        namespaces: tuple[str, ...] = (),
        created: str = "2026-07-01T00:00:00Z",
        where: str = "quotas",
        uid: str = "",
    ) -> None:
        labels = {PARENT: parent} if parent else {}
        if not lends:
            labels[ALLOW_LENT_RESOURCE] = "false"
        annotations = {NAMESPACES: json.dumps(namespaces)} if namespaces else {}
        meta = {"namespace": where, "name": name, "uid": uid or name, "creationTimestamp": created}
        self.services.informers.apply(
            QUOTAS,
            {
                "metadata": {**meta, "labels": labels, "annotations": annotations},
                "spec": {"min": {"cpu": low}, "max": {"cpu": high}},
            },
        )

    def drop(self, name: str) -> None:
        self.services.informers.delete(QUOTAS, f"quotas/{name}")

    def add(self, name: str, quota: str = "", cpu: str = "1", **spec: Any) -> str:
        labels = {NAME: quota} if quota else {}
        labels |= spec.pop("labels", {})
        return self.api.add_pod(name, cpu=cpu, labels=labels, **spec)

    async def pass_time(self) -> None:
        """So much that whoever has room is tried again, and nobody's backoff matters."""
        await self.advance(0.1)

    @property
    def bound(self) -> list[str]:
        return sorted(key.partition("/")[2] for key, _ in self.api.bindings)

    def message(self, name: str) -> str:
        """The latest reason for which a pod is not scheduled."""
        return next(text for pod, _, text in reversed(self.events) if pod == name)

    @property
    def leaving(self) -> list[str]:
        """Pods that are being deleted."""
        return sorted(key.partition("/")[2] for key in self.api.pods if self.api.pod(key).deleting)

    def problem(self, quota: str, where: str = "quotas") -> str:
        """The only thing that is wrong with a quota."""
        (text,) = self.plugin.tracker.problems_of(f"{where}/{quota}")
        return text

    def used(self, quota: str) -> Any:
        quotas = self.plugin.tracker.current()
        state = quotas.state_of(quota)
        assert state is not None
        return state.used(quota).get("cpu", 0)


async def test_of_two_pods_that_come_at_once_the_quota_takes_one():
    """Worked example 62, by the scheduler: the other one is created, and placed when it can be."""
    world = await World().begin(16)
    world.quota("a", "10")
    first = world.add("first", "a", cpu="9")
    await world.settle()
    for name in ("p", "q"):
        world.add(name, "a")
    await world.settle()
    assert world.bound == ["first", "p"]
    assert "used: cpu:10, pod's request: cpu:1, exceedDimensions: [cpu]" in world.message("q")
    world.api.delete_pod(first)
    await world.settle()
    await world.pass_time()
    assert world.bound == ["first", "p", "q"]
    await world.end()


async def test_pods_are_placed_until_their_quota_is_full():
    world = await World().begin(8)
    world.quota("a", "2")
    for name in ("p", "q", "r"):
        world.add(name, "a")
        await world.settle()
    other = world.add("other")
    await world.settle()
    assert world.bound == ["other", "p", "q"]
    assert world.where(other) == "n0"
    assert world.message("r") == (
        "0/1 nodes are available: Insufficient quotas, quotaName: a, runtime: cpu:2, "
        "used: cpu:2, pod's request: cpu:1, exceedDimensions: [cpu]. preemption: "
        "No preemption victims found for incoming pod"
    )
    await world.end()


async def test_a_pod_that_goes_makes_room_for_as_many_as_fit_the_most_important_first():
    world = await World().begin(8)
    world.quota("a", "2")
    first = world.add("first", "a", cpu="2")
    await world.settle()
    for name, priority in (("low", 1), ("mid", 5), ("high", 9)):
        world.add(name, "a", priority=priority)
    world.add("large", "a", cpu="3", priority=99)
    await world.settle()
    assert world.bound == ["first"]
    failed = len(world.events)
    world.api.delete_pod(first)
    await world.settle()
    await world.pass_time()
    assert world.bound == ["first", "high", "mid"]
    tried = [name for name, reason, _ in world.events[failed:] if reason == "FailedScheduling"]
    assert tried == []
    await world.end()


@pytest.mark.parametrize("way", ["max", "node", "lender"])
async def test_whatever_makes_room_wakes_pods(way):
    """A larger max, a further node, a sibling that asks for less."""
    world = await World().begin(4)
    world.quota("a", "1" if way == "max" else "9", "1")
    world.quota("b", "9", "3")
    asking = world.add("b", "b", cpu="5")  # more than any node has
    await world.settle()
    for name in ("p", "q"):
        world.add(name, "a")
        await world.settle()
    assert world.bound == ["p"]
    if way == "max":
        world.api.delete_pod(asking)
        await world.pass_time()
        assert world.bound == ["p"]
        world.quota("a", "2")
    elif way == "node":
        world.api.add_node("more", cpu="3")
    else:
        world.api.delete_pod(asking)
    await world.settle()
    await world.pass_time()
    assert world.bound == ["p", "q"]
    await world.end()


async def test_a_woken_pod_that_finds_no_node_leaves_its_turn_to_the_next():
    world = await World().begin(4, 2)
    world.quota("a", "3")
    first = world.add("first", "a", cpu="3")
    await world.settle()
    world.api.add_pod("other", bound="n0", cpu="2")
    world.add("nowhere", "a", priority=9, cpu="3")
    world.add("q", "a")
    await world.settle()
    assert world.bound == ["first"]
    world.api.delete_pod(first)
    await world.settle()
    await world.pass_time()
    assert any("Insufficient cpu" in text for pod, _, text in world.events if pod == "nowhere")
    assert world.bound == ["first", "q"]
    await world.end()


async def test_two_quotas_lend_each_other_what_they_do_not_ask_for():
    world = await World().begin(4)
    world.quota("a", "4", "2")
    world.quota("b", "4", "2")
    for name in ("a1", "a2", "a3"):
        world.add(name, "a")
    await world.settle()
    assert world.bound == ["a1", "a2", "a3"]
    world.add("b1", "b")
    world.add("b2", "b")
    await world.settle()
    assert world.bound == ["a1", "a2", "a3", "b1"]
    world.add("a4", "a")
    await world.settle()
    assert "runtime: cpu:2, used: cpu:3" in world.message("a4")
    await world.end()


async def test_a_quota_made_later_takes_over_pods_of_the_default_quota():
    """Worked example 47: with what is assigned, too; a deleted one gives them back."""
    world = await World().begin(8)
    world.add("p", "x")
    await world.settle()
    assert (world.bound, world.used("koordinator-default-quota")) == (["p"], 1000)
    world.quota("x", "1")
    assert (world.used("koordinator-default-quota"), world.used("x")) == (0, 1000)
    world.add("q", "x")
    await world.settle()
    assert world.bound == ["p"]
    world.drop("x")
    await world.pass_time()
    assert world.bound == ["p", "q"]
    assert world.used("koordinator-default-quota") == 2000
    await world.end()


async def test_pods_belong_to_the_quota_of_their_namespace():
    """Worked example 48: a quota named like the namespace goes before one that lists it."""
    world = await World().begin(8)
    world.quota("listing", "0", namespaces=("one", "two"))
    world.quota("one", "1", where="one")
    world.add("p", namespace="one")
    world.add("q", namespace="two")
    await world.settle()
    assert world.bound == ["p"]
    assert "quotaName: listing" in world.message("q")
    await world.end()


async def test_a_changed_label_moves_a_pod():
    """Worked example 49."""
    world = await World().begin(8)
    world.quota("a", "1")
    world.quota("b", "1")
    key = world.add("p", "a")
    world.add("q", "a")
    await world.settle()
    assert (world.used("a"), world.used("b")) == (1000, 0)
    world.api.change(key, metadata={"labels": {NAME: "b"}})
    await world.settle()
    await world.pass_time()
    assert (world.bound, world.used("a"), world.used("b")) == (["p", "q"], 1000, 1000)
    await world.end()


async def test_a_pending_pod_that_gets_another_quota_is_tried_again():
    world = await World().begin(8)
    world.quota("a", "0")
    key = world.add("p", "a")
    await world.settle()
    world.api.change(key, metadata={"labels": {}})
    await world.settle()
    await world.advance(10.0)
    assert world.bound == ["p"]
    await world.end()


async def test_absurd_values_keep_the_last_good_ones():
    world = await World().begin(8)
    world.quota("a", "1")
    world.quota("a", "-5")
    world.quota("never", "-1")
    for name in ("p", "q"):
        world.add(name, "a")
    world.add("r", "never")
    await world.settle()
    assert world.bound == ["p", "r"]
    assert world.problem("a") == "elasticquota.spec.max.cpu: wanted 0 or more, found -5"
    assert world.problem("never") == "elasticquota.spec.max.cpu: wanted 0 or more, found -1"
    await world.end()


async def test_an_absurd_object_made_anew_does_not_have_the_values_of_the_one_before():
    """Its deletion may have been missed."""
    world = await World().begin(8)
    world.quota("a", "1")
    world.quota("a", "-5", uid="another")
    for name in ("p", "q"):
        world.add(name, "a")
    await world.settle()
    assert world.bound == ["p", "q"]
    assert "a" not in world.plugin.tracker.current().objects
    assert "found -5" in world.problem("a")
    await world.end()


async def test_circles_of_parents_keep_the_last_good_parents():
    world = await World().begin(8)
    world.quota("a", "2")
    world.quota("b", "1", parent="a")
    world.add("p", "b")
    await world.settle()
    world.quota("a", "2", parent="b")
    world.add("q", "b")
    world.add("r", "a")
    await world.settle()
    assert world.bound == ["p", "r"]
    assert world.plugin.tracker.problems_of("quotas/a")[0] == (
        "quota a is its own ancestor: a -> b -> a; its parent stays koordinator-root-quota"
    )
    await world.end()


async def test_of_quotas_with_one_name_the_oldest_counts():
    world = await World().begin(8)
    world.quota("a", "1")
    world.quota("a", "8", where="elsewhere", created="2026-07-02T00:00:00Z")
    for name in ("p", "q"):
        world.add(name, "a")
    await world.settle()
    assert world.bound == ["p"]
    text = "quota a is ignored: quotas/a has the same name and is older"
    assert world.problem("a", "elsewhere") == text
    await world.end()


async def test_non_preemptible_pods_stay_within_min():
    world = await World().begin(8)
    world.quota("a", "4", "1")
    labels = {PREEMPTIBLE: "false"}
    for name in ("p", "q"):
        world.add(name, "a", labels=labels)
    await world.settle()
    assert world.bound == ["p"]
    assert "Insufficient non-preemptible quotas, quotaName: a, min: cpu:1" in world.message("q")
    world.add("r", "a")
    await world.settle()
    assert world.bound == ["p", "r"]
    await world.end()


async def test_ancestors_are_checked_where_it_is_wanted():
    """Worked example 45."""
    world = await World().begin(8, enable_check_parent_quota=True, enable_runtime_quota=False)
    world.quota("top", "1")
    world.quota("a", "1", parent="top")
    world.quota("b", "1", parent="top")
    first = world.add("p", "a")
    await world.settle()
    world.add("q", "b")
    await world.settle()
    assert "quotaNameTopo: [top b]" in world.message("q")
    world.api.delete_pod(first)
    await world.settle()
    await world.pass_time()
    assert world.bound == ["p", "q"]
    await world.end()


async def test_a_what_if_has_its_own_sums():
    """Without a pod its quota has room, whatever the cluster has; and the other way round."""
    world = await World().begin(8)
    world.quota("a", "1")
    key = world.add("p", "a")
    await world.settle()
    pod, new = world.state.pod(key), world.api.pod(world.add("new", "a"))
    view = world.state.view()
    without = HypotheticalCluster(view)
    without.remove(key, "n0")
    state = CycleState()
    assert world.plugin.pre_filter(state, new, view).rejected
    assert not world.plugin.pre_filter(state, new, without.view()).rejected
    without.add(new, "n0")
    assert world.plugin.pre_filter(state, pod, without.view()).rejected
    assert world.used("a") == 1000
    await world.end()


async def test_an_explanation_is_no_attempt():
    """The pod that is explained goes on waiting for room, and none begins to."""
    world = await World().begin(8)
    world.quota("a", "0")
    key = world.add("p", "a")
    await world.settle()
    world.quota("a", "1")
    state, pod = CycleState(dry_run=True), world.state.pod(key)
    assert not world.plugin.pre_filter(state, pod, world.state.view()).rejected
    await world.pass_time()
    assert world.bound == ["p"]
    other = world.api.pod(world.add("other", "a"))
    assert world.plugin.pre_filter(state, other, world.state.view()).rejected
    assert world.plugin._rejected is None
    await world.end()


async def test_a_gang_is_not_started_if_its_quota_is_enough_for_a_part_of_it():
    world = await World().begin(8, gangs=True)
    world.quota("a", "2")
    labels = {LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "3"}
    for name in "xyz":
        world.add(name, "a", labels=labels)
    await world.settle()
    assert (world.bound, world.state.assumed_count) == ([], 0)
    ((_, reason, text),) = world.events
    assert reason == "FailedScheduling"
    assert "quotaName: a, runtime: cpu:2, used: cpu:2" in text
    assert "2 of 3 fit together" in text
    world.quota("a", "3")
    await world.pass_time()
    await world.advance(15.0)
    assert world.bound == ["x", "y", "z"]
    await world.end()


async def test_a_gang_of_two_quotas_waits_for_the_one_that_has_no_room():
    world = await World().begin(8, gangs=True)
    world.quota("a", "8")
    world.quota("b", "1")
    blocker = world.add("blocker", "b")
    await world.settle()
    labels = {LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "2"}
    world.add("x", "a", labels=labels)
    world.add("y", "b", labels=labels)
    await world.settle()
    assert world.bound == ["blocker"]
    world.api.delete_pod(blocker)
    await world.settle()
    await world.pass_time()
    await world.settle()
    assert world.bound == ["blocker", "x", "y"]
    await world.end()


async def test_pods_of_the_quota_leave_for_a_more_important_one():
    """Victims are on whatever nodes, and no more than the quota needs; others of it stay."""
    world = await World().begin(2, 2, 2)
    world.quota("a", "3")
    for at, priority in enumerate((3, 1, 2)):
        world.add(f"a{at}", "a", bound=f"n{at}", priority=priority)
    world.add("b", "b", bound="n0", priority=-9)
    await world.settle()
    world.add("new", "a", priority=9, cpu="2")
    await world.settle()
    assert world.leaving == ["a1", "a2"]
    for name in world.leaving:
        world.api.delete_pod(f"default/{name}")
    await world.settle()
    await world.pass_time()
    assert world.bound == ["new"]
    await world.end()


@pytest.mark.parametrize(
    "case", ["no node", "not enough", "own priority", "never", "fixed", "default quota"]
)
async def test_nobody_is_evicted_for_nothing(case):
    world = await World().begin(2)
    quota = "" if case == "default quota" else "a"
    if case == "default quota":
        world.quota("koordinator-default-quota", "2", where="koordinator-system")
    else:
        world.quota("a", "1" if case == "not enough" else "2", "2")
    labels = {PREEMPTIBLE: "false"} if case == "fixed" else {}
    world.add("p", quota, bound="n0", priority=9 if case == "own priority" else 1, labels=labels)
    if case == "no node":
        world.add("other", "b", bound="n0", priority=-1)
    policy = {"preemptionPolicy": "Never"} if case == "never" else {}
    await world.settle()
    world.add("new", quota, priority=9, cpu="2", **policy)
    await world.settle()
    assert (world.bound, world.leaving) == ([], [])
    assert "preemption: " in world.message("new")
    await world.end()


async def test_further_pods_of_the_quota_leave_a_node_that_has_no_room():
    world = await World().begin(2, 2)
    world.quota("a", "4")
    for at in range(2):
        world.add(f"a{at}", "a", bound="n0", priority=1)
        world.add(f"b{at}", "a", bound="n1", priority=2)
    await world.settle()
    world.add("new", "a", priority=9, cpu="2")
    await world.settle()
    assert world.leaving == ["a0", "a1"]
    await world.end()


@pytest.mark.parametrize("lower", [1, 2], ids=["room for one of two", "room for both"])
async def test_pods_leave_for_a_whole_gang_or_not_at_all(lower):
    """The victims are chosen once for all members, also while there is room for the first one."""
    world = await World().begin(2, 2, gangs=True)
    world.quota("a", "2", "2")
    for number in range(2):
        labels = {} if number < lower else {PREEMPTIBLE: "false"}
        world.add(f"p{number}", "a", bound="n0", priority=1, labels=labels)
    world.add("free", "b", bound="n1", priority=1)
    await world.settle()
    labels = {LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "2"}
    for name in "xy":
        world.add(name, "a", priority=9, labels=labels)
    await world.settle()
    assert world.leaving == (["p0", "p1"] if lower == 2 else [])
    for name in world.leaving:
        world.api.delete_pod(f"default/{name}")
    await world.settle()
    await world.pass_time()
    await world.advance(15.0)
    assert world.bound == (["x", "y"] if lower == 2 else [])
    await world.end()


async def test_a_quota_with_room_for_a_part_of_a_gang_has_pods_leave_for_the_rest():
    world = await World().begin(4, gangs=True)
    world.quota("a", "3")
    for number in range(2):
        world.add(f"p{number}", "a", bound="n0", priority=number)
    await world.settle()
    labels = {LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "2"}
    for name in "xy":
        world.add(name, "a", priority=9, labels=labels)
    await world.settle()
    assert world.leaving == ["p0"]
    world.api.delete_pod("default/p0")
    await world.settle()
    await world.pass_time()
    await world.advance(15.0)
    assert world.bound == ["x", "y"]
    await world.end()


async def test_further_pods_of_the_quota_leave_the_nodes_of_a_gang():
    """It is admitted without the least of them, but has nodes only where the others are."""
    world = await World().begin(2, 4, gangs=True)
    world.quota("a", "8")
    world.add("small", "a", bound="n0", cpu="2", priority=1)
    for number in range(2):
        world.add(f"p{number}", "a", bound="n1", cpu="2", priority=2 + number)
    await world.settle()
    labels = {LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "2"}
    for name in "xy":
        world.add(name, "a", cpu="2", priority=9, labels=labels)
    await world.settle()
    assert world.leaving == ["p0", "small"]
    await world.end()


async def test_pods_that_leave_already_are_waited_for():
    world = await World().begin(4)
    world.quota("a", "2")
    for name in ("p", "q"):
        world.add(name, "a", bound="n0", priority=1)
    await world.settle()
    world.api.change("default/p", metadata={"deletionTimestamp": "2026-07-24T06:52:45Z"})
    await world.settle()
    world.add("new", "a", priority=9)
    await world.settle()
    assert world.leaving == ["p"]
    assert "terminating pods" in world.message("new")
    world.api.delete_pod("default/p")
    await world.settle()
    await world.pass_time()
    assert world.bound == ["new"]
    await world.end()


async def test_endpoints_show_quotas_and_their_pods():
    world = await World().begin(8)
    world.quota("a", "1")
    for name in ("p", "q"):
        world.add(name, "a")
        await world.settle()
    one, all_of_them = (endpoint.answer for endpoint in world.plugin.endpoints())
    found: Any = await one(PluginRequest(parameters={"name": "a"}, query={"includePods": "true"}))
    assert (found["runtime"], found["used"], found["request"]) == (
        {"cpu": "1"},
        {"cpu": "1"},
        {"cpu": "2"},
    )
    assert found["podCache"] == {
        "default/p": {"isAssigned": True, "resource": {"cpu": "1"}},
        "default/q": {"isAssigned": False, "resource": {"cpu": "1"}},
    }
    listed: Any = await all_of_them(PluginRequest(query={"tree": ""}))
    assert sorted(listed) == ["a", "koordinator-default-quota", "koordinator-system-quota"]
    assert await all_of_them(PluginRequest(query={"tree": "other"})) == {}
    with pytest.raises(LookupError, match="cannot find quota x"):
        await one(PluginRequest(parameters={"name": "x"}))
    await world.end()


@pytest.mark.parametrize(
    ("args", "revokes"),
    [
        ({}, False),
        ({"monitor_all_quotas": True}, True),
        ({"monitor_all_quotas": True, "enable_runtime_quota": False}, False),
    ],
)
async def test_revoking_is_off_unless_it_is_wanted(args, revokes):
    world = await World().begin(8, **args)
    names = world.plugin.new_controllers().keys()
    assert names - {"QuotaStatusController"} == (
        {"QuotaOverUsedRevokeController"} if revokes else set()
    )
    await world.end()


async def test_without_the_default_quota_pods_need_a_label():
    """Worked example 38; the namespace of a pod means nothing then."""
    world = World()
    world.services = replace(world.services, gates="DisableDefaultQuota".__eq__)
    await world.begin(8)
    world.quota("a", "0", namespaces=("default",))
    for name, quota in (("p", ""), ("q", "unknown"), ("r", "a")):
        world.add(name, quota)
    await world.settle()
    assert world.bound == ["p", "q"]
    assert "quotaName: a" in world.message("r")
    await world.end()


async def test_pods_that_are_being_deleted_need_not_count():
    """By the gate ElasticQuotaImmediateIgnoreTerminatingPod; the node has room."""
    world = World()
    world.services = replace(
        world.services, gates="ElasticQuotaImmediateIgnoreTerminatingPod".__eq__
    )
    await world.begin(8)
    world.quota("a", "2")
    for name in ("p", "q"):
        world.add(name, "a")
    await world.settle()
    world.add("r", "a", cpu="2", priority=9)
    await world.settle()
    await world.pass_time()
    assert (world.bound, world.leaving) == (["p", "q", "r"], ["p", "q"])
    assert world.used("a") == 2000
    for name in ("p", "q"):
        world.api.delete_pod(f"default/{name}")
    await world.settle()
    assert world.used("a") == 2000
    await world.end()


async def test_pods_that_should_have_gone_do_not_count():
    """By the gate ElasticQuotaIgnoreTerminatingPod: from the deletion timestamp plus the grace on.

    Nothing happens then, but the pod that waits for the room is tried.
    """
    world = World()
    world.services = replace(world.services, gates="ElasticQuotaIgnoreTerminatingPod".__eq__)
    await world.begin(8)
    world.quota("a", "2")
    for name in ("p", "q"):
        world.add(name, "a", bound="n0")
    world.add("r", "a")
    deleted = datetime.fromtimestamp(world.clock.wall() + 30, UTC).isoformat()
    world.api.change(
        "default/p",
        metadata={"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 20},
    )
    await world.settle()
    await world.advance(49.0)
    assert (world.bound, world.used("a")) == ([], 2000)
    await world.advance(2.0)
    assert (world.bound, world.used("a")) == (["r"], 2000)
    shown_pods = await world.plugin._answer_quota(
        PluginRequest(parameters={"name": "a"}, query={"includePods": "true"})
    )
    assert isinstance(shown_pods, dict)
    assert sorted(shown_pods["podCache"]) == ["default/q", "default/r"]
    assert shown(world.plugin.tracker.current()) == rebuilt(world)
    world.api.delete_pod("default/p")
    await world.settle()
    assert world.used("a") == 2000
    await world.end()


async def test_a_tree_has_what_its_root_declares():
    """Worked example 54: the default tree has the rest."""
    world = World()
    world.services = replace(world.services, gates="MultiQuotaTree".__eq__)
    await world.begin(10)
    meta = {"namespace": "quotas", "name": "t", "uid": "t"}
    labels = {TREE_ID: "1", IS_ROOT: "true"}
    amounts = {"cpu": "4"}
    meta |= {"labels": labels, "annotations": {TOTAL_RESOURCE: json.dumps(amounts)}}
    world.services.informers.apply(
        QUOTAS, {"metadata": meta, "spec": {"min": amounts, "max": {"cpu": "100"}}}
    )
    world.quota("a", "100")
    for name, quota, cpu in (("p", "t", "4"), ("q", "t", "1"), ("r", "a", "6"), ("s", "a", "1")):
        world.add(name, quota, cpu=cpu)
        await world.settle()
    assert world.bound == ["p", "r"]
    assert "quotaName: t, runtime: cpu:4, used: cpu:4" in world.message("q")
    assert "quotaName: a, runtime: cpu:6, used: cpu:6" in world.message("s")
    await world.end()


async def test_a_new_leader_knows_what_is_used_from_the_objects_alone():
    world = World()
    world.quota("a", "2", "2")
    for name in ("p", "q"):
        world.add(name, "a", bound="n0")
    await world.begin(8)
    world.add("r", "a")
    await world.settle()
    assert world.used("a") == 2000
    assert world.bound == []
    await world.end()


def rebuilt(world: World) -> Any:
    """Everything that is decided by, as a process that has just started makes it of the objects."""
    options = world.plugin.tracker.options
    account = Account([options.pods])
    for key in world.api.pods:
        account.put(world.api.pod(key))
    found = world.services.informers.informer(QUOTAS).objects.values()
    quotas = start(options).with_objects(map(read_elastic_quota, found))
    nodes = sum_of_nodes(world.state.view())
    quotas = quotas.with_nodes(nodes).with_account(account.freeze())
    return shown(quotas.with_time(world.clock.wall()))


async def test_a_takeover_at_any_point_of_a_quotas_life_knows_the_same():
    """kill -9 leaves nothing but the objects."""
    world = await World().begin(8)
    steps: list[Callable[[], object]] = [
        lambda: world.add("early", "a"),
        lambda: world.quota("a", "3", "1"),
        lambda: world.add("p", "a"),
        lambda: world.add("large", "a", cpu="4"),
        lambda: world.quota("top", "2"),
        lambda: world.quota("a", "3", "1", parent="top"),
        lambda: world.api.change("default/p", metadata={"labels": {NAME: "b"}}),
        lambda: world.quota("b", "1", lends=False),
        lambda: world.quota("a", "5", "2"),
        lambda: world.drop("a"),
        lambda: world.quota("a", "1", uid="another", created="2026-07-03T00:00:00Z"),
        lambda: world.quota("a", "9", where="elsewhere"),
        lambda: world.drop("a"),
        lambda: world.api.delete_pod("default/early"),
        lambda: world.drop("top"),
        lambda: world.drop("b"),
        lambda: world.api.add_node("more", cpu="4"),
    ]
    for number, step in enumerate(steps):
        step()
        await world.settle()
        assert shown(world.plugin.tracker.current()) == rebuilt(world), number
        await world.pass_time()
        assert shown(world.plugin.tracker.current()) == rebuilt(world), number
    await world.end()


async def test_profiles_must_agree_about_quotas():
    world = await World().begin(8)
    handle = Handle(profile="other", services=world.services, filters=lambda: world.plugin)
    ElasticQuota(ElasticQuotaArgs(), handle)
    with pytest.raises(KoordError, match="all must have the same"):
        ElasticQuota(ElasticQuotaArgs(enable_runtime_quota=False), handle)
    await world.end()


async def test_nothing_is_computed_where_nobody_uses_quotas():
    """Until the first quota comes, or a fixed one gets a limit; what pods use is right then."""
    world = await World().begin(8)
    world.quota("koordinator-root-quota", "9", where="koordinator-system")
    world.add("p", "a")
    await world.settle()
    assert (world.bound, world.plugin.tracker.admits_all) == (["p"], True)
    one, nodes = read_pod(pod("one")), world.state.view()
    assert world.plugin.pre_filter_reuse_key(one, nodes) is not None  # once for equal pods
    world.quota("a", "1")
    assert not world.plugin.tracker.admits_all
    assert world.plugin.pre_filter_reuse_key(one, nodes) is None
    world.add("q", "a")
    await world.settle()
    assert (world.bound, world.used("a")) == (["p"], 1000)
    world.drop("a")
    world.quota("koordinator-default-quota", "1", where="koordinator-system")
    await world.pass_time()
    assert not world.plugin.tracker.admits_all
    assert world.bound == ["p"]
    await world.end()


@pytest.mark.parametrize(
    ("gate", "bound"), [("", ["p"]), ("ElasticQuotaIgnorePodOverhead", ["p", "q"])]
)
async def test_overhead_of_pods_need_not_count(gate, bound):
    """By the gate ElasticQuotaIgnorePodOverhead, of the quota alone."""
    world = World()
    world.services = replace(world.services, gates=gate.__eq__)
    await world.begin(8)
    world.quota("a", "2")
    for name in ("p", "q"):
        world.add(name, "a", overhead={"cpu": "500m"})
        await world.settle()
    assert world.bound == bound
    assert world.used("a") == (2000 if gate else 1500)
    view = world.state.view()
    assert view.requested[0, view.resources["cpu"]] == 1500 * len(bound)
    await world.end()
