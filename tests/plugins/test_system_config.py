"""SystemConfig: the kernel values that follow from a NodeSLO, and their restore."""

import pytest

from koord.api.node import Node
from koord.api.nodeslo import NodeSLO, merge_nodeslo
from koord.api.qosstrategy import SystemStrategy
from koordlet.plugin.testing import FakeHost, PluginHarness
from koordlet_plugins.system_config import SystemConfig, desired_parameters, is_usable

GI = 2**30
FREE, WATERMARK = "proc/sys/vm/min_free_kbytes", "proc/sys/vm/watermark_scale_factor"


@pytest.mark.parametrize(
    ("memory", "factor", "kbytes"),
    [
        (512 * GI, 100, 5_368_709),
        (512 * GI, 88, 4_724_464),
        (64 * GI, 100, 671_088),
        (16 * GI, 100, 167_772),
        (8 * GI, 1, None),
        (1024 * GI, 100, None),
        (64 * GI, 0, None),
        (64 * GI, -1, None),
    ],
)
def test_min_free_kbytes(memory, factor, kbytes):
    """Ten-thousandths of the node's memory, within what the kernel takes."""
    found = desired_parameters(SystemStrategy(min_free_kbytes_factor=factor), memory)
    assert [want.value for want in found if is_usable(want)] == ([kbytes] if kbytes else [])


@pytest.mark.parametrize(
    ("field", "value", "is_taken"),
    [
        ("watermark_scale_factor", 5, False),
        ("watermark_scale_factor", 99, True),
        ("watermark_scale_factor", 500, False),
        ("memcg_reap_background", 1, True),
        ("memcg_reap_background", 2, False),
        ("sched_group_identity_enabled", 0, True),
        ("sched_idle_saver_wmark", 600_000, True),
        ("page_cache_limit_enabled", 1, True),
    ],
)
def test_values_as_they_are(field, value, is_taken):
    """Taken when they are in range."""
    found = desired_parameters(SystemStrategy(**{field: value}), GI)
    assert [want.value for want in found if is_usable(want)] == ([value] if is_taken else [])


def test_nothing_is_wanted_by_default():
    """An empty strategy leaves the node alone."""
    assert list(desired_parameters(SystemStrategy(), GI)) == []


def slo(previous=None, **section):
    found, problems = merge_nodeslo({"spec": {"systemStrategy": section}}, previous or NodeSLO())
    return found, len(problems)


@pytest.fixture
def host(tmp_path):
    host = FakeHost(tmp_path)
    host.write(FREE, "67584\n")
    host.write(WATERMARK, "10\n")
    return host


def harness(host):
    found = PluginHarness(SystemConfig(), host=host)
    found.states.set_node(Node("n1", capacity={"memory": "64Gi"}))
    return found


async def test_values_are_set_and_restored_one_by_one(host):
    """What the NodeSLO no longer asks for gets its old value back within one round."""
    async with harness(host) as run:
        run.set_node_slo(slo(minFreeKbytesFactor=100, watermarkScaleFactor=99)[0])
        await run.rounds(1)
        assert (host.read(FREE), host.read(WATERMARK)) == ("671088", "99")

        run.set_node_slo(slo(minFreeKbytesFactor=88)[0])
        await run.rounds(1)
        assert (host.read(FREE), host.read(WATERMARK)) == ("590558", "10")

    assert (host.read(FREE), host.read(WATERMARK)) == ("67584", "10")


async def test_kernels_that_lack_a_value_go_without(host):
    """Most of them exist on Anolis kernels only; each costs only itself."""
    async with harness(host) as run:
        run.set_node_slo(slo(schedGroupIdentityEnabled=1, watermarkScaleFactor=99)[0])
        await run.rounds(3)
        states = {claim["resource"]: claim["state"] for claim in run.claims()}
        assert states == {
            "sched_group_identity": "unsupported",
            "watermark_scale_factor": "in force",
        }


async def test_a_value_out_of_range_is_logged_once(host):
    """The kernel keeps what it has: 5 is a valid NodeSLO, but below what may be written."""
    async with harness(host) as run:
        run.set_node_slo(slo(watermarkScaleFactor=5)[0])
        await run.rounds(3)
        [event] = run.log.events
        assert event.event == "value.refused"
        assert event.facts["reason"].startswith("5 is out of range")
        assert host.read(WATERMARK) == "10"


async def test_scheduler_features(host):
    """Only what differs is written, each by itself; unknown ones are logged once."""
    file = "sys/kernel/debug/sched_features"
    host.write(file, "START_DEBIT NO_HRTICK ID_ABSOLUTE_EXPEL NO_UTIL_EST\n")
    features = {"HRTICK": True, "ID_ABSOLUTE_EXPEL": True, "FLUX": True}
    async with harness(host) as run:
        run.set_node_slo(slo(schedFeatures=features)[0])
        await run.rounds(3)
        assert host.read(file) == "HRTICK"  # what would have been written
        states = {claim["resource"]: claim["state"] for claim in run.claims()}
        assert states["sched_feature_ID_ABSOLUTE_EXPEL"] == "in force"
        [event] = run.log.events
        assert "FLUX" in event.facts["reason"]


@pytest.mark.parametrize(
    "section",
    [
        {"watermarkScaleFactor": 500},
        {"minFreeKbytesFactor": -1},
        {"memcgReapBackGround": 2},
        {"schedFeatures": {"HRTICK": 1}},
    ],
)
def test_a_wrong_strategy_keeps_the_last_good_one(section):
    """A NodeSLO that makes no sense is refused as a section."""
    good, _ = slo(watermarkScaleFactor=99)
    found, problems = slo(good, **section)
    assert (found.system, problems) == (good.system, 1)


async def test_without_a_capacity_nothing_changes(host):
    """Unknown memory is no reason to set anything, or to take anything back."""
    async with harness(host) as run:
        run.set_node_slo(slo(watermarkScaleFactor=99)[0])
        await run.rounds(1)
        run.states.set_node(Node("n1"))
        run.set_node_slo(slo(watermarkScaleFactor=50)[0])
        await run.rounds(3)
        assert host.read(WATERMARK) == "99"
