"""Licenses, tested with the kit: no daemon, no cluster, no waiting."""

import pytest
from koord_licenses.licenses import LICENSES, POOL, Licenses

from koord_manager.plugin.testing import FakeCluster, PluginHarness

POOLS = {"pools": {"large": 20}}


@pytest.fixture
def cluster() -> FakeCluster:
    """A node of the large pool, and one of none."""
    cluster = FakeCluster()
    cluster.node("pooled", labels={POOL: "large"})
    cluster.node("bare")
    return cluster


def test_a_node_offers_what_its_pool_has(cluster: FakeCluster) -> None:
    """And one of no pool nothing."""
    harness = PluginHarness(Licenses, cluster, args=POOLS)
    assert harness.offered("pooled") == {LICENSES: 20}
    assert harness.offered("bare") == {LICENSES: None}
    assert harness.calculate("bare").resources[LICENSES].reason.startswith("neither")
    assert harness.errors == []


def test_the_annotation_wins(cluster: FakeCluster) -> None:
    """Also when it says 0; explain names where the amount is from."""
    cluster.node("pooled", labels={POOL: "large"}, annotations={LICENSES: "0"})
    harness = PluginHarness(Licenses, cluster, args=POOLS)
    found = harness.calculate("pooled")
    assert found.resources[LICENSES].amount == 0
    assert [one.name for one in found.resources[LICENSES].terms] == ["annotation"]


@pytest.mark.parametrize("text", ["-1", "many", "1.5", ""])
def test_an_annotation_that_is_no_number_is_named_and_the_pool_counts(
    cluster: FakeCluster, text: str
) -> None:
    """A typing error takes nothing away."""
    cluster.node("pooled", labels={POOL: "large"}, annotations={LICENSES: text})
    harness = PluginHarness(Licenses, cluster, args=POOLS)
    found = harness.calculate("pooled")
    assert found.resources[LICENSES].amount == 20
    assert found.problems == (
        f"Licenses: annotation {LICENSES}: wanted a whole number, found {text!r}",
    )


def test_the_node_gets_it_by_one_patch_and_keeps_it(cluster: FakeCluster) -> None:
    """Capacity and allocatable together; nothing is written when the node has it."""
    harness = PluginHarness(Licenses, cluster, args=POOLS)
    patch = harness.patch("pooled")
    assert patch is not None
    assert patch["status"] == {"capacity": {LICENSES: "20"}, "allocatable": {LICENSES: "20"}}
    cluster.node("pooled", labels={POOL: "large"}, allocatable={LICENSES: 20})
    assert harness.patch("pooled") is None


def test_bad_args(cluster: FakeCluster) -> None:
    """The file is rejected, by name."""
    with pytest.raises(ValueError, match="wanted 0 licenses or more"):
        PluginHarness(Licenses, cluster, args={"pools": {"large": -1}})
