"""Nodes with devices: those of spec 09, section 19, as Device objects."""

from collections.abc import Mapping
from typing import Any

from koord.api.devices.layout import (
    DeviceTable,
    NodeDevices,
    NodeTraits,
    read_devices,
    used_key,
)

Json = dict[str, Any]

CARD = 85198045184  # bytes of a GPU of both nodes
CORE, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
MEMORY, RDMA_SHARE = "koordinator.sh/gpu-memory", "koordinator.sh/rdma"


def gpu(minor: int, *, numa: int | None = None, pcie: str = "", **more: Any) -> Json:
    """A healthy card of an NVIDIA node; numa None: its topology is not known."""
    topology: Json = {}
    if numa is not None:
        bus = f"0000:{minor + 16:x}:00.0"
        topology = {"topology": {"socketID": -1, "nodeID": numa, "pcieID": pcie, "busID": bus}}
    resources = {CORE: "100", RATIO: "100", MEMORY: str(CARD)}
    device = {"type": "gpu", "id": f"GPU-{minor}", "minor": minor, "health": True}
    return {**device, "resources": resources, **topology, **more}


def nic(
    minor: int,
    first: str = "",
    *,
    numa: int | None = None,
    pcie: str = "",
    count: int = 30,
    labels: Mapping[str, str] | None = None,
    group: Mapping[str, str] | None = None,
) -> Json:
    """An RDMA interface; first: address of its first function, of count; "": it has none."""
    device: Json = {
        "type": "rdma",
        "id": f"0000:{minor:02x}:00.0",
        "minor": minor,
        "health": True,
        "resources": {RDMA_SHARE: "100"},
        "labels": dict(labels or {}),
    }
    if numa is not None:
        device["topology"] = {"socketID": -1, "nodeID": numa, "pcieID": pcie}
    if first:
        bus, _, number = first.rpartition(".")
        vfs = [{"minor": -1, "busID": f"{bus}.{int(number) + at}"} for at in range(count)]
        device["vfGroups"] = [{"labels": dict(group or {}), "vfs": vfs}]
    return device


def device_object(
    name: str,
    devices: list[Json],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A Device object."""
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": metadata,
        "spec": {"devices": devices},
    }


FIRST_FUNCTIONS = ("0000:1f:00.2", "0000:90:00.2", "0000:51:00.2", "0000:b9:00.2")


def d8(name: str = "d8", **labels: str) -> Json:
    """8 GPUs on 4 PCIe switches of 2 NUMA nodes, and an interface with 30 functions on each."""
    gpus = [gpu(minor, numa=minor // 4, pcie=str(minor // 2)) for minor in range(8)]
    nics = [
        nic(
            at + 1,
            first,
            numa=at // 2,
            pcie=str(at),
            labels={"type": "fakeW"},
            group={"type": "general"},
        )
        for at, first in enumerate(FIRST_FUNCTIONS)
    ]
    return device_object(name, gpus + nics, labels=labels)


H8_BUSES = ("09", "7f", "a1", "b2", "c3", "d4", "e5", "f6")
H8_TRAITS = NodeTraits(model="H800", honor=True)


def h8(name: str = "h8") -> Json:
    """8 GPUs with an interface beside each, and no partition table of its own."""
    pcies = ("0", "2", "3", "4", "5", "6", "7", "8")
    gpus = [gpu(minor, numa=minor // 4, pcie=pcies[minor]) for minor in range(8)]
    nics = []
    for minor, bus in enumerate(H8_BUSES):
        one = nic(minor + 1, numa=minor // 4, pcie=pcies[minor])
        one["vfGroups"] = [
            {
                "labels": {"type": kind},
                "vfs": [{"minor": 0, "busID": f"0000:{bus}:{at}"} for at in each],
            }
            for kind, each in (
                ("fakeS", ["00.2"]),
                ("fakeG", [f"00.{at}" for at in range(3, 10)]),
                ("fakeC", [f"02.{at}" for at in range(2, 6)]),
            )
        ]
        nics.append(one)
    return device_object(name, gpus + nics)


def table(
    found: Json | NodeDevices,
    used: Mapping[tuple[str, int], Mapping[str, int]] | None = None,
    functions: Mapping[int, tuple[str, ...]] | None = None,
    node: NodeTraits | None = None,
) -> DeviceTable:
    """The devices of a node, with what is used by type and minor; functions are of RDMA."""
    devices = found if isinstance(found, NodeDevices) else read_devices(found)
    amounts = [
        (used_key(kind, minor, name), amount)
        for (kind, minor), each in (used or {}).items()
        for name, amount in each.items()
    ]
    amounts += [
        (used_key("rdma", minor, f"function:{address}"), 1)
        for minor, each in (functions or {}).items()
        for address in each
    ]
    return DeviceTable(devices.layout, node or NodeTraits(), amounts)


def whole(*minors: int) -> dict[tuple[str, int], Mapping[str, int]]:
    """GPUs that are used as a whole."""
    return {("gpu", minor): {CORE: 100, RATIO: 100, MEMORY: CARD} for minor in minors}


def percent(**left: int) -> dict[tuple[str, int], Mapping[str, int]]:
    """GPUs by minor as g0, with the percentage that is left of them."""
    return {
        ("gpu", int(name[1:])): {
            CORE: 100 - one,
            RATIO: 100 - one,
            MEMORY: CARD * (100 - one) // 100,
        }
        for name, one in left.items()
    }
