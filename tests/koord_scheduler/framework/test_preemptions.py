"""How victims leave, and what becomes of the pod that waits for their room."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from koord.cluster.facts import ClusterPod
from koord.util.errors import KoordError
from koord_scheduler.framework.preemptions import FAILED_PAUSE, READY_TIMEOUT
from koord_scheduler.framework.status import Code, Status
from koord_scheduler.framework.types import QueueingHint
from tests.support.scheduler.preemption import BY_SCHEDULER, World, leaving, pending

A, B = "/api/v1/namespaces/default/pods/a", "/api/v1/namespaces/default/pods/b"
GATED = Status.unresolvable("waiting for the preemption for this pod to be finished")


async def decided(*, victims: int = 2, **facts: Any) -> tuple[World, ClusterPod]:
    """A pod for which victims a, b ... on node n were chosen; nothing was done yet."""
    here = await World().build()
    here.cluster.node("n", cpu=victims)
    for name in "abcdefghijklmnopqrstuvwxyz"[:victims]:
        here.cluster.pod(name, "n", cpu=1, priority=1, **facts)
    new = pending(cpu=victims)
    here.put(new)
    assert (await here.try_pod(new)).nominated_node == "n"
    return here, new


async def test_a_victim_is_marked_and_then_deleted() -> None:
    """Exactly that pod, whatever has its name; with an event, and the condition for its owner."""
    here, new = await decided(victims=1)
    async with here.leading():
        assert here.requests == [("PATCH", f"{A}/status"), ("DELETE", A)]
        assert here.kit.activated == []
    assert here.patches == [
        {
            "metadata": {"uid": "uid-default-a"},
            "status": {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "PreemptionByScheduler",
                        "message": "p: preempting to accommodate a higher priority pod",
                        "lastTransitionTime": "2023-11-14T22:13:20Z",
                    }
                ]
            },
        }
    ]
    (patch, delete) = here.kit.server.calls
    assert patch.content_type == "application/strategic-merge-patch+json"
    assert b'"preconditions":{"uid":"uid-default-a"}' in (delete.body or b"").replace(b" ", b"")
    message = f"Preempted by pod {new.uid} on node n"
    assert here.events == [("a", "Preempted", message)]


async def test_a_victim_that_is_marked_already_is_only_deleted() -> None:
    """As after a crash between the two requests."""
    here, _ = await decided(victims=1, status=BY_SCHEDULER)
    async with here.leading():
        assert here.requests == [("DELETE", A)]


async def test_the_pod_is_kept_from_the_queue_until_its_victims_are_leaving() -> None:
    """All of them, as the watch says it; others are not kept."""
    here, new = await decided()
    assert here.plugin.pre_enqueue(new) == GATED
    assert here.plugin.pre_enqueue(pending("other")) is None
    (event,) = here.plugin.events_to_register()
    assert event.hint is not None
    async with here.leading():
        assert sorted(here.deleted()) == ["a", "b"]
        assert here.plugin.pre_enqueue(new) == GATED
        gone = here.cluster.state.pod("default/a")
        here.put(None, gone)
        assert here.plugin.pre_enqueue(new) == GATED
        assert event.hint(new, gone, None) is QueueingHint.SKIP
        here.put(leaving("b", "n"))
        assert here.plugin.pre_enqueue(new) is None
        assert event.hint(new, gone, None) is QueueingHint.QUEUE
        assert here.kit.activated == []


async def test_no_second_choice_while_the_first_victims_stay() -> None:
    """Although the watch does not say yet that they are leaving."""
    here, new = await decided()
    async with here.leading():
        here.cluster.node("m", cpu=2)
        here.cluster.pod("m0", "m", cpu=2, priority=-5)
        result = await here.try_pod(new)
        assert result.nominated_node is None
        assert result.status.code is Code.UNSCHEDULABLE
        await here.settle()
        assert sorted(here.deleted()) == ["a", "b"]


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("DELETE", A, 404),
        ("DELETE", A, 409),
        ("PATCH", f"{A}/status", 404),
        ("PATCH", f"{A}/status", 409),
    ],
)
async def test_a_victim_that_has_gone_is_no_failure(method: str, path: str, answer: int) -> None:
    """409: its name is another pod's now. The others leave; no event is about the first."""
    here, new = await decided()
    here.answers[method, path] = answer
    async with here.leading():
        assert ("DELETE", B) in here.requests
        assert (("DELETE", A) in here.requests) == (method == "DELETE")
        assert [name for name, *_ in here.events] == ["b"]
        assert here.kit.activated == []
        here.put(None, here.cluster.state.pod("default/a"))
        here.put(None, here.cluster.state.pod("default/b"))
        assert here.plugin.pre_enqueue(new) is None


@pytest.mark.parametrize(("method", "path"), [("DELETE", A), ("PATCH", f"{A}/status")])
@pytest.mark.parametrize("answer", [500, 403, 429, "hang"])
async def test_after_a_failure_the_pod_is_tried_again(
    method: str, path: str, answer: int | str
) -> None:
    """Soon, and it may choose anew; a request without a response is given up after a time."""
    here, new = await decided(victims=1)
    here.answers[method, path] = answer
    async with here.leading():
        if answer == "hang":
            assert here.plugin.pre_enqueue(new) == GATED
            await here.kit.clock.advance(READY_TIMEOUT)
        assert here.kit.activated == []  # at once it would go round and round with its refusal
        await here.kit.clock.advance(FAILED_PAUSE)
        assert here.kit.activated == [new.uid]
        assert here.plugin.pre_enqueue(new) is None
        assert here.events == []
        here.answers.clear()
        here.requests.clear()
        assert (await here.try_pod(new)).nominated_node == "n"
        await here.settle()
        assert here.deleted() == ["a"]
    total = "scheduler_preemption_goroutines_execution_total"
    assert here.kit.sample(total, result="error") == 1
    assert here.kit.sample(total, result="success") == 1
    assert here.kit.sample("scheduler_preemption_attempts_total") == 2
    assert here.kit.sample("scheduler_preemption_victims_sum") == 2


@pytest.mark.parametrize("path", [A, f"{A}/status"])
@pytest.mark.parametrize("answer", [404, 409])
async def test_a_victim_that_stays_although_it_had_gone_keeps_no_pod_waiting(
    path: str, answer: int
) -> None:
    """A busy server answers 409 as well: the pod is tried again once the watch has had its time."""
    here, new = await decided(victims=1)
    here.answers["DELETE" if path == A else "PATCH", path] = answer
    async with here.leading():
        await here.kit.clock.advance(4)
        assert here.kit.activated == []
        await here.kit.clock.advance(2)
        assert here.kit.activated == [new.uid]


async def test_one_failure_spares_the_victims_whose_turn_has_not_come() -> None:
    """More pods would leave for nothing."""
    here, new = await decided(victims=20)
    here.answers = {("PATCH", f"{A[:-1]}{name}/status"): 500 for name in "abcdefghijklmnopqrst"}
    async with here.leading():
        assert here.deleted() == []
        assert len(here.requests) <= 16
        await here.kit.clock.advance(FAILED_PAUSE)
        assert here.kit.activated == [new.uid]


@pytest.mark.parametrize("end", ["deleted", "recreated", "bound"])
async def test_a_pod_that_needs_no_room_any_more_costs_no_victim(end: str) -> None:
    """It was deleted, or bound elsewhere; then nothing is remembered of it."""
    here, new = await decided()
    changed = {"recreated": {"uid": "other"}, "bound": {"node": "m"}}
    here.put(None if end == "deleted" else replace(new, **changed[end]), new)
    assert not here.part.under_way(new.uid)
    async with here.leading():
        assert here.requests == []


async def test_without_its_node_no_victim_is_deleted() -> None:
    """Its pods will go with it; the pod looks for another one."""
    here, new = await decided()
    here.cluster.delete("Node", "n")
    async with here.leading():
        assert here.requests == []
        assert here.plugin.pre_enqueue(new) is None
        assert here.kit.activated == [new.uid]


async def test_a_victim_of_the_same_name_is_another_pod() -> None:
    """The one that took its place is not deleted."""
    here, _ = await decided()
    old = here.cluster.state.pod("default/a")
    assert old is not None
    here.put(replace(old, uid="newer"), old)
    async with here.leading():
        assert here.deleted() == ["b"]


async def test_when_leadership_is_lost_nothing_more_is_done() -> None:
    """Also if requests hang; whoever leads then decides anew."""
    here, new = await decided(victims=20)
    here.answers = {("PATCH", f"{A[:-1]}{name}/status"): "hang" for name in "abcdefghijklmnopqrst"}
    async with here.leading() as stop:
        assert len(here.requests) == 16
        stop.set()
    assert len(here.requests) == 16
    assert not here.part.under_way(new.uid)
    assert here.kit.activated == [new.uid]


async def test_a_victim_that_waits_for_a_permit_is_refused_instead_of_deleted() -> None:
    """It runs nowhere yet."""
    here, _ = await decided(victims=1)
    victim = here.cluster.state.pod("default/a")
    assert victim is not None
    waiting = here.services.waiting.add(victim, {"Gang": 60.0})
    async with here.leading():
        assert here.requests == []
        status = await waiting.wait()
    assert status == Status.unschedulable("preempted").of("DefaultPreemption")
    assert [name for name, *_ in here.events] == ["a"]


async def test_pods_of_lower_priority_are_not_nominated_to_the_node_any_more() -> None:
    """They are tried again at once; those that go first stay nominated."""
    here, _ = await decided()
    for name, priority in (("low", 9), ("equal", 10)):
        other = pending(name, priority=priority)
        here.put(other)
        here.services.nominator.nominate(other, "n")
    async with here.leading():
        status = "/api/v1/namespaces/default/pods/low/status"
        assert here.requests[0] == ("PATCH", status)
        assert here.patches[0]["status"] == {"nominatedNodeName": None}
        assert here.kit.activated == ["uid-default-low"]
    assert [one.name for one in here.services.nominator.pods_of("n")] == ["new", "equal"]

    here, _ = await decided()
    low = pending("low", priority=9)
    here.services.nominator.nominate(low, "n")
    here.answers["PATCH", status] = 500
    async with here.leading():
        assert sorted(here.deleted()) == ["a", "b"]
        assert here.kit.activated == ["uid-default-low"]


async def test_profiles_share_what_acts() -> None:
    """Its metrics exist once in a process, and one pod's victims are known to all."""
    here, new = await decided()
    other = await here.kit.profile(postFilter={"DefaultPreemption": None})  # type: ignore[dict-item]
    plugin: Any = other.plugins["DefaultPreemption"]
    assert plugin is not here.plugin
    assert plugin.pre_enqueue(new) == GATED


async def test_the_shared_part_is_ready_and_healthy() -> None:
    """It knows enough from the beginning."""
    here, _ = await decided()
    await here.part.wait_ready()
    assert here.part.health().status.value == "ok"


class _Outside:
    """Extenders, of which none leaves a candidate but with its last victim."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.asked: list[tuple[str, Any]] = []

    async def preempt(self, pod: ClusterPod, candidates: Any) -> Any:
        self.asked.append((pod.name, {name: len(one[0]) for name, one in candidates.items()}))
        if self.fails:
            raise KoordError("no answer")
        return {name: (one[0][-1:], 0) for name, one in candidates.items() if name == "n"}


@pytest.mark.parametrize("fails", [False, True])
async def test_extenders_have_a_say_in_candidates_and_victims(fails: bool) -> None:
    """Where one fails, so does the preemption."""
    outside = _Outside(fails=fails)
    here = World()
    here.services = here.kit.services = dataclasses.replace(here.services, extenders=outside)
    await here.build()
    for name in ("n", "other"):
        here.cluster.node(name, cpu=2)
        for at in range(2):
            here.cluster.pod(f"{name}{at}", name, cpu=1, priority=1)
    new = pending(cpu=2)
    here.put(new)
    result = await here.try_pod(new)
    assert outside.asked == [(new.name, {"n": 2, "other": 2})]
    if fails:
        assert result.status.code is Code.ERROR
        assert "no answer" in result.status.message
        return
    assert result.nominated_node == "n"
    async with here.leading():
        assert [method for method, _ in here.requests] == ["PATCH", "DELETE"]


async def test_where_extenders_leave_no_candidate_the_last_nomination_stays() -> None:
    """As in Kubernetes; nothing is deleted."""
    here = World()
    outside = _Outside()
    here.services = here.kit.services = dataclasses.replace(here.services, extenders=outside)
    await here.build()
    here.cluster.node("other", cpu=1)
    here.cluster.pod("a", "other", cpu=1, priority=1)
    result = await here.try_pod(pending(cpu=1))
    assert result.nominated_node is None
    assert result.status.message == "preemption: no candidate node for preemption"
    async with here.leading():
        assert here.requests == []
