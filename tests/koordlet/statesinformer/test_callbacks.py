"""Callbacks: when they run, in which order, and what one of them cannot do to the others."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from koord.api.node import Node
from koord.api.nodeslo import HostApplication, NodeSLO
from koord.util.errors import KoordError
from koord.util.stop import Stop
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.statesinformer.informer import CallbackTarget, StatesInformer, StateType

DEADLINE = 10.0


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def informer(clock: SimulatedClock) -> StatesInformer:
    return StatesInformer(clock, callback_deadline=DEADLINE)


@pytest.fixture
async def start(
    clock: SimulatedClock, informer: StatesInformer
) -> AsyncIterator[Callable[[], None]]:
    """Starts the informer's workers; they are stopped at the end of the test."""
    stop = Stop(clock)
    tasks: list[asyncio.Task[None]] = []
    yield lambda: tasks.append(asyncio.create_task(informer.run(stop)))
    stop.set()
    await clock.settle()
    assert all(task.done() and task.exception() is None for task in tasks)


class Recorder:
    """A callback that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[StateType, object, CallbackTarget]] = []

    def __call__(self, state_type: StateType, state: object, target: CallbackTarget) -> None:
        self.calls.append((state_type, state, target))


async def test_sends_before_the_start_are_one_run(clock, informer, start) -> None:
    """One slot per type holds them until the workers run."""
    seen = Recorder()
    informer.register_callbacks("AllPods", "seen", "", seen)
    for _ in range(3):
        informer.send_callback(StateType.ALL_PODS)

    start()
    await clock.settle()

    assert len(seen.calls) == 1


async def test_sends_while_idle_are_one_run_each(clock, informer, start) -> None:
    """Nothing waits for a tick."""
    seen = Recorder()
    informer.register_callbacks("AllPods", "seen", "", seen)
    start()
    for runs in (1, 2, 3):
        informer.send_callback(StateType.ALL_PODS)
        await clock.settle()
        assert len(seen.calls) == runs


async def test_sends_during_a_run_are_one_more_run(clock, informer, start) -> None:
    """A slow callback gets the newest state once, not every state between."""
    runs = 0

    async def slow(*_: object) -> None:
        nonlocal runs
        runs += 1
        await clock.sleep(1.0)

    informer.register_callbacks(StateType.ALL_PODS, "slow", "", slow)
    start()
    informer.send_callback(StateType.ALL_PODS)
    await clock.settle()
    for _ in range(3):
        informer.send_callback(StateType.ALL_PODS)
    await clock.advance(10.0)

    assert runs == 2


async def test_callbacks_get_state_and_target_of_the_moment(clock, informer, start) -> None:
    """Events carry no data: what is current when the callback runs counts."""
    seen = Recorder()
    informer.register_callbacks(StateType.NODE_SLO_SPEC, "seen", "", seen)
    informer.set_node_slo(NodeSLO({"old": 1}))
    slo = NodeSLO({"new": 1}, (HostApplication("nginx"),))
    informer.set_node_slo(slo)

    start()
    await clock.settle()

    target = CallbackTarget((), slo.host_applications)
    assert seen.calls == [(StateType.NODE_SLO_SPEC, slo, target)]


async def test_no_nodeslo_means_no_call(clock, informer, start) -> None:
    """Callbacks of this type may count on a spec, also those that wait for a retry."""
    seen = Recorder()

    def broken(*_: object) -> None:
        raise ValueError("broken")

    informer.register_callbacks(StateType.NODE_SLO_SPEC, "seen", "", seen)
    informer.register_callbacks(StateType.NODE_SLO_SPEC, "broken", "", broken)
    start()
    informer.send_callback(StateType.NODE_SLO_SPEC)
    await clock.settle()
    assert seen.calls == []

    informer.set_node_slo(NodeSLO({"a": 1}))
    await clock.settle()
    informer.set_node_slo(None)
    await clock.advance(100.0)

    assert len(seen.calls) == 1
    assert [state.failures for state in informer.callbacks()] == [0, 1]


async def test_callbacks_run_in_order_of_registration(clock, informer, start) -> None:
    """Plain and async ones alike, one after another."""
    order: list[str] = []

    async def first(*_: object) -> None:
        await clock.sleep(1.0)
        order.append("first")

    informer.register_callbacks("NodeMetadata", "first", "", first)
    informer.register_callbacks("NodeMetadata", "second", "", lambda *_: order.append("second"))
    start()
    informer.set_node(Node("n"))
    await clock.advance(2.0)

    assert order == ["first", "second"]


async def test_a_callback_that_raises_is_retried_alone(clock, informer, start) -> None:
    """Those after it run at once, it itself again after a pause, until it works."""
    seen = Recorder()
    attempts = 0

    def flaky(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ValueError("not yet")

    informer.register_callbacks("AllPods", "flaky", "", flaky)
    informer.register_callbacks("AllPods", "seen", "", seen)
    start()
    informer.set_pods(())
    informer.set_node(Node("n"))
    await clock.settle()
    assert (attempts, len(seen.calls)) == (1, 1)
    assert "AllPods/flaky" in informer.health().reason

    await clock.advance(10.0)

    assert (attempts, len(seen.calls)) == (3, 1)
    assert informer.health().reason == ""


async def test_a_callback_that_hangs_is_cancelled_at_the_deadline(clock, informer, start) -> None:
    """Others of its type wait so long and no longer, other types not at all."""
    seen, others = Recorder(), Recorder()

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    informer.register_callbacks("AllPods", "hang", "", hang)
    informer.register_callbacks("AllPods", "seen", "", seen)
    informer.register_callbacks("NodeMetadata", "others", "", others)
    start()
    informer.set_pods(())
    informer.set_node(Node("n"))
    await clock.settle()
    assert (len(seen.calls), len(others.calls)) == (0, 1)

    await clock.advance(DEADLINE)

    assert len(seen.calls) == 1
    assert "took longer than 10 s" in informer.callbacks()[0].error


async def test_a_callback_that_will_not_be_cancelled_is_not_called_twice(
    clock, informer, start
) -> None:
    """It is left behind, retried once it has ended, and the others go on."""
    seen = Recorder()
    release = asyncio.Event()
    calls = 0

    async def stubborn(*_: object) -> None:
        nonlocal calls
        calls += 1
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    informer.register_callbacks("AllPods", "stubborn", "", stubborn)
    informer.register_callbacks("AllPods", "seen", "", seen)
    start()
    informer.send_callback("AllPods")
    await clock.advance(DEADLINE)
    informer.send_callback("AllPods")
    await clock.settle()
    assert (calls, len(seen.calls)) == (1, 2)

    release.set()
    await clock.advance(100.0)
    assert calls == 2
    assert informer.callbacks()[0].error == ""


async def test_each_callback_runs_in_a_task_that_names_it(clock, informer, start) -> None:
    """So that a watchdog knows whose code holds the loop, in the registrant's context."""
    names: list[str] = []

    def note(*_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())

    informer.register_callbacks("AllPods", "note", "", note)
    start()
    informer.send_callback("AllPods")
    await clock.settle()

    assert names == ["callback AllPods/note"]


async def test_stop_does_not_wait_for_a_running_callback(clock, informer) -> None:
    """It is cancelled at once."""
    cancelled = False

    async def hang(*_: object) -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    informer.register_callbacks("AllPods", "hang", "", hang)
    informer.send_callback("AllPods")
    stop = Stop(clock)
    running = asyncio.create_task(informer.run(stop))
    await clock.settle()
    stop.set()
    await clock.settle()

    assert running.done()
    assert cancelled


async def test_a_name_twice_or_an_unknown_type_is_refused(informer) -> None:
    """The first registration stays; the message says what there is."""
    informer.register_callbacks("AllPods", "mine", "", Recorder())
    informer.register_callbacks("NodeMetadata", "mine", "", Recorder())

    with pytest.raises(KoordError, match="AllPods/mine"):
        informer.register_callbacks("AllPods", "mine", "", Recorder())
    with pytest.raises(KoordError, match="wanted one of NodeSLOSpec, AllPods"):
        informer.register_callbacks("Pods", "mine", "", Recorder())
    assert len(informer.callbacks()) == 2


async def test_a_subscription_is_called_only_while_it_is_on(clock, informer, start) -> None:
    """First with the state of the moment it begins, if there is one; others are not concerned."""
    mine, others = Recorder(), Recorder()
    subscription = informer.subscribe("mine", lambda *_: None)
    for state_type in (StateType.ALL_PODS, StateType.NODE_TOPOLOGY):
        subscription.states.register_callbacks(state_type, "same", "", mine)
        informer.register_callbacks(state_type, "same", "", others)
    start()
    informer.set_pods(())
    await clock.settle()
    assert (len(mine.calls), len(others.calls)) == (0, 1)

    subscription.begin()
    subscription.begin()
    await clock.settle()
    assert [call[0] for call in mine.calls] == [StateType.ALL_PODS]
    assert len(others.calls) == 1

    informer.send_callback("AllPods")
    await clock.settle()
    assert (len(mine.calls), len(others.calls)) == (2, 2)

    assert subscription.end() == []
    informer.send_callback("AllPods")
    await clock.settle()
    assert (len(mine.calls), len(others.calls)) == (2, 3)


async def test_what_fails_in_a_subscription_is_its_owners_business(clock, informer, start) -> None:
    """It gets the reason and the exception; the informer is well. Nothing is retried after the end.

    A callback that runs at the end is cancelled and returned, and does not count as failed.
    """
    heard: list[tuple[str, str, BaseException | None]] = []
    subscription = informer.subscribe("mine", lambda *args: heard.append(args))
    bang = ValueError("bang")
    runs = 0

    async def fails_then_hangs(*_: object) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise bang
        await asyncio.Event().wait()

    subscription.states.register_callbacks("AllPods", "bad", "", fails_then_hangs)
    start()
    informer.set_node(Node("n"))
    informer.set_pods(())
    subscription.begin()
    await clock.settle()
    assert heard == [("AllPods/bad", "ValueError('bang')", bang)]
    assert subscription.failing == {"AllPods/bad": "ValueError('bang')"}
    assert informer.health().reason == ""

    await clock.advance(2)
    [running] = subscription.running()
    assert subscription.end() == [running]
    await clock.advance(DEADLINE + 100)
    assert running.cancelled()
    assert (runs, len(heard), subscription.failing) == (2, 1, {})
