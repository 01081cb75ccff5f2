"""Devices that a node gives; the cases are those of spec 09, sections 19.3 to 19.7."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.devices.allocation import (
    AllocateOptions,
    DeviceScorer,
    DevicesUnavailable,
    allocate,
    has_room,
    in_order,
    with_memory,
)
from koord.api.devices.layout import (
    FUNCTION,
    PARTITIONS,
    DeviceTable,
    NodeDevice,
    NodeTraits,
    fits,
    read_devices,
    used_key,
)
from koord.api.devices.requests import (
    ALLOCATE_HINT,
    JOINT_ALLOCATE,
    PARTITION_SPEC,
    PodDevices,
    pod_devices,
)
from tests.support.scheduler.devices import (
    CARD,
    CORE,
    H8_TRAITS,
    MEMORY,
    RATIO,
    RDMA_SHARE,
    d8,
    device_object,
    gpu,
    h8,
    nic,
    percent,
    table,
    whole,
)

GENERAL = {"matchLabels": {"type": "general"}}
WEIGHTS = ((RATIO, 1), (MEMORY, 1), (RDMA_SHARE, 1), ("koordinator.sh/fpga", 1))
MOST, LEAST = DeviceScorer(True, WEIGHTS), DeviceScorer(False, WEIGHTS)


def wants(
    gpus: int = 0,
    rdma: int = 0,
    *,
    joint: bool = False,
    scope: str = "",
    rdma_hint: dict[str, object] | None = None,
    spec: dict[str, object] | None = None,
    share: int = 0,
    gpu_hint: dict[str, object] | None = None,
    **joint_fields: object,
) -> PodDevices:
    """What a pod requests: whole GPUs, or a share of one in percent, and RDMA."""
    hint: dict[str, object] = {"gpu": gpu_hint or {}}
    if scope:
        hint["gpu"] = {"requiredTopologyScope": scope}
    if rdma_hint is not None:
        hint["rdma"] = rdma_hint
    annotations = {ALLOCATE_HINT: json.dumps(hint)}
    if joint:
        annotations[JOINT_ALLOCATE] = json.dumps({"deviceTypes": ["gpu", "rdma"], **joint_fields})
    if spec is not None:
        annotations[PARTITION_SPEC] = json.dumps(spec)
    requests = [("nvidia.com/gpu", gpus), (RDMA_SHARE, rdma), (RATIO, share)]
    found = pod_devices(requests, annotations)
    assert found is not None
    return found


def minors(found, kind="gpu") -> list[int]:
    return [one.minor for one in found.get(kind, ())]


def functions(found) -> dict[int, str]:
    return {one.minor: one.functions[0] for one in found.get("rdma", ()) if one.functions}


def refused(on: DeviceTable, wanted: PodDevices, **options) -> tuple[str, bool]:
    with pytest.raises(DevicesUnavailable) as raised:
        allocate(on, wanted, AllocateOptions(**options))
    return str(raised.value), raised.value.final


# 19.3


@pytest.mark.parametrize(
    ("every", "switches", "scores", "expected"),
    [
        ((0, 1, 2), {}, {}, [0, 1, 2]),
        ((0, 1, 2), {}, {2: 10}, [2, 0, 1]),
        (range(8), {1: "0", 2: "0", 5: "1", 6: "1"}, {}, [1, 5, 2, 6, 0, 3, 4, 7]),
        (range(8), {1: "0", 2: "0", 5: "1", 6: "1"}, {5: 10, 6: 50}, [6, 1, 5, 2, 0, 3, 4, 7]),
        (range(8), {1: "0", 2: "0", 5: "1", 6: "1"}, {5: 10, 6: 10}, [5, 1, 6, 2, 0, 3, 4, 7]),
    ],
)
def test_devices_on_preferred_switches_come_first_one_of_each(every, switches, scores, expected):
    devices = {
        minor: NodeDevice(type="rdma", minor=minor, pcie=switches.get(minor, "x"))
        for minor in every
    }
    assert in_order(every, scores, devices, sorted(set(switches.values()))) == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({}, [5, 6, 0, 1, 2, 7]),
        ({5: 50, 6: 10}, [6, 5, 0, 1, 2, 7]),
    ],
)
def test_preferred_devices_come_first(scores, expected):
    """scores: percent in use, of which LeastAllocated makes the score."""
    used = {("rdma", minor): {RDMA_SHARE: taken} for minor, taken in scores.items()}
    on = table(device_object("n", [nic(minor) for minor in (0, 1, 2, 5, 6, 7)]), used)
    preferred = frozenset({("rdma", 5), ("rdma", 6)})
    every = wants(rdma=6, rdma_hint={"allocateStrategy": "RequestsAsCount"})
    least = DeviceScorer(False, ((RDMA_SHARE, 1),))
    found = allocate(on, every, AllocateOptions(preferred=preferred, scorer=least))
    assert minors(found, "rdma") == expected


# 19.4

RDMA_HINT = {"selector": {"matchLabels": {"type": "fakeW"}}, "vfSelector": GENERAL}
ONE_USED = {**whole(0), ("rdma", 1): {RDMA_SHARE: 1}}


@pytest.mark.parametrize(
    ("gpus", "used", "cards", "nics"),
    [
        (0, {}, [], {1: "0000:1f:00.2"}),
        (1, {}, [0], {1: "0000:1f:00.2"}),
        (2, {}, [0, 1], {1: "0000:1f:00.2"}),
        (3, {}, [0, 1, 2], {1: "0000:1f:00.2", 2: "0000:90:00.2"}),
        (4, {}, [0, 1, 2, 3], {1: "0000:1f:00.2", 2: "0000:90:00.2"}),
        (6, {}, [0, 1, 2, 3, 4, 5], {1: "0000:1f:00.2", 2: "0000:90:00.2", 3: "0000:51:00.2"}),
        (2, ONE_USED, [2, 3], {2: "0000:90:00.2"}),
        (3, ONE_USED, [1, 2, 3], {1: "0000:1f:00.3", 2: "0000:90:00.2"}),
        (
            4,
            {**whole(0, 1, 2, 3), ("rdma", 1): {RDMA_SHARE: 1}},
            [4, 5, 6, 7],
            {3: "0000:51:00.2", 4: "0000:b9:00.2"},
        ),
    ],
)
def test_interfaces_are_given_on_the_switches_of_the_cards(gpus, used, cards, nics):
    """J1 to J9 and J12."""
    taken = {1: ("0000:1f:00.2",)} if ("rdma", 1) in used else {}
    on = table(d8(), used, taken)
    found = allocate(on, wants(gpus, 1, joint=True, rdma_hint=RDMA_HINT))
    assert minors(found) == cards
    assert functions(found) == nics


def test_all_cards_of_a_node_get_all_its_interfaces():
    """J7 and J13: also where secondary devices are well planned, they are looked for in Filter."""
    found = allocate(table(d8()), wants(8, 1, joint=True, rdma_hint=RDMA_HINT))
    assert (minors(found), minors(found, "rdma")) == (list(range(8)), [1, 2, 3, 4])


def test_a_function_is_wanted_and_no_interface_has_any():
    """J10."""
    on = table(device_object("n", [gpu(0), gpu(1), nic(1)]))
    wanted = wants(1, 1, joint=True, rdma_hint={"vfSelector": GENERAL})
    assert refused(on, wanted) == ("Insufficient rdma VirtualFunctions", True)


def test_only_interfaces_with_functions_are_given():
    """J11: of four on one NUMA node only the first has functions."""
    cards = [gpu(minor, numa=0, pcie=str(minor // 2)) for minor in range(8)]
    nics = [
        nic(1, "0000:1f:00.2", numa=0, pcie="0", group={"type": "general"}),
        *(nic(at + 1, numa=0, pcie=str(at)) for at in range(1, 4)),
    ]
    found = allocate(
        table(device_object("n", cards + nics)),
        wants(4, 1, joint=True, rdma_hint={"vfSelector": GENERAL}),
    )
    assert (minors(found), minors(found, "rdma")) == ([0, 1, 2, 3], [1])


def test_a_pod_on_the_host_network_gets_all_interfaces_whole():
    """J14."""
    wanted = wants(4, 1, joint=True, rdma_hint={"allocateStrategy": "ApplyForAll"})
    found = allocate(table(d8()), wanted)
    assert (minors(found), minors(found, "rdma")) == ([0, 1, 2, 3], [1, 2, 3, 4])
    assert functions(found) == {}


def test_interfaces_must_be_on_the_switches_of_the_cards():
    """J15."""
    on = table(d8(), {**whole(0), ("rdma", 1): {RDMA_SHARE: 100}})
    wanted = wants(3, 1, joint=True, rdma_hint=RDMA_HINT, requiredScope="SamePCIe")
    assert refused(on, wanted) == ("node(s) Device Joint-Allocate rules violation", False)


def test_whole_interfaces_are_spread_over_the_switches_of_the_cards():
    """J16."""
    cards = [gpu(minor, numa=0, pcie=str(minor)) for minor in range(4)]
    nics = [nic(minor, numa=0, pcie=str(max(minor - 2, 0))) for minor in range(6)]
    found = allocate(table(device_object("n", cards + nics)), wants(4, 400, joint=True))
    assert minors(found, "rdma") == [0, 3, 4, 5]
    assert found["rdma"][0].amounts == {RDMA_SHARE: 100}


def test_a_pod_may_do_without_interfaces_beyond_its_request():
    found = allocate(table(d8()), wants(4, 1, joint=True, expandToPCIes=False))
    assert minors(found, "rdma") == [1]


# 19.2, RDMA

LABELLED = device_object(
    "n",
    [
        *(nic(at, labels={"type": "fakeW"}) for at in range(1, 5)),
        nic(5, labels={"type": "fakeS"}),
    ],
)


@pytest.mark.parametrize(
    ("amount", "hint", "count", "each"),
    [
        (100, {}, 1, 100),
        (200, {}, 2, 100),
        (
            1,
            {
                "allocateStrategy": "ApplyForAll",
                "selector": {"matchLabels": {"type": "fakeW"}},
            },
            4,
            1,
        ),
        (
            1,
            {
                "allocateStrategy": "ApplyForAll",
                "selector": {"matchLabels": {"type": "fakeS"}},
            },
            1,
            1,
        ),
        (
            1,
            {
                "allocateStrategy": "ApplyForAll",
                "selector": {"matchExpressions": [{"key": "type", "operator": "Exists"}]},
            },
            5,
            1,
        ),
        (4, {"allocateStrategy": "RequestsAsCount"}, 4, 1),
        (4, {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}, 4, 100),
    ],
)
def test_a_request_for_interfaces_by_percent_by_number_or_for_all(amount, hint, count, each):
    found = allocate(table(LABELLED), wants(rdma=amount, rdma_hint=hint))
    assert [one.amounts for one in found["rdma"]] == [{RDMA_SHARE: each}] * count


def test_no_interface_has_the_label():
    hint = {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"type": "none"}}}
    assert refused(table(LABELLED), wants(rdma=1, rdma_hint=hint)) == (
        "Insufficient rdma devices",
        True,
    )


def test_an_exclusive_pod_gets_a_device_or_a_switch_that_nobody_uses():
    on = table(d8(), {("rdma", 1): {RDMA_SHARE: 1}, ("gpu", 0): {RATIO: 10, CORE: 10}})
    assert minors(
        allocate(on, wants(rdma=1, rdma_hint={"exclusivePolicy": "DeviceLevel"})), "rdma"
    ) == [2]
    assert minors(allocate(on, wants(share=10, gpu_hint={"exclusivePolicy": "PCIeLevel"}))) == [2]
    full = table(d8(), {("rdma", minor): {RDMA_SHARE: 1} for minor in range(1, 5)})
    wanted = wants(rdma=1, rdma_hint={"exclusivePolicy": "DeviceLevel"})
    assert refused(full, wanted) == ("Insufficient rdma devices", False)


# 19.5

FAKE_G = {"vfSelector": {"matchLabels": {"type": "fakeG"}}}


@pytest.mark.parametrize(
    ("gpus", "used", "cards", "nics"),
    [
        (1, (), [0], [1]),
        (2, (), [0, 1], [1, 2]),
        (4, (), [0, 1, 2, 3], [1, 2, 3, 4]),
        (8, (), list(range(8)), list(range(1, 9))),
        (2, (2, 3), [0, 1], [1, 2]),
        (2, (4,), [6, 7], [7, 8]),
        (1, (4,), [5], [6]),
        (1, (0, 4), [1], [2]),
        (4, (4,), [0, 1, 2, 3], [1, 2, 3, 4]),
    ],
)
def test_the_partition_that_leaves_the_most_whole_is_given(gpus, used, cards, nics):
    """P1, P2, P4, P6 to P11."""
    on = table(h8(), whole(*used), node=H8_TRAITS)
    found = allocate(on, wants(gpus, 1, joint=True, rdma_hint=FAKE_G))
    assert (minors(found), minors(found, "rdma")) == (cards, nics)


def test_the_next_function_of_an_interface_is_given():
    """P1, P7, P15."""
    on = table(h8(), whole(2, 3), {1: ("0000:09:00.3",), 2: ("0000:7f:00.3",)}, H8_TRAITS)
    found = allocate(on, wants(2, 1, joint=True, rdma_hint=FAKE_G))
    assert functions(found) == {1: "0000:09:00.4", 2: "0000:7f:00.4"}
    general = wants(rdma=1, rdma_hint={"vfSelector": {"matchLabels": {"type": "fakeC"}}})
    assert functions(allocate(on, general)) == {1: "0000:09:02.2"}


@pytest.mark.parametrize(
    ("gpus", "used", "reason", "final"),
    [
        (3, (), "node(s) Unsupported number of GPU requests", True),
        (6, (), "node(s) Unsupported number of GPU requests", True),
        (4, (0, 4), "Insufficient Partitioned GPU Devices", False),
        (8, (3,), "Insufficient Partitioned GPU Devices", False),
    ],
)
def test_no_partition_is_free(gpus, used, reason, final):
    """P3, P5, P12, P13."""
    on = table(h8(), whole(*used), node=H8_TRAITS)
    assert refused(on, wants(gpus)) == (reason, final)


def test_a_preferred_partition_is_none_that_must_be():
    """P14."""
    on = table(h8(), whole(2, 3), node=replace(H8_TRAITS, honor=False))
    found = allocate(on, wants(3, 1, joint=True, rdma_hint=FAKE_G))
    assert (minors(found), minors(found, "rdma")) == ([4, 5, 6], [5, 6, 7])


TABLE = {
    "2": [
        {"minors": [0, 1], "ringBusBandwidth": "400Gi", "allocationScore": 2},
        {"minors": [2, 3], "ringBusBandwidth": "200Gi", "allocationScore": 1},
    ]
}


@pytest.mark.parametrize(
    ("bandwidth", "policy", "used", "expected"),
    [
        ("300Gi", "BestEffort", (), [0, 1]),
        ("500Gi", "BestEffort", (), None),
        ("100Gi", "Restricted", (0, 1), None),
        ("100Gi", "BestEffort", (0, 1), [2, 3]),
        ("100Gi", "Restricted", (), [0, 1]),
    ],
)
def test_partitions_of_the_highest_score_and_with_the_bandwidth(bandwidth, policy, used, expected):
    found = d8()
    found["metadata"]["annotations"] = {PARTITIONS: json.dumps(TABLE)}
    wanted = wants(2, spec={"allocatePolicy": policy, "ringBusBandwidth": bandwidth})
    on = table(found, whole(*used))
    if expected is None:
        assert refused(on, wanted) == ("Insufficient Partitioned GPU Devices", False)
    else:
        assert minors(allocate(on, wanted)) == expected


def test_a_pod_that_wants_partitions_needs_a_table():
    assert refused(table(d8()), wants(2, spec={})) == (
        "node(s) missing GPU Partition Table",
        True,
    )


# 19.6


@pytest.mark.parametrize(
    ("gpus", "used", "scope", "cards"),
    [
        (1, (), "", [0]),
        (2, (), "", [0, 1]),
        (3, (), "", [0, 1, 2]),
        (5, (), "", [0, 1, 2, 3, 4]),
        (1, (5,), "", [4]),
        (2, (5,), "", [6, 7]),
        (2, (5,), "PCIe", [6, 7]),
        (3, (5,), "", [4, 6, 7]),
        (4, (5,), "NUMANode", [0, 1, 2, 3]),
        (3, (0,), "", [1, 2, 3]),
        (1, (0, 4), "", [1]),
        (1, (0, 1, 4), "", [5]),
        (2, (0, 2), "", [4, 5]),
        (2, (0, 2, 4, 6), "", [1, 3]),
        (4, (0, 1, 2), "", [4, 5, 6, 7]),
        (1, (), "Device", [0]),
    ],
)
def test_cards_are_near_to_each_other_and_to_those_in_use(gpus, used, scope, cards):
    assert minors(allocate(table(d8(), whole(*used)), wants(gpus, scope=scope))) == cards


@pytest.mark.parametrize(
    ("gpus", "used", "scope", "reason"),
    [
        (4, (0, 5), "NUMANode", "Insufficient Topology Scoped GPU Devices"),
        (2, (0, 2, 4, 6), "PCIe", "Insufficient Topology Scoped GPU Devices"),
        (9, (), "", "Insufficient GPU Devices"),
    ],
)
def test_no_cards_are_as_near(gpus, used, scope, reason):
    assert refused(table(d8(), whole(*used)), wants(gpus, scope=scope)) == (reason, False)


def test_a_required_scope_needs_the_topology():
    on = table(device_object("n", [gpu(0), gpu(1)]))
    assert refused(on, wants(2, scope="PCIe")) == (
        "node(s) missing GPU Device Topology Tree",
        True,
    )
    assert minors(allocate(on, wants(2))) == [0, 1]


def test_several_shares_are_not_near_to_each_other():
    wanted = pod_devices(
        [("koordinator.sh/gpu.shared", 2), (RATIO, 100)],
        {ALLOCATE_HINT: '{"gpu":{"requiredTopologyScope":"PCIe"}}'},
    )
    assert wanted is not None
    assert refused(table(d8()), wanted) == ("node(s) Unsupported Multi-Shared GPU", True)


# 19.7, with the corrected scores


@pytest.mark.parametrize(
    ("share", "left", "most", "least"),
    [
        (50, {"g5": 0}, 4, 4),
        (50, {"g5": 0, "g7": 50}, 7, 4),
        (25, {"g6": 75, "g7": 50}, 7, 6),
        (25, {"g0": 75, "g4": 50}, 4, 1),
        (50, {"g0": 25, "g4": 50}, 4, 1),
        (60, {"g4": 50}, 5, 5),
    ],
)
def test_shares_are_packed_or_spread_by_the_strategy(share, left, most, least):
    on = table(d8(), percent(**left))
    for scorer, expected in ((MOST, most), (LEAST, least)):
        found = allocate(on, wants(share=share), AllocateOptions(scorer=scorer))
        assert minors(found) == [expected]


NPU = {"koordinator.sh/gpu-memory": str(24 * 2**30), RATIO: "100"}
NPU |= {"huawei.com/npu-core": "8", "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100"}
HUAWEI = NodeTraits(vendor="huawei", model="Ascend-310P")


def npus():
    return device_object(
        "n", [gpu(m, numa=m // 4, pcie=str(m // 2), resources=NPU) for m in range(8)]
    )


def asks_npu(memory: int, core: int, cpu: int, dvpp: int) -> PodDevices:
    found = pod_devices(
        [
            ("koordinator.sh/gpu.shared", 1),
            (MEMORY, memory * 2**30),
            ("huawei.com/npu-core", core),
            ("huawei.com/npu-cpu", cpu),
            ("huawei.com/npu-dvpp", dvpp),
        ],
        {},
    )
    assert found is not None
    return found


def half(minor: int):
    used = {"huawei.com/npu-core": 4, "huawei.com/npu-cpu": 4, "huawei.com/npu-dvpp": 50}
    return {("gpu", minor): {**used, MEMORY: 12 * 2**30, RATIO: 50}}


def test_a_share_of_an_npu_has_the_template_of_its_model():
    options = AllocateOptions(
        scorer=MOST, templates={"huawei-Ascend-310P": "vir01"}, needs_template=True
    )
    on = table(npus(), half(0), node=HUAWEI)
    found = with_memory(allocate(on, asks_npu(3, 1, 1, 12), options), on, "n")
    [one] = found["gpu"]
    assert (one.minor, one.template, one.amounts[RATIO]) == (0, "vir01", 13)
    found = with_memory(allocate(on, asks_npu(12, 4, 4, 100), options), on, "n")
    [one] = found["gpu"]
    assert (one.minor, one.amounts[RATIO]) == (1, 50)
    every = {key: value for minor in range(8) for key, value in half(minor).items()}
    with pytest.raises(DevicesUnavailable, match="Insufficient GPU Devices"):
        allocate(table(npus(), every, node=HUAWEI), asks_npu(12, 4, 4, 100), options)
    with pytest.raises(DevicesUnavailable, match="no matched GPU shared resource template"):
        allocate(table(npus()), asks_npu(3, 1, 1, 12), options)


# 19.9, what a node says, and what does better than Koordinator


def test_a_node_without_such_devices():
    assert refused(table(device_object("n", [nic(1)])), wants(1)) == (
        "Insufficient gpu devices",
        True,
    )


def test_a_card_that_is_used_in_part_is_not_a_whole_one():
    on = table(device_object("n", [gpu(0)]), percent(g0=75))
    assert refused(on, wants(1)) == ("Insufficient gpu devices", False)


def test_the_type_that_lacks_devices_is_named():
    wanted = pod_devices([("nvidia.com/gpu", 1), ("koordinator.sh/fpga", 100)], {})
    assert wanted is not None
    resources = {"koordinator.sh/fpga": "100"}
    fpga = {"type": "fpga", "minor": 0, "health": True, "resources": resources}
    both = device_object("n", [gpu(0), fpga])
    assert minors(allocate(table(both), wanted), "fpga") == [0]
    assert refused(table(both, percent(g0=25)), wanted) == ("Insufficient gpu devices", False)
    half = {("fpga", 0): {"koordinator.sh/fpga": 50}}
    assert refused(table(both, half), wanted) == ("Insufficient fpga devices", False)


def test_memory_of_several_cards():
    on = table(device_object("n", [gpu(minor) for minor in range(9)]))
    wanted = pod_devices([("koordinator.sh/gpu.shared", 4), (MEMORY, 160 * 10**9)], {})
    assert wanted is not None
    assert minors(allocate(on, wanted)) == [0, 1, 2, 3]


def test_a_resource_that_the_card_does_not_have_is_missing():
    """21.2: upstream compares only what both sides name."""
    wanted = pod_devices([("huawei.com/npu-core", 1), (RATIO, 50)], {})
    assert wanted is not None
    assert refused(table(device_object("n", [gpu(0)])), wanted) == (
        "Insufficient gpu devices",
        False,
    )


def test_the_whole_memory_of_a_card_is_no_share():
    """21.13: a request by memory alone may be for a whole card, and gets a partition then."""
    wanted = pod_devices([(MEMORY, CARD)], {})
    assert wanted is not None
    on = table(h8(), {**whole(4), **percent(g5=50)}, node=H8_TRAITS)
    assert minors(allocate(on, wanted)) == [6]


def test_memory_in_percent_is_rounded_up_but_never_beyond_the_card():
    """21.14: eight times 3 of 24 GiB are the whole card."""
    resources = {CORE: "100", RATIO: "100", MEMORY: str(24 * 2**30)}
    found = device_object("n", [gpu(0, resources=resources)])
    wanted = pod_devices([(MEMORY, 3 * 2**30)], {})
    assert wanted is not None
    used = {RATIO: 0, MEMORY: 0}
    given = []
    for _ in range(8):
        on = table(found, {("gpu", 0): used})
        [one] = with_memory(allocate(on, wanted), on, "n")["gpu"]
        given.append(one.amounts[RATIO])
        used = {name: used[name] + one.amounts[name] for name in used}
    assert given == [13] * 7 + [9]
    assert (
        refused(table(found, {("gpu", 0): used}), wants(share=1))[0] == "Insufficient gpu devices"
    )


@pytest.mark.parametrize(
    ("total", "ratio", "memory"), [(32 * 2**30, 50, 16 * 2**30), (CARD, 50, 42599022592)]
)
def test_the_memory_of_a_share_follows_from_its_percentage(total, ratio, memory):
    resources = {CORE: "100", RATIO: "100", MEMORY: str(total)}
    on = table(device_object("n", [gpu(0, resources=resources)]))
    [one] = with_memory(allocate(on, wants(share=ratio)), on, "n")["gpu"]
    assert one.amounts == {RATIO: ratio, MEMORY: memory}


def test_a_card_that_has_gone_is_not_filled():
    on = table(device_object("n", [gpu(0)]))
    given = allocate(on, wants(1))
    gone = table(device_object("n", [gpu(0, health=False)]))
    with pytest.raises(DevicesUnavailable, match="no healthy gpu device with minor 0"):
        with_memory(given, gone, "n")


def test_functions_are_in_the_order_of_their_numbers():
    """21.21: the tenth is not before the second."""
    one = nic(1, "0000:1f:00.2", count=10)
    one["vfGroups"][0]["vfs"].reverse()
    on = table(device_object("n", [one]), functions={1: ("0000:1f:00.2",)})
    assert functions(allocate(on, wants(rdma=1, rdma_hint={"vfSelector": {}}))) == {
        1: "0000:1f:00.3"
    }


def test_devices_near_a_numa_node():
    """19.15: those near to all may come from any; those of unknown topology from none."""
    cards = [gpu(0, numa=0, pcie="0"), gpu(1, numa=7, pcie="1"), gpu(2, numa=-1, pcie="2"), gpu(3)]
    on = table(device_object("n", cards))
    near = AllocateOptions(numa_nodes=frozenset({7}))
    assert minors(allocate(on, wants(2), near)) == [1, 2]
    assert refused(on, wants(3), numa_nodes=frozenset({7}))[0] == "Insufficient gpu devices"


# Objects that lie


def test_devices_that_cannot_be_as_described_are_not_healthy():
    minus = gpu(1, resources={CORE: "-100", RATIO: "100", MEMORY: "1Gi"})
    found = read_devices(device_object("n", [gpu(0), minus, gpu(2), gpu(2), gpu(3, numa=-9)]))
    on = table(found)
    assert len(found.faults) == 2
    assert {minor: bool(free) for minor, free in on.free("gpu").items()} == {
        0: True,
        1: False,
        2: False,
        3: True,
    }
    assert minors(allocate(on, wants(2))) == [0, 3]


def test_a_partition_table_that_cannot_be_read_is_none():
    found = d8()
    found["metadata"]["annotations"] = {PARTITIONS: '{"two":[]}'}
    devices = read_devices(found)
    assert (devices.layout.partitions, len(devices.faults)) == (None, 1)


def test_what_is_used_of_devices_that_are_gone_or_shrunk_stays_used():
    found = device_object("n", [gpu(0), gpu(1, health=False)])
    on = table(found, {**whole(0, 1, 5), ("gpu", 0): {RATIO: 400, CORE: 400}})
    assert on.free("gpu")[0] == {CORE: 0, RATIO: 0, MEMORY: CARD}
    assert on.free("gpu")[1] == {}
    assert on.used_gpus == {0, 1, 5}


# Properties

REQUESTS = st.one_of(
    st.builds(lambda n: wants(n), st.integers(1, 8)),
    st.builds(lambda n: wants(share=n), st.integers(1, 99)),
    st.builds(lambda n: wants(rdma=n, rdma_hint={"vfSelector": {}}), st.integers(1, 100)),
    st.builds(
        lambda n: wants(n, 1, joint=True, rdma_hint=RDMA_HINT, requiredScope="SamePCIe"),
        st.integers(1, 4),
    ),
)


@given(st.lists(REQUESTS, max_size=40), st.sampled_from([None, MOST, LEAST]), st.booleans())
def test_nothing_is_given_twice_and_no_card_beyond_what_it_has(requests, scorer, partitioned):
    """Pods come one after the other until nothing is left; each card, and function, is one's."""
    devices = read_devices(d8())
    node = H8_TRAITS if partitioned else NodeTraits()
    used: dict[str, int] = {}
    for wanted in requests:
        on = DeviceTable(devices.layout, node, used.items())
        try:
            plain = allocate(on, wanted)
        except DevicesUnavailable:
            with pytest.raises(DevicesUnavailable):  # scores never decide whether there are any
                allocate(on, wanted, AllocateOptions(scorer=scorer))
            continue
        found = allocate(on, wanted, AllocateOptions(scorer=scorer))
        assert set(found) == set(plain)
        for kind, each in with_memory(found, on, "n").items():
            assert len({one.minor for one in each}) == len(each)
            for one in each:
                assert fits(one.amounts, on.free(kind)[one.minor])
                for name, amount in one.amounts.items():
                    key = used_key(kind, one.minor, name)
                    used[key] = used.get(key, 0) + amount
                for function in one.functions:
                    key = used_key(kind, one.minor, f"{FUNCTION}{function}")
                    assert key not in used
                    used[key] = 1
        if wanted.same_pcie:
            switches = [
                {devices.layout.by_type[kind][one.minor].pcie for one in found[kind]}
                for kind in ("gpu", "rdma")
            ]
            assert switches[0] == switches[1]


@given(REQUESTS, st.lists(st.integers(0, 100), min_size=8, max_size=8), st.booleans())
def test_what_certainly_fits_does(wanted, left, partitioned):
    """The quick look says yes only where the devices can be given."""
    names = {f"g{minor}": one for minor, one in enumerate(left)}
    on = table(d8(), percent(**names), node=H8_TRAITS if partitioned else NodeTraits())
    if has_room(on, wanted):
        assert allocate(on, wanted)
