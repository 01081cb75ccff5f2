"""A life of gangs in the scheduler: gated, planned, placed together or not at all."""

import asyncio
import json
from typing import Any

import pytest

from koord.api.podgroup import (
    GROUP_ID_KEYS,
    GROUP_LABEL,
    GROUPS,
    MATCH_POLICY,
    MEMBER_COUNT_KEYS,
    MODE,
)
from koord.cluster.kinds import NODE, POD
from koord_scheduler.framework.extension.providers import PluginRequest
from koord_scheduler.framework.status import CycleState, Wait
from koord_scheduler.planning.report import Running, explanation
from koord_scheduler_plugins.coscheduling.rounds import job_size
from koord_scheduler_plugins.queueing import SchedulingGates
from tests.support.clusters import node, pod, read_node, read_pod
from tests.support.scheduler.gangs import POD_GROUPS, World


async def test_members_wait_until_there_are_enough():
    world = await World().begin(4)
    world.add("a", 3)
    world.add("b", 3)
    await world.settle()
    assert [world.place(key) for key in ("default/a", "default/b")] == ["gated", "gated"]
    world.add("c", 3)
    await world.settle()
    assert world.bound == ["a", "b", "c"]
    await world.end()


async def test_nothing_is_held_while_not_all_have_room():
    """A life of the specification (20.8): room for two of three, then for all."""
    world = await World().begin(2)
    for name in "abc":
        world.add(name, 3)
    await world.settle()
    assert world.bound == []
    assert world.state.assumed_count == 0
    text = world.message("c")
    assert 'GangGroup "default/g" gets rejected due to member Pod "default/c"' in text
    assert "2 of 3 fit together" in text
    single = world.api.add_pod("single", cpu="2")
    await world.settle()
    assert world.where(single) == "n0"
    world.api.add_node("big", cpu="3")
    await world.advance(15.0)
    assert world.bound == ["a", "b", "c", "single"]
    await world.end()


async def test_a_member_that_fails_in_prebind_undoes_those_that_wait():
    world = await World().begin(4)
    world.patcher.rejected = {"a", "b"}
    for name in "ab":
        world.add(name)
    await world.settle()
    assert world.bound == []
    world.patcher.rejected.clear()
    world.api.add_node("n1")
    await world.advance(30.0)
    assert world.bound == ["a", "b"]
    await world.end()


async def test_bound_members_say_with_how_many_they_were_placed():
    world = await World().begin(4)
    world.add("a")
    world.add("b")
    await world.settle()
    wanted = dict.fromkeys(GROUP_ID_KEYS, "default/g") | dict.fromkeys(MEMBER_COUNT_KEYS, "2")
    assert world.patcher.annotations == {"a": wanted, "b": wanted}
    world.add("late")
    await world.settle()
    assert world.bound == ["a", "b", "late"]
    assert "late" not in world.patcher.annotations
    await world.end()


async def test_a_pod_of_no_gang_costs_no_request_beyond_its_binding():
    """Without work in PreBind the scheduler does not announce its node before it binds it."""
    world = await World().begin(4)
    single = world.api.add_pod("single")
    await world.settle()
    assert world.where(single) == "n0"
    assert world.api.patches == []
    await world.end()


async def test_gangs_of_one_group_are_placed_together():
    world = await World().begin(3)
    names = json.dumps(["default/ps", "default/worker"])
    world.pod_group("ps", 1, **{GROUPS: names})
    world.add_of_group("p", "ps")
    await world.settle()
    assert world.place("default/p") == "gated"
    world.pod_group("worker", 3, **{GROUPS: names})
    for name in "abc":
        world.add_of_group(name, "worker")
    await world.settle()
    assert world.bound == []
    assert "3 of 4 fit together" in world.events[-1][2]
    world.api.add_node("n1")
    await world.advance(15.0)
    assert world.bound == ["a", "b", "c", "p"]
    await world.end()


async def test_more_members_than_needed_are_placed_as_far_as_there_is_room():
    world = await World().begin(2)
    for name in "abc":
        world.add(name, 2)
    await world.settle()
    assert len(world.bound) == 2
    world.api.add_node("n1")
    await world.advance(15.0)
    assert world.bound == ["a", "b", "c"]
    await world.end()


@pytest.mark.parametrize("gone", ["a", "b", "c"])
async def test_a_gang_that_loses_a_member_does_not_hang(gone):
    """Also when it is the representative (defect 21.1)."""
    world = await World().begin(2)
    for name in "abc":
        world.add(name, 3)
    await world.settle()
    world.api.delete_pod(f"default/{gone}")
    await world.settle()
    world.add("d", 3)
    world.api.add_node("n1")
    await world.advance(15.0)
    assert world.bound == sorted({"a", "b", "c", "d"} - {gone})
    await world.end()


async def test_a_member_whose_scheduling_gates_go_completes_its_gang():
    """The representative was tried before that, and waits for members that can be placed."""
    world = World()
    world.more = {"preEnqueue": {"SchedulingGates": SchedulingGates(None, None)}}
    await world.begin(4)
    second = world.add("b", 2, schedulingGates=[{"name": "x"}])
    world.add("a", 2)
    await world.settle()
    assert world.bound == []
    assert "1 of its pods can be scheduled now, 2 are needed" in world.message("a")
    world.api.change(second, spec={"schedulingGates": []})
    await world.settle()
    await world.advance(15.0)
    assert world.bound == ["a", "b"]
    await world.end()


async def test_a_gang_of_a_pod_group_waits_for_it_and_follows_its_changes():
    world = await World().begin(4)
    world.add_of_group("a")
    world.add_of_group("b")
    await world.settle()
    assert world.place("default/a") == "gated"
    world.pod_group("g", 3)
    await world.settle()
    assert world.bound == []
    world.pod_group("g", 2)
    await world.settle()
    assert world.bound == ["a", "b"]
    await world.end()


async def test_an_absurd_pod_group_leaves_the_last_good_one_and_is_named():
    world = await World().begin(4)
    world.pod_group("g", 2)
    world.pod_group("g", -1)
    world.pod_group("g", -1)
    world.pod_group("other", -7)
    world.add_of_group("a")
    world.add_of_group("b")
    world.add_of_group("x", "other")
    await world.settle()
    assert world.bound == ["a", "b"]
    assert world.place("default/x") == "gated"
    reason = "podgroup.spec.minMember: wanted 0 to 2147483647, found"
    health = world.services.custom_resources.health()
    assert "2 of podgroups.v1alpha1.scheduling.sigs.k8s.io not understood" in health.reason
    assert f"default/g: {reason} -1; default/other: {reason} -7" in health.reason
    said = [(one.about.name, one.message) for one in world.invalid_pod_groups]
    assert said == [("g", f"{reason} -1"), ("other", f"{reason} -7")]
    world.pod_group("other", 1)
    await world.settle()
    assert world.bound == ["a", "b", "x"]
    await world.end()


async def test_an_absurd_pod_group_made_anew_has_nothing_of_the_one_before():
    world = await World().begin(4)
    world.pod_group("g", 2)
    world.services.informers.delete(POD_GROUPS, "default/g")
    world.pod_group("g", -1)
    world.add_of_group("a")
    world.add_of_group("b")
    await world.settle()
    assert [world.place(key) for key in ("default/a", "default/b")] == ["gated", "gated"]
    await world.end()


async def test_what_a_pod_group_says_of_others_is_ignored_with_an_event_if_it_is_malformed():
    world = await World().begin(4)
    for _ in range(2):
        world.pod_group("g", 1, **{GROUPS: "[a,b]"})
    world.add_of_group("a")
    await world.settle()
    assert world.bound == ["a"]
    (event,) = world.invalid_pod_groups
    assert "wanted a JSON list of at most 64 texts namespace/name, found '[a,b]'" in event.message
    await world.end()


async def test_a_member_that_comes_later_is_an_ordinary_pod_with_once_satisfied():
    world = await World().begin(4)
    world.add("a")
    world.add("b")
    await world.settle()
    world.api.delete_pod("default/a")
    world.add("c")
    await world.settle()
    assert world.bound == ["a", "b", "c"]
    await world.end()


async def test_only_waiting_needs_new_members_for_each_round():
    world = await World().begin(8)
    world.pod_group("g", 2, **{MATCH_POLICY: "only-waiting"})
    world.add_of_group("a")
    world.add_of_group("b")
    await world.settle()
    assert world.bound == ["a", "b"]
    world.add_of_group("c")
    await world.advance(1.0)
    assert world.bound == ["a", "b"]
    world.add_of_group("d")
    await world.advance(30.0)
    assert world.bound == ["a", "b", "c", "d"]
    await world.end()


async def test_waiting_and_running_lets_a_replacement_start():
    world = await World().begin(8)
    world.pod_group("g", 2, **{MATCH_POLICY: "waiting-and-running"})
    world.add_of_group("a")
    world.add_of_group("b")
    await world.settle()
    world.api.delete_pod("default/a")
    world.add_of_group("c")
    await world.settle()
    assert world.bound == ["a", "b", "c"]
    await world.end()


async def test_other_pods_go_on_while_a_gang_waits():
    world = await World().begin(4)
    world.add("a", 3, cpu="3")
    world.add("b", 3, cpu="3")
    world.add("c", 3, cpu="3")
    single = world.api.add_pod("single")
    await world.settle()
    assert world.where(single) == "n0"
    assert world.bound == ["single"]
    await world.end()


async def test_two_gangs_of_which_one_fits():
    """The one that does not fit holds nothing from the other."""
    world = await World().begin(3)
    for name in "abcd":
        world.add(f"large-{name}", 4, "large")
    for name in "ab":
        world.add(f"small-{name}", 2, "small")
    await world.settle()
    assert world.bound == ["small-a", "small-b"]
    await world.end()


async def test_a_thousand_members_of_a_gang_that_does_not_fit_are_planned_once():
    world = await World().begin(10)
    for number in range(300):
        world.add(f"m{number}", 300)
    await world.settle()
    assert world.bound == []
    failed = [name for name, reason, _ in world.events if reason == "FailedScheduling"]
    assert len(failed) <= 3
    await world.end()


async def test_without_a_plan_nothing_is_held_in_any_mode():
    """Upstream has members of a NonStrict gang keep their nodes until the time is over."""
    world = await World().begin(1)
    world.pod_group("g", 2, **{MODE: "NonStrict"})
    world.add_of_group("a")
    world.add_of_group("b")
    await world.settle()
    assert world.bound == []
    assert world.state.assumed_count == 0
    await world.end()


@pytest.mark.parametrize(("mode", "held"), [("Strict", 0), ("NonStrict", 1)])
async def test_a_member_in_unreserve_undoes_the_others_if_the_mode_is_strict(mode, held):
    """Worked example 34."""
    world = await World().begin(8)
    world.pod_group("g", 3, **{MODE: mode})
    for name in ("a", "b"):
        world.add_of_group(name)
    await world.settle()
    pods = [world.state.pod(f"default/{name}") for name in "ab"]
    for one in pods:
        placed = world.state.assume(one, "n0")
        assert isinstance(world.plugin.permit(CycleState(), placed, "n0"), Wait)
        world.services.waiting.add(placed, {"Coscheduling": 600.0})
    world.plugin.unreserve(CycleState(), pods[0], "n0")
    other = asyncio.ensure_future(world.services.waiting.get(pods[1].uid).wait())
    await world.settle()
    assert other.done() == (not held)
    if not held:
        text = 'Gang "default/g" gets rejected due to Pod "a" in Unreserve'
        assert other.result().message == text
    other.cancel()
    await world.end()


async def test_a_member_that_was_deleted_while_it_waited_leaves_no_gang_behind(monkeypatch):
    """The others are tried again, and another one represents them."""
    world = await World().begin(8)
    world.pod_group("g", 3)
    for name in "ab":
        world.add_of_group(name)
    await world.settle()
    pods = [world.state.pod(f"default/{name}") for name in "ab"]
    for one in pods:
        placed = world.state.assume(one, "n0")
        assert isinstance(world.plugin.permit(CycleState(), placed, "n0"), Wait)
    activated: list[str] = []
    monkeypatch.setattr(world.scheduler, "activate", activated.extend)
    world.state.remove(POD, "default/a", pods[0].uid)
    world.plugin.unreserve(CycleState(), pods[0], "n0")
    assert activated == [pods[1].uid]
    assert "default/g" not in world.plugin._rounds._representatives
    await world.end()


@pytest.mark.parametrize("policy", ["once-satisfied", "waiting-and-running"])
@pytest.mark.parametrize("requests", range(1, 12))
async def test_the_next_leader_finishes_a_gang_wherever_the_last_one_was_killed(requests, policy):
    """From the objects alone: killed after so many requests, each of a binding or a status."""
    first = await World().begin(4)
    first.pod_group("g", 3, **{MATCH_POLICY: policy})
    done = 0

    def kill(call: Any) -> None:
        nonlocal done
        done += 1
        if done > requests:
            first.api.hang = True
        first.api.faults.append(kill)

    first.api.faults.append(kill)
    for name in "abc":
        first.add_of_group(name)
    await first.settle()
    await first.lose_lead()
    after = World()
    after.api.pods = first.api.pods
    await after.begin(4)
    after.pod_group("g", 3, **{MATCH_POLICY: policy})
    after.republish()
    await after.advance(60)
    assert all(after.where(f"default/{name}") == "n0" for name in "abc")
    await after.end()


def own_gate(world: World, name: str) -> str:
    """Why PreEnqueue keeps a pod."""
    return world.plugin.pre_enqueue(world.state.pod(f"default/{name}")).message


async def test_reasons_of_gated_pods_are_koordinators():
    """Worked examples 13, 15, 18, 19."""
    world = await World().begin()
    world.add_of_group("x", "absent")
    for name in "abc":
        world.add(name, 4)
    await world.settle()
    assert own_gate(world, "x") == (
        "gang has not init, gangName: default/absent, podName: default/x"
    )
    assert own_gate(world, "c") == (
        "gangGroup [default/g] basic check: memberGangs [default/g] child pod not collect enough, "
        "current gang: default/g, podName: default/c"
    )
    world.add("d", 4)
    world.add("e", 4)
    await world.settle()
    assert own_gate(world, "e") == (
        "representative pod default/d of gangGroupID default/g already exists"
    )
    world.pod_group("one", 1, **{GROUPS: '["default/one","default/two"]'})
    world.add_of_group("y", "one")
    await world.settle()
    assert own_gate(world, "y") == (
        "gangGroup [default/one default/two] basic check: memberGangs [default/two] doesn't "
        "exists, current gang: default/one, podName: default/y"
    )
    await world.end()


@pytest.mark.parametrize(
    ("policy", "minimum", "bound", "waiting", "answer"),
    [
        ("once-satisfied", 3, 0, 1, 10.0),  # 23
        ("once-satisfied", 3, 1, 1, None),  # 24
        ("only-waiting", 3, 1, 1, 10.0),  # 25, 26
        ("waiting-and-running", 3, 1, 1, None),  # 27
        ("once-satisfied", 3, 0, 2, None),  # 28
    ],
)
async def test_permit_by_policy(policy, minimum, bound, waiting, answer):
    """Worked examples of Permit; the gang waits for 10 seconds at most."""
    world = await World().begin(8, default_timeout=10.0)
    world.pod_group("g", minimum, **{MATCH_POLICY: policy})
    for number in range(bound):
        world.api.add_pod(f"b{number}", bound="n0", labels={GROUP_LABEL: "g"})
    await world.settle()
    answers = []
    for number in range(waiting + 1):
        made = pod(f"w{number}", "", {GROUP_LABEL: "g"}, schedulerName="other")
        world.state.put(POD, read_pod(made))
        placed = world.state.assume(read_pod(made), "n0")
        answers.append(world.plugin.permit(CycleState(), placed, "n0"))
    last = answers[-1]
    assert (last.seconds if last is not None else None) == answer
    await world.end()


async def test_the_endpoints_show_a_gang_as_koordinator_does():
    world = await World().begin(4)
    world.pod_group("g", 3)
    world.add_of_group("a", schedulingGates=[{"name": "x"}])
    world.api.add_pod("b", bound="n0", labels={GROUP_LABEL: "g"})
    await world.settle()
    one, every = world.plugin.endpoints()
    found = await one.answer(PluginRequest(parameters={"namespace": "default", "name": "g"}))
    assert found["minRequiredNumber"] == 3
    assert found["children"] == {"default/a": {}, "default/b": {}}
    assert found["pendingChildren"] == {"default/a": {}}
    assert found["boundChildren"] == {"default/b": {}}
    assert found["waitTime"] == 600_000_000_000
    assert found["gangFrom"] == "GangFromPodGroupCrd"
    assert await every.answer(PluginRequest()) == {"default/g": found}
    with pytest.raises(LookupError, match="cannot find gang default/none"):
        await one.answer(PluginRequest(parameters={"namespace": "default", "name": "none"}))
    await world.end()


async def test_the_status_of_a_pod_group_follows_its_pods():
    world = await World().begin(4)
    (statuses,) = world.plugin.new_controllers().values()
    world.pod_group("g", 1)
    world.api.add_pod("b", bound="n0", labels={GROUP_LABEL: "g"})
    await world.settle()
    asked = []
    world.services.client.merge_patch = lambda path, body: asked.append(body) or asyncio.sleep(0)
    running = asyncio.create_task(statuses.run(world.stop))
    await world.settle()
    assert [body["status"] for body in asked] == [{"phase": "Pending"}]
    running.cancel()
    await world.end()


async def test_rounds_and_groups_that_wait_are_metrics():
    world = await World().begin(2)
    for name in "abc":
        world.add(name, 3)
    await world.settle()
    world.api.add_node("n1")
    await world.advance(15.0)
    assert world.bound == ["a", "b", "c"]

    def rounds(reason: str) -> float | None:
        labels = {"reason": reason, "job_size": "1-100"}
        name = "scheduler_gang_schedule_cycle_duration_seconds_count"
        return world.exposition.get_sample_value(name, labels)

    assert rounds("not all members have a node") == 1.0
    assert rounds("gang is already succeed") == 1.0
    assert world.exposition.get_sample_value("scheduler_waiting_gang_group_number") == 0.0
    await world.end()


async def test_a_group_waits_while_its_members_are_placed():
    world = await World().begin(4)
    names = json.dumps(["default/g", "default/h"])
    for group in "gh":
        world.pod_group(group, 2, **{GROUPS: names})
        one = read_pod(pod(group, "n0", {GROUP_LABEL: group}))
        world.state.put(POD, one)
        assert isinstance(world.plugin.permit(CycleState(), one, "n0"), Wait)
    assert world.exposition.get_sample_value("scheduler_waiting_gang_group_number") == 1.0
    await world.end()


@pytest.mark.parametrize(
    ("members", "label"),
    [(0, "0"), (1, "1-100"), (100, "1-100"), (101, "101-200"), (1000, "901-1000"), (1001, "1000+")],
)
def test_sizes_of_jobs_are_ranges(members, label):
    assert job_size(members) == label


async def explained(world: World, name: str) -> Any:
    answer = await explanation(Running(world.scheduler, world.state), name, is_leader=True)
    assert answer is not None
    return answer["decision"]


async def test_an_explanation_starts_nothing():
    """It says where a member would go by the plan of its gang; the scheduler does not notice."""
    world = await World().begin(1, 1)
    world.add("a", 3)
    world.add("b", 3)
    await world.settle()
    assert "child pod not collect enough" in (await explained(world, "b"))["message"]
    world.add("c", 3)
    await world.settle()
    assert world.bound == []
    before = len(world.events)
    decision = await explained(world, "a")
    assert 'due to member Pod "default/c"' in decision["message"]
    assert "2 of 3 fit together" in decision["message"]
    await world.settle()
    assert world.plugin.next_pod() is None
    assert len(world.events) == before
    await world.end()  # the node would have the scheduler itself place the gang
    world.state.put(NODE, read_node(node("n2")))
    assert (await explained(world, "c"))["node"] in ("n0", "n1", "n2")
    assert world.plugin.next_pod() is None


async def test_a_member_that_waits_is_explained_as_an_ordinary_pod():
    world = await World().begin(2)
    world.pod_group("g", 2)
    world.add_of_group("a")
    await world.settle()
    world.state.put(POD, read_pod(pod("a", "n0", {GROUP_LABEL: "g"})))
    world.state.put(POD, read_pod({**pod("b", "n0", {GROUP_LABEL: "g"}, schedulerName="p")}))
    world.plugin.permit(CycleState(), world.state.pod("default/b"), "n0")
    decision = await explained(world, "b")
    assert decision["status"] == "Success"
    await world.end()


async def test_an_explanation_says_what_a_gang_group_waits_for():
    world = await World().begin(2)
    names = json.dumps(["default/g", "default/h", "default/i"])
    world.pod_group("g", 3, **{GROUPS: names})
    world.add_of_group("a", "g")
    world.add_of_group("b", "g")
    world.api.add_pod("c", labels={GROUP_LABEL: "h"}, schedulingGates=[{"name": "x"}])
    await world.settle()
    advice = (await explained(world, "a"))["advice"]
    assert advice[:4] == [
        "gang default/g needs more pods: 2 of 3 are there",
        "gang default/h has no legal minimum: its PodGroup is missing, or none of its pods has one",
        "gang default/i of its group is missing: there is no pod and no PodGroup of it",
        "gang default/h: 1 of its pods have scheduling gates",
    ]
    await world.end()


async def test_an_explanation_goes_on_without_the_advice_of_a_plugin_that_fails(monkeypatch):
    world = await World().begin(1)
    world.add("a", 2)
    await world.settle()
    monkeypatch.setattr(world.plugin._rounds, "gang", lambda pod: 1 / 0)
    assert (await explained(world, "a"))["advice"] == []
    monkeypatch.undo()
    monkeypatch.setattr(world.plugin, "pending_advice", lambda pod: ["x" * 9_000] * 9_000)
    assert [len(one) for one in (await explained(world, "a"))["advice"]] == [400] * 10
    await world.end()


async def test_nothing_is_kept_of_gangs_that_have_gone():
    """However many a namespace makes; some were placed, others never."""
    world = await World().begin(8)
    for number in range(200):
        names = [world.add(name, 2, f"g{number}") for name in ("a", "b")[: 1 + number % 2]]
        await world.settle()
        for key in names:
            world.api.delete_pod(key)
        await world.settle()
    rounds = world.plugin._rounds
    kept = len(rounds._representatives) + len(rounds._admitted_members) + len(rounds._lacking)
    assert kept <= 2
    await world.end()
