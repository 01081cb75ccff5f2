"""What control groups use of caches and memory bandwidth."""

import subprocess
import sys

import pytest

from koordlet.host.resctrl_monitoring import parse_usage
from koordlet.metriccache.kinds import RESCTRL_LLC, RESCTRL_MB
from koordlet.plugin.testing.kernel import FakeResctrl

LLC, BANDWIDTH = "koordlet_resctrl_llc_occupancy", "koordlet_resctrl_memory_bandwidth"


@pytest.fixture
def tree(machine):
    machine.gates.add("ResctrlCollector")
    found = FakeResctrl(machine.host)
    found.make("BE")
    return found


def test_usage_by_class_and_cache(machine, tree):
    """Source: 02 §4.12."""
    tree.use("BE", 1, llc_occupancy=41, mbm_local_bytes=51, mbm_total_bytes=61)

    machine.tick()

    assert machine.value(RESCTRL_LLC, "BE", "1") == 41
    assert machine.value(RESCTRL_MB, "BE", "1", "mbm_local_bytes") == 51
    assert machine.value(RESCTRL_MB, "BE", "1", "mbm_total_bytes") == 61
    assert machine.value(RESCTRL_LLC, "BE", "0") == 0
    assert machine.value(RESCTRL_LLC, "LS", "1") is None
    labels = {"node": "n1", "cache_id": "1", "qos": "BE"}
    assert machine.metric(LLC, **labels) == 41
    assert machine.metric(BANDWIDTH, mb_type="mbm_total_bytes", **labels) == 61


@pytest.mark.parametrize("text", ["Unavailable", "Error", "", "-1", "1.5", "\u0661", "9" * 30])
def test_what_the_hardware_has_not_is_absent(machine, tree, text):
    tree.use("BE", 0, llc_occupancy=text, mbm_total_bytes=5)

    machine.tick()

    assert machine.value(RESCTRL_LLC, "BE", "0") is None
    assert machine.value(RESCTRL_MB, "BE", "0", "mbm_total_bytes") == 5


@pytest.mark.parametrize(("data", "found"), [(b"123\n", 123), (b"0", 0), (b"Unavailable\n", None)])
def test_numbers_of_the_kernel(data, found):
    assert parse_usage(data) == found


def test_other_directories_are_none_of_a_cache(machine, tree):
    machine.host.write("sys/fs/resctrl/BE/mon_data/mon_PERF_PKG_00/llc_occupancy", "7\n")
    machine.host.write("sys/fs/resctrl/BE/mon_data/mon_L3_x/llc_occupancy", "7\n")
    tree.use("BE", 12, llc_occupancy=8)

    machine.tick()

    assert machine.value(RESCTRL_LLC, "BE", "12") == 8
    assert machine.metric(LLC, node="n1", cache_id="x", qos="BE") is None


def test_a_group_that_ends_has_no_figures_any_more(machine, tree):
    tree.use("BE", 0, llc_occupancy=1)
    machine.tick()
    tree.remove("BE")
    for _ in range(10):
        machine.tick()

    assert machine.metric(LLC, node="n1", cache_id="0", qos="BE") is None


def test_without_resctrl_it_is_unsupported(machine):
    machine.gates.add("ResctrlCollector")

    machine.tick()

    rounds = "koordlet_collector_rounds_total"
    assert machine.own_metric(rounds, collector="resctrl", outcome="unsupported") == 1


def test_switched_off_it_imports_nothing():
    """The table of collectors and the writer know it by name alone."""
    code = (
        "import sys, koordlet.collectors.registry, koordlet.executor.kernel.writer\n"
        "assert 'koordlet.collectors.resctrl' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
