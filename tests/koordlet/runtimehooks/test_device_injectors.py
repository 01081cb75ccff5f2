"""What containers of pods with devices get, by what the node has."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.util.errors import InvalidObject, UnsafeFile
from koordlet.host.devices import DeviceFile
from koordlet.host.errors import NoSuchDevice
from koordlet.rules.allocated_devices import BindMount
from koordlet.rules.devices import DeviceTopology, Gpu, GpuSet, RdmaInterface, XpuSet, node_devices
from koordlet.runtimehooks.adjustments import Injection
from koordlet.runtimehooks.device_injectors import GpuInjector, RdmaInjector
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

NIC, VF = "0000:09:00.0", "0000:09:00.2"
NODE = node_devices(
    GpuSet("550", (Gpu(uuid="G0", minor=0, model="T4", memory=32 << 30),)),
    XpuSet(),
    (
        RdmaInterface(
            name="mlx5_0", minor=0, topology=DeviceTopology(0, "pci0000:00", NIC), functions=(VF,)
        ),
    ),
)
LIBRARY, LOCKS = "/opt/vgpu/lib.so", "/tmp/vgpulock"
HALF = {"koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/gpu-memory": "16Gi"}
MANAGER = DeviceFile("/dev/infiniband/rdma_cm", 10, 58)


def pod(allocated: Any, provider: str = "") -> PodMeta:
    annotations = {"scheduling.koordinator.sh/device-allocated": json.dumps(allocated)}
    labels = {"koordinator.sh/gpu-isolation-provider": provider}
    made = Pod("ml", "train", "1", labels=labels, annotations=annotations)
    container = ContainerMeta("main", "containerd://c1", "kubepods/pod1/c1")
    return PodMeta(made, "kubepods/pod1", (container,), QoSClass.LS, KubeQoS.BURSTABLE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with HAMi-core, a card with RDMA and one virtual function of it."""
    for number, address in enumerate((NIC, VF)):
        verbs = tmp_path / f"sys/bus/pci/devices/{address}/infiniband_verbs/uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "dev").write_text(f"231:{192 + number}\n")
    manager = tmp_path / "sys/class/misc/rdma_cm"
    manager.mkdir(parents=True)
    (manager / "dev").write_text("10:58\n")
    for directory in ("opt", "opt/vgpu", "tmp", "tmp/vgpulock"):
        (tmp_path / directory).mkdir(mode=0o755)
    (tmp_path / "opt/vgpu/lib.so").touch(0o644)
    return tmp_path


async def test_gpus_are_made_visible(root: Path) -> None:
    injector = GpuInjector(lambda: NODE, LIBRARY, root, is_monitored=lambda: False)

    found = await injector.inject(pod({"gpu": [{"minor": 0}]}), dry_run=False)

    assert found == Injection(env={"NVIDIA_VISIBLE_DEVICES": "0"})
    assert not await injector.inject(pod({"rdma": []}), dry_run=False)
    with pytest.raises(InvalidObject, match="gpu device of this node"):
        await injector.inject(pod({"gpu": [{"minor": 1}]}), dry_run=False)


async def test_a_share_of_a_gpu_is_limited_by_hami(root: Path) -> None:
    injector = GpuInjector(lambda: NODE, LIBRARY, root, is_monitored=lambda: False)
    shared = pod({"gpu": [{"minor": 0, "resources": HALF}]}, "HAMi-core")

    found = await injector.inject(shared, dry_run=False)

    assert found.env["LD_PRELOAD"] == LIBRARY
    assert found.mounts == (BindMount(LIBRARY, LIBRARY), BindMount(LOCKS, LOCKS))
    (root / "tmp/vgpulock").rmdir()
    (root / "tmp/vgpulock").symlink_to("/etc")
    with pytest.raises(UnsafeFile):
        await injector.inject(shared, dry_run=False)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_hamis_monitor_gets_an_empty_directory_of_the_container(
    root: Path, dry_run: bool
) -> None:
    """In dry-run the mount is known, and the directory is left as it is."""
    directory = root / "opt/vgpu/containers/1_main"
    directory.mkdir(parents=True)
    directory.parent.chmod(0o755)
    (directory / "old.cache").touch()
    injector = GpuInjector(lambda: NODE, LIBRARY, root, is_monitored=lambda: True)
    shared = pod({"gpu": [{"minor": 0, "resources": HALF}]}, "HAMi-core")

    found = await injector.inject(shared, dry_run=dry_run)

    assert found.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/opt/vgpu/1_main.cache"
    assert BindMount("/opt/vgpu/containers/1_main", "/opt/vgpu") in found.mounts
    assert os.listdir(directory) == (["old.cache"] if dry_run else [])
    assert dry_run or directory.stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    ("entry", "verbs"),
    [
        ({"id": NIC}, DeviceFile("/dev/infiniband/uverbs0", 231, 192)),
        (
            {"id": NIC, "extension": {"vfs": [{"busID": VF}]}},
            DeviceFile("/dev/infiniband/uverbs1", 231, 193),
        ),
    ],
)
async def test_rdma_functions_are_given(root: Path, entry: Any, verbs: DeviceFile) -> None:
    """The virtual functions and not their card, as the specification's examples have it."""
    injector = RdmaInjector(lambda: NODE, root / "sys")

    found = await injector.inject(pod({"rdma": [entry]}), dry_run=False)

    assert found == Injection(devices=(MANAGER, verbs))


async def test_without_rdma_not_even_the_manager_is_given(root: Path) -> None:
    injector = RdmaInjector(lambda: NODE, root / "sys")

    assert not await injector.inject(pod({"gpu": [{"minor": 0}]}), dry_run=False)
    with pytest.raises(InvalidObject, match="rdma device of this node"):
        await injector.inject(pod({"rdma": [{"id": "../../etc"}]}), dry_run=False)


async def test_a_card_that_has_vanished_is_an_error(root: Path) -> None:
    """As the node's devices may be known for some seconds longer."""
    (root / f"sys/bus/pci/devices/{NIC}/infiniband_verbs/uverbs0").rename(root / "gone")

    with pytest.raises(NoSuchDevice):
        await RdmaInjector(lambda: NODE, root / "sys").inject(
            pod({"rdma": [{"id": NIC}]}), dry_run=False
        )
