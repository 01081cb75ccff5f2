"""GPUs in a report, by Koordinator's rules."""

import pytest

from koord.api.nodemetric import GpuUsage, NodeMetricSpec
from koord.util.clock import stamp
from koordlet.metriccache.kinds import (
    NODE_GPU_CORE_USAGE,
    NODE_GPU_MEMORY_TOTAL,
    NODE_GPU_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_GPU_CORE_USAGE,
    POD_GPU_MEMORY_USAGE,
    POD_MEMORY_USAGE,
    Sample,
)
from koordlet.reporter.status import ReportInputs, build_status

from .conftest import NODE, make_pod

POD = make_pod("train")
KEY = ("0", "GPU-0")
SAMPLES = (
    *NODE,
    Sample(NODE_GPU_MEMORY_TOTAL, 200, KEY),
    Sample(NODE_GPU_CORE_USAGE, 40, KEY),
    Sample(NODE_GPU_MEMORY_USAGE, 50, KEY),
    Sample(POD_CPU_USAGE, 1.0, (POD.uid,)),
    Sample(POD_MEMORY_USAGE, 100, (POD.uid,)),
    Sample(POD_GPU_CORE_USAGE, 30.9, (POD.uid, *KEY)),
    Sample(POD_GPU_MEMORY_USAGE, 20, (POD.uid, *KEY)),
)


@pytest.fixture
def status(cache, clock):
    def status():
        snapshot = ReportInputs(
            spec=NodeMetricSpec(durations=(300.0,)),
            pods=(POD, make_pod("web")),
            host_applications=(),
            now=clock.boottime(),
            oldest=2.0,
        )
        return build_status(cache, snapshot).to_json()

    return status


def device(core: str, memory: str, ratio: str, *, health: bool = False):
    return {
        "type": "gpu",
        "id": "GPU-0",
        "minor": 0,
        "health": health,
        "resources": {
            "koordinator.sh/gpu-core": core,
            "koordinator.sh/gpu-memory": memory,
            "koordinator.sh/gpu-memory-ratio": ratio,
        },
    }


def test_the_worked_example(measure, status, cache):
    """Total 200, used 50, core 40; a share is cut to whole percent."""
    measure(*SAMPLES, seconds=3)
    found = status()
    assert found["nodeMetric"]["nodeUsage"]["devices"] == [device("40", "50", "25")]
    [pod] = found["podsMetric"]
    assert pod["podUsage"]["devices"] == [device("30", "20", "10")]
    assert "devices" not in found["nodeMetric"]["systemUsage"]

    cache.put("healthy_gpus", frozenset({"GPU-0"}))
    [node] = status()["nodeMetric"]["nodeUsage"]["devices"]
    assert node["health"] is True


def test_percentiles_have_them_once_the_window_is_warm(measure, status, cache):
    measure(*SAMPLES, seconds=10)
    [window] = status()["nodeMetric"]["aggregatedNodeUsages"]
    assert window["usage"]["p95"] == {}
    for _ in range(14):
        measure(*SAMPLES, seconds=9)
    cache.put("healthy_gpus", frozenset())
    measure(*SAMPLES, seconds=15)
    [window] = status()["nodeMetric"]["aggregatedNodeUsages"]
    for part in ("avg", "p50", "p90", "p95", "p99"):
        assert window["usage"][part]["devices"] == [device("40", "50", "25")]


def test_gpus_that_are_gone_are_not_reported(measure, status):
    """Nor while NVML hangs: their use is not known."""
    measure(*SAMPLES, seconds=5)
    measure(*NODE, seconds=5)
    found = status()
    assert "devices" not in found["nodeMetric"]["nodeUsage"]
    assert all("devices" not in pod["podUsage"] for pod in found.get("podsMetric", ()))


def test_a_gpu_without_a_known_size_has_no_ratio():
    usage = GpuUsage(uuid="g", minor=0, core=1, memory=5, total=0)
    assert usage.to_json()["resources"]["koordinator.sh/gpu-memory-ratio"] == "0"


def test_gpus_are_sorted_by_minor(measure, status):
    more = [
        Sample(kind, 1, (str(number), f"GPU-{number}"))
        for number in (10, 2)
        for kind in (NODE_GPU_MEMORY_TOTAL, NODE_GPU_CORE_USAGE, NODE_GPU_MEMORY_USAGE)
    ]
    measure(*SAMPLES, *more)
    found = status()["nodeMetric"]["nodeUsage"]["devices"]
    assert [each["minor"] for each in found] == [0, 2, 10]


def test_without_gpus_nothing_is_added(cache, clock, measure, status):
    cache.append(stamp(clock), NODE)
    measure(*NODE)
    assert "devices" not in str(status())
