"""Gang preemption (worked examples 58 to 65 of the specification, and what is done better)."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from koord.api.elasticquota import PREEMPTIBLE
from koord.api.podgroup import GROUP_LABEL, GROUPS
from koord.api.reservation import DISABLE_PREEMPTIBLE
from koord.cluster.facts import DisruptionBudget, Requirement
from koord.cluster.kinds import BUDGET, POD
from koord.cluster.state import ClusterState
from koord.util.stop import Stop
from koord_scheduler.framework.preemptions import Preemptions
from koord_scheduler.framework.status import CycleState, Wait
from koord_scheduler_plugins.coscheduling.preemption import cost_of, not_eligible, ranks_of
from koord_scheduler_plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from tests.support.clusters import pod, read_pod
from tests.support.scheduler.gangs import World, labels_of


@asynccontextmanager
async def leading(*cores: int, **args: Any) -> AsyncIterator[World]:
    """A scheduler in which gangs preempt, whose shared part runs."""
    world = await World().begin(*cores, enable_preemption=True, **args)
    stop = Stop(world.clock)
    acting = asyncio.create_task(Preemptions.of(world.services).run(stop))
    try:
        yield world
    finally:
        stop.set()
        await acting
        await world.end()


def fill(world: World, *nodes: str, count: int = 2, priority: int = 1, **spec: Any) -> None:
    """Pods of one core on nodes."""
    for name in nodes:
        for at in range(count):
            world.api.add_pod(f"{name}-{at}", bound=name, priority=priority, **spec)


def leaving(world: World) -> list[str]:
    """The pods that are being deleted."""
    return sorted(key.partition("/")[2] for key in world.api.pods if world.api.pod(key).deleting)


def nominated(world: World) -> dict[str, str]:
    """Nodes by name of the pods that say in their status to which they are nominated."""
    found = {}
    for key, item in world.api.pods.items():
        node = item["status"].get("nominatedNodeName")
        if node and not item["spec"].get("nodeName"):
            found[key.partition("/")[2]] = node
    return found


def gang(world: World, names: str, minimum: int = 2, priority: int = 10, **spec: Any) -> None:
    for name in names:
        world.add(name, minimum, priority=priority, **spec)


async def test_a_gang_gets_the_room_of_pods_of_lower_priority():
    """Worked example 64: as few victims as needed, and all members are nominated."""
    async with leading(2, 2) as world:
        fill(world, "n0", "n1")
        await world.settle()
        gang(world, "ab", cpu="2")
        await world.settle()
        assert leaving(world) == ["n0-0", "n0-1", "n1-0", "n1-1"]
        assert sorted(nominated(world).values()) == ["n0", "n1"]
        assert "preempt success, alreadyWaitingForBound: 0/2" in world.message("b")
        assert world.bound == []
        for name in ("n0-0", "n0-1", "n1-0"):
            world.api.delete_pod(f"default/{name}")
            await world.advance(5)
            assert world.bound == []
        assert leaving(world) == ["n1-1"]
        world.api.delete_pod("default/n1-1")
        await world.advance(15)
        assert world.bound == ["a", "b"]


async def test_no_more_pods_leave_than_have_to():
    """Room that there is counts, and the least important pods leave."""
    async with leading(3, 2, 1) as world:
        fill(world, "n0", count=1, priority=3)
        world.api.add_pod("low", bound="n0", priority=1)
        fill(world, "n1", count=2, priority=5)
        await world.settle()
        gang(world, "abc", 3)
        await world.settle()
        assert leaving(world) == ["low"]
        assert sorted(nominated(world).values()) == ["n0", "n0", "n2"]


async def test_nobody_is_evicted_if_not_all_members_get_room():
    """Worked example 63 for the third member: two would have room, and nothing happens."""
    async with leading(1, 1, 1) as world:
        fill(world, "n0", "n1", count=1)
        fill(world, "n2", count=1, priority=20)
        await world.settle()
        gang(world, "abc", 3)
        await world.settle()
        assert leaving(world) == []
        assert nominated(world) == {}
        wanted = "preemption: 0/3 nodes are available: 1 no potential victims, 2 Preemption is not"
        assert wanted in world.message("c")


async def test_without_a_possible_victim_the_message_says_so():
    """Worked example 63."""
    async with leading(1, 1) as world:
        world.api.add_pod("same", bound="n0", priority=10)
        world.api.add_pod("kept", bound="n1", priority=1, labels={DISABLE_PREEMPTIBLE: "true"})
        await world.settle()
        gang(world, "ab")
        await world.settle()
        text = "preemption: 0/2 nodes are available: 2 no potential victims."
        assert text in world.message("b")
        assert leaving(world) == []


@pytest.mark.parametrize(
    "labels", [{DISABLE_PREEMPTIBLE: "true"}, {PREEMPTIBLE: "false"}], ids=["pod", "quota"]
)
async def test_pods_that_are_not_preemptible_stay(labels):
    async with leading(1, 1, 1) as world:
        world.api.add_pod("kept", bound="n0", priority=1, labels=labels)
        world.api.add_pod("x", bound="n1", priority=5)
        world.api.add_pod("y", bound="n2", priority=5)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        assert leaving(world) == ["x", "y"]


async def test_a_trigger_that_never_preempts_does_not():
    """Worked example 60."""
    async with leading(1, 1) as world:
        fill(world, "n0", "n1", count=1)
        await world.settle()
        gang(world, "ab", preemptionPolicy="Never")
        await world.settle()
        assert leaving(world) == []
        text = "preemption: not eligible due to preemptionPolicy=Never."
        assert text in world.message("b")


@pytest.mark.parametrize(
    ("policy", "pending", "wanted"),
    [
        ("", (), "no pending pods"),  # worked example 59
        ("Never", (), "no pending pods"),
        ("Never", ("a",), "not eligible due to preemptionPolicy=Never."),  # worked example 60
        ("", ("a",), ""),
    ],
)
def test_members_may_preempt_as_long_as_some_of_them_are_pending(policy, pending, wanted):
    trigger = read_pod(pod("a", preemptionPolicy=policy))
    members = [read_pod(pod(name)) for name in pending]
    nodes = ClusterState().view()
    assert not_eligible(trigger, members, {}, nodes, exempt=False) == wanted


async def test_only_one_member_tries_to_preempt_for_a_gang():
    """Worked example 58: the others are not tried, so none of them finds the same once more."""
    async with leading(1, 1, 1) as world:
        fill(world, "n0", "n1", "n2", count=1, priority=10)
        await world.settle()
        gang(world, "abc", 3)
        await world.settle()
        assert [name for name, reason, _ in world.events if reason == "FailedScheduling"] == ["c"]
        assert "no potential victims" in world.message("c")
        assert world.sample("scheduler_preemption_attempts_total") == 1


async def test_nodes_that_never_become_feasible_are_no_help():
    """Worked example 62."""
    async with leading(1, 1) as world:
        fill(world, "n0", "n1", count=1)
        await world.settle()
        world.never.nodes.update(("n0", "n1"))
        gang(world, "ab")
        await world.settle()
        assert leaving(world) == []
        text = "0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        assert text in world.message("b")


async def test_while_victims_are_leaving_nobody_else_is_evicted():
    """Worked example 61."""
    async with leading(1, 1, 1, 1) as world:
        fill(world, "n0", "n1", "n2", "n3", count=1)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        assert len(leaving(world)) == 2
        world.api.delete_pod(f"default/{leaving(world)[0]}")
        world.api.add_node("other", cpu="0")
        await world.advance(20)
        assert len(leaving(world)) == 1
        assert "not eligible due to terminating pod on the nominated node." in world.message("b")
        assert world.bound == []


async def test_a_pod_without_a_gang_preempts_as_a_job_of_one():
    async with leading(2) as world:
        fill(world, "n0")
        await world.settle()
        key = world.api.add_pod("single", priority=10)
        await world.settle()
        assert len(leaving(world)) == 1
        text = "preempt success, alreadyWaitingForBound: 0/1"
        assert any(text in message for _, _, message in world.events)
        world.api.delete_pod(f"default/{leaving(world)[0]}")
        await world.advance(15)
        assert world.where(key) == "n0"


async def test_a_budget_is_respected_where_other_pods_do():
    """Of the nodes that one member may take, that without a violation is chosen."""
    async with leading(1, 1, 1) as world:
        fill(world, "n0", count=1, labels={"app": "guarded"})
        fill(world, "n1", "n2", count=1, priority=5)
        world.state.put(
            BUDGET, DisruptionBudget("default", "b", (Requirement("app", "In", ("guarded",)),))
        )
        await world.settle()
        gang(world, "ab")
        await world.settle()
        assert leaving(world) == ["n1-0", "n2-0"]


async def test_pods_that_leave_already_make_room_without_further_victims():
    async with leading(1, 1, 1) as world:
        fill(world, "n0", "n1", "n2", count=1)
        await world.settle()
        for name in ("n1", "n2"):
            meta = {"deletionTimestamp": "2026-07-24T06:52:45Z"}
            world.api.change(f"default/{name}-0", metadata=meta)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        assert leaving(world) == ["n1-0", "n2-0"]
        assert sorted(nominated(world).values()) == ["n1", "n2"]
        for name in ("n1", "n2"):
            world.api.delete_pod(f"default/{name}-0")
        await world.advance(15)
        assert world.bound == ["a", "b"]


async def test_a_gang_of_lower_priority_keeps_its_minimum():
    """Only the member that it can spare leaves, although others are as cheap."""
    async with leading(1, 1, 1, 1) as world:
        for at in range(3):
            world.add(f"other-{at}", 2, "other", bound=f"n{at}", priority=1)
        fill(world, "n3", count=1, priority=5)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        gone = leaving(world)
        assert len(gone) == 2
        assert "n3-0" in gone
        assert sum(name.startswith("other") for name in gone) == 1


async def test_a_gang_leaves_whole_if_it_cannot_keep_its_minimum():
    async with leading(1, 1, 1) as world:
        for at in range(3):
            world.add(f"other-{at}", 3, "other", bound=f"n{at}", priority=1)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        assert leaving(world) == ["other-0", "other-1", "other-2"]


async def test_a_gang_group_is_not_broken_by_its_other_gang():
    """One of its members has the priority of the preemptor: none of it may leave."""
    async with leading(1, 1, 1) as world:
        names = json.dumps(["default/ps", "default/w"])
        world.pod_group("ps", 1, **{GROUPS: names})
        world.pod_group("w", 2, **{GROUPS: names})
        world.add_of_group("p", "ps", bound="n0", priority=10)
        for at in (1, 2):
            world.add_of_group(f"w{at}", "w", bound=f"n{at}", priority=1)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        assert leaving(world) == []


async def test_members_of_lower_priority_than_a_pod_do_not_take_its_room():
    """Upstream asks the trigger's priority alone."""
    async with leading(1, 1) as world:
        fill(world, "n0", "n1", count=1, priority=5)
        await world.settle()
        world.add("a", 2, priority=3)
        world.add("b", 2, priority=10)
        await world.settle()
        assert leaving(world) == []


async def test_room_that_is_promised_to_a_gang_is_not_taken_by_others():
    async with leading(1, 1) as world:
        fill(world, "n0", "n1", count=1)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        thief = world.api.add_pod("thief", priority=5)
        for name in ("n0-0", "n1-0"):
            world.api.delete_pod(f"default/{name}")
        await world.advance(20)
        assert world.bound == ["a", "b"]
        assert world.where(thief) == ""


async def test_a_pod_that_is_nominated_to_a_chosen_node_loses_that():
    async with leading(1, 1) as world:
        fill(world, "n0", "n1", count=1)
        await world.settle()
        key = world.api.add_pod("lesser", priority=5)
        await world.settle()
        assert nominated(world) == {"lesser": "n0"}
        gang(world, "ab")
        await world.settle()
        assert sorted(nominated(world)) == ["a", "b"]
        assert world.where(key) == ""


async def test_a_gang_whose_preemptor_is_deleted_goes_on():
    async with leading(1, 1) as world:
        fill(world, "n0", "n1", count=1)
        await world.settle()
        gang(world, "abc")
        await world.settle()
        (trigger,) = {name for name, reason, _ in world.events if reason == "FailedScheduling"}
        world.api.delete_pod(f"default/{trigger}")
        await world.settle()
        for name in leaving(world):
            world.api.delete_pod(f"default/{name}")
        await world.advance(30)
        for name in leaving(world):
            world.api.delete_pod(f"default/{name}")
        await world.advance(30)
        assert world.bound == sorted({"a", "b", "c"} - {trigger})


async def test_the_next_leader_takes_nominations_over():
    """kill -9 after the victims were deleted: the new scheduler evicts nobody else."""
    async with leading(1, 1, 1) as world:
        fill(world, "n0", "n1", "n2", count=1)
        await world.settle()
        gang(world, "ab")
        await world.settle()
        gone = leaving(world)
        assert len(gone) == 2
        pods, nodes = world.api.pods, world.api.nodes
    async with leading() as after:
        after.api.pods, after.api.nodes = pods, nodes
        after.republish()
        await after.advance(5)
        assert leaving(after) == gone
        for name in gone:
            after.api.delete_pod(f"default/{name}")
        await after.advance(30)
        assert after.bound == ["a", "b"]
        assert leaving(after) == []


def known(world: World, *names: str) -> None:
    """Members of a PodGroup that nobody has tried yet."""
    world.pod_group("g", len(names))
    for name in names:
        made = pod(name, "", {GROUP_LABEL: "g"}, schedulerName="p", priority=10)
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        world.api.pods[f"default/{name}"] = made
        world.state.put(POD, read_pod(made, world.api.decoder))


async def test_a_dry_run_names_the_victims_and_evicts_nobody():
    async with leading(1, 1) as world:
        fill(world, "n0", "n1", count=1)
        await world.settle()
        known(world, "a", "b")
        state, trigger, view = CycleState(), world.state.pod("default/b"), world.state.view()
        found = world.scheduler.profiles["p"].search.search(state, trigger, view)
        result = await world.plugin.post_filter_dry_run(state, trigger, view, found.statuses)
        assert sorted(one.name for one in result.victims) == ["n0-0", "n1-0"]
        assert len(world.services.nominator) == 0
        assert not Preemptions.of(world.services).under_way(trigger.uid)


async def test_members_that_wait_keep_their_nodes_as_nominations():
    """Worked example 65: one waits in Permit when another one preempts."""
    async with leading(1, 1) as world:
        fill(world, "n1", count=1)
        await world.settle()
        known(world, "a", "b")
        placed = world.state.assume(world.state.pod("default/a"), "n0")
        assert isinstance(world.plugin.permit(CycleState(), placed, "n0"), Wait)
        waiting = world.services.waiting.add(placed, {"Coscheduling": 600.0})
        state, trigger, view = CycleState(), world.state.pod("default/b"), world.state.view()
        found = world.scheduler.profiles["p"].search.search(state, trigger, view)
        result = await world.plugin.post_filter(state, trigger, view, found.statuses)
        assert result.status.message == "preempt success, alreadyWaitingForBound: 1/2"
        assert (result.nominated_node, [one.name for one in result.victims]) == ("n1", ["n1-0"])
        assert (await waiting.wait()).plugin == "JobPreemptionSuccessPlugin"


async def test_no_single_pod_is_evicted_for_one_member_by_another_plugin():
    """DefaultPreemption would make room for one of three."""
    world = World()

    def make(args: object, handle: Any) -> DefaultPreemption:
        return DefaultPreemption(DefaultPreemptionArgs(), handle)

    world.registry.register("DefaultPreemption", make)
    world.more = {"postFilter": {"DefaultPreemption": None}}
    await world.begin(1, 1)
    stop = Stop(world.clock)
    acting = asyncio.create_task(Preemptions.of(world.services).run(stop))
    fill(world, "n0", count=1)
    await world.settle()
    gang(world, "abc", 3)
    await world.settle()
    assert leaving(world) == []
    stop.set()
    await acting
    await world.end()


def test_the_cost_of_a_node_counts_jobs_by_the_rank_of_their_priority():
    """The example of the specification: priorities 0, 50 and 100; A(50), A(50), B(100) cost 3."""
    a, b, low = (
        [read_pod(pod(f"a{at}", "n", labels_of(1, "A"), priority=50)) for at in range(2)],
        read_pod(pod("b", "n", labels_of(1, "B"), priority=100)),
        read_pod(pod("c", "m", priority=0)),
    )
    ranks = ranks_of([*a, b, low])
    assert ranks == {0: 0, 50: 1, 100: 2}
    assert cost_of([*a, b], ranks, lambda one: dict(one.labels).get("x", one.name[0])) == 3


@pytest.mark.parametrize("seed", range(60))
async def test_victims_are_found_whenever_there_are_enough_of_them(seed):
    """By brute force: the gang fits without them, and without any of them fewer members would."""
    draw = Random(seed)
    cores = [draw.randint(1, 6) for _ in range(draw.randint(1, 5))]
    size, count = draw.randint(1, 3), draw.randint(1, 5)
    async with leading(*cores) as world:
        free, lower = dict[str, int](), dict[str, dict[str, int]]()
        for at, most in enumerate(cores):
            name, left = f"n{at}", most
            while left and draw.random() < 0.8:
                amount, priority = draw.randint(1, left), draw.choice([1, 5, 10])
                key = f"{name}-{left}"
                world.api.add_pod(key, cpu=str(amount), bound=name, priority=priority)
                left -= amount
                if priority < 10:
                    lower.setdefault(name, {})[key] = amount
            free[name] = left
        await world.settle()

        def slots(gone: Mapping[str, Mapping[str, int]]) -> int:
            room = {name: left + sum(gone.get(name, {}).values()) for name, left in free.items()}
            return sum(left // size for left in room.values())

        gang(world, "abcde"[:count], count, cpu=str(size))
        await world.settle()
        if slots({}) >= count:
            assert len(world.bound) == count
            assert leaving(world) == []
            return
        gone = leaving(world)
        assert world.bound == []
        assert bool(gone) == (slots(lower) >= count)
        if gone:
            places = list(nominated(world).values())
            assert len(places) == count
            for name in free:
                mine = [amount for key, amount in lower.get(name, {}).items() if key in gone]
                needed = places.count(name) * size
                assert free[name] + sum(mine) >= needed
                assert all(free[name] + sum(mine) - amount < needed for amount in mine)
