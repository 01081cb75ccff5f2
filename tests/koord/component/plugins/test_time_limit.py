"""Code that blocks for good is interrupted; the alarm clock is afterwards as it was."""

import signal
import threading
import time

import pytest

from koord.component.plugins import execution
from koord.component.plugins.execution import RepeatedTimeLimit, time_limit
from koord.component.plugins.registry import PluginBlocked


@pytest.fixture(autouse=True)
def _no_other_timer():
    """Without the alarm by which pytest ends a test that hangs."""
    delay, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, delay, interval)


def spin() -> None:
    while True:
        pass


@pytest.mark.parametrize("block", [spin, threading.Event().wait])
def test_what_blocks_is_interrupted(block):
    """The message says where."""
    where = r"within 0\.02 s, found it at .*\.py:\d+; "
    with pytest.raises(PluginBlocked, match=where), time_limit(0.02):
        block()

    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_interruption_that_is_caught_comes_again(monkeypatch: pytest.MonkeyPatch):
    """As by a bare except around one request of several."""
    monkeypatch.setattr("koord.component.plugins.execution.REPEAT_INTERVAL", 0.02)
    caught = []

    def work() -> None:
        try:
            spin()
        except BaseException as err:
            caught.append(err)
        spin()

    with pytest.raises(PluginBlocked), time_limit(0.02):
        work()

    assert len(caught) == 1


def test_a_timer_of_before_goes_on():
    """With its handler; the seconds in between have passed for it, too."""
    seen = []
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 100.0, 7.0)

    with time_limit(5.0):
        assert 4.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 5.0

    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 90.0 < left <= 100.0
    assert interval == 7.0
    signal.raise_signal(signal.SIGALRM)
    assert seen == [signal.SIGALRM]


def test_another_thread_has_no_limit():
    """Signals are the main thread's."""
    done = []

    def work() -> None:
        with time_limit(0.001):
            done.append(signal.getitimer(signal.ITIMER_REAL))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert done == [(0.0, 0.0)]


def test_many_limits_interrupt_each_code_by_itself():
    """Between two pieces of code the alarm means nothing; the context may be entered again."""
    limits = RepeatedTimeLimit()
    assert not limits.active
    with limits, limits:
        for _ in range(2):
            limits.begin(0.25)  # rings again as late: not while a busy machine leaves the block
            with pytest.raises(PluginBlocked, match=r"wanted an end within 0\.25 s"):
                spin()
            limits.end()
        limits.begin(0.02)
        limits.end()
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
    assert not limits.active


def test_many_limits_leave_the_alarm_as_it_was():
    """The handler and the timer of before."""
    rung = []
    signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    limits = RepeatedTimeLimit()
    with limits:
        limits.begin(5.0)
        limits.end()
    until = time.monotonic() + 5
    while not rung and time.monotonic() < until:
        pass
    assert rung == [signal.SIGALRM]


def test_many_limits_are_not_for_other_threads():
    """There they are not active, and entering them changes nothing."""
    active = []

    def work() -> None:
        limits = RepeatedTimeLimit()
        with limits:
            active.append(limits.active)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert active == [False]


def test_the_alarm_of_another_timer_interrupts_nothing(monkeypatch: pytest.MonkeyPatch):
    """One that rings between the handler and the timer, and later one more."""
    handler, real = signal.getsignal(signal.SIGALRM), signal.setitimer

    def ringing(*args: float) -> tuple[float, float]:
        signal.raise_signal(signal.SIGALRM)
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(signal, "setitimer", ringing)
        limit = time_limit(60.0)
        limit.__enter__()
    signal.raise_signal(signal.SIGALRM)
    limit.__exit__(None, None, None)

    assert signal.getsignal(signal.SIGALRM) is handler


def test_code_is_not_blamed_for_the_time_in_which_the_process_waits_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All alarms of that time ring once, when it runs again."""
    now = 0.0
    monkeypatch.setattr(execution.time, "monotonic", lambda: now)
    limits = RepeatedTimeLimit()
    limits.begin(2.0)
    now = 60.0
    limits._ring(0, None)
    limits._ring(0, None)
    limits.end()
    limits.begin(2.0)
    now = 120.0
    limits._ring(0, None)
    limits._ring(0, None)
    with pytest.raises(PluginBlocked, match="wanted an end within 2 s"):
        limits._ring(0, None)
