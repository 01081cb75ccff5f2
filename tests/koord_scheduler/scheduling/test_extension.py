"""FrameworkExtender's hooks in the loop: failures, forgotten pods, the next pod, sizes."""

from collections.abc import Callable, Iterable
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from koord.cluster.account import AccountKind, FrozenAccount
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.cluster.pools import Holding
from koord.cluster.view import View
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.framework.interfaces import (
    FailedPod,
    HookFailed,
    NextPodPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    ResizePodPlugin,
    StartHooks,
)
from koord_scheduler.framework.profile import ProfileError
from koord_scheduler.framework.status import CycleState, Status
from koord_scheduler.scheduling.scheduler import next_pod_of
from tests.support.scheduler.framework import FreeCpu, make_pod
from tests.support.scheduler.loop import Loop


async def started(**settings: object) -> Loop:
    loop = await Loop().build(**settings)
    await loop.start()
    return loop


async def test_filters_learn_of_a_failure_before_and_after_it_is_handled() -> None:
    loop = await started()
    seen: list[str] = []

    def note(when: str, place: Callable[[], str]) -> Callable[[FailedPod], bool]:
        def each(failed: FailedPod) -> bool:
            seen.append(f"{when} {failed.pod.name} {failed.status.message} {place()}")
            return False

        return each

    loop.api.add_node("a", cpu="1")
    key = loop.api.add_pod("web", cpu="2")
    loop.services.failures.register(
        note("before", lambda: loop.place(key)), note("after", lambda: loop.place(key))
    )
    await loop.settle()
    message = "0/1 nodes are available: 1 Insufficient cpu."
    assert seen == [f"before web {message} inFlight", f"after web {message} unschedulable"]


async def test_a_failure_that_is_handled_is_neither_requeued_nor_reported() -> None:
    loop = await started()
    after: list[str] = []
    loop.services.failures.register(lambda failed: True)
    loop.services.failures.register(lambda failed: pytest.fail("it is handled already"))
    loop.services.failures.register(after=lambda failed: bool(after.append(failed.pod.name)))
    loop.api.add_node("a", cpu="1")
    key = loop.api.add_pod("web", cpu="2")
    await loop.settle()
    assert (loop.place(key), loop.events, after) == ("", [], ["web"])


async def test_a_filter_that_raises_loses_no_pod() -> None:
    loop = await started()

    def fails(failed: FailedPod) -> bool:
        raise ValueError("no")

    loop.services.failures.register(fails, fails)
    loop.api.add_node("a", cpu="1")
    key = loop.api.add_pod("web", cpu="2")
    await loop.settle()
    assert loop.place(key) == "unschedulable"


class RejectsAs(PreFilterPlugin):
    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        return Status.unresolvable("the job is not whole")


@pytest.mark.parametrize(
    ("plugin", "nominated"),
    [("JobRejectPlugin", "a"), ("JobPreemptionFailurePlugin", None), ("Other", "a")],
)
async def test_rejections_of_jobs_say_what_becomes_of_the_nomination(
    plugin: str, nominated: str | None
) -> None:
    loop = await started(preFilter={plugin: RejectsAs()})
    loop.api.add_node("a")
    key = loop.api.add_pod("web")
    loop.api.change(key, status={"nominatedNodeName": "a"})
    await loop.settle()
    assert loop.services.nominator.node_of(key) == nominated


async def test_a_pod_that_a_plugin_has_forgotten_is_off_its_node_and_all_learn_of_it() -> None:
    loop = await Loop().build()
    loop.api.add_node("a")
    key = loop.api.add_pod("web")
    loop.api.deliver()
    forgotten: list[str] = []

    def fails(pod: ClusterPod) -> None:
        raise ValueError("no")

    loop.services.forgotten.register(fails)
    loop.services.forgotten.register(lambda pod: forgotten.append(pod.name))
    control = loop.services.control.get()
    assumed = loop.state.assume(loop.api.pod(key), "a")
    assert control.is_assumed(assumed.uid)
    assert control.forget_pod(assumed)
    assert not control.forget_pod(assumed)
    assert forgotten == ["web", "web"]
    found = control.pod(key)
    assert found is not None
    assert found.node == ""


async def test_a_plugin_has_pods_of_its_own() -> None:
    """They take room, lists of the API server do not remove them, and a real one replaces one."""
    loop = await Loop().build()
    loop.api.add_node("a", cpu="4")
    loop.api.deliver()
    control = loop.services.control.get()
    own = replace(make_pod("reserve", requests={"cpu": "3"}), node="a")
    control.put_own_pod(own)
    control.put_own_pod(replace(own, priority=7))
    view = loop.state.view()
    assert view.requested[0, view.resources["cpu"]] == 3000
    assert list(loop.state.keys(POD)) == []
    control.remove_own_pod("default/other")
    control.remove_own_pod(own.key)
    assert loop.state.pod(own.key) is None
    key = loop.api.add_pod("web", bound="a")
    loop.api.deliver()
    with pytest.raises(ValueError, match="is the API server's"):
        control.put_own_pod(replace(make_pod("web"), uid="other"))
    control.remove_own_pod(key)
    assert list(loop.state.keys(POD)) == [key]


async def test_a_pod_of_a_plugin_is_scheduled_like_others() -> None:
    loop = await started()
    loop.api.add_node("a")
    await loop.settle()
    failed = Mock(return_value=False)
    loop.services.failures.register(after=failed)
    own = replace(make_pod("reserve", requests={"cpu": "1"}), scheduler_name="p")
    loop.services.control.get().put_own_pod(own)
    await loop.settle()
    assert failed.call_args.args[0].pod.key == own.key  # no API server binds it
    assert "not found" in failed.call_args.args[0].status.message
    assert loop.events == []  # its plugin reports, if it is to be reported


class Prefers(PreEnqueuePlugin, NextPodPlugin):
    def __init__(self, *uids: str) -> None:
        self.uids = list(uids)

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        return Status.unschedulable("gated") if pod.name == "gated" else None

    def next_pod(self) -> str | None:
        if self.uids and self.uids[0] == "fail":
            raise ValueError(self.uids.pop(0))
        return self.uids.pop(0) if self.uids else None


async def test_a_plugin_says_which_pod_is_next() -> None:
    wanted = ["uid-default-c", "uid-default-gated", "uid-default-gone", "fail", "uid-default-b"]
    prefers = Prefers(*wanted)
    loop = await Loop().build(preEnqueue={"Prefers": prefers})
    loop.api.add_node("a", cpu="8")
    for name in ("gated", "a", "b", "c"):
        loop.api.add_pod(name)
    loop.api.deliver()
    await loop.start()
    bound = [key.removeprefix("default/") for key, _ in loop.api.bindings]
    assert sorted(bound) == ["a", "b", "c"]
    assert next(name for name, reason, _ in loop.events if reason == "Scheduled") == "c"
    assert loop.place("default/gated") == "gated"


class Ready(Prefers):
    """Asked only while it says that it has one."""

    ready: bool | None = False

    @property
    def has_next(self) -> bool:
        if self.ready is None:
            raise ValueError("broken")
        return self.ready


async def test_a_plugin_without_a_next_pod_is_not_asked() -> None:
    loop = Loop()
    ready = Ready("a", "b")
    found = next_pod_of([await loop.profile(preEnqueue={"Ready": ready})])
    assert found is not None
    assert found.uid() is None
    ready.ready = True
    assert found.uid() == "a"
    ready.ready = None
    assert found.uid() is None
    assert ready.uids == ["b"]


async def test_only_one_plugin_says_which_pod_is_next() -> None:
    loop = Loop()
    one = await loop.profile(preEnqueue={"One": Prefers()})
    other = await loop.profile(preEnqueue={"Other": Prefers()})
    assert next_pod_of([one, one]) is not None
    with pytest.raises(ProfileError, match="found One, Other"):
        next_pod_of([one, other])


class Halves(FreeCpu, ResizePodPlugin):
    def __init__(self, answer: Status | None = None) -> None:
        self.answer = answer

    def resize_pod(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> ClusterPod | Status | None:
        if self.answer is not None:
            return self.answer
        smaller = tuple((name, amount // 2) for name, amount in pod.spec.requests)
        return replace(pod, spec=replace(pod.spec, requests=smaller))


@pytest.mark.parametrize(("resizes", "milli"), [(True, 1000), (False, 2000)])
async def test_a_pod_takes_the_room_that_it_is_resized_to(resizes: bool, milli: int) -> None:
    loop = await Loop().build(filter={"Halves": Halves()}, resizes=resizes)
    loop.api.add_node("a")
    loop.api.add_pod("web", cpu="2")
    loop.api.deliver()
    loop.api.hang = True
    await loop.start()
    view = loop.state.view()
    assert view.requested[0, view.resources["cpu"]] == milli


async def test_a_size_that_is_refused_ends_the_cycle() -> None:
    halves = Halves(Status.unschedulable("it cannot be smaller"))
    loop = await Loop().build(filter={"Halves": halves}, resizes=True)
    loop.api.add_node("a")
    loop.api.add_pod("web", cpu="2")
    loop.api.deliver()
    await loop.start()
    text = "0/1 nodes are available: 1 it cannot be smaller."
    assert loop.events == [("web", "FailedScheduling", text)]
    assert loop.state.assumed_count == 0


async def test_start_hooks_run_in_order_and_a_failure_is_named() -> None:
    hooks, ran = StartHooks(SimulatedClock()), list[str]()

    async def works() -> None:
        ran.append("works")

    async def fails() -> None:
        raise ValueError("no list")

    hooks.add("One", works)
    hooks.add("Two", fails)
    hooks.add("Three", works)
    with pytest.raises(HookFailed, match=r"plugin Two: its start-up hook failed: .*no list"):
        await hooks.run()
    assert ran == ["works"]


HELD = AccountKind("held", lambda pod: (Holding("all", (("cpu", 1),)),) if pod.node else ())


async def test_pods_of_a_plugin_follow_the_account_before_a_view_of_another_one() -> None:
    loop = await Loop().build()
    loop.state.keep_account(HELD)
    loop.api.add_node("a", cpu="4")
    loop.api.deliver()
    control = loop.services.control.get()
    own = replace(make_pod("reserve", requests={"cpu": "3"}), node="a")
    control.put_own_pod(own)
    seen: list[int] = []

    def smaller(before: FrozenAccount, now: FrozenAccount) -> Iterable[ClusterPod]:
        seen.append(now.pool(HELD, "all").pods)
        yield replace(make_pod("reserve", requests={"cpu": "2"}), node="a")
        yield replace(make_pod("gone", requests={"cpu": "1"}), node="a")  # nobody has put it

    def fails(before: FrozenAccount, now: FrozenAccount) -> Iterable[ClusterPod]:
        raise ValueError("no")

    control.refresh_own_pods(fails)
    control.refresh_own_pods(smaller)
    loop.api.add_pod("web", bound="a")
    loop.api.deliver()
    view = loop.state.view()
    assert view.requested[0, view.resources["cpu"]] == 3000
    assert {pod.name for pod in view.pods(0)} == {"reserve", "web"}
    loop.state.view()
    assert seen == [2]  # not again, while the account stays the same
