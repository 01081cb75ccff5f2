"""What pods request of devices; the cases are those of spec 09, sections 19.1 and 19.2."""

import json

import pytest

from koord.api.devices.layout import LEVELS
from koord.api.devices.requests import (
    ALLOCATE_HINT,
    JOINT_ALLOCATE,
    PARTITION_SPEC,
    InvalidRequest,
    PartitionSpec,
    device_requests,
    gpu_request,
    pod_devices,
)

G = 2**30
NAMES = {
    "core": "koordinator.sh/gpu-core",
    "ratio": "koordinator.sh/gpu-memory-ratio",
    "memory": "koordinator.sh/gpu-memory",
    "shared": "koordinator.sh/gpu.shared",
    "gpu": "koordinator.sh/gpu",
    "nvidia": "nvidia.com/gpu",
    "dcu": "dcu.com/gpu",
    "npu": "huawei.com/npu-core",
    "cpu": "huawei.com/npu-cpu",
    "dvpp": "huawei.com/npu-dvpp",
    "rdma": "koordinator.sh/rdma",
    "fpga": "koordinator.sh/fpga",
}


def full(amounts: dict[str, int]) -> dict[str, int]:
    return {NAMES[name]: amount for name, amount in amounts.items()}


@pytest.mark.parametrize(
    "amounts",
    [
        {"core": 101},
        {"core": 100},
        {"nvidia": 2, "gpu": 200, "core": 200, "memory": 32 * G, "ratio": 200},
        {"core": 100, "ratio": 101},
        {"memory": G, "ratio": 50},
        {"nvidia": 1, "core": 100},
        {"shared": 1, "ratio": 101},
        {"shared": 2, "ratio": 101},
        {"shared": 1, "core": 101, "memory": 64 * G},
        {"shared": 2, "core": 101, "memory": 64 * G},
        {"npu": 40, "memory": 128 * G},
        {"shared": 2, "npu": 20, "cpu": 6, "dvpp": 200, "memory": 32 * G},
        {"shared": 1, "npu": 10, "memory": 16 * G},
        {"shared": 2},
    ],
)
def test_combinations_that_no_node_can_give(amounts):
    names = " ".join(sorted(full(amounts)))
    with pytest.raises(InvalidRequest) as raised:
        device_requests(full(amounts).items())
    assert str(raised.value) == f"invalid resource device requests: [{names}]"


@pytest.mark.parametrize("name", ["gpu", "rdma", "fpga"])
@pytest.mark.parametrize("amount", [101, 201])
def test_more_than_one_device_is_asked_for_in_whole_ones(name, amount):
    with pytest.raises(InvalidRequest) as raised:
        device_requests(full({name: amount}).items())
    assert str(raised.value) == f"invalid resource unit {NAMES[name]}: {amount}"


@pytest.mark.parametrize(
    "amounts",
    [
        {"nvidia": 2},
        {"dcu": 2},
        {"gpu": 200},
        {"core": 200, "memory": 64 * G},
        {"core": 200, "ratio": 200},
        {"ratio": 200},
        {"memory": 64 * G},
        {"shared": 2, "ratio": 200},
        {"shared": 2, "ratio": 100},
        {"shared": 1, "core": 100, "memory": 64 * G},
        {"shared": 2, "core": 100, "memory": 64 * G},
        {"npu": 40, "ratio": 200},
        {"shared": 1, "npu": 10, "cpu": 3, "memory": 16 * G},
        {"shared": 1, "npu": 10, "cpu": 3, "memory": 16 * G, "dvpp": 100},
        {"fpga": 50},
        {"rdma": 50},
        {"rdma": 200},
    ],
)
def test_combinations_that_a_node_can_give(amounts):
    assert len(device_requests(full(amounts).items())) == 1


@pytest.mark.parametrize(
    ("amounts", "normal", "count", "each", "shared"),
    [
        ({"nvidia": 2}, {"core": 200, "ratio": 200}, 2, {"core": 100, "ratio": 100}, False),
        ({"gpu": 50}, {"core": 50, "ratio": 50}, 1, {"core": 50, "ratio": 50}, True),
        (
            {"shared": 2, "core": 100, "ratio": 100},
            {"shared": 2, "core": 100, "ratio": 100},
            2,
            {"core": 50, "ratio": 50},
            True,
        ),
        (
            {"shared": 1, "core": 50, "ratio": 50},
            {"shared": 1, "core": 50, "ratio": 50},
            1,
            {"core": 50, "ratio": 50},
            True,
        ),
        (
            {"core": 200, "ratio": 200},
            {"core": 200, "ratio": 200},
            2,
            {"core": 100, "ratio": 100},
            False,
        ),
        (
            {"core": 100, "memory": 1024},
            {"core": 100, "memory": 1024},
            1,
            {"core": 100, "memory": 1024},
            True,
        ),
        ({"npu": 16, "ratio": 200}, {"npu": 16, "ratio": 200}, 2, {"npu": 8, "ratio": 100}, False),
        (
            {"shared": 1, "memory": 3 * G, "npu": 1, "cpu": 1, "dvpp": 12},
            {"shared": 1, "memory": 3 * G, "npu": 1, "cpu": 1, "dvpp": 12},
            1,
            {"memory": 3 * G, "npu": 1, "cpu": 1, "dvpp": 12},
            True,
        ),
        (
            {"shared": 4, "memory": 160 * 10**9},
            {"shared": 4, "memory": 160 * 10**9},
            4,
            {"memory": 40 * 10**9},
            True,
        ),
        # Better than upstream (21.13): as many cards as cores, each with its part of the memory.
        (
            {"core": 200, "memory": 64 * G},
            {"core": 200, "memory": 64 * G},
            2,
            {"core": 100, "memory": 32 * G},
            True,
        ),
    ],
)
def test_the_normal_form_and_the_request_of_each_card(amounts, normal, count, each, shared):
    found = device_requests(full(amounts).items())["gpu"]
    assert found == full(normal)
    one = gpu_request(found)
    assert (one.count, one.each, one.shared) == (count, full(each), shared)


def test_names_of_older_versions_mean_the_same():
    assert device_requests([("kubernetes.io/gpu", 50)]) == device_requests(
        [("koordinator.sh/gpu", 50)]
    )


def test_a_pod_without_devices_has_no_request():
    assert pod_devices([("cpu", 1000), ("koordinator.sh/gpu", 0)], {}) is None


@pytest.mark.parametrize(
    ("key", "text", "begins"),
    [
        (ALLOCATE_HINT, "[", "invalid DeviceAllocateHint annotation, err: "),
        (ALLOCATE_HINT, '{"gpu":7}', "invalid DeviceAllocateHint annotation, err: "),
        (
            ALLOCATE_HINT,
            '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Is"}]}}}',
            "invalid Selector of DeviceHint, deviceType: gpu, err: ",
        ),
        (
            ALLOCATE_HINT,
            '{"gpu":{"vfSelector":{"matchLabels":{"a":1}}}}',
            "invalid VFSelector of DeviceHint, deviceType: gpu, err: ",
        ),
        (JOINT_ALLOCATE, '{"deviceTypes":"gpu"}', "invalid DeviceJointAllocate annotation, err: "),
        (
            PARTITION_SPEC,
            '{"ringBusBandwidth":"fast"}',
            "invalid GPUPartitionSpec annotation, err: ",
        ),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named(key, text, begins):
    with pytest.raises(InvalidRequest) as raised:
        pod_devices([("koordinator.sh/gpu", 100)], {key: text})
    assert str(raised.value).startswith(begins)


def test_hints_joint_types_and_partitions_are_read():
    annotations = {
        ALLOCATE_HINT: json.dumps(
            {
                "gpu": {"requiredTopologyScope": "PCIe"},
                "rdma": {"vfSelector": {}, "allocateStrategy": "ApplyForAll"},
            }
        ),
        JOINT_ALLOCATE: '{"deviceTypes":["gpu","rdma","fpga"],"requiredScope":"SamePCIe"}',
        PARTITION_SPEC: '{"allocatePolicy":"Restricted","ringBusBandwidth":"100Gi"}',
    }
    found = pod_devices([("nvidia.com/gpu", 2), ("koordinator.sh/rdma", 1)], annotations)
    assert found is not None
    assert found.hint("gpu").scope == LEVELS["PCIe"]
    assert found.hint("rdma").for_all
    assert found.hint("rdma").functions is not None
    assert (found.joint, found.same_pcie, found.expand) == (("gpu",), True, True)
    assert found.partition == PartitionSpec(restricted=True, bandwidth=100 * G)


def test_one_card_is_as_near_as_several_never_are():
    hint = {ALLOCATE_HINT: '{"gpu":{"requiredTopologyScope":"Device"}}'}
    assert pod_devices([("nvidia.com/gpu", 1)], hint) is not None
    with pytest.raises(InvalidRequest, match="Device is one GPU, but 2 are requested"):
        pod_devices([("nvidia.com/gpu", 2)], hint)
