"""Worked examples of the specification that no other test has: queue, Permit, failure, PreBind."""

from dataclasses import replace as replace_fields
from typing import Any

import pytest
from msgspec.structs import replace

from koord.api.podgroup import (
    GROUP_ID_KEYS,
    GROUP_LABEL,
    GROUPS,
    MATCH_POLICY,
    MEMBER_COUNT_KEYS,
    MIN_AVAILABLE,
    MODE,
    NAME,
    TOTAL_NUMBER,
)
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord_scheduler.framework.interfaces import FilterPlugin, pod_changes
from koord_scheduler.framework.status import CycleState, Status, Wait
from koord_scheduler.framework.types import NodeInfo
from tests.support.clusters import pod, read_pod
from tests.support.scheduler.gangs import World

OTHER = "other"  # a scheduler name, so that the loop leaves the pods alone


def put(world: World, name: str, gang: str = "", node: str = "", **meta: str) -> ClusterPod:
    """A pod, in the cache only, of a PodGroup or of none. meta: annotations."""
    labels = {GROUP_LABEL: gang} if gang else {}
    made = pod(name, node, labels, schedulerName=OTHER)
    made["metadata"]["annotations"] = meta
    found = read_pod(made, world.api.decoder)
    world.state.put(POD, found)
    return found


def permitted(world: World, name: str, gang: str = "") -> Any:
    """The answer of Permit for a member that was assumed."""
    placed = world.state.assume(put(world, name, gang), "n0")
    return world.plugin.permit(CycleState(), placed, "n0")


async def test_12_and_21_a_pod_of_no_gang_is_let_through() -> None:
    world = await World().begin(8)
    assert world.plugin.pre_enqueue(put(world, "p")) is None
    assert permitted(world, "q") is None
    await world.end()


async def test_14_one_member_of_a_group_that_was_satisfied_once() -> None:
    world = await World().begin(8)
    world.pod_group("g", 4)
    put(world, "bound", "g", node="n0")
    assert world.plugin.pre_enqueue(put(world, "p", "g")) is None
    await world.end()


@pytest.mark.parametrize(
    "more", [{MODE: "NonStrict"}, {TOTAL_NUMBER: "5"}], ids=["16 NonStrict", "17 total-number 5"]
)
async def test_16_and_17_as_many_members_as_it_needs(more: dict[str, str]) -> None:
    """The first one that is asked represents them; how many there are to be is not checked."""
    world = await World().begin(8)
    annotations = {NAME: "g", MIN_AVAILABLE: "4", **more}
    members = [put(world, name, **annotations) for name in "abcd"]
    answers = [world.plugin.pre_enqueue(one) for one in reversed(members)]
    assert answers[0] is None
    assert all("representative pod default/d of" in one.message for one in answers[1:] if one)
    await world.end()


class Asks(FilterPlugin):
    """Asks whether a further member could be tried, while the others are planned and placed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: set[str] = set()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        late = replace(pod, name="late", uid="late", node="", scheduler_name=OTHER)
        self.world.state.put(POD, late)
        found = self.world.plugin.pre_enqueue(late)
        self.answers.add("" if found is None else found.message)
        return None


async def test_20_a_member_that_comes_while_its_group_is_being_placed() -> None:
    world = World()
    asks = Asks(world)
    world.more = {"filter": {"Asks": asks}}
    await world.begin(8)
    for name in "ab":
        world.add(name, 2)
    await world.settle()
    assert world.bound == ["a", "b"]
    assert asks.answers == {
        "representative pod default/b of gangGroupID default/g already exists",  # planned
        "gangGroup default/g is scheduling and this pod has not been attempted",  # placed
    }
    await world.end()


async def test_22_a_gang_that_is_known_only_by_a_label() -> None:
    world = await World().begin(8)
    assert permitted(world, "p", "unknown") == Wait(0.0)
    await world.end()


@pytest.mark.parametrize(
    ("minimums", "waiting", "last", "answer"),
    [
        ({"c": 2, "d": 2}, "cd", "c", Wait(10.0)),
        ({"e": 2, "f": 3}, "efff", "e", None),
    ],
    ids=["29", "30"],
)
async def test_29_and_30_permit_of_gangs_of_one_group(
    minimums: dict[str, int], waiting: str, last: str, answer: Wait | None
) -> None:
    """All gangs of a group must be satisfied."""
    world = await World().begin(8, default_timeout=10.0)
    listed = "[" + ",".join(f'"default/{name}"' for name in minimums) + "]"
    for name, minimum in minimums.items():
        world.pod_group(name, minimum, **{GROUPS: listed})
    for number, gang in enumerate(waiting):
        assert isinstance(permitted(world, f"w{number}", gang), Wait)
    assert permitted(world, "last", last) == answer
    await world.end()


class FailsLate(FilterPlugin):
    """Lets members pass until so many are on their nodes: a plan holds, and then it does not."""

    def __init__(self, world: World, count: int) -> None:
        self.world, self.count = world, count

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        late = self.world.state.assumed_count >= self.count
        return Status.unschedulable("late") if late and pod.name != "other" else None


@pytest.mark.parametrize(
    ("mode", "held"), [("Strict", 0), ("NonStrict", 2)], ids=["33", "31 NonStrict"]
)
async def test_31_and_33_a_member_that_fails_after_two_have_got_nodes(mode: str, held: int) -> None:
    """In mode Strict both give up their nodes, and say for whom."""
    world = World()
    world.more = {"filter": {"FailsLate": FailsLate(world, 2)}}
    await world.begin(8)
    world.pod_group("g", 4, **{MODE: mode})
    for name in "abcd":
        world.add_of_group(name)
    await world.settle()
    assert world.state.assumed_count == held
    assert world.bound == []
    text = (
        'GangGroup "default/g" gets rejected due to member Pod "default/b" is unschedulable with '
        'reason "0/1 nodes are available: 1 late.", alreadyWaitForBound: 2'
    )
    told = sorted(pod for pod, _, message in world.events if text in message)
    assert told == ([] if held else ["a", "d"])
    await world.end()


class FailsAfterOthers(FilterPlugin):
    """Rejects a member that is not the first with a node: a plan holds, and then it does not."""

    def __init__(self, world: World, member: str) -> None:
        self.world, self.member = world, member

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        late = self.world.state.assumed_count > 0 and pod.name == self.member
        return Status.unschedulable("late") if late else None


async def with_leaving_member(policy: str) -> World:
    """A world in which b was rejected, as a failed, and waits for the API server to leave."""
    world = World()
    world.more = {"filter": {"FailsAfterOthers": FailsAfterOthers(world, "a")}}
    await world.begin(8)
    world.pod_group("g", 2, **{MATCH_POLICY: policy})
    for name in "ab":
        world.add_of_group(name)
    world.api.hang = True
    await world.settle()
    assert world.state.assumed_count == 1
    return world


async def answer_all(world: World) -> None:
    world.api.hang = False
    for each in world.api.hanging:
        each.set()
    await world.settle()


@pytest.mark.parametrize("policy", ["once-satisfied", "waiting-and-running"])
async def test_33_a_member_that_was_rejected_lets_nobody_through_while_it_leaves(
    policy: str,
) -> None:
    """It is on its node until the API server has answered, but it is not one that is placed."""
    world = await with_leaving_member(policy)
    world.add_of_group("c")
    await world.settle()
    assert world.state.assumed_count == 1
    await answer_all(world)

    assert (world.bound, world.state.assumed_count) == ([], 0)
    assert "gets rejected due to member Pod" in world.message("b")
    await world.end()


async def test_33_a_member_that_was_rejected_and_bound_none_the_less_is_placed() -> None:
    """As by another scheduler: its gang is satisfied once, so later members are ordinary pods."""
    world = await with_leaving_member("once-satisfied")
    world.api.change("default/b", spec={"nodeName": "n0"})
    await answer_all(world)
    world.add_of_group("c")
    await world.settle()

    assert world.bound == ["a", "c"]
    await world.end()


@pytest.mark.parametrize("gang", ["", "g"], ids=["no gang", "once satisfied"])
async def test_31_a_pod_that_is_nobodys_member_fails_alone(gang: str) -> None:
    """No gang, or one that was satisfied once: who waits goes on waiting, and nothing is said."""
    world = await World().begin(2)
    world.pod_group("g", 1)
    world.pod_group("h", 2)
    put(world, "bound", "g", node="n0")
    assert isinstance(permitted(world, "waits", "h"), Wait)
    key = world.add_of_group("p", gang, cpu="9") if gang else world.api.add_pod("p", cpu="9")
    await world.settle()
    assert world.where(key) == ""
    assert world.message("p") == "0/1 nodes are available: 1 Insufficient cpu."
    assert [name for name, _, _ in world.events] == ["p"]
    assert list(world.plugin._rounds.waiting("default/h")) == ["default/waits"]
    await world.end()


def conditions(world: World) -> dict[str, str]:
    """The messages of PodScheduled by pod, as the API server has them."""
    found = {}
    for key, one in world.api.pods.items():
        for condition in one["status"].get("conditions", ()):
            found[key.partition("/")[2]] = condition["message"]
    return found


@pytest.mark.parametrize("gate", [True, False], ids=["35", "the gate is off"])
async def test_35_members_that_were_not_tried_say_why_they_wait(gate: bool) -> None:
    """So who adds nodes for pods that are unschedulable adds enough for the gang.

    It is written once: each attempt costs as much as that of one pod, however large the gang is.
    """
    world = World()
    world.services = replace_fields(world.services, gates=lambda name: gate)
    await world.begin(2)
    for name in "abcd":
        world.add(name, 4)
    world.add("other", 4, schedulerName=OTHER)
    await world.settle()
    found = conditions(world)
    assert sorted(found) == (["a", "b", "c", "d"] if gate else ["d"])
    assert set(found.values()) == {world.message("d")}
    patches = len(world.api.patches)
    await world.advance(15.0)
    world.api.add_node("small", cpu="1")
    await world.settle()  # it is tried again
    more = [key for key, _ in world.api.patches[patches:]]
    assert more == ["default/d"]
    world.api.add_node("large", cpu="4")
    await world.settle()
    await world.advance(15.0)
    assert world.bound == ["a", "b", "c", "d"]
    await world.end()


async def test_36_without_members_that_were_not_tried_nothing_more_is_written() -> None:
    """One that is alone, one whose group is not complete, and the first of one without a plan."""
    world = World()
    world.services = replace_fields(world.services, gates=lambda name: True)
    await world.begin(1)
    world.add("alone", 1, "alone", cpu="2")
    world.add("few", 2, "few")
    world.add("ready", 2, "pair", cpu="2")
    await world.settle()
    assert sorted(conditions(world)) == ["alone"]
    world.add("second", 2, "pair", cpu="2")
    await world.settle()
    assert sorted(conditions(world)) == ["alone", "ready", "second"]
    await world.end()


async def test_32_only_waiting_loses_who_waits_though_a_member_is_bound() -> None:
    """A bound member never counts: when one gives up its node the others do, too."""
    world = await World().begin(8)
    world.pod_group("g", 3, **{MATCH_POLICY: "only-waiting"})
    put(world, "bound", "g", node="n0")
    for name in ("a", "b"):
        assert isinstance(permitted(world, name, "g"), Wait)
    known = world.state.pod("default/b")
    assert known is not None
    world.plugin.unreserve(CycleState(), known, "n0")
    assert world.plugin._rounds.waiting("default/g") == {}
    await world.end()


async def test_37_to_39_pre_bind_says_who_was_placed_together() -> None:
    """The count is that of the round, whatever total says; foreign values are overwritten.

    A pod that is placed alone later loses such annotations.
    """
    world = await World().begin(8)
    world.pod_group("g", 2, **{TOTAL_NUMBER: "3"})
    for name in "ab":
        permitted(world, name, "g")
    foreign = {MEMBER_COUNT_KEYS[0]: "7"}
    for name in "ab":
        state, known = CycleState(), world.state.pod(f"default/{name}")
        assert known is not None
        told = replace(known, annotations=tuple(foreign.items()))
        assert await world.plugin.pre_bind(state, told, "n0") is None
        changes = pod_changes(state).annotations
        assert {changes[key] for key in MEMBER_COUNT_KEYS} == {"2"}
        assert {changes[key] for key in GROUP_ID_KEYS} == {"default/g"}
    single = put(world, "late", "g", **foreign)
    state = CycleState()
    assert await world.plugin.pre_bind(state, single, "n0") is None
    assert pod_changes(state).annotations == {MEMBER_COUNT_KEYS[0]: None}
    await world.end()
