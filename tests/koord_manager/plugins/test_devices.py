"""GPUDeviceResource and RDMADeviceResource: the worked cases G1 to G4."""

from koord_manager_plugins.devices import GPU_RESOURCES, RDMA
from tests.support.manager import calculate, facts, node, quantities

WHOLE = quantities(cpu=100, memory="120G")
LABELS = {
    "node.koordinator.sh/gpu-vendor": "nvidia",
    "node.koordinator.sh/gpu-model": "A100",
    "node.koordinator.sh/gpu-driver-version": "535",
}


def device(kind, *resources, healthy=True, labels=None):
    devices = [
        {"type": kind, "minor": at, "health": healthy, "resources": each}
        for at, each in enumerate(resources)
    ]
    return {"metadata": {"name": "n1", "labels": labels or {}}, "spec": {"devices": devices}}


def gpu(memory):
    return {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": memory,
        "koordinator.sh/gpu-memory-ratio": "100",
    }


def offered(devices, plugin="GPUDeviceResource", **options):
    result = calculate(facts(node(WHOLE), devices=devices), plugin, **options)
    return {name: one.amount for name, one in result.resources.items()}, dict(result.labels)


def test_g1_nvidia_gpus_are_summed_and_their_labels_copied():
    found = device("gpu", gpu("8000"), gpu("10000"), labels=LABELS)

    amounts, labels = offered(found, gates={"EnableSyncGPUSharedResource": True})

    assert amounts == {
        "koordinator.sh/gpu": 200,
        "koordinator.sh/gpu-core": 200,
        "koordinator.sh/gpu-memory": 18000,
        "koordinator.sh/gpu-memory-ratio": 200,
        "koordinator.sh/gpu.shared": 200,
    }
    assert labels == LABELS


def test_g2_cards_of_another_vendor_are_no_nvidia_gpus():
    one = {"huawei.com/npu-core": "20", "huawei.com/npu-cpu": "20", "huawei.com/npu-dvpp": "100"}
    memory = {"koordinator.sh/gpu-memory": "9000", "koordinator.sh/gpu-memory-ratio": "100"}
    found = device(
        "gpu", one | memory, one | memory, labels={"node.koordinator.sh/gpu-vendor": "huawei"}
    )

    amounts, _ = offered(found)

    assert amounts == {
        "huawei.com/npu-core": 40,
        "huawei.com/npu-cpu": 40,
        "huawei.com/npu-dvpp": 200,
        "koordinator.sh/gpu-memory": 18000,
        "koordinator.sh/gpu-memory-ratio": 200,
    }


def test_g3_without_a_healthy_gpu_all_keys_go():
    for found in (None, device("rdma", {}), device("gpu", gpu("1"), healthy=False)):
        amounts, _ = offered(found)

        assert amounts == dict.fromkeys(GPU_RESOURCES)


def test_g4_each_healthy_rdma_device_counts_a_hundred():
    amounts, _ = offered(device("rdma", {}, {}), "RDMADeviceResource")

    assert amounts == {RDMA: 200}
    assert offered(None, "RDMADeviceResource")[0] == {RDMA: None}


def test_devices_count_where_colocation_is_disabled():
    found = facts(node(WHOLE), devices=device("rdma", {}), strategy={"enable": False})

    assert calculate(found, "RDMADeviceResource").resources[RDMA].amount == 100
