"""CPU of best-effort pods."""

import pytest

from koord.api.qos import KubeQoS
from koordlet.collectors.qos_usage import real_limit_milli, usage_milli_cores
from koordlet.metriccache.kinds import NODE_BE


@pytest.mark.parametrize(
    ("sizes", "quota", "period", "limit"),
    [
        ([2, 8], -1, 100_000, 2000),
        ([15], 800_000, 100_000, 8000),
        ([4], 800_000, 100_000, 4000),
        ([8], 33_333, 100_000, 333),
        ([0, 6], -1, 100_000, 6000),
        ([0], 200_000, 100_000, 2000),
        ([], -1, 100_000, None),
    ],
)
def test_the_limit_is_the_smallest_cpuset_or_the_quota(sizes, quota, period, limit):
    """Koordinator's examples; an empty cpuset of cgroup v1 limits nothing."""
    assert real_limit_milli(sizes, quota, period) == limit


@pytest.mark.parametrize(
    ("increase", "seconds", "milli"),
    [
        (4_000_000_000, 1.0, 4000),
        (4_000_999_999, 1.001, 3996),
        (999_999, 1.0, 0),
        (1_234_567_890, 1.003, 1230),
    ],
)
def test_usage_is_cut_to_whole_milliseconds_of_cpu_first(increase, seconds, milli):
    """Koordinator's examples."""
    assert usage_milli_cores(increase, seconds) == milli


def test_first_usage_is_unknown_and_the_second_is_a_rate(machine):
    """Koordinator reports 0 first; what cannot be known is absent here."""
    group = machine.host.group(machine.host.layout.qos_dir(KubeQoS.BEST_EFFORT))
    machine.tick()
    assert machine.value(NODE_BE, "cpu", "usage") is None
    assert machine.value(NODE_BE, "cpu", "request") == 0
    assert machine.value(NODE_BE, "cpu", "real-limit") == 4000

    group.use_cpu(1.5)
    machine.tick()
    assert machine.value(NODE_BE, "cpu", "usage") == 1500
    assert machine.metric("koordlet_be_suppress_be_used_cpu_cores", node="n1") == 1.5


def test_a_container_that_vanishes_does_not_hide_the_limit(machine):
    """Koordinator's walk over the containers was aborted by it."""
    machine.run_pod("be1", qos=KubeQoS.BEST_EFFORT).containers["c-be1"].remove()
    machine.tick()

    assert machine.value(NODE_BE, "cpu", "real-limit") == 4000
