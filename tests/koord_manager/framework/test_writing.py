"""When a node is written: the worked cases S1 to S5."""

import pytest

from koord.api.quantity import Quantity
from koord.api.slocontroller import ColocationStrategy
from koord.cluster import kinds
from koord.controlplane.testing import read
from koord_manager.framework.calculator import NodeResult, OfferedResource
from koord_manager.framework.facts import read_topology
from koord_manager.framework.writing import node_patch, zone_operations
from tests.support.manager import node, quantities, topology

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
NOW = 10_000.0
STRATEGY = ColocationStrategy()


def stored(**extended):
    present = {name.replace("_", "-"): text for name, text in extended.items()}
    amounts = {f"kubernetes.io/{name}": text for name, text in present.items()}
    return read(kinds.NODE, node(quantities(cpu=100, memory="120G") | amounts))


def result(cpu, memory, annotations=None, labels=None):
    return NodeResult(
        resources={
            name: OfferedResource(plugin="p", amount=amount, calculated=amount)
            for name, amount in ((CPU, cpu), (MEMORY, memory))
        },
        annotations=annotations or {},
        labels=labels or {},
        zones={},
    )


def patch(found, wanted, *, written=NOW - 60):
    return node_patch(found, wanted, STRATEGY, written=written, now=NOW)


HAS = {"batch_cpu": "20k", "batch_memory": "40G"}


@pytest.mark.parametrize("written", [None, NOW - 60, NOW - 600], ids=["never", "S1", "S2"])
def test_equal_values_are_not_written(written):
    assert patch(stored(**HAS), result(20000, 40 * 10**9), written=written) is None


@pytest.mark.parametrize(
    ("cpu", "memory_g"), [(15000, 40), (20000, 70)], ids=["S3 cpu", "S3 memory"]
)
def test_s3_what_differs_much_is_written_at_once(cpu, memory_g):
    found = patch(stored(**HAS), result(cpu, memory_g * 10**9))

    amounts = {CPU: f"{cpu // 1000}k", MEMORY: str(Quantity.of_bytes(memory_g * 10**9))}
    assert found.body["status"] == {"capacity": amounts, "allocatable": amounts}
    assert found.body["metadata"] == {"uid": "uid-n1"}


def test_s4_what_differs_a_little_waits_for_its_time():
    wanted = result(18000, 40 * 10**9)

    assert patch(stored(**HAS), wanted) is None
    assert patch(stored(**HAS), wanted, written=NOW - 301).reason == "values are due"
    assert patch(stored(**HAS), wanted, written=None).reason == "not written yet"


def test_keys_that_go_are_removed_and_only_where_they_are():
    found = patch(stored(batch_cpu="20k"), result(None, None))

    assert found.body["status"]["allocatable"] == {CPU: None}
    assert "20k to none" in found.reason


def test_zero_is_not_none():
    assert patch(stored(**HAS), result(0, 0)).body["status"]["allocatable"] == {
        CPU: "0",
        MEMORY: "0",
    }


def test_annotations_and_labels_are_written_when_they_differ():
    wanted = result(20000, 40 * 10**9, {"a": "1", "gone": None}, {"l": "x"})

    found = patch(stored(**HAS), wanted)

    assert found.body == {
        "metadata": {"uid": "uid-n1", "annotations": {"a": "1"}, "labels": {"l": "x"}}
    }


def zones(*resources):
    item = topology((50, "62G"))
    item["zones"][0]["resources"] += [
        {"name": name, "capacity": text, "allocatable": text, "available": text}
        for name, text in resources
    ]
    return read_topology(item)


def operations(found, **wanted):
    amounts = {f"kubernetes.io/{name.replace('_', '-')}": one for name, one in wanted.items()}
    return zone_operations(found, {"node-0": amounts}, STRATEGY)


def test_zones_get_what_they_lack_in_the_order_of_names():
    found = operations(zones(), batch_cpu=Quantity.of_milli(10_000_000))

    entry = {"name": CPU, "capacity": "10k", "allocatable": "10k", "available": "10k"}
    assert found[:2] == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-t"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
    ]
    assert found[2:] == [{"op": "add", "path": "/zones/0/resources/1", "value": entry}]


def test_zones_are_patched_only_beyond_the_threshold():
    has = zones((CPU, "10k"))

    assert operations(has, batch_cpu=Quantity.of_milli(10_900_000)) == []
    changed = operations(has, batch_cpu=Quantity.of_milli(12_000_000))
    assert [one["path"] for one in changed[2:]] == [
        f"/zones/0/resources/2/{key}" for key in ("capacity", "allocatable", "available")
    ]
    assert operations(has, batch_cpu=None)[2:] == [{"op": "remove", "path": "/zones/0/resources/2"}]
