"""The sampling pass on the real cgroup v1 controllers and processes of this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from koordlet.api.pod import Pod
from koordlet.api.qos import KubeQoS
from koordlet.collectors.lease import Lease
from koordlet.collectors.metrics import CollectorMetrics
from koordlet.collectors.reader import Reader
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.collectors.sampling import SamplingPass, Surroundings
from koordlet.collectors.skips import Skips
from koordlet.host.host import Host
from koordlet.host.layout import Driver, Layout
from koordlet.host.paths import HostPaths
from koordlet.metriccache.kinds import Cadence
from koordlet.statesinformer.model import ContainerMeta, PodMeta
from koordlet.util.clock import SystemClock

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
BURNED = 0.5  # CPU seconds
BURN = f"""
import time
input()
while time.process_time() < {BURNED}: pass
print("done", flush=True)
input()
"""


@pytest.fixture
def pod() -> Iterator[PodMeta]:
    """The cgroups of a pod with one container, in a kubepods cgroup of our own."""
    layout = Layout(Driver.CGROUPFS, f"kubepods-koordlet-test-f{os.getpid()}")
    group = layout.pod_dir(KubeQoS.BURSTABLE, "u1")
    container = ContainerMeta("c1", "containerd://c1", f"{group}/c1")
    for controller in CONTROLLERS:
        (ROOT / controller / container.cgroup).mkdir(parents=True)
    try:
        api = Pod("ns", "pod", "u1", qos=KubeQoS.BURSTABLE)
        yield PodMeta(api, group, (container,), api.qos_class, KubeQoS.BURSTABLE)
    finally:
        for controller in CONTROLLERS:
            for directory, _, _ in os.walk(ROOT / controller / layout.root, topdown=False):
                os.rmdir(directory)


def test_a_busy_process_shows_up_in_its_pod_and_container(pod: PodMeta) -> None:
    """Its CPU is right to 5%, its memory is counted, and its end is nothing special."""
    clock = SystemClock()
    pods = (pod,)
    samples: dict[tuple[str, ...], float] = {}
    periods = dict.fromkeys(Cadence, 1.0)
    paths = HostPaths.for_mode("hostMode")
    metrics = CollectorMetrics(CollectorRegistry())
    collectors = build_collectors(
        CollectorOptions(node="n1", periods=periods), paths, lambda *_: None, lambda: False
    )
    sampling = SamplingPass(
        collectors,
        periods,
        Surroundings(
            enabled=lambda gate: gate == "PodNetworkCollector",
            pods=lambda: pods,
            slo=lambda: None,
            append=lambda _, new: samples.update(((s.kind.name, *s.key), s.value) for s in new),
        ),
        clock,
        metrics,
    )
    reader = Reader(Host(paths), Lease(clock), Skips(clock), clock)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", BURN], **pipes) as process:  # type: ignore[call-overload]
        for controller in ("cpu", "cpuacct", "memory"):
            procs = ROOT / controller / pod.containers[0].cgroup / "cgroup.procs"
            procs.write_text(f"{process.pid}\n")
        sampling.run(periods, reader)
        start = reader.monotonic
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        sampling.run(periods, reader)
        seconds = reader.monotonic - start
        process.kill()

    for series in (("pod_cpu_usage", "u1"), ("container_cpu_usage", "containerd://c1")):
        assert samples[series] * seconds == pytest.approx(BURNED, rel=0.05)
    assert samples["node_cpu_usage",] > 0
    assert samples["pod_memory_usage", "u1"] > 0
    assert samples["sys_cpu_usage",] <= samples["node_cpu_usage",]

    held = reader.host.descriptors.stats().held
    pods = ()
    samples.clear()
    sampling.run(periods, reader)
    assert ("pod_cpu_usage", "u1") not in samples
    assert reader.host.descriptors.stats().held < held
    reader.close()
    assert not [health for health in sampling.health().values() if health.reason]
