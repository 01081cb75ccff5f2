"""The state of a victim, by its pod and the node's usage."""

import dataclasses

import pytest

from koordlet.plugin.testing import SimulatedClock, make_pod
from koordlet.statesinformer.informer import StatesInformer
from koordlet_plugins.eviction.plan import EvictionTask, ReleaseTarget
from koordlet_plugins.eviction.rounds import PendingVictim, UsageSample, VictimState

POD = make_pod("a")


def victim(target=ReleaseTarget.USED, *, grace: int = 30, gone: float | None = None):
    task = EvictionTask(
        feature="F", target=target, amounts={"memory": 1}, candidates=(), gain=lambda pod: {}
    )
    pod = make_pod("a", grace_seconds=grace)
    found = PendingVictim(pod, task, expected=100, before=UsageSample(1000, 50.0), asked=10.0)
    if gone is not None:
        found.leave(gone, boottime=gone + 50)
    return found


@pytest.mark.parametrize(
    ("grace", "now", "verdict"),
    [
        (30, 54.9, VictimState.OPEN),
        (30, 55.0, VictimState.IGNORED),
        (0, 25.0, VictimState.IGNORED),
        (60, 84.9, VictimState.OPEN),
        (60, 85.0, VictimState.IGNORED),
        (61, 85.0, VictimState.SLOW),
        (3600, 84.9, VictimState.OPEN),
    ],
)
def test_a_victim_that_is_still_there(grace, now, verdict):
    """Its grace period and 15 s, but at most 75 s until the next one's turn."""
    assert victim(grace=grace).judge(now, UsageSample(500, 99.0)) is verdict


@pytest.mark.parametrize(
    ("usage", "now", "verdict"),
    [
        (UsageSample(950, 71.0), 21.0, VictimState.GONE),
        (UsageSample(951, 71.0), 21.0, VictimState.OPEN),
        (UsageSample(900, 70.0), 21.0, VictimState.OPEN),  # measured when it was still there
        (None, 21.0, VictimState.OPEN),
        (None, 30.0, VictimState.WITHOUT_EFFECT),
        (UsageSample(1200, 79.0), 30.0, VictimState.WITHOUT_EFFECT),
        (UsageSample(100, 79.0), 30.0, VictimState.GONE),
    ],
)
def test_a_victim_that_is_gone(usage, now, verdict):
    """Half of what it had must be back, as measured since; after 10 s it will not be."""
    assert victim(gone=20.0).judge(now, usage) is verdict


def test_requests_are_back_with_the_pod():
    """There is nothing to measure."""
    assert victim(ReleaseTarget.REQUEST, gone=20.0).judge(20.0, None) is VictimState.GONE


@pytest.mark.parametrize(
    ("pods", "left"),
    [
        ([POD], False),
        ([], True),
        ([make_pod("b")], True),
        ([dataclasses.replace(POD, containers=())], True),
        ([dataclasses.replace(POD, pod=dataclasses.replace(POD.pod, phase="Failed"))], True),
    ],
)
def test_when_a_victim_has_left(pods, left):
    """Its containers count, not its object."""
    states = StatesInformer(SimulatedClock())
    states.set_pods(tuple(pods))
    assert victim().has_left(states) is left


@pytest.mark.parametrize(
    ("found", "usage", "facts"),
    [
        (victim(gone=20.0), UsageSample(900, 71.0),
         {"after_s": 10.0, "expected_memory": 100, "freed_memory": 100}),
        (victim(gone=20.0), None, {"after_s": 10.0, "expected_memory": 100}),
        (victim(), UsageSample(900, 71.0), {"after_s": 40.0, "expected_memory": 100}),
        (victim(ReleaseTarget.REQUEST, gone=20.0), None, {"after_s": 10.0}),
    ],
)  # fmt: skip
def test_what_is_recorded(found, usage, facts):
    """Only what was measured."""
    assert found.facts(50.0, usage, "memory") == facts
