"""What monitoring gets to see of a pod's devices."""

import json
from typing import Any

import pytest

from koord.api.pod import Pod
from koord.util.errors import InvalidObject
from koordlet.rules.allocated_devices import kubelet_devices
from koordlet.rules.devices import DeviceTopology, Gpu, GpuSet, RdmaInterface, XpuSet, node_devices

NIC, VF = "0000:09:00.0", "0000:09:00.2"
NODE = node_devices(
    GpuSet("550", (Gpu(uuid="GPU-a", minor=0, model="T4", memory=1),)),
    XpuSet(),
    (
        RdmaInterface(
            name="mlx5_0", minor=0, topology=DeviceTopology(0, "pci0000:00", NIC), functions=(VF,)
        ),
    ),
)


def given_to(allocated: Any) -> list[tuple[str, tuple[str, ...]]]:
    key = "scheduling.koordinator.sh/device-allocated"
    pod = Pod("ml", "train", "u", annotations={key: json.dumps(allocated)})
    return list(kubelet_devices(pod, NODE))


def test_gpus_by_uuid_and_rdma_by_address() -> None:
    with_functions = {"minor": 0, "id": NIC, "extension": {"vfs": [{"busID": VF}]}}
    assert given_to({"gpu": [{"minor": 0}], "rdma": [with_functions], "fpga": [{"minor": 0}]}) == [
        ("nvidia.com/gpu", ("GPU-a",)),
        ("koordinator.sh/rdma", (VF,)),
    ]
    assert given_to({"rdma": [{"minor": 0, "id": NIC}]}) == [("koordinator.sh/rdma", (NIC,))]
    assert given_to({"gpu": []}) == []
    assert list(kubelet_devices(Pod("ml", "train", "u"), NODE)) == []


def test_what_the_node_does_not_have_is_not_shown() -> None:
    with pytest.raises(InvalidObject):
        given_to({"gpu": [{"minor": 7}]})
