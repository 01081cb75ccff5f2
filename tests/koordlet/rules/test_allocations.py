"""Which allocations of pods count: as much as is requested, and nothing that an older pod has."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.machine import format_cpulist
from koord.api.pod import Container, Pod
from koordlet.rules.allocations import (
    ALLOCATIONS,
    MAX_ANNOTATION_LENGTH,
    pod_allocation,
    refused_allocations,
)

STATUS, DEVICES = ALLOCATIONS
K = "koordinator.sh/"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
NIC, VF = "0000:09:00.0", "0000:09:00.2"


def a_pod(
    name: str, requests: Mapping[str, str], *, started: float | None = None, **annotations: object
) -> Pod:
    """A pod of one container; annotations as objects, by name: cpus, devices, hint and joint."""
    keys = {"cpus": STATUS, "devices": DEVICES, "hint": HINT, "joint": JOINT}
    if isinstance(annotations.get("cpus"), str):
        annotations["cpus"] = {"cpuset": annotations["cpus"]}
    return Pod(
        "shop",
        name,
        name,
        annotations={keys[key]: json.dumps(value) for key, value in annotations.items()},
        containers=(Container("main", requests=requests),),
        phase="Running",
        start_time=started,
    )


def refused(*pods: Pod, by_kubelet: Mapping[str, frozenset[int]] | None = None) -> set[str]:
    """Names of the pods of which an annotation does not count."""
    return set(
        refused_allocations([(each, pod_allocation(each)) for each in pods], by_kubelet or {})
    )


def card(minor: int, **amounts: str) -> dict[str, Any]:
    resources = {f"{K}{name.replace('_', '-')}": text for name, text in amounts.items()}
    return {"minor": minor, "resources": resources}


def nic(*functions: str, amount: str | None = None, address: str = NIC) -> dict[str, Any]:
    made: dict[str, Any] = {"minor": 0, "id": address}
    if amount is not None:
        made["resources"] = {f"{K}rdma": amount}
    if functions:
        made["extension"] = {"vfs": [{"busID": function} for function in functions]}
    return made


@pytest.mark.parametrize(
    ("cpu", "cpus", "counts"),
    [
        ("4", "0-3", True),
        ("4000m", "0-3", True),
        ("4", "0,2,8-9", True),
        ("5", "0-3", True),
        ("100m", "0-14", False),
        ("3", "0-3", False),
        ("4500m", "0-3", False),
        ("0", "0", False),
    ],
)
def test_whole_cpus_are_requested(cpu: str, cpus: str, counts: bool) -> None:
    assert refused(a_pod("p", {"cpu": cpu}, cpus=cpus)) == (set() if counts else {"p"})


def test_a_pod_without_any_request_has_no_cpus_and_no_devices() -> None:
    """The pod that took all GPUs and an RDMA function; both annotations are named."""
    devices = {"gpu": [card(minor) for minor in range(8)], "rdma": [nic(VF)]}
    thief = a_pod("p", {}, cpus="0-14", devices=devices)
    found = refused_allocations([(thief, pod_allocation(thief))], {})
    assert [each.annotation for each in found["p"]] == [STATUS, DEVICES]
    assert "its containers request" in found["p"][0].reason


def test_requests_of_the_whole_pod_count() -> None:
    """Sidecars, the pod's own requests and overhead, as the scheduler adds them."""
    one = a_pod("p", {"cpu": "2"}, cpus="0-3")
    sidecar = Container("side", requests={"cpu": "2"}, restart_policy="Always")
    assert refused(dataclasses.replace(one, init_containers=(sidecar,))) == set()
    assert refused(dataclasses.replace(one, requests={"cpu": "4"})) == set()
    assert refused(dataclasses.replace(one, overhead={"cpu": "2"})) == set()
    assert refused(dataclasses.replace(one, overhead={"cpu": "250m"})) == {"p"}


def test_numa_nodes_alone_give_nothing() -> None:
    numa = {"numaNodeResources": [{"node": 1, "resources": {"cpu": "2"}}]}
    assert refused(a_pod("p", {"cpu": "100m"}, cpus=numa)) == set()


NPU = {
    "minor": 0,
    "resources": {"huawei.com/npu-core": "8", "koordinator.sh/gpu-memory-ratio": "100"},
}
QUARTER = card(0, gpu_memory="40G")
WHOLE = card(0, gpu_core="100", gpu_memory_ratio="100", gpu_memory="80Gi")
HALF = card(0, gpu_core="50", gpu_memory_ratio="50", gpu_memory="40Gi")


@pytest.mark.parametrize(
    ("requests", "cards"),
    [
        ({"nvidia.com/gpu": "1"}, [WHOLE]),
        ({"amd.com/gpu": "2"}, [WHOLE, WHOLE | {"minor": 1}]),
        ({f"{K}gpu": "100"}, [WHOLE]),
        ({f"{K}gpu": "200"}, [WHOLE, WHOLE | {"minor": 1}]),
        ({"kubernetes.io/gpu": "50"}, [HALF]),
        ({f"{K}gpu-core": "50", f"{K}gpu-memory-ratio": "50"}, [HALF]),
        ({f"{K}gpu-memory-ratio": "200"}, [card(1, gpu_memory_ratio="100", gpu_memory="80Gi")] * 2),
        ({f"{K}gpu-core": "50", f"{K}gpu-memory": "40Gi"}, [HALF]),
        ({f"{K}gpu-memory": "3Gi"}, [card(0, gpu_memory="3Gi", gpu_memory_ratio="3")]),
        (
            {f"{K}gpu.shared": "2", f"{K}gpu-core": "100", f"{K}gpu-memory-ratio": "100"},
            [HALF, HALF | {"minor": 1}],
        ),
        (
            {f"{K}gpu.shared": "4", f"{K}gpu-memory": "160G"},
            [QUARTER | {"minor": n} for n in range(4)],
        ),
        (
            {"huawei.com/npu-core": "16", f"{K}gpu-memory-ratio": "200"},
            [NPU, NPU | {"minor": 1}],
        ),
        ({"nvidia.com/gpu": "1"}, [{"minor": 0, "resources": None, "id": "GPU-0"}]),
    ],
)
def test_gpus_that_the_scheduler_gives(requests: dict[str, str], cards: list[Any]) -> None:
    """Each spelling of a request, and what Koordinator writes for it."""
    assert refused(a_pod("p", requests, devices={"gpu": cards})) == set()


@pytest.mark.parametrize(
    ("requests", "cards"),
    [
        ({"cpu": "8", f"{K}rdma": "1"}, [WHOLE]),
        ({f"{K}gpu": "50"}, [WHOLE]),
        ({f"{K}gpu": "50"}, [HALF, HALF | {"minor": 1}]),
        ({f"{K}gpu": "1"}, [{"minor": n, "resources": {}} for n in range(8)]),
        ({f"{K}gpu-memory": "3Gi"}, [card(0, gpu_memory="80Gi", gpu_memory_ratio="3")]),
        ({f"{K}gpu-memory": "3Gi"}, [card(0, gpu_memory="3Gi", gpu_core="10")]),
        ({f"{K}gpu": "200"}, [card(0, gpu_core="150"), card(1, gpu_core="50")]),
        ({f"{K}gpu": "100"}, [card(0, gpu_core="-100", gpu_memory_ratio="100")]),
        ({f"{K}gpu.shared": "1"}, [HALF]),
        ({"nvidia.com/gpu": "1"}, [{"minor": 0, "resources": {"huawei.com/npu-core": "8"}}]),
        ({"nvidia.com/gpu": "0"}, [WHOLE]),
    ],
)
def test_gpus_that_are_not_requested(requests: dict[str, str], cards: list[Any]) -> None:
    assert refused(a_pod("p", requests, devices={"gpu": cards})) == {"p"}


EACH = {"rdma": {"allocateStrategy": "ApplyForAll"}}
COUNT = {"rdma": {"allocateStrategy": "RequestsAsCount"}}
EXCLUSIVE = {"rdma": {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}}
BESIDE, BESIDE_X = ({"deviceTypes": [first, "rdma"]} for first in ("gpu", "x"))
OTHERS = [nic(address=f"0000:0{n}:00.0", amount="1") for n in range(1, 5)]


@pytest.mark.parametrize(
    ("amount", "devices", "annotations"),
    [
        ("1", [nic(VF, amount="1")], {}),
        ("1", [nic(VF)], {}),
        ("100", [nic(amount="100")], {}),
        ("200", [nic(amount="100"), nic(amount="100", address="0000:0a:00.0")], {}),
        ("1", OTHERS, {"hint": EACH}),
        ("4", OTHERS, {"hint": COUNT}),
        ("4", [each | {"resources": {f"{K}rdma": "100"}} for each in OTHERS], {"hint": EXCLUSIVE}),
        ("2", [nic(VF, "0000:09:00.3", amount="2")], {}),
    ],
)
def test_interfaces_that_the_scheduler_gives(
    amount: str, devices: list[Any], annotations: dict[str, Any]
) -> None:
    for name in (f"{K}rdma", "kubernetes.io/rdma"):
        asked = {name: amount}
        assert refused(a_pod("p", asked, devices={"rdma": devices}, **annotations)) == set()


def test_an_interface_for_each_gpu() -> None:
    """Four GPUs on two switches with rdma 1 get two interfaces, when both are asked for jointly."""
    asked = {"nvidia.com/gpu": "4", f"{K}rdma": "1"}
    devices = {"gpu": [WHOLE | {"minor": n} for n in range(4)], "rdma": OTHERS[:2]}
    assert refused(a_pod("p", asked, devices=devices, joint=BESIDE)) == set()
    assert refused(a_pod("p", asked, devices=devices)) == {"p"}
    assert refused(a_pod("p", asked, devices=devices | {"rdma": OTHERS * 2}, joint=BESIDE)) == {"p"}


@pytest.mark.parametrize(
    ("requests", "devices", "annotations"),
    [
        ({"nvidia.com/gpu": "1"}, {"rdma": [nic(VF)]}, {}),
        ({f"{K}rdma": "1"}, {"rdma": OTHERS}, {}),
        ({f"{K}rdma": "1"}, {"rdma": OTHERS}, {"hint": "nonsense"}),
        ({f"{K}rdma": "1"}, {"rdma": OTHERS}, {"joint": {"deviceTypes": ["rdma", "rdma", 7]}}),
        (
            {f"{K}rdma": "1"},
            {"rdma": OTHERS, "x": OTHERS},
            {"joint": BESIDE_X},
        ),
        ({f"{K}rdma": "1"}, {"rdma": [nic(amount="50")]}, {}),
        ({f"{K}rdma": "1"}, {"rdma": [nic(*(f"0000:09:00.{n}" for n in range(8)))]}, {}),
        ({f"{K}rdma": "3"}, {"rdma": OTHERS}, {"hint": COUNT}),
        ({f"{K}rdma": "1"}, {"fpga": [{"minor": 0}]}, {}),
        ({f"{K}fpga": "50"}, {"fpga": [{"minor": 0, "resources": {f"{K}fpga": "100"}}]}, {}),
    ],
)
def test_devices_that_are_not_requested(
    requests: dict[str, str], devices: dict[str, Any], annotations: dict[str, Any]
) -> None:
    """A hint that is nonsense is as none."""
    assert refused(a_pod("p", requests, devices=devices, **annotations)) == {"p"}


def test_of_two_pods_the_older_one_has_it() -> None:
    """By its start, then its creation, then its UID; in whatever order they are listed."""
    old = a_pod("b", {"cpu": "4"}, started=10.0, cpus="0-3")
    young = a_pod("a", {"cpu": "2"}, started=11.0, cpus="3-4")
    new = a_pod("0", {"cpu": "2"}, cpus="4-5")
    assert refused(old, young) == refused(young, old) == {"a"}
    assert refused(new, young) == {"0"}
    assert refused(new, young, old) == {"a"}
    twins = [dataclasses.replace(each, start_time=None, created=5.0) for each in (old, young)]
    assert refused(*twins) == {"b"}
    ended = dataclasses.replace(old, phase="Succeeded")
    assert refused(ended, young) == set()


def test_cpus_of_the_kubelet_are_had_too() -> None:
    """Of an older pod; what the pod itself has from the kubelet is no obstacle."""
    old = a_pod("old", {"cpu": "2"}, started=1.0)
    young = a_pod("young", {"cpu": "2"}, started=2.0, cpus="2-3")
    theirs = {"old": frozenset({3, 4})}
    assert refused(old, young, by_kubelet=theirs) == {"young"}
    assert refused(young, by_kubelet={"young": frozenset({2, 3, 4})}) == set()
    younger = dataclasses.replace(old, start_time=3.0)
    assert refused(younger, young, by_kubelet=theirs) == set()


def test_devices_are_shared_up_to_the_whole() -> None:
    def user(name: str, started: float, percent: str, minor: int = 0) -> Pod:
        given = {"gpu": [card(minor, gpu_core=percent, gpu_memory_ratio=percent)]}
        return a_pod(name, {f"{K}gpu": percent}, started=started, devices=given)

    first, second = user("a", 1, "50"), user("b", 2, "50")
    assert refused(first, second) == set()
    assert refused(first, second, user("c", 3, "1")) == {"c"}
    assert refused(first, user("c", 3, "100")) == {"c"}
    assert refused(user("c", 0, "100"), first, second) == {"a", "b"}
    assert refused(first, user("c", 3, "100", minor=1)) == set()
    tiny = a_pod(
        "t",
        {f"{K}gpu-memory": "1Mi"},
        started=9,
        devices={"gpu": [card(0, gpu_memory="1Mi", gpu_memory_ratio="0")]},
    )
    assert refused(user("c", 0, "99"), tiny) == set()
    assert refused(user("c", 0, "100"), tiny) == {"t"}


def test_a_function_has_one_pod() -> None:
    def user(name: str, started: float, function: str) -> Pod:
        given = {"rdma": [nic(function, amount="1")]}
        return a_pod(name, {f"{K}rdma": "1"}, started=started, devices=given)

    assert refused(user("a", 1, VF), user("b", 2, "0000:09:00.3")) == set()
    assert refused(user("a", 1, VF), user("b", 2, VF)) == {"b"}


def test_a_pod_takes_over_what_a_reservation_has() -> None:
    """Only of a pod that is one; and only one pod can."""
    label = {"scheduling.koordinator.sh/operating-mode": "Reservation"}
    asked = {"cpu": "4", f"{K}gpu": "100"}
    given: dict[str, Any] = {"cpus": "0-3", "devices": {"gpu": [WHOLE]}}
    spare = a_pod("spare", asked, started=1.0, **given)
    reported = {"scheduling.koordinator.sh/reservation-allocated": '{"name":"s","uid":"spare"}'}
    user, twin = (a_pod(name, asked, started=2.0, **given) for name in ("u1", "u2"))
    user, twin = (
        dataclasses.replace(each, annotations=each.annotations | reported) for each in (user, twin)
    )
    assert refused(spare, user) == {"u1"}
    spare = dataclasses.replace(spare, labels=label)
    assert refused(spare, user) == set()
    assert refused(spare, user, twin) == {"u2"}
    other = a_pod("x", asked, started=3.0, **given)
    assert refused(spare, user, other) == {"x"}


def test_what_is_malformed_claims_nothing() -> None:
    """Its readers refuse it; what is too long is refused unread."""
    for annotation in ALLOCATIONS:
        bad = dataclasses.replace(a_pod("p", {}), annotations={annotation: "{"})
        assert refused(bad) == set()
        long = dataclasses.replace(
            a_pod("p", {"cpu": "4"}), annotations={annotation: " " * MAX_ANNOTATION_LENGTH + "{}"}
        )
        assert refused(long) == {"p"}


TEXTS = st.text() | st.sampled_from(
    [
        '{"cpuset":"0-3"}',
        '{"gpu":[{"minor":0}]}',
        '{"rdma":[{"id":"x"}]}',
        '{"rdma":7}',
        "null",
        "[]",
    ]
)


@given(st.dictionaries(st.sampled_from([*ALLOCATIONS, HINT, JOINT]), TEXTS))
def test_any_annotations(annotations: dict[str, str]) -> None:
    pod = Pod("d", "p", "p", annotations=annotations, containers=(Container("main"),))
    claim = pod_allocation(pod)
    assert claim.cpus == frozenset()
    assert claim.devices == {}


CPUS = st.frozensets(st.integers(0, 7), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5000), CPUS), max_size=8), st.randoms())
def test_no_cpu_is_given_twice(found: list[tuple[int, int, frozenset[int]]], random: Any) -> None:
    """Nor more than is requested, and in whatever order the pods are listed."""
    pods = [
        a_pod(f"p{n}", {"cpu": f"{milli}m"}, started=float(start), cpus=format_cpulist(cpus))
        for n, (start, milli, cpus) in enumerate(found)
    ]
    lost = refused(*pods)
    random.shuffle(pods)
    assert refused(*pods) == lost
    granted = [found[int(pod.name[1:])] for pod in pods if pod.name not in lost]
    assert sum(len(cpus) for _, _, cpus in granted) == len(
        frozenset().union(*(cpus for _, _, cpus in granted))
    )
    assert all(len(cpus) * 1000 <= milli for _, milli, cpus in granted)
