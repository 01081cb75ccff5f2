"""NodeResourceTopology objects, right ones and absurd ones."""

import json
from typing import Any

import pytest

from koord.api.machine import format_cpulist
from koord.plugin import InvalidObject
from koord_scheduler.plugin.koordinator import NUMATopologyPolicy
from koord_scheduler_plugins.node_numa_resource.topology import (
    MachineReport,
    amplified,
    amplify,
    node_rules,
    parse_ratios,
    read_machine,
)
from tests.support.scheduler.numa import topology_object

PREFIX = "node.koordinator.sh"
KUBELET = "kubelet.koordinator.sh/cpu-manager-policy"
ALLOCS = f"{PREFIX}/pod-cpu-allocs"
SYSTEM = f"{PREFIX}/system-qos-resource"
RESERVATION = f"{PREFIX}/reservation"
MANAGED = [{"namespace": "d", "name": "p", "uid": "u", "cpuset": "0-3", "managedByKubelet": True}]


def machine(**facts: Any) -> MachineReport:
    return read_machine(topology_object("n1", **facts))


@pytest.mark.parametrize(
    ("annotations", "reserved", "zones"),
    [
        pytest.param(
            {
                ALLOCS: MANAGED,
                KUBELET: {"reservedCPUs": "0-1"},
                SYSTEM: {"cpuset": "4-5"},
                RESERVATION: {"reservedCPUs": "6-7"},
            },
            "0-7",
            (0, 8000),
            id="T1",
        ),
        pytest.param(
            {
                ALLOCS: None,
                KUBELET: {"reservedCPUs": "0-1"},
                SYSTEM: {"cpuset": "4-5"},
                RESERVATION: {"reservedCPUs": "6-7"},
            },
            "0-1,4-7",
            (2000, 8000),
            id="T2",
        ),
        pytest.param(
            {SYSTEM: {"cpuset": "8-9", "cpusetExclusive": False}}, "", (8000, 8000), id="T3"
        ),
        pytest.param(
            {ALLOCS: [{**MANAGED[0], "managedByKubelet": False}]}, "", (8000, 8000), id="T4"
        ),
        pytest.param({RESERVATION: {"resources": {"cpu": "2"}}}, "", (8000, 8000), id="T5"),
    ],
)
def test_reserved_cpus_are_no_pods(
    annotations: dict[str, object], reserved: str, zones: tuple[int, int]
) -> None:
    found = machine(annotations=annotations)
    assert format_cpulist(found.reserved) == reserved
    assert tuple(found.zones[node]["cpu"] for node in (0, 1)) == zones


@pytest.mark.parametrize("change", [{"name": "numa0"}, {"type": "Socket"}, {"name": "node-x"}])
def test_zones_that_are_no_numa_nodes_are_left_out(change: dict[str, str]) -> None:
    found = topology_object("n1")
    found["zones"][0].update(change)
    assert list(read_machine(found).zones) == [1]  # T6


@pytest.mark.parametrize(
    ("policies", "wanted"),
    [
        (["BestEffort"], "BestEffort"),
        (["Restricted"], "Restricted"),
        (["SingleNUMANodePodLevel"], "SingleNUMANode"),
        (["SingleNUMANodeContainerLevel", "Restricted"], None),
        (["Own", "Restricted"], "Restricted"),
        (["RestrictedPodLevel"], "Restricted"),
        (["BestEffortPodLevel"], "BestEffort"),
        ([], None),
        ("Restricted", None),
        ([7], None),
    ],
)
def test_the_kubelets_policy(policies: object, wanted: str | None) -> None:
    found = topology_object("n1")
    found["topologyPolicies"] = policies
    assert read_machine(found).policy == wanted


def test_without_a_topology_there_are_no_cpus() -> None:
    found = read_machine({"metadata": {"name": "n1"}})
    assert not found.layout.valid
    assert found.zones == {}


def test_machines_of_a_kind_share_their_cpus() -> None:
    assert machine().layout is read_machine(topology_object("n2")).layout


@pytest.mark.parametrize(
    ("amount", "ratio", "wanted"),
    [(4000, 1.5, 6000), (1000, 1.1, 1100), (3000, 1.1, 3301), (7000, 1.15, 8050), (5, 0.5, 5)],
)
def test_amounts_are_amplified_as_in_go(amount: int, ratio: float, wanted: int) -> None:
    assert amplify(amount, ratio) == wanted


def test_zones_are_amplified_once() -> None:
    ratio = {f"{PREFIX}/resource-amplification-ratio": {"cpu": 1.5}}
    reported = machine(cpu="12", annotations={**ratio, KUBELET: {"reservedCPUs": "0-1"}})
    assert reported.ratios == {"cpu": 1.5}
    assert [reported.zones[node]["cpu"] for node in (0, 1)] == [9000, 12000]
    assert amplified(machine().zones, {"cpu": 1.5})[0]["cpu"] == 12000


@pytest.mark.parametrize("text", ["x", '{"cpu":"x"}', '{"cpu":-1}', '{"cpu":1e9}', "[]"])
def test_a_ratio_that_is_none(text: str) -> None:
    with pytest.raises(InvalidObject):
        parse_ratios(text)
    rules = node_rules({}, {f"{PREFIX}/resource-amplification-ratio": text}, MachineReport())
    assert rules.ratios is None


def test_what_a_node_asks_of_pods() -> None:
    static = machine(
        annotations={KUBELET: {"policy": "static", "options": {"full-pcpus-only": "true"}}}
    )
    spread = {f"{PREFIX}/cpu-bind-policy": "SpreadByPCPUs"}
    assert node_rules(spread, {}, static).bind == "FullPCPUs"
    assert node_rules(spread, {}, machine()).bind == "SpreadByPCPUs"
    assert node_rules({f"{PREFIX}/cpu-bind-policy": "None"}, {}, machine()).bind is None
    labels = {f"{PREFIX}/numa-topology-policy": "Restricted"}
    assert node_rules(labels, {}, machine(policy="BestEffort")).policy == "Restricted"
    assert node_rules({}, {}, machine(policy="BestEffort")).policy == "BestEffort"
    labels = {f"{PREFIX}/numa-allocate-strategy": "DistributeEvenly"}
    assert node_rules(labels, {}, machine()).most is False
    assert NUMATopologyPolicy("Restricted") is NUMATopologyPolicy.RESTRICTED


def absurd(**cpu: object) -> str:
    return json.dumps({"detail": [{"id": 0, "core": 0, "socket": 0, "node": 0} | cpu]})


@pytest.mark.parametrize(
    "annotations",
    [
        {f"{PREFIX}/cpu-topology": absurd(id=4097)},
        {f"{PREFIX}/cpu-topology": absurd(id=-1)},
        {f"{PREFIX}/cpu-topology": absurd(node=64)},
        {f"{PREFIX}/cpu-topology": absurd(core=65536)},
        {f"{PREFIX}/cpu-topology": absurd(socket=10**30)},
        {f"{PREFIX}/cpu-topology": '{"detail":[{"id":1},{"id":1}]}'},
        {f"{PREFIX}/cpu-topology": "["},
        {f"{PREFIX}/cpu-topology": "[" * 100_000},
        {ALLOCS: "x"},
        {ALLOCS: "[" * 100_000},
        {KUBELET: '{"reservedCPUs":"0-99999999"}'},
        {RESERVATION: '{"reservedCPUs":"a-b"}'},
        {SYSTEM: '{"cpuset":"1-2-3"}'},
    ],
)
def test_absurd_objects_are_refused_whole(annotations: dict[str, str]) -> None:
    found = topology_object("n1")
    found["metadata"]["annotations"].update(annotations)
    with pytest.raises(InvalidObject):
        read_machine(found)


@pytest.mark.parametrize("name", ["node-64", "node-99999999999999999999999"])
def test_numa_nodes_beyond_64_are_refused(name: str) -> None:
    found = topology_object("n1")
    found["zones"][1]["name"] = name
    with pytest.raises(InvalidObject):
        read_machine(found)


def test_negative_amounts_are_none_and_gaps_are_kept() -> None:
    found = topology_object("n1", cpu="-5")
    found["zones"][1]["name"] = "node-7"
    read = read_machine(found)
    assert list(read.zones) == [0, 7]
    assert read.zones[0]["cpu"] == 0
