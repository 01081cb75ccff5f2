"""BlkIOReconcile on a real kernel: direct I/O on a loop device is as slow as it should be.

A machine that is busy makes writes slower, never faster, so what a limit lets through at most is
certain. How much reached the device is the device's own count.
"""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import KubeQoS
from koordlet.host.host import Host
from koordlet.host.storage import read_local_storage
from koordlet.plugin import resources
from koordlet.plugin.kernel import NODE_LOCAL_STORAGE
from koordlet.plugin.testing import PluginHarness, make_pod
from koordlet_plugins.blkio_reconcile import BlkIOReconcile
from koordlet_plugins.blkio_reconcile.limits import ANNOTATION

from .conftest import MIB, REAL, VERSION

BPS, IOPS = MIB, 20  # of the limits
SECTOR = 512  # bytes


class Disk(NamedTuple):
    """A loop device with a file system, mounted as a CSI driver would for pod "batch"."""

    path: str  # /dev/loop0
    number: str  # "7:0"
    mount: Path

    @property
    def written(self) -> int:
        """Bytes written since it was bound, as the device counts."""
        stat = Path(f"/sys/block/{Path(self.path).name}/stat").read_text().split()
        return int(stat[6]) * SECTOR


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if not shutil.which("mkfs.ext4") or not shutil.which("losetup"):
        pytest.skip("needs losetup and mkfs.ext4")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(32 * MIB)
    bound = subprocess.run(
        ["losetup", "--find", "--show", image], capture_output=True, text=True, check=False
    )
    if bound.returncode:
        pytest.skip(f"no loop device: {bound.stderr}")
    path = bound.stdout.strip()
    mount = tmp_path / "pods/batch/volumes/kubernetes.io~csi/pvc-1/mount"
    try:
        subprocess.run(["mkfs.ext4", "-q", path], check=True)
        mount.mkdir(parents=True)
        subprocess.run(["mount", path, mount], check=True)
        try:
            (mount / "file").write_bytes(bytes(2 * MIB))
            subprocess.run(["sync", "-f", mount], check=True)
            number = Path(f"/sys/block/{Path(path).name}/dev").read_text().strip()
            yield Disk(path, number, mount)
        finally:
            subprocess.run(["umount", mount], check=True)
    finally:
        subprocess.run(["losetup", "--detach", path], check=True)


class Pod:
    """A best-effort pod whose process writes to its volume, past the page cache."""

    def __init__(self, tree, disk: Disk) -> None:
        self.disk = disk
        self.meta = self.asks()
        self.groups = [tree.make(self.meta.cgroup), tree.make(self.meta.containers[0].cgroup)]
        self.process = self.groups[-1].run(
            f"import mmap\nfd = os.open({str(disk.mount / 'file')!r}, os.O_WRONLY | os.O_DIRECT)"
        )

    def asks(self, name="data", type="podvolume", **io):
        """The pod with these limits; without them it has none."""
        blocks = [{"name": name, "type": type, "ioCfg": io}] if io else []
        meta = make_pod(
            "batch",
            qos=KubeQoS.BEST_EFFORT,
            labels={"koordinator.sh/qosClass": "BE"},
            annotations={ANNOTATION: json.dumps({"blocks": blocks})},
        )
        return replace(meta, pod=replace(meta.pod, claims={"data": "data-0"}))

    def write(self, count: int, size: int) -> float:
        """Write so many blocks of so many bytes; return the seconds it took."""
        before, began = self.disk.written, time.monotonic()
        self.process.do(
            f"block = mmap.mmap(-1, {size})\n"
            f"for n in range({count}): os.pwrite(fd, block, n * {size})"
        )
        seconds = time.monotonic() - began
        assert self.disk.written - before >= count * size
        return seconds


@pytest.fixture
def pod(tree, disk) -> Iterator[Pod]:
    pod = Pod(tree, disk)
    yield pod
    pod.process.end()  # it holds a file of the disk


def running(tree, *pods) -> PluginHarness:
    harness = PluginHarness(BlkIOReconcile(), pods=list(pods), host=tree, gates={"BlkIOReconcile"})
    harness.metrics.cache.put(NODE_LOCAL_STORAGE, read_local_storage(REAL.sys, REAL.proc))
    harness.set_node_slo(merge_nodeslo({"spec": {}})[0])
    return harness


def slo(harness, key: str, *blocks) -> None:
    strategy = {key: {"blkioQOS": {"enable": True, "blocks": list(blocks)}}}
    harness.set_node_slo(merge_nodeslo({"spec": {"resourceQOSStrategy": strategy}})[0])


def limit(tree, group: str) -> object:
    """What the kernel has for a group."""
    row = resources.BLKIO_WRITE_BPS if VERSION == 1 else resources.IO_MAX
    return Host(tree.paths).read(row, group)


def limits(tree, pod: Pod) -> list[object]:
    """What the kernel has for the pod and its container."""
    return [limit(tree, group.path) for group in pod.groups]


async def test_a_pod_is_slow_on_its_volume_and_fast_again(tree, disk, pod) -> None:
    """By claim, mount and device; bytes, then operations, then nothing."""
    free = pod.write(32, 64 * 1024)
    async with running(tree, pod.asks(writeBPS=BPS)) as harness:
        await harness.rounds(1)
        slow = pod.write(32, 64 * 1024)
        harness.set_pods(pod.asks(writeIOPS=IOPS))
        await harness.rounds(1)
        few = pod.write(40, 4096)
        harness.set_pods(pod.asks())
        await harness.rounds(1)
        assert limits(tree, pod) == [{}, {}]
        again = pod.write(32, 64 * 1024)

    print(f"2 MiB: {free:.3f} s, at 1 MiB/s {slow:.3f} s; then {again:.3f} s")
    print(f"40 operations at 20/s: {few:.3f} s")
    assert 2 * MIB / slow <= 1.25 * BPS
    assert 40 / few <= 1.25 * IOPS
    assert max(free, again) < slow / 1.5


async def test_the_class_of_best_effort_pods_is_slow(tree, disk, pod) -> None:
    """By the device's name, and restored when the plugin ends."""
    harness = running(tree, pod.asks())
    slo(harness, "beClass", {"name": disk.path, "type": "device", "ioCfg": {"writeBPS": BPS}})
    async with harness:
        await harness.rounds(1)
        slow = pod.write(32, 64 * 1024)
    free = pod.write(32, 64 * 1024)

    print(f"2 MiB at 1 MiB/s: {slow:.3f} s; then {free:.3f} s")
    assert 2 * MIB / slow <= 1.25 * BPS
    assert free < slow / 1.5
    assert limits(tree, pod) == [{}, {}]


NODE_SLO = """
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
spec:
  resourceQOSStrategy:
    beClass:
      blkioQOS:
        enable: true
        blocks:
          - {{name: {disk}, type: device, ioCfg: {{writeBPS: {bps}}}}}
"""


def test_the_next_start_restores_what_a_killed_daemon_left(koordlet, tree, disk, pod, tmp_path):
    """Slow until then, as the limits stay in the kernel."""
    (tmp_path / "nodeslo.yaml").write_text(NODE_SLO.format(disk=disk.path, bps=BPS))

    def start(gate: str):
        daemon = koordlet(
            "--standalone",
            "--force",
            f"--cgroup-root-dir={tree.paths.cgroup}",
            f"--nodeslo-file={tmp_path / 'nodeslo.yaml'}",
            f"--feature-gates=BlkIOReconcile={gate}",
            run_dir=tmp_path / "run",
        )
        daemon.wait_ready()
        return daemon

    group = pod.groups[-1].path if VERSION == 1 else str(Path(pod.meta.cgroup).parent)
    daemon = start("true")
    daemon.until(lambda: limit(tree, group))
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    slow = pod.write(32, 64 * 1024)
    assert start("false").stop() == 0
    free = pod.write(32, 64 * 1024)

    print(f"2 MiB at 1 MiB/s: {slow:.3f} s; then {free:.3f} s")
    assert 2 * MIB / slow <= 1.25 * BPS
    assert free < slow / 1.5
    assert not limit(tree, group)


@pytest.mark.skipif(VERSION != 1, reason="cgroup v2 limits all below a cgroup")
def test_why_containers_have_limits_on_v1(tree, disk, pod) -> None:
    """Mainline does not limit what is below a cgroup: a limit of the pod alone does nothing."""
    file = Path(Host(tree.paths).path(resources.BLKIO_WRITE_BPS, pod.groups[0].path))
    file.write_text(f"{disk.number} {BPS}")

    seconds = pod.write(32, 64 * 1024)

    print(f"2 MiB below a limit of 1 MiB/s: {seconds:.3f} s")
    assert seconds < 1.5


@pytest.mark.skipif(VERSION != 2, reason="mainline has iocost on cgroup v2 only")
async def test_cost_of_the_root_and_weights_below(tree, disk, pod) -> None:
    """A weight by device is taken where iocost runs; both are gone afterwards."""
    qos = REAL.cgroup / "io.cost.qos"
    if not qos.exists():
        pytest.skip("this kernel has no iocost")
    root = running(SimpleNamespace(paths=REAL, objects={}, object_writers={}))
    slo(root, "cgroupRoot", {"name": disk.path, "type": "device", "ioCfg": {"readLatency": 5000}})
    wanted = f"{disk.number} enable=1 ctrl=user rpct=95.00 rlat=5000 wpct=95.00 wlat=3000"
    weight = tree.paths.cgroup / pod.groups[0].path / "io.weight"
    async with root:
        await root.rounds(1)
        assert any(line.startswith(wanted) for line in qos.read_text().splitlines())
        async with running(tree, pod.asks(ioWeightPercent=40)) as harness:
            await harness.rounds(1)
            assert weight.read_text() == f"default 100\n{disk.number} 40\n"
        assert weight.read_text() == "default 100\n"
    assert f"{disk.number} enable=0 " in qos.read_text()
