"""Fast attack, slow release: what looks and rounds together allow."""

import pytest

from koordlet.plugin.kernel import WatchedValue
from koordlet_plugins.be_cpu_suppress.usage import (
    CALM_ROUNDS,
    FAST_SAMPLES,
    Allowance,
    EvidenceBuilder,
    FastSamples,
    FastUsage,
    NodeBudget,
    RoundBaseline,
    RoundUsage,
    UsageSplit,
)

FRAME = RoundBaseline(
    NodeBudget(2000, 65), reserved=0.0, system=0.1, apps_outside=0.0, be_outside=0.0
)
PACE = 0.1  # seconds between looks


def measured(pods: float, system: float = 0.1, frame: RoundBaseline = FRAME) -> RoundUsage:
    return RoundUsage(frame, UsageSplit(pods, 0.0, system), 2)


class Counters:
    """CPU time of the best-effort group, kubepods and the node, as the kernel counts it."""

    def __init__(self, *, node: bool = True) -> None:
        self._node = node
        self._at = 100.0
        self._used = [0.0, 0.0, 0.0]

    def after(
        self, pods: float, best_effort: float = 1.0, outside: float = 0.1, seconds: float = PACE
    ) -> list[WatchedValue | None]:
        """The counters when so many cores were used for a while."""
        self._at += seconds
        cores = (best_effort, best_effort + pods, best_effort + pods + outside)
        self._used = [used + c * seconds for used, c in zip(self._used, cores, strict=True)]
        readings = [WatchedValue(round(used * 1e9), self._at) for used in self._used]
        return readings if self._node else readings[:2]


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def judge(counters):
    """One that has looked at a node where nothing but best-effort pods works."""
    judge = EvidenceBuilder()
    for _ in range(FAST_SAMPLES + 1):
        judge.fast_samples.add(counters.after(pods=0.0))
    return judge


def test_looks_split_the_usage(counters):
    """Others use what kubepods does beside its best-effort group, and what the node does beside."""
    fast_samples = FastSamples()
    for _ in range(FAST_SAMPLES):
        fast_samples.add(counters.after(pods=0.5))
        assert not fast_samples.recent
    fast_samples.add(counters.after(pods=0.5))
    assert [pytest.approx((0.5, 0.1)) == use for use in fast_samples.recent] == [
        True
    ] * FAST_SAMPLES


@pytest.mark.parametrize("spoil", ["missing", "backwards", "gone"])
def test_a_group_made_anew_starts_the_looks_anew(counters, judge, spoil):
    """Counters that are missing or run backwards give no usage."""
    readings = counters.after(pods=1.0)
    if spoil == "missing":
        readings[1] = None
    elif spoil == "backwards":
        readings[0] = WatchedValue(0, readings[0].at)
    else:
        readings = [None] * len(readings)
    judge.fast_samples.add(readings)
    assert judge.after_sample(FRAME) is None


def test_a_burner_is_met_after_three_looks(counters, judge):
    """A core that is wanted from now on is taken from best-effort pods within 0.4 s."""
    lefts = []
    for _ in range(FAST_SAMPLES):
        judge.fast_samples.add(counters.after(pods=1.0))
        lefts.append(judge.after_sample(FRAME).allowance.most)
    assert lefts == pytest.approx([1200, 1200, 200], abs=1)


@pytest.mark.parametrize("split", [0.0, 0.3, 0.5, 0.95])
def test_a_burst_of_less_than_a_tenth_of_a_second_moves_nothing(counters, judge, split):
    """Wherever it falls between the looks, and however many cores it takes."""
    burst = 0.095 * 2.0 / PACE  # two cores, as usage of one look
    for pods in (burst * split, burst * (1 - split), 0.0, 0.0):
        judge.fast_samples.add(counters.after(pods=pods))
        assert judge.after_sample(FRAME).allowance.most == pytest.approx(1200, abs=1)


def test_a_burst_does_not_move_a_round_either(judge):
    """In the mean of a second it looks like a tenth of a core; the rounds around it do not."""
    for pods in (0.0, 0.0, 0.05, 0.05, 0.0):
        allowance = judge.after_round(measured(pods)).allowance
        assert allowance.most == pytest.approx(1200, abs=1)
    assert allowance.least == pytest.approx(1200, abs=1)


def test_rounds_that_agree_are_believed(judge):
    """Usage in short bursts again and again counts with its mean."""
    for _ in range(CALM_ROUNDS):
        allowance = judge.after_round(measured(0.4)).allowance
    assert allowance == Allowance(800, 800)


def test_growth_waits_until_the_looks_agree(counters, judge):
    """The mean of the last second has a time in it when no other pod worked."""
    for _ in range(FAST_SAMPLES):
        judge.fast_samples.add(counters.after(pods=1.0))
    allowance = judge.after_round(measured(0.3)).allowance
    assert allowance.least == pytest.approx(200, abs=1)
    assert allowance.most == 900


def test_without_looks_a_round_is_followed_as_it_is():
    """Koordinator's pace."""
    judge = EvidenceBuilder()
    judge.after_round(measured(0.0))
    assert judge.after_round(measured(1.0)).allowance == Allowance(200, 200)
    assert judge.after_sample(FRAME) is None


def test_the_system_is_that_of_the_round_without_a_counter():
    """On cgroup v2 its usage counts at once, as no look would see it."""
    judge, counters = EvidenceBuilder(), Counters(node=False)
    for _ in range(FAST_SAMPLES + 1):
        judge.fast_samples.add(counters.after(pods=0.2, outside=1.0))
    assert judge.fast_samples.recent[-1].outside is None
    frame = RoundBaseline(FRAME.budget, reserved=0.0, system=0.7, apps_outside=0.0, be_outside=0.0)
    assert judge.after_sample(frame).allowance.most == pytest.approx(400, abs=1)
    judge.after_round(measured(0.2, system=0.1))
    assert judge.after_round(measured(0.2, system=0.7, frame=frame)).allowance.most == 400


@pytest.mark.parametrize(
    ("frame", "use", "split"),
    [
        # what is reserved for the system counts even when it is idle
        ((2.0, 0.5, 0.0, 0.0), (1.0, 0.1), (1.0, 0.0, 2.0)),
        # host applications outside of kubepods are not the system's
        ((0.0, 0.5, 0.4, 0.0), (1.0, 0.6), (1.0, 0.4, 0.2)),
        # best-effort pods elsewhere in kubepods are not others
        ((0.0, 0.5, 0.0, 0.3), (1.0, 0.1), (0.7, 0.0, 0.1)),
        ((0.0, 0.5, 0.0, 3.0), (1.0, None), (0.0, 0.0, 0.5)),
    ],
)
def test_a_look_is_split_like_a_round(frame, use, split):
    """What looks do not measure comes from the latest round."""
    assert RoundBaseline(FRAME.budget, *frame).split(FastUsage(*use)) == pytest.approx(split)


def test_inputs_are_numbers_for_people(judge):
    """An explanation has all that the decision was made from."""
    frame = RoundBaseline(NodeBudget(16000, 65, 10), 0.0, 0.1, 0.0, 0.0)
    assert judge.after_round(measured(1.0, frame=frame)).inputs() == {
        "capacity_cores": 16.0,
        "threshold_percent": 65,
        "min_percent": 10,
        "pods_cores": 1.0,
        "host_applications_cores": 0.0,
        "system_cores": 0.1,
        "left_cores": 9.3,
        "measured": "in the last second",
    }
