"""Devices by collector: what is published, and whose processes use a GPU."""

import json
from typing import Any

import pytest

from koordlet.collectors.devices import SEARCH_INTERVAL
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.metriccache.kinds import (
    CONTAINER_GPU_CORE_USAGE,
    CONTAINER_GPU_MEMORY_USAGE,
    NODE_GPU_CORE_USAGE,
    NODE_GPU_MEMORY_TOTAL,
    NODE_GPU_MEMORY_USAGE,
    POD_GPU_CORE_USAGE,
    POD_GPU_MEMORY_USAGE,
)
from koordlet.nvml.gpus import GpuReading
from koordlet.nvml.process import GpuProcess, GpuStatus
from koordlet.rules.devices import Gpu, XpuSet
from tests.support.node.nvml_stub import add_pci_device

from .conftest import PERIODS

KEY = ("0", "GPU-0")


@pytest.fixture
def devices(machine: Any) -> Any:
    """A machine with the gates on, and a directory of descriptions."""
    machine.files = machine.host.paths.proc.parent / "xpu"
    machine.files.mkdir()
    machine.gates |= {"Accelerators", "RDMADevices"}
    machine.use(
        build_collectors(
            CollectorOptions(node="n1", periods=PERIODS, xpu_files=machine.files),
            machine.host.paths,
            machine.published.__setitem__,
            lambda: False,
            machine.gates.__contains__,
            machine.published.get,
        )
    )
    return machine


def answered(machine: Any, *processes: GpuProcess, error: str = "") -> None:
    """NVML has just answered."""
    gpu = Gpu(uuid="GPU-0", minor=0, model="T4", memory=1000, error=error)
    reading = GpuReading(machine.clock.monotonic() + 1, (GpuStatus(gpu, "", processes),))
    machine.published["gpu_reading"] = reading


def run(machine: Any, uid: str, *pids: int) -> None:
    """A pod whose container has these processes."""
    pod = machine.run_pod(uid)
    [group] = pod.containers.values()
    group.set_processes(*pids)


def test_use_by_container_pod_and_node(devices: Any) -> None:
    """What processes of the host use counts for the node alone."""
    run(devices, "u1", 71, 72)
    run(devices, "u2", 73)
    answered(
        devices,
        GpuProcess(71, 30.0, 100),
        GpuProcess(72, 20.0, 50),
        GpuProcess(73, 10.0, 5),
        GpuProcess(99, 5.0, 1),
    )
    devices.tick()
    assert devices.value(NODE_GPU_MEMORY_TOTAL, *KEY) == 1000
    assert devices.value(NODE_GPU_CORE_USAGE, *KEY) == 65.0
    assert devices.value(NODE_GPU_MEMORY_USAGE, *KEY) == 156
    assert devices.value(POD_GPU_CORE_USAGE, "u1", *KEY) == 50.0
    assert devices.value(POD_GPU_MEMORY_USAGE, "u1", *KEY) == 150
    assert devices.value(POD_GPU_MEMORY_USAGE, "u2", *KEY) == 5
    assert devices.value(CONTAINER_GPU_CORE_USAGE, "containerd://c-u1", *KEY) == 50.0
    assert devices.value(CONTAINER_GPU_MEMORY_USAGE, "containerd://c-u2", *KEY) == 5
    labels = {"gpu_minor": "0", "gpu_device_uuid": "GPU-0"}
    assert devices.metric("koordlet_gpu_memory_usage_bytes", **labels) == 156
    assert devices.metric("koordlet_gpu_healthy", **labels) == 1.0
    assert devices.metric("koordlet_pod_gpu_core_usage_percent", pod_uid="u2", **labels) == 10.0


def test_shares_of_many_processes_are_no_more_than_the_gpu(devices: Any) -> None:
    answered(devices, GpuProcess(1, 80.0, 0), GpuProcess(2, 70.0, 0))
    devices.tick()
    assert devices.value(NODE_GPU_CORE_USAGE, *KEY) == 100.0


def test_an_old_answer_is_no_sample(devices: Any) -> None:
    """NVML hangs: what was is not what is."""
    answered(devices, GpuProcess(1, 80.0, 0))
    for _ in range(4):
        devices.tick()
        assert devices.value(NODE_GPU_CORE_USAGE, *KEY) == 80.0
    devices.tick()
    assert devices.value(NODE_GPU_CORE_USAGE, *KEY) is None
    assert devices.metric("koordlet_gpu_healthy") is None


def test_a_pod_that_ends_leaves_its_process(devices: Any) -> None:
    run(devices, "u1", 71)
    answered(devices, GpuProcess(71, 30.0, 100))
    devices.tick()
    devices.pods = ()
    answered(devices, GpuProcess(71, 30.0, 100))
    devices.tick()
    assert devices.value(POD_GPU_CORE_USAGE, "u1", *KEY) is None
    assert devices.value(NODE_GPU_CORE_USAGE, *KEY) == 30.0


def test_containers_are_searched_only_for_new_processes(devices: Any) -> None:
    """One of the host does not cost a look into all containers each second."""
    pod = devices.run_pod("u1")
    [group] = pod.containers.values()
    group.set_processes(71)

    def tick() -> float | None:
        answered(devices, GpuProcess(71, 30.0, 100), GpuProcess(99, 1.0, 1))
        devices.tick()
        return devices.value(POD_GPU_CORE_USAGE, "u1", *KEY)

    assert tick() == 30.0
    group.set_processes(99)  # as if it had moved there; the other one stays where it was found
    for _ in range(int(SEARCH_INTERVAL) - 1):
        assert tick() == 30.0
    assert tick() == 31.0


def test_descriptions_of_devices(devices: Any) -> None:
    file = devices.files / "a"
    file.write_text(json.dumps([{"uuid": "u", "minor": 1, "vendor": "v", "model": "m"}]))
    devices.tick()
    assert [xpu.uuid for xpu in devices.published["XPU"].xpus] == ["u"]
    assert devices.metric("koordlet_xpu_healthy", gpu_device_uuid="u") == 1.0
    file.write_text("[{")
    devices.tick()
    assert [xpu.uuid for xpu in devices.published["XPU"].xpus] == ["u"]
    failed = devices.own_metric(
        "koordlet_collector_rounds_total", collector="xpu", outcome="failed"
    )
    assert failed == 1.0
    file.unlink()
    devices.tick()
    assert devices.published["XPU"] == XpuSet()


def test_a_bad_description_from_the_start_costs_only_itself(devices: Any) -> None:
    """Those of other files are known, and so may NVML's be."""
    (devices.files / "a").write_text("[{")
    (devices.files / "b").write_text(json.dumps([{"uuid": "u", "minor": "1"}]))
    devices.tick()
    assert [xpu.uuid for xpu in devices.published["XPU"].xpus] == ["u"]
    assert not devices.published["XPU"].complete
    failed = devices.own_metric(
        "koordlet_collector_rounds_total", collector="xpu", outcome="failed"
    )
    assert failed == 1.0


def test_rdma_interfaces(devices: Any) -> None:
    sys = devices.host.paths.sys
    real = add_pci_device(sys, "0000:09:00.0")
    (real / "class").write_text("0x020700\n")
    port = real / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    classes = sys / "class/infiniband"
    classes.mkdir(parents=True)
    (classes / "mlx5_0").symlink_to(real / "infiniband/mlx5_0")
    (real / "infiniband/mlx5_0/device").symlink_to(real)
    devices.tick()
    assert [each.name for each in devices.published["RDMA"]] == ["mlx5_0"]
    assert devices.metric("koordlet_rdma_interface_active", device="mlx5_0") == 1.0
    (port / "state").write_text("1: DOWN\n")
    devices.tick()
    assert devices.metric("koordlet_rdma_interface_active", device="mlx5_0") == 0.0
    (classes / "mlx5_0").unlink()
    devices.tick()
    assert devices.published["RDMA"] == ()


def test_off_nothing_is_published(machine: Any) -> None:
    machine.tick()
    assert {"XPU", "RDMA", "GPU"}.isdisjoint(machine.published)
    assert machine.metric("koordlet_gpu_healthy") is None
