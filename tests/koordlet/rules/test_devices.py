"""Devices of a node, their labels, and the Device object that they make. Spec tables as tests."""

import copy
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koord.api.node import Node
from koord.util.errors import InvalidObject
from koordlet.rules.device_object import (
    device_patch,
    merged_devices,
    new_device_object,
    parse_published_devices,
)
from koordlet.rules.devices import (
    Device,
    DeviceTopology,
    DeviceType,
    Gpu,
    GpuSet,
    NodeDevices,
    PeerLink,
    RdmaInterface,
    Xpu,
    XpuSet,
    condition_reason,
    label_value,
    node_devices,
)

GIB = 1 << 30
PLACE = DeviceTopology(1, "pci0000:3a", "0000:3b:00.0")
NODE = Node("n1", uid="node-uid")
THEN, NOW = 1_700_000_000.0, 1_800_000_000.0
THEN_TEXT, NOW_TEXT = "2023-11-14T22:13:20Z", "2027-01-15T08:00:00Z"


def a_gpu(minor: int, **changes: Any) -> Gpu:
    fields = {"model": "NVIDIA A100 SXM4 80GB", "memory": 80 * GIB, "topology": PLACE} | changes
    return Gpu(uuid=f"GPU-{minor}", minor=minor, **fields)


def an_xpu(minor: int, *links: PeerLink, **changes: Any) -> Xpu:
    fields = {"vendor": "huawei", "model": "910B", "resources": {}} | changes
    return Xpu(uuid=f"x{minor}", minor=minor, links=links, **fields)


def files(*xpus: Xpu) -> XpuSet:
    return XpuSet(xpus)


GPUS = GpuSet("550.90.07", (a_gpu(1), a_gpu(0)))
CARD = RdmaInterface(
    name="mlx5_0",
    minor=0,
    topology=DeviceTopology(0, "pci0000:00", "0000:09:00.0"),
    functions=("0000:09:00.3", "0000:09:00.2"),
    ports=1,
)


def published(obj: dict[str, Any]) -> dict[str, Any]:
    """The object as the server has it after it was created."""
    found = copy.deepcopy(obj)
    found["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    return found


def patch(obj: dict[str, Any], wanted: NodeDevices, now: float = NOW) -> dict[str, Any]:
    """The operations by path, without the tests of the version."""
    operations = device_patch(parse_published_devices(obj), wanted, now)
    if operations:
        assert [each["path"] for each in operations[:2]] == [
            "/metadata/uid",
            "/metadata/resourceVersion",
        ]
    return {each["path"]: each.get("value", "removed") for each in operations[2:]}


def test_gpus_of_nvml() -> None:
    found = node_devices(GPUS, XpuSet(), ())
    assert found.labels == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
        "node.koordinator.sh/gpu-driver-version": "550.90.07",
        "node.koordinator.sh/gpu-partition-policy": "",
    }
    obj = new_device_object("n1", NODE, found, NOW)
    assert obj["kind"] == "Device"
    assert obj["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert "gpu-partition-policy" not in str(obj["metadata"])
    assert [each["minor"] for each in obj["spec"]["devices"]] == [0, 1]
    assert obj["spec"]["devices"][0] == {
        "type": "gpu",
        "id": "GPU-0",
        "minor": 0,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "80Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "topology": {
            "socketID": -1,
            "nodeID": 1,
            "pcieID": "pci0000:3a",
            "busID": "0000:3b:00.0",
        },
        "conditions": [
            {
                "type": "Healthy",
                "status": "True",
                "reason": "DeviceHealthy",
                "message": "device is healthy",
                "lastTransitionTime": NOW_TEXT,
            }
        ],
    }


def test_cards_that_differ_have_no_model() -> None:
    found = node_devices(GpuSet("550", (a_gpu(0), a_gpu(1, model="NVIDIA T4"))), XpuSet(), ())
    assert found.labels["node.koordinator.sh/gpu-model"] == ""
    assert found.labels["node.koordinator.sh/gpu-vendor"] == "nvidia"


def test_a_gpu_whose_place_is_not_known_has_no_topology() -> None:
    [device] = merged_devices(
        [], node_devices(GpuSet("5", (a_gpu(0, topology=None),)), XpuSet(), ()), 0
    )
    assert "topology" not in device


def test_rdma() -> None:
    [device] = merged_devices([], node_devices(None, None, (CARD,)), NOW)
    assert device["type"] == "rdma"
    assert device["id"] == "0000:09:00.0"
    assert device["resources"] == {"koordinator.sh/rdma": "100"}
    assert device["vfGroups"] == [
        {
            "vfs": [
                {"minor": -1, "busID": "0000:09:00.2"},
                {"minor": -1, "busID": "0000:09:00.3"},
            ]
        }
    ]
    assert device["health"] is True


def test_devices_of_files_come_before_those_of_nvml() -> None:
    found = node_devices(GPUS, files(an_xpu(0, resources={"koordinator.sh/gpu-core": "100"})), ())
    assert [device.id for device in found.devices] == ["x0"]
    assert found.devices[0].resources == {
        "koordinator.sh/gpu-memory-ratio": "100",
        "koordinator.sh/gpu-core": "100",
    }
    assert found.labels["node.koordinator.sh/gpu-vendor"] == "huawei"
    assert found.labels["node.koordinator.sh/gpu-driver-version"] == ""


@pytest.mark.parametrize(
    ("gpus", "xpus", "interfaces", "known"),
    [
        (None, None, None, set()),
        (GPUS, None, None, set()),
        (None, files(), None, set()),
        (None, files(an_xpu(0)), None, {"gpu"}),
        (GPUS, files(), None, {"gpu"}),
        (None, None, (), {"rdma"}),
        (GPUS, files(), (CARD,), {"gpu", "rdma"}),
    ],
)
def test_what_is_known(gpus: Any, xpus: Any, interfaces: Any, known: set[str]) -> None:
    assert node_devices(gpus, xpus, interfaces).known == known


def test_partitions() -> None:
    """Each group of connected devices once, by its size."""
    xpus = (
        an_xpu(0, PeerLink("HCCS", (1,)), PeerLink("HCCS", (1, 2, 3))),
        an_xpu(1, PeerLink("HCCS", (0,))),
    )
    found = node_devices(None, files(*xpus), None)
    assert json.loads(found.partitions) == {
        "2": [{"minors": [0, 1], "gpuLinkType": "HCCS", "allocationScore": 1}],
        "4": [{"minors": [0, 1, 2, 3], "gpuLinkType": "HCCS", "allocationScore": 1}],
    }
    assert found.labels["node.koordinator.sh/gpu-partition-policy"] == "Prefer"
    honored = node_devices(None, files(an_xpu(0, *xpus[0].links, must_honor_partition=True)), None)
    assert honored.labels["node.koordinator.sh/gpu-partition-policy"] == "Honor"
    assert node_devices(None, files(an_xpu(0)), None).partitions == ""


def test_devices_of_a_file_that_was_never_good_stay_beside_those_that_are_known() -> None:
    """NVML's are reported; what the file said before the agent's start is not taken away."""
    earlier = node_devices(None, files(an_xpu(5), an_xpu(6)), None)
    obj = published(new_device_object("n1", NODE, earlier, THEN))
    for known in (files(an_xpu(6)), files()):
        found = node_devices(GPUS, dataclasses.replace(known, complete=False), None)
        ids = [each["id"] for each in merged_devices(obj["spec"]["devices"], found, NOW)]
        assert ids == (["x5", "x6"] if known.xpus else ["GPU-0", "GPU-1", "x5", "x6"])
        whole = node_devices(GPUS, known, None)
        assert "x5" not in str(merged_devices(obj["spec"]["devices"], whole, NOW))


def test_an_interface_without_ports_is_not_healthy() -> None:
    bare = dataclasses.replace(CARD, ports=0)
    [device] = merged_devices([], node_devices(None, None, (bare,)), NOW)
    assert device["health"] is False
    assert device["conditions"][0]["message"] == "no port is known"


@pytest.mark.parametrize(
    ("error", "message", "shown"),
    [
        ("", "", "device is healthy"),
        ("Unknown", "", "device is unhealthy"),
        ("79", "off the bus", "off the bus"),
    ],
)
def test_messages(error: str, message: str, shown: str) -> None:
    """Koordinator's texts, where the vendor has none."""
    found = node_devices(None, files(an_xpu(0, error=error, message=message)), None)
    [device] = merged_devices([], found, NOW)
    assert device["conditions"][0]["message"] == shown


def test_what_is_right_is_not_written() -> None:
    """However the server writes quantities, and whatever others have added."""
    wanted = node_devices(GPUS, XpuSet(), (CARD,))
    obj = published(new_device_object("n1", NODE, wanted, THEN))
    assert patch(obj, wanted) == {}
    obj["metadata"]["labels"]["theirs"] = "kept"
    obj["metadata"]["annotations"] = {"theirs": "kept"}
    obj["status"] = {"allocations": []}
    obj["spec"]["devices"][0]["resources"]["koordinator.sh/gpu-memory"] = str(80 * GIB)
    obj["spec"]["devices"][0]["labels"] = {"theirs": "kept"}
    obj["spec"]["devices"][1]["moduleID"] = 3
    assert patch(obj, wanted) == {}


def test_a_change_of_health_has_a_time_of_its_own() -> None:
    wanted = node_devices(GPUS, XpuSet(), ())
    obj = published(new_device_object("n1", NODE, wanted, THEN))
    obj["spec"]["devices"][0]["moduleID"] = 3
    sick = node_devices(GpuSet("550.90.07", (a_gpu(0, error="Xid79"), a_gpu(1))), XpuSet(), ())
    changed = patch(obj, sick)
    assert list(changed) == ["/spec/devices"]
    first, second = changed["/spec/devices"]
    assert first["health"] is False
    assert first["moduleID"] == 3
    assert first["conditions"][0]["reason"] == "Xid79"
    assert first["conditions"][0]["lastTransitionTime"] == NOW_TEXT
    assert second["conditions"][0]["lastTransitionTime"] == THEN_TEXT

    obj["spec"]["devices"] = changed["/spec/devices"]
    worse = node_devices(GpuSet("550.90.07", (a_gpu(0, error="Xid48"), a_gpu(1))), XpuSet(), ())
    again = patch(obj, worse, NOW + 100)["/spec/devices"]
    assert again[0]["conditions"][0]["reason"] == "Xid48"
    assert again[0]["conditions"][0]["lastTransitionTime"] == NOW_TEXT


def test_devices_of_others_and_of_unknown_types_stay() -> None:
    fpga = {"type": "fpga", "id": "f", "minor": 0, "health": True}
    wanted = node_devices(GPUS, XpuSet(), (CARD,))
    obj = published(new_device_object("n1", NODE, wanted, THEN))
    obj["spec"]["devices"].append(fpga)
    unknown_gpus = node_devices(None, XpuSet(), ())
    changed = patch(obj, unknown_gpus)
    assert [device["id"] for device in changed["/spec/devices"]] == ["f", "GPU-0", "GPU-1"]
    assert list(changed) == ["/spec/devices"]  # no label of GPUs is touched


def test_gpus_that_vanish_leave_with_their_labels() -> None:
    wanted = node_devices(GPUS, XpuSet(), ())
    obj = published(new_device_object("n1", NODE, wanted, THEN))
    changed = patch(obj, node_devices(GpuSet("", ()), XpuSet(), ()))
    assert changed["/spec/devices"] == []
    removed = [path for path, value in changed.items() if value == "removed"]
    assert removed == [
        f"/metadata/labels/node.koordinator.sh~1gpu-{name}"
        for name in ("vendor", "model", "driver-version")
    ]


@pytest.mark.parametrize(
    "spec", [None, {}, 7, {"devices": None}, {"devices": 7}, {"devices": [7, None, {"type": 3}]}]
)
def test_whatever_is_published_is_put_right(spec: object) -> None:
    obj = published(new_device_object("n1", NODE, NodeDevices(), THEN))
    obj["spec"] = spec
    wanted = node_devices(GPUS, XpuSet(), ())
    changed = patch(obj, wanted)
    devices = changed.get("/spec/devices") or changed["/spec"]["devices"]
    assert [d["id"] for d in devices if d.get("type") == "gpu"] == ["GPU-0", "GPU-1"]


def test_an_object_without_metadata_is_refused() -> None:
    with pytest.raises(InvalidObject):
        parse_published_devices({"metadata": {}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("RTX 6000 Ada Generation", "RTX-6000-Ada-Generation"),
        ("evil\n/..\u202e", "evil"),
        ("x" * 100, "x" * 63),
        ("///", ""),
    ],
)
def test_labels(text: str, value: str) -> None:
    assert label_value(text) == value


@given(st.text())
def test_texts_for_kubernetes(text: str) -> None:
    import re

    assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?", label_value(text))
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", condition_reason(text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "id", "minor", "resources", "conditions"]), inner
        )
    ),
    max_leaves=10,
)


@given(JSON)
@example([{"type": []}])
def test_a_patch_of_anything_settles(found: object) -> None:
    """What one patch makes, the next one leaves."""
    wanted = NodeDevices(
        (Device(type=DeviceType.GPU, id="g", minor=0, resources={}),), frozenset(DeviceType)
    )
    once = merged_devices(found, wanted, THEN)
    assert merged_devices(once, wanted, NOW) == once
