"""What counters counted a part of the time for, and what the kernel refuses."""

import os
from pathlib import Path

import pytest

from koordlet.host.errors import KernelFileError, Vanished
from koordlet.host.perf import CYCLES, INSTRUCTIONS, GroupCounters, extrapolated


@pytest.mark.parametrize(
    ("readings", "wanted"),
    [
        ([(1000, 100, 100)], 1000),
        ([(1000, 100, 50)], 2000),
        ([(1000, 100, 0)], 1000),
        ([(1000, 0, 0)], 1000),
        ([(1000, 100, 100), (500, 100, 25)], 3000),
    ],
)
def test_a_count_is_extrapolated_to_all_of_the_time(readings, wanted):
    """(value, enabled, running) by CPU: Koordinator's examples."""
    assert sum(extrapolated(*reading) for reading in readings) == wanted


def test_a_group_that_has_ended_is_no_failure(tmp_path):
    with pytest.raises(Vanished):
        GroupCounters(tmp_path / "gone", [0], [CYCLES, INSTRUCTIONS], grouped=False)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_directory_that_is_no_group_is_refused_by_name(tmp_path: Path, grouped: bool):
    """And no descriptor is left open."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KernelFileError, match=str(tmp_path)):
        GroupCounters(tmp_path, [0, 1], [CYCLES, INSTRUCTIONS], grouped=grouped)
    assert len(os.listdir("/proc/self/fd")) == len(before)
