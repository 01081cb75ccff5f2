"""Detectors: the timelines of spec 06 §5.6, and those of exact."""

import pytest

from koord_descheduler_plugins.low_node_load.args import AnomalyCondition
from koord_descheduler_plugins.low_node_load.plan import (
    Detector,
    ExactDetector,
    KoordinatorDetector,
)

TTL = 300.0


def condition(abnormal: int, normal: int = 3, timeout: float = 60.0) -> AnomalyCondition:
    return AnomalyCondition(
        timeout=timeout, consecutive_abnormalities=abnormal, consecutive_normalities=normal
    )


def acted(
    detector: Detector, wanted: AnomalyCondition, high: list[float], interval: float, end: float
) -> list[float]:
    """Moments at which a node is acted on that is high at some moments and recovers never."""
    found = []
    for step in range(int(end / interval) + 1):
        now = step * interval
        detector = detector.at(now)
        if now not in high:
            if isinstance(detector, ExactDetector):
                detector.mark_normal("n", now)
            continue
        if detector.mark("n", wanted, now):
            found.append(now)
            if isinstance(detector, KoordinatorDetector):
                detector.mark_normal("n", now)  # as each round ends there
    return found


def every(interval: float, begin: float, end: float) -> list[float]:
    return [step * interval for step in range(int(begin / interval), int(end / interval) + 1)]


@pytest.mark.parametrize(
    ("interval", "number", "end", "koordinator", "exact"),
    [
        (10, 5, 210, [*every(10, 50, 110), *every(10, 170, 210)], every(10, 40, 210)),
        (10, 2, 150, [*every(10, 20, 80), *every(10, 110, 150)], every(10, 10, 150)),
        (30, 5, 240, [150, 180, 210], every(30, 120, 240)),
        (120, 5, 720, [600], every(120, 480, 720)),
        (10, 1, 30, every(10, 0, 30), every(10, 0, 30)),
    ],
)
def test_a_node_that_is_high_all_the_time(
    interval: float, number: int, end: float, koordinator: list[float], exact: list[float]
) -> None:
    """Koordinator's at its expiry still counts as within; exact goes on while the node is high."""
    high = every(interval, 0, end)
    wanted = condition(number)
    assert acted(KoordinatorDetector(TTL), wanted, high, interval, end) == koordinator
    assert acted(ExactDetector(TTL), wanted, high, interval, end) == exact


def test_rounds_between() -> None:
    """High for four rounds, well for 160 s, high again: the count goes on, or begins anew."""
    high = [*every(10, 0, 30), *every(10, 210, 300)]
    koordinator = acted(KoordinatorDetector(TTL), condition(5), high, 10, 240)
    exact = acted(ExactDetector(TTL), condition(5), high, 10, 280)
    assert koordinator[0] == 220
    assert exact[0] == 250


@pytest.mark.parametrize(
    ("well", "again"),
    [
        (10, 0),  # one round below is none of three: abnormal at once
        (20, 0),
        (30, 20),  # three rounds below: normal, three rounds above are wanted again
    ],
)
def test_exact_is_normal_again_after_some_rounds(well: float, again: float) -> None:
    back = 20 + well + 10
    high = [*every(10, 0, 20), *every(10, back, 200)]
    found = acted(ExactDetector(TTL), condition(3, timeout=1000), high, 10, 150)
    assert found[:2] == [20, back + again]


def test_exact_is_normal_again_after_the_timeout() -> None:
    """15 s below are over the timeout of 12 s, though not three rounds."""
    high = [*every(5, 0, 10), *every(5, 30, 100)]
    found = acted(ExactDetector(TTL), condition(3, normal=99, timeout=12), high, 5, 60)
    assert found[:2] == [10, 40]


@pytest.mark.parametrize("kind", [ExactDetector, KoordinatorDetector])
def test_a_node_that_is_not_counted_is_forgotten(kind: type[Detector]) -> None:
    detector = kind(TTL)
    detector.mark("n", condition(5), 0.0)
    assert "n" in detector.at(TTL).counts
    assert "n" not in detector.at(TTL + 1).counts


@pytest.mark.parametrize("kind", [ExactDetector, KoordinatorDetector])
def test_a_copy_is_another(kind: type[Detector]) -> None:
    """A round that is lost leaves the counts as they were."""
    detector = kind(TTL)
    detector.mark("n", condition(5), 0.0)
    detector.at(1.0).mark("n", condition(5), 1.0)
    assert detector.counts["n"].abnormal == 1


def test_reset() -> None:
    """Koordinator's does nothing to a node that is no anomaly; exact begins anew."""
    for kind, left in ((KoordinatorDetector, 4), (ExactDetector, 0)):
        detector = kind(TTL)
        for now in range(4):
            detector.mark("n", condition(5), now)
        detector.reset("n", 4.0)
        assert getattr(detector.counts.get("n"), "abnormal", 0) == left
