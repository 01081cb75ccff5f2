"""What a pod says it was given, against what the node has. The annotation is hostile."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import AllocatedDevice, device_allocations
from koord.util.errors import InvalidObject
from koordlet.rules.allocated_devices import allocated_functions, allocated_gpus
from koordlet.rules.devices import (
    DeviceTopology,
    Gpu,
    GpuSet,
    NodeDevices,
    RdmaInterface,
    XpuSet,
    node_devices,
)

NIC, VF, OTHER_VF = "0000:09:00.0", "0000:09:00.2", "0000:09:00.3"
CARD = RdmaInterface(
    name="mlx5_0",
    minor=0,
    topology=DeviceTopology(0, "pci0000:00", NIC),
    functions=(VF, OTHER_VF),
)
GPUS = GpuSet("550", tuple(Gpu(uuid=f"G{n}", minor=n, model="T4", memory=1) for n in range(2)))
NODE = node_devices(GPUS, XpuSet(), (CARD,))


def gpus(*entries: dict[str, Any], node: NodeDevices = NODE) -> list[int]:
    found = device_allocations(json.dumps({"gpu": entries}))
    return [gpu.minor for gpu in allocated_gpus(found["gpu"], node)]


def functions(*entries: dict[str, Any], node: NodeDevices = NODE) -> tuple[str, ...]:
    found = device_allocations(json.dumps({"rdma": entries}))
    return allocated_functions(found["rdma"], node)


def given_functions(*buses: str) -> dict[str, Any]:
    return {"minor": 0, "id": NIC, "extension": {"vfs": [{"minor": 1, "busID": b} for b in buses]}}


def test_the_example_of_the_specification() -> None:
    text = (
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
        '"koordinator.sh/gpu-memory-ratio":"100","koordinator.sh/gpu-memory":"16Gi"}}],'
        '"rdma":[{"minor":0,"id":"0000:09:00.0","resources":{"koordinator.sh/rdma":100},'
        '"extension":{"vfs":[{"minor":1,"busID":"0000:09:00.2"}],"gpuSharedResourceTemplate":""}}]}'
    )
    found = device_allocations(text)
    assert found["gpu"][0].resources["koordinator.sh/gpu-memory"] == "16Gi"
    assert found["rdma"] == (AllocatedDevice(0, NIC, {"koordinator.sh/rdma": "100"}, (VF,)),)
    assert allocated_functions(found["rdma"], NODE) == (VF,)


def test_gpus_that_the_node_has() -> None:
    assert gpus({"minor": 1}, {"minor": 0}, {"minor": 1}) == [1, 0]
    assert gpus({"minor": 1, "id": "G1"}) == [1]
    assert gpus() == []


@pytest.mark.parametrize("entry", [{"minor": 2}, {"minor": -1}, {"minor": 0, "id": "G1"}])
def test_gpus_that_it_does_not_have(entry: dict[str, Any]) -> None:
    with pytest.raises(InvalidObject, match="wanted a gpu device of this node"):
        gpus(entry)


def test_functions_that_the_node_has() -> None:
    """Virtual functions instead of the card; without any the card itself."""
    assert functions({"minor": 0, "id": NIC}) == (NIC,)
    assert functions(given_functions(OTHER_VF, VF, VF)) == (OTHER_VF, VF)


@pytest.mark.parametrize(
    "entry",
    [
        {"minor": 0},
        {"minor": 0, "id": "0000:0a:00.0"},
        {"minor": 0, "id": "../../../etc"},
        given_functions("0000:0a:00.2"),
        given_functions("../.."),
        given_functions(NIC),
        given_functions(""),
    ],
)
def test_functions_that_it_does_not_have(entry: dict[str, Any]) -> None:
    with pytest.raises(InvalidObject, match="wanted a rdma device of this node"):
        functions(entry)


def test_nothing_is_given_while_devices_are_not_known() -> None:
    for check in (gpus, functions):
        with pytest.raises(InvalidObject, match="to be known"):
            check({"minor": 0, "id": NIC}, node=NodeDevices())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"gpu": 7}',
        '{"gpu": [7]}',
        '{"gpu": [{"minor": "0"}]}',
        '{"gpu": [{"minor": 4294967296}]}',
        '{"gpu": [{"resources": {"x": "lots"}}]}',
        '{"rdma": [{"id": 7}]}',
        '{"rdma": [{"extension": {"vfs": 7}}]}',
        json.dumps({"gpu": [{"minor": 0}] * 300}),
        json.dumps({"rdma": [given_functions(*[VF] * 300)]}),
    ],
)
def test_what_is_malformed(text: str) -> None:
    with pytest.raises(InvalidObject):
        device_allocations(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["gpu", "rdma", "minor", "id", "extension", "vfs"]), inner
        )
    ),
    max_leaves=10,
)


@given(JSON)
def test_any_annotation(value: object) -> None:
    """It is refused, or names only what the node has."""
    try:
        found = device_allocations(json.dumps(value))
        given_ = allocated_functions(found.get("rdma", ()), NODE)
    except InvalidObject:
        return
    assert set(given_) <= {NIC, VF, OTHER_VF}
