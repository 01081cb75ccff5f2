"""From a chosen node to a bound pod, and what plugins do on the way."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.calls import TimeLimits
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    PermitPlugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    ReservePlugin,
)
from koord_scheduler.framework.status import (
    Code,
    CycleState,
    NodeStatuses,
    PostFilterResult,
    Status,
    Wait,
)
from tests.support.scheduler.framework import Binder, Kit, make_pod, make_view

POD, VIEW = make_pod(), make_view(a="1")
NO, BROKEN = Status.unschedulable("no"), Status.failed("broken")


class Does(
    ReservePlugin, PermitPlugin, PreBindPlugin, BindPlugin, PostBindPlugin, PostFilterPlugin
):
    """Answers as a test says, and writes down that it was called."""

    def __init__(self, calls: list[str], answer: Any = None, flight: Any = None) -> None:
        self.calls, self.answer, self.flight = calls, answer, flight

    def _act(self, point: str) -> Any:
        self.calls.append(f"{self.name}.{point}")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        answer: Status | None = self._act("reserve")
        return answer

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._act("unreserve")

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        answer: Wait | Status | None = self._act("permit")
        return answer

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        flight: Status | None = self.flight
        return flight

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        answer: Status | None = self._act("pre_bind")
        return answer

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        if self.answer == "hang":
            await asyncio.get_running_loop().create_future()
        answer: Status | None = self._act("bind")
        return answer

    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._act("post_bind")

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        answer: PostFilterResult | Status | None = self._act("post_filter")
        return answer


async def binding(kit: Kit, point: str, *plugins: Does) -> PodBinding:
    named = {f"P{at}": plugin for at, plugin in enumerate(plugins)}
    return PodBinding(await kit.profile(limits=TimeLimits(bind=30.0), **{point: named}))


@pytest.mark.parametrize("bad", [NO, BROKEN, ValueError("broken"), Status.skip(), 5])
@pytest.mark.parametrize("in_cycle", [False, True])
async def test_reserve_stops_at_the_first_failure(bad: Any, in_cycle: bool) -> None:
    """Unreserve is called for all plugins, in the reverse order, and nothing stops it.

    in_cycle: inside of the limits around calls in a row, where all have the time of one.
    """
    calls: list[str] = []
    named = {"P0": Does(calls), "P1": Does(calls, bad), "P2": Does(calls)}
    profile = await Kit().profile(reserve=named)
    run, state = PodBinding(profile), CycleState()
    with profile.calls.limits if in_cycle else nullcontext():
        status = run.reserve(state, POD, "a")
    assert not status.ok
    assert status.plugin == "P1"
    assert status.code is (Code.UNSCHEDULABLE if bad is NO else Code.ERROR)
    run.unreserve(state, POD, "a")
    assert calls == ["P0.reserve", "P1.reserve", "P2.unreserve", "P1.unreserve", "P0.unreserve"]


@pytest.mark.parametrize("bad", [NO, BROKEN, ValueError("broken")])
async def test_pre_bind_stops_at_the_first_failure(bad: Any) -> None:
    """One plugin after the other."""
    calls: list[str] = []
    run = await binding(Kit(), "preBind", Does(calls), Does(calls, bad), Does(calls))
    status = await run.pre_bind(CycleState(), POD, "a")
    assert status.plugin == "P1"
    assert calls == ["P0.pre_bind", "P1.pre_bind"]


@pytest.mark.parametrize("in_cycle", [False, True])
async def test_reserve_goes_on_after_success(in_cycle: bool) -> None:
    """Each call is counted once, also of what a status says."""
    calls: list[str] = []
    named = {"P0": Does(calls), "P1": Does(calls, Status()), "P2": Does(calls, NO)}
    profile = await Kit().profile(reserve={**named, "P3": Does(calls)})
    with profile.calls.limits if in_cycle else nullcontext():
        assert PodBinding(profile).reserve(CycleState(), POD, "a").plugin == "P2"
    assert calls == ["P0.reserve", "P1.reserve", "P2.reserve"]
    for name, times in (("P0", 1), ("P1", 1), ("P2", 1), ("P3", 0)):
        assert profile.calls.evaluations(profile.loaded(name), Point.RESERVE) == [times]


async def test_pre_flight_leaves_out_what_has_nothing_to_do() -> None:
    """Skip of all is Skip; an error ends it."""
    calls: list[str] = []
    skips, works = Does(calls, flight=Status.skip()), Does(calls)
    run, state = await binding(Kit(), "preBind", skips, works), CycleState()
    assert run.pre_bind_pre_flight(state, POD, "a").ok
    assert (await run.pre_bind(state, POD, "a")).ok
    assert calls == ["P1.pre_bind"]
    works.flight = Status.skip()
    assert run.pre_bind_pre_flight(state, POD, "a").code is Code.SKIP
    for wrong, code in ((BROKEN, Code.ERROR), (5, Code.ERROR), (NO, Code.UNSCHEDULABLE)):
        works.flight = wrong
        assert run.pre_bind_pre_flight(state, POD, "a").code is code


@pytest.mark.parametrize(
    ("answers", "called", "code"),
    [
        ([None], 1, Code.SUCCESS),
        ([Status.skip(), None, None], 2, Code.SUCCESS),
        ([NO, None], 1, Code.UNSCHEDULABLE),
        ([BROKEN, None], 1, Code.ERROR),
        ([ValueError("broken"), None], 1, Code.ERROR),
        ([Status.skip(), Status.skip()], 2, Code.ERROR),
    ],
)
async def test_the_first_bind_plugin_that_does_not_skip_counts(
    answers: list[Any], called: int, code: Code
) -> None:
    """If all skip the pod is not bound, and that is an error."""
    calls: list[str] = []
    run = await binding(Kit(), "bind", *(Does(calls, answer) for answer in answers))
    assert (await run.bind(CycleState(), POD, "a")).code is code
    assert len(calls) == called


async def test_a_binding_that_hangs_ends_after_its_time() -> None:
    """As an error that says so."""
    kit = Kit()
    run = await binding(kit, "bind", Does([], "hang"))
    task = asyncio.create_task(run.bind(CycleState(), POD, "a"))
    await kit.clock.advance(31)
    status = await task
    assert status.code is Code.ERROR
    assert "wanted an end within 30 s" in status.message


async def test_post_bind_is_called_for_all_whatever_becomes_of_each() -> None:
    """The pod is bound already."""
    calls: list[str] = []
    run = await binding(Kit(), "postBind", Does(calls, ValueError("broken")), Does(calls))
    await run.post_bind(CycleState(), POD, "a")
    assert calls == ["P0.post_bind", "P1.post_bind"]


async def test_a_bound_pod() -> None:
    """By the plugin of the profile."""
    binder = Binder()
    run = PodBinding(await Kit().profile(bind={"B": binder}))
    assert (await run.bind(CycleState(), POD, "a")).ok
    assert binder.bound == [("web", "a")]


@pytest.mark.parametrize(
    ("answers", "called", "wanted"),
    [
        ([PostFilterResult("a"), NO], 1, PostFilterResult("a")),
        (
            [Status.unresolvable("never"), None],
            1,
            PostFilterResult(None, Status.unresolvable("never").of("P0")),
        ),
        (
            [NO, PostFilterResult("", Status.unschedulable("void")), Status.unschedulable("last")],
            3,
            PostFilterResult("", Status.unschedulable("no", "void", "last").of("P0")),
        ),
        ([NO, PostFilterResult("a")], 2, PostFilterResult("a")),
        ([NO, None, NO], 2, PostFilterResult(None)),
        ([], 0, PostFilterResult(None, Status.unschedulable())),
    ],
)
async def test_post_filter_runs_until_something_is_certain(
    answers: list[Any], called: int, wanted: PostFilterResult
) -> None:
    """Rejections are collected; the first plugin is the one that rejected."""
    calls: list[str] = []
    plugins = [Does(calls, answer) for answer in answers]
    run = await binding(Kit(), "postFilter", *plugins)
    statuses = NodeStatuses(VIEW.generation.astype("int32"), (NO,))
    found = await run.post_filter(CycleState(), POD, VIEW, statuses)
    assert len(calls) == called
    assert (found.nominated_node, found.status.code) == (wanted.nominated_node, wanted.status.code)
    assert found.status.reasons == wanted.status.reasons


@pytest.mark.parametrize("bad", [BROKEN, ValueError("broken"), "a", PostFilterResult("a", BROKEN)])
async def test_a_post_filter_that_fails_is_an_error(bad: Any) -> None:
    """And no other one is asked."""
    calls: list[str] = []
    run = await binding(Kit(), "postFilter", Does(calls, bad), Does(calls))
    statuses = NodeStatuses(VIEW.generation.astype("int32"), (NO,))
    found = await run.post_filter(CycleState(), POD, VIEW, statuses)
    assert found.status.code is Code.ERROR
    assert found.status.message.startswith('running PostFilter plugin "P0": ')
    assert calls == ["P0.post_filter"]


async def test_a_permit_that_all_give_at_once() -> None:
    """There is nothing to wait for."""
    kit = Kit()
    run = await binding(kit, "permit", Does([]), Does([]))
    assert run.permit(CycleState(), POD, "a").ok
    assert (await run.wait_on_permit(POD)).ok
    assert len(kit.services.waiting) == 0


@pytest.mark.parametrize("bad", [NO, BROKEN, ValueError("broken"), Wait(-1.0), Wait(float("nan"))])
async def test_a_permit_that_is_refused(bad: Any) -> None:
    """At once, even if another plugin would wait."""
    kit = Kit()
    calls: list[str] = []
    run = await binding(kit, "permit", Does(calls, Wait(5.0)), Does(calls, bad), Does(calls))
    status = run.permit(CycleState(), POD, "a")
    assert status.code is (Code.UNSCHEDULABLE if bad is NO else Code.ERROR)
    assert len(calls) == 2
    assert len(kit.services.waiting) == 0


async def waiting(kit: Kit, *seconds: float) -> "asyncio.Task[Status]":
    run = await binding(kit, "permit", *(Does([], Wait(each)) for each in seconds))
    assert run.permit(CycleState(), POD, "a").code is Code.WAIT
    task = asyncio.create_task(run.wait_on_permit(POD))
    await kit.clock.settle()
    return task


async def test_every_plugin_that_waits_must_allow() -> None:
    """One that has not asked to wait, or has allowed already, changes nothing."""
    kit = Kit()
    task = await waiting(kit, 10.0, 20.0)
    pod = kit.services.waiting.get(POD.uid)
    assert pod is not None
    assert pod.pending_plugins == ("P0", "P1")
    pod.allow("P0")
    pod.allow("P0")
    pod.allow("other")
    await kit.clock.advance(15)
    assert not task.done()
    pod.allow("P1")
    await kit.clock.settle()
    assert task.result().ok
    assert len(kit.services.waiting) == 0
    assert not pod.reject("P1", "too late")
    assert kit.sample("scheduler_permit_wait_duration_seconds_count", result="Success") == 1


async def test_the_first_timer_rejects_the_pod() -> None:
    """Each plugin has its own."""
    kit = Kit()
    task = await waiting(kit, 20.0, 10.0)
    await kit.clock.advance(10)
    assert task.result() == Status.unschedulable(
        "rejected due to timeout after waiting 10s at plugin P1"
    ).of("P1")


async def test_a_wait_is_at_most_fifteen_minutes() -> None:
    """However long the plugin wants."""
    kit = Kit()
    task = await waiting(kit, 86400.0)
    await kit.clock.advance(899)
    assert not task.done()
    await kit.clock.advance(1)
    assert "after waiting 15m0s at plugin P0" in task.result().message


async def test_any_plugin_may_reject_a_waiting_pod() -> None:
    """Through the handle; other pods are not waiting."""
    kit = Kit()
    task = await waiting(kit, 10.0)
    assert [each.pod for each in kit.services.waiting] == [POD]
    assert not kit.services.waiting.reject("other", "no")
    assert kit.services.waiting.reject(POD.uid, "the gang is gone")
    await kit.clock.settle()
    assert task.result().message == "the gang is gone"
    assert task.result().code is Code.UNSCHEDULABLE
