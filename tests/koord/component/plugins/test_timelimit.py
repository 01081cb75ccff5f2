"""Code that blocks for good is interrupted; the alarm clock is afterwards as it was."""

import signal
import threading

import pytest

from koord.component.plugins.errors import PluginBlocked
from koord.component.plugins.timelimit import time_limit


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
    monkeypatch.setattr("koord.component.plugins.timelimit.AGAIN", 0.02)
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
