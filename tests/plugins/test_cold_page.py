"""ColdPageScan: kidled is on while the gate is, and as it was afterwards."""

import pytest

from koordlet.plugin.testing import FakeHost, PluginHarness
from koordlet_plugins.cold_page import ColdPageScan

PERIOD, HIERARCHY = (
    f"sys/kernel/mm/kidled/{name}" for name in ("scan_period_in_seconds", "use_hierarchy")
)


@pytest.fixture
def host(tmp_path):
    host = FakeHost(tmp_path, 1)
    host.write(PERIOD, "0\n")
    host.write(HIERARCHY, "0\n")
    return host


def values(host):
    return [host.read(name).strip() for name in (PERIOD, HIERARCHY)]


async def test_kidled_is_on_while_the_gate_is(host):
    async with PluginHarness(ColdPageScan(), host=host, gates={"ColdPageCollector"}) as harness:
        await harness.rounds(1)
        assert values(host) == ["5", "1"]
    assert values(host) == ["0", "0"]


async def test_in_dry_run_nothing_is_written(host):
    harness = PluginHarness(ColdPageScan(), host=host, gates={"ColdPageCollector"}, dry_run=True)
    async with harness:
        await harness.rounds(1)
        assert values(host) == ["0", "0"]


async def test_a_kernel_without_it_is_left_alone(tmp_path):
    harness = PluginHarness(ColdPageScan(), host=FakeHost(tmp_path, 2), gates={"ColdPageCollector"})
    async with harness:
        await harness.rounds(2)
        assert not harness.claims()
