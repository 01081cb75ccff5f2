"""What the loop does when the API server, plugins, or the cluster do not behave."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.controlplane.testing import api_error_response
from koord.kube.errors import Unreachable
from koord.kube.transport import Call
from koord_scheduler.framework.calls import TimeLimits
from koord_scheduler.framework.interfaces import (
    PermitPlugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    ReservePlugin,
)
from koord_scheduler.framework.status import (
    CycleState,
    NodeStatuses,
    PostFilterResult,
    Status,
    Wait,
)
from koord_scheduler.scheduling import cycle
from tests.support.scheduler.framework import (
    FreeCpu,
    PlainFilter,
    PlainScore,
    VectorFilter,
    VectorScore,
)
from tests.support.scheduler.loop import Loop


def answers(status: int, reason: str = "") -> Callable[[Call], None]:
    def fault(call: Call) -> None:
        raise api_error_response(call, status, reason or f"Status{status}", "no")

    return fault


class Account(ReservePlugin, PostBindPlugin):
    """Keeps the pods that are reserved."""

    def __init__(self, on_reserve: Callable[[ClusterPod], Status | None] | None = None) -> None:
        self.reserved: set[str] = set()
        self.bound: list[str] = []
        self.on_reserve = on_reserve

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.reserved.add(pod.name)
        return self.on_reserve(pod) if self.on_reserve else None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self.reserved.discard(pod.name)

    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self.bound.append(pod.name)


class Gate(PermitPlugin, PreBindPlugin):
    """Has pods wait, at Permit for some seconds, or in PreBind until a test opens it."""

    def __init__(self, seconds: float = 0.0, *, pre_bind: bool = False) -> None:
        self.seconds = seconds
        self.pre_binds = pre_bind
        self.opened = asyncio.Event()

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | None:
        return Wait(self.seconds) if self.seconds else None

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        return None if self.pre_binds else Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        await self.opened.wait()
        return None


async def started(account: Account | None = None, **settings: Any) -> Loop:
    account = account or Account()
    points = {"reserve": {"Account": account}, "postBind": {"Account": account}}
    loop = await Loop().build(**{**points, **settings})
    await loop.start()
    loop.api.add_node("a")
    return loop


def cpu_of(loop: Loop, node: str) -> int:
    """Requested milli-cores, assumed pods too."""
    view = loop.state.view()
    row = view.row(node)
    assert row is not None
    return int(view.requested[row, view.resources["cpu"]])


@pytest.mark.parametrize("status", [409, 404, 500, 503, 403, 429])
async def test_a_binding_that_is_refused_is_tried_again(status: int) -> None:
    """The node and the plugins' accounts are free at once; the pod comes back after its backoff."""
    account = Account()
    loop = await started(account)
    loop.api.faults.append(answers(status))
    key = loop.api.add_pod("web")
    await loop.settle()
    assert loop.where(key) == ""
    assert (loop.place(key), loop.state.assumed_count) == ("backoff", 0)
    assert account.reserved == set()
    assert cpu_of(loop, "a") == 0
    ((pod, reason, message),) = loop.events
    assert (pod, reason) == ("web", "FailedScheduling")
    assert str(status) in message
    condition = loop.api.pods[key]["status"]["conditions"][0]
    assert condition["reason"] == "SchedulerError"
    await loop.advance(2)
    assert loop.where(key) == "a"
    assert account.bound == ["web"]
    await loop.end()


async def test_a_binding_whose_answer_is_lost_is_looked_up() -> None:
    """It was carried out: the pod stays on its node, though the watch does not say so yet."""
    account = Account()
    loop = await started(account)
    await loop.settle()
    loop.api.lost.append(answers(500))
    key = loop.api.add_pod("web")
    loop.api.deliver()
    await loop.clock.settle()  # without the watch event of the binding
    assert (loop.place(key), cpu_of(loop, "a")) == ("", 1000)
    assert account.bound == ["web"]
    assert [event[1] for event in loop.events] == ["Scheduled"]
    await loop.advance(30)
    assert loop.api.bindings == [(key, "a")]
    await loop.end()


async def test_while_it_is_not_known_whether_a_pod_is_bound_it_keeps_its_room() -> None:
    """The server is away: no other pod takes its place, until it has answered."""
    loop = await started()
    await loop.settle()
    loop.api.lost += [answers(500)] * 4
    loop.api.add_pod("web", cpu="4")
    other = loop.api.add_pod("other", cpu="4")
    loop.api.deliver(2)
    await loop.clock.settle()
    assert (cpu_of(loop, "a"), loop.place(other)) == (4000, "unschedulable")
    await loop.clock.advance(2)
    assert loop.place(other) == "unschedulable"
    await loop.advance(30)
    assert loop.api.bindings == [("default/web", "a")]
    await loop.end()


async def test_a_server_that_refuses_to_say_whether_a_pod_is_bound_is_asked_once() -> None:
    """Its role does not allow it: then the binding counts as failed, as the response was."""
    loop = await started()
    await loop.settle()
    loop.api.faults += [answers(500), answers(403)]
    key = loop.api.add_pod("web")
    await loop.settle()
    assert (loop.place(key), cpu_of(loop, "a")) == ("backoff", 0)
    await loop.advance(3)
    assert loop.where(key) == "a"
    await loop.end()


async def test_a_pod_that_the_watch_has_bound_before_the_answer_is_bound() -> None:
    """The answer, an error, does not count any more."""
    account = Account()
    loop = await started(account)
    await loop.settle()

    def late(call: Call) -> None:
        loop.api.deliver()
        raise api_error_response(call, 500, "Timeout", "too late")

    loop.api.lost.append(late)
    key = loop.api.add_pod("web")
    await loop.settle()
    assert account.bound == ["web"]
    assert account.reserved == {"web"}
    assert [event[1] for event in loop.events] == ["Scheduled"]
    assert loop.where(key) == "a"
    await loop.end()


async def test_a_pod_that_another_scheduler_has_bound_is_where_it_says() -> None:
    """Our binding gets 409; the watch says where the pod is."""
    loop = await started()
    loop.api.add_node("b")
    await loop.settle()
    key = loop.api.add_pod("web")
    loop.api.deliver()
    loop.api.pods[key]["spec"]["nodeName"] = "b"
    await loop.clock.settle()
    assert loop.api.bindings == []
    assert loop.state.assumed_count == 0
    loop.api.change(key)
    await loop.advance(30)
    assert (cpu_of(loop, "a"), cpu_of(loop, "b")) == (0, 1000)
    assert loop.place(key) == ""
    await loop.end()


async def test_a_binding_that_hangs_holds_up_no_other_pod() -> None:
    """Its time is limited; then the pod is tried again."""
    loop = await started(limits=TimeLimits(bind=60.0))
    await loop.settle()
    loop.api.hang = True
    first = loop.api.add_pod("first")
    await loop.settle()
    loop.api.hang = False
    second = loop.api.add_pod("second")
    await loop.settle()
    assert (loop.where(first), loop.where(second)) == ("", "a")
    await loop.advance(70)
    assert loop.where(first) == "a"
    await loop.end()


async def test_many_bindings_that_hang_stop_the_cycles_and_show_in_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods wait in the queue then, and not on nodes."""
    monkeypatch.setattr("koord_scheduler.scheduling.scheduler.MAX_BINDINGS", 2)
    loop = await started()
    loop.api.hang = True
    for number in range(4):
        loop.api.add_pod(f"w{number}")
    await loop.settle()
    assert loop.state.assumed_count == 2
    assert "bindings do not end" in loop.scheduler.health().reason
    loop.api.hang = False
    for each in loop.api.hanging:
        each.set()
    await loop.settle()
    assert len(loop.api.bindings) == 4
    await loop.end()


async def test_a_node_that_is_deleted_before_the_binding_gets_no_pod() -> None:
    """The API server would take the binding; the pod is tried elsewhere."""
    gate = Gate(pre_bind=True)
    loop = await started(permit={"Gate": gate}, preBind={"Gate": gate})
    key = loop.api.add_pod("web")
    await loop.settle()
    assert loop.state.assumed_count == 1
    loop.api.delete_node("a")
    loop.api.add_node("b")
    await loop.settle()
    gate.opened.set()
    await loop.settle()
    assert loop.api.bindings == []
    assert "node a was deleted" in loop.events[-1][2]
    await loop.advance(2)
    assert loop.where(key) == "b"
    await loop.end()


async def test_a_pod_that_is_deleted_while_it_waits_for_its_permit_is_forgotten() -> None:
    """At once: its room is for others."""
    account, gate = Account(), Gate(600)
    loop = await started(account, permit={"Gate": gate}, preBind={"Gate": gate})
    key = loop.api.add_pod("web", cpu="4")
    await loop.settle()
    assert len(loop.services.waiting) == 1
    assert loop.api.pods[key]["status"]["nominatedNodeName"] == "a"
    gate.seconds = 0
    other = loop.api.add_pod("other", cpu="4")
    await loop.settle()
    assert loop.place(other) == "unschedulable"
    loop.api.delete_pod(key)
    await loop.settle()
    assert len(loop.services.waiting) == 0
    await loop.advance(2)
    assert (loop.where(other), account.reserved) == ("a", {"other"})
    assert loop.scheduler.bindings == 0
    await loop.end()


@pytest.mark.parametrize("when", ["pre_bind", "slot", "bind"])
async def test_a_pod_that_is_deleted_on_its_way_is_forgotten(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is then; no request is made that is in vain, if that is known."""
    account, gate = Account(), Gate(pre_bind=when == "pre_bind")
    if when == "slot":
        monkeypatch.setattr(cycle, "MAX_PARALLEL_BINDINGS", 1)
    loop = await started(account, permit={"Gate": gate}, preBind={"Gate": gate})
    await loop.settle()
    loop.api.hang = when != "pre_bind"
    if when == "slot":
        loop.api.add_pod("before")
    key = loop.api.add_pod("web")
    await loop.settle()
    assert "web" in account.reserved
    loop.api.delete_pod(key)
    await loop.settle()
    gate.opened.set()
    loop.api.hang = False
    for each in loop.api.hanging:
        each.set()
    await loop.advance(30)
    assert "web" not in account.reserved
    assert key not in dict(loop.api.bindings)
    assert not loop.state.is_assumed("uid-default-web")
    assert loop.scheduler.queue.in_flight.events == 0
    assert [event for event in loop.events if event[0] == "web"] == []
    await loop.end()


async def test_a_pod_that_is_deleted_while_it_waits_to_be_tried_is_forgotten() -> None:
    """Also with a nomination that held up others."""
    loop = await started()
    key = loop.api.add_pod("web", cpu="8")
    await loop.settle()
    assert loop.place(key) == "unschedulable"
    loop.api.delete_pod(key)
    await loop.settle()
    assert not any(loop.scheduler.queue.pending.values())
    await loop.end()


async def test_a_pod_that_is_ending_is_not_tried() -> None:
    """Its deletion has begun: nobody would run it."""
    loop = await started()
    key = loop.api.add_pod("web", cpu="8")
    await loop.settle()
    loop.api.change(key, metadata={"deletionTimestamp": "2026-07-24T06:52:45Z"})
    loop.api.add_node("b", cpu="16")
    await loop.advance(30)
    assert loop.where(key) == ""
    assert loop.scheduler.queue.pending["unschedulable"] == 0
    await loop.end()


async def test_a_permit_that_does_not_come_in_time_is_a_rejection() -> None:
    """With the plugin's name and time; the pod waits for what may help it."""
    gate = Gate(30)
    loop = await started(permit={"Gate": gate}, preBind={"Gate": gate})
    key = loop.api.add_pod("web")
    await loop.settle()
    await loop.advance(31)
    message = "0/1 nodes are available: 1 rejected due to timeout after waiting 30s at plugin Gate."
    assert loop.events == [("web", "FailedScheduling", message)]
    assert loop.place(key) == "unschedulable"
    condition = loop.api.pods[key]["status"]["conditions"][0]
    assert condition["reason"] == "Unschedulable"
    assert not loop.api.pods[key]["status"]["nominatedNodeName"]
    assert cpu_of(loop, "a") == 0
    await loop.end()


async def test_a_permit_that_comes_binds_the_pod() -> None:
    """Meanwhile others are bound."""
    gate = Gate(600)
    loop = await started(permit={"Gate": gate}, preBind={"Gate": gate})
    first = loop.api.add_pod("first")
    await loop.settle()
    gate.seconds = 0
    second = loop.api.add_pod("second")
    await loop.settle()
    assert (loop.where(first), loop.where(second)) == ("", "a")
    for waiting in loop.services.waiting:
        waiting.allow("Gate")
    await loop.settle()
    assert loop.where(first) == "a"
    await loop.end()


BROKEN: dict[str, dict[str, Any]] = {
    "filter raises": {"filter": {"A": PlainFilter({"a": "?"})}},
    "mask of the wrong length": {"filter": {"A": VectorFilter(np.ones(7, np.bool_))}},
    "score below 0": {"score": {"A": PlainScore({"a": -1, "b": 5})}},
    "score above 100": {"score": {"A": VectorScore(np.array([101, 101]))}},
    "score that is no number": {"score": {"A": VectorScore(np.array([np.nan, np.nan]))}},
    "reserve raises": {"reserve": {"A": Account(lambda pod: 1 / 0)}},  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_plugin_that_misbehaves_fails_only_the_attempt(broken: str) -> None:
    """The pod comes back later, and the event says which plugin it was."""
    loop = await started(**BROKEN[broken])
    loop.api.add_node("b")
    key = loop.api.add_pod("web")
    await loop.settle()
    assert (loop.where(key), loop.place(key), loop.state.assumed_count) == ("", "backoff", 0)
    ((_, reason, message),) = loop.events
    assert reason == "FailedScheduling"
    assert "A" in message
    labels = {"result": "error", "profile": "p"}
    assert loop.sample("scheduler_schedule_attempts_total", **labels) == 1
    await loop.advance(20)
    assert loop.sample("scheduler_schedule_attempts_total", **labels) > 1
    await loop.end()


async def test_a_fault_of_our_own_fails_only_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pod is tried, and this one comes back."""
    loop = await started()
    await loop.settle()
    run, failing = loop.scheduler.cycle.run, ["bad"]

    async def fails(attempt: Any) -> Any:
        found = await run(attempt)
        if attempt.pod.name in failing:
            raise ZeroDivisionError("a bug")
        return found

    monkeypatch.setattr(loop.scheduler.cycle, "run", fails)
    bad, good = loop.api.add_pod("bad"), loop.api.add_pod("good")
    await loop.settle()
    assert (loop.where(bad), loop.where(good)) == ("", "a")
    assert cpu_of(loop, "a") == 1000
    failing.clear()
    await loop.advance(3)
    assert loop.where(bad) == "a"
    await loop.end()


class MakesRoom(PostFilterPlugin):
    """Nominates a node, when a test lets it."""

    def __init__(self, answer: PostFilterResult) -> None:
        self.answer = answer
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        self.asked += 1
        await self.go.wait()
        return self.answer


async def test_a_nomination_keeps_the_room_for_the_pod() -> None:
    """It is in the status of the pod, which others of lower priority respect."""
    plugin = MakesRoom(PostFilterResult("a", Status.unschedulable("made room")))
    loop = await started(postFilter={"Makes": plugin})
    loop.api.add_pod("victim", cpu="4", bound="a")
    key = loop.api.add_pod("web", cpu="4", priority=10)
    await loop.settle()
    assert loop.api.pods[key]["status"]["nominatedNodeName"] == "a"
    message = "0/1 nodes are available: 1 Insufficient cpu. made room"
    assert loop.events == [("web", "FailedScheduling", message)]
    lower = loop.api.add_pod("lower", cpu="4", priority=1)
    loop.api.delete_pod("default/victim")
    await loop.advance(20)
    assert (loop.where(key), loop.where(lower)) == ("a", "")
    assert loop.services.nominator.node_of(key) is None
    await loop.end()


async def test_an_unchanged_status_is_not_written_again() -> None:
    """However often the pod is tried."""
    loop = await started()
    key = loop.api.add_pod("web", cpu="8")
    await loop.settle()
    for _ in range(3):
        loop.scheduler.activate(["uid-default-web"])
        await loop.advance(20)
    assert len(loop.events) == 4
    assert [patched for patched, _ in loop.api.patches] == [key]
    await loop.end()


def away(call: Call) -> None:
    raise Unreachable(f"{call.where}: no route")


@pytest.mark.parametrize("fault", [answers(500), answers(429), answers(401), away])
async def test_a_status_that_could_not_be_written_is_written_later(
    fault: Callable[[Call], None],
) -> None:
    """After growing pauses, without another attempt to schedule the pod; others are not kept."""
    loop = await started()
    await loop.settle()
    loop.api.faults += [fault] * 12
    keys = [loop.api.add_pod(f"w{at}", cpu="8") for at in range(3)]
    await loop.settle()
    await loop.advance(0.5)
    assert loop.api.patches == []
    asked = loop.api.requests
    await loop.advance(60)
    assert sorted(key for key, _ in loop.api.patches) == keys
    assert loop.api.requests - asked <= 15
    assert len(loop.events) == 3
    conditions = [loop.api.pods[key]["status"]["conditions"][0] for key in keys]
    assert {one["reason"] for one in conditions} == {"Unschedulable"}
    await loop.end()


@pytest.mark.parametrize("status", [403, 404, 409, 422])
async def test_a_status_that_is_refused_for_good_is_tried_with_the_next_attempt(
    status: int,
) -> None:
    """The server would say the same again."""
    loop = await started()
    await loop.settle()
    loop.api.faults.append(answers(status))
    key = loop.api.add_pod("web", cpu="8")
    await loop.settle()
    asked = loop.api.requests
    await loop.advance(60)
    assert (loop.api.patches, loop.api.requests) == ([], asked)
    loop.scheduler.activate(["uid-default-web"])
    await loop.advance(2)
    assert [patched for patched, _ in loop.api.patches] == [key]
    await loop.end()


@pytest.mark.parametrize("end", ["bound", "deleted"])
async def test_a_status_that_is_void_is_not_written_later(end: str) -> None:
    """The pod was bound, or deleted, while it waited or was on its way."""
    loop = await started()
    await loop.settle()
    loop.api.hang = True
    key = loop.api.add_pod("web", cpu="8")
    await loop.settle()
    loop.api.hang = False
    if end == "bound":
        loop.api.add_node("b", cpu="16")
        await loop.advance(15)
        assert loop.where(key) == "b"
    else:
        loop.api.delete_pod(key)
        await loop.settle()
    loop.api.faults.append(answers(500))
    loop.api.hanging[0].set()
    await loop.advance(60)
    assert loop.api.patches == []
    assert loop.api.faults == []
    await loop.end()


@pytest.mark.parametrize("on_its_way", [False, True])
@pytest.mark.parametrize(("later", "wanted"), [(None, "a"), ("", None)])
async def test_a_later_status_takes_the_place_of_one_that_failed(
    later: str | None, wanted: str | None, *, on_its_way: bool
) -> None:
    """And what that one says of the nomination, if it says nothing itself."""
    plugin = MakesRoom(PostFilterResult("a", Status.unschedulable("made room")))
    loop = await started(postFilter={"Makes": plugin})
    await loop.settle()
    loop.api.faults.append(answers(500))
    loop.api.hang = on_its_way
    key = loop.api.add_pod("web", cpu="8")
    await loop.settle()
    loop.api.hang = False
    plugin.answer = PostFilterResult(later, Status.unschedulable("waits"))
    loop.scheduler.activate(["uid-default-web"])
    await loop.settle()
    for each in loop.api.hanging:
        each.set()
    await loop.advance(60)
    assert loop.api.faults == []
    status = loop.api.pods[key]["status"]
    assert status.get("nominatedNodeName") == wanted
    assert status["conditions"][0]["message"].endswith("waits")
    await loop.end()


@pytest.mark.parametrize("where", ["permit", "bind", "post_filter"])
async def test_when_the_lead_is_lost_nothing_more_is_bound(where: str) -> None:
    """The loop ends at once; pods on their way are on no node, and in the queue."""
    account, gate = Account(), Gate(600 if where == "permit" else 0)
    plugin = MakesRoom(PostFilterResult(None, Status.unschedulable()))
    plugin.go.clear()
    loop = await started(
        account, permit={"Gate": gate}, preBind={"Gate": gate}, postFilter={"Makes": plugin}
    )
    await loop.settle()
    loop.api.hang = where == "bind"
    keys = [loop.api.add_pod(f"w{at}", cpu="8" if where == "post_filter" else "1") for at in (1, 2)]
    await loop.settle()
    await loop.lose_lead()
    loop.api.hang = False
    for each in loop.api.hanging:
        each.set()
    await loop.advance(60)
    assert loop.api.bindings == []
    assert (loop.state.assumed_count, account.reserved) == (0, set())
    assert [loop.place(key) for key in keys] == ["active", "active"]


async def test_at_the_end_bindings_that_were_sent_have_a_moment() -> None:
    """They are reported as ever; what was not sent is given up at once, and nothing is begun."""
    account, gate = Account(), Gate(600)
    loop = await started(account, permit={"Gate": gate}, preBind={"Gate": gate})
    await loop.settle()
    waits = loop.api.add_pod("waits")
    await loop.settle()
    gate.seconds = 0
    loop.api.hang = True
    sent = [loop.api.add_pod(f"sent{at}") for at in (1, 2)]
    await loop.settle()
    loop.stop.set()
    loop.api.hang = False
    new = loop.api.add_pod("new")
    await loop.settle()
    assert not loop.ended
    assert account.reserved == {"sent1", "sent2"}
    await loop.advance(0.5)
    loop.api.hanging[-2].set()
    loop.api.faults.append(answers(500))
    await loop.settle()
    assert not loop.ended
    loop.api.hanging[-1].set()
    await loop.settle()
    assert loop.ended
    assert loop.api.bindings == [(sent[1], "a")]
    assert account.bound == ["sent2"]
    assert [one for one in loop.events if one[1] == "Scheduled"] == [
        ("sent2", "Scheduled", "Successfully assigned default/sent2 to a")
    ]
    assert loop.place(sent[0]) == "backoff"
    assert [loop.place(key) for key in (waits, new)] == ["active", "active"]
    assert (loop.state.assumed_count, account.reserved) == (0, {"sent2"})


async def test_at_the_end_a_binding_that_hangs_is_given_up_soon() -> None:
    """Its pod is where the API server says; the next leader finds it out."""
    account = Account()
    loop = await started(account)
    await loop.settle()
    loop.api.hang = True
    key = loop.api.add_pod("web")
    await loop.settle()
    loop.stop.set()
    await loop.advance(1.9)
    assert not loop.ended
    await loop.advance(0.2)
    assert loop.ended
    assert (loop.state.assumed_count, account.reserved) == (0, set())
    assert loop.place(key) == "active"


async def test_a_lead_that_is_lost_at_the_end_ends_that_moment() -> None:
    """Another replica may lead then."""
    loop = await started()
    await loop.settle()
    loop.api.hang = True
    loop.api.add_pod("web")
    await loop.settle()
    loop.stop.set()
    await loop.settle()
    assert not loop.ended
    await loop.lose_lead()
    assert (loop.state.assumed_count, loop.api.bindings) == (0, [])


async def test_a_new_process_binds_only_what_is_not_bound() -> None:
    """After kill -9 the API server knows what was done; a second process begins from its lists."""
    loop = await started()
    await loop.settle()
    bound = loop.api.add_pod("bound")
    await loop.settle()
    loop.api.hang = True
    pending = loop.api.add_pod("pending")
    await loop.settle()
    # it is killed here: what its requests become is not known to it
    again = await Loop().build()
    again.api.nodes, again.api.pods = loop.api.nodes, loop.api.pods
    for key in again.api.pods:
        again.api.change(key)
    again.api.add_node("a")
    await again.start()
    await again.settle()
    assert again.api.bindings == [(pending, "a")]
    assert again.where(bound) == "a"
    assert cpu_of(again, "a") == 2000
    await again.end()
    await loop.lose_lead()


async def test_free_cpu_is_never_overcommitted_by_pods_on_their_way() -> None:
    """Assumed pods take their room."""
    loop = await started(filter={"FreeCpu": FreeCpu()})
    await loop.settle()
    loop.api.hang = True
    for number in range(6):
        loop.api.add_pod(f"w{number}")
    await loop.settle()
    assert loop.state.assumed_count == 4
    assert loop.scheduler.queue.pending["unschedulable"] == 2
    await loop.lose_lead()
