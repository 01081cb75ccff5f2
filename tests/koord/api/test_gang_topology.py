"""The topology spec of a gang, as an annotation has it."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.podgroup import (
    MAX_RULES,
    MAX_SPEC_BYTES,
    MIN_AVAILABLE,
    NETWORK_TOPOLOGY_SPEC,
    GangTopology,
    GatherRule,
    GatherStrategy,
    read_gang_topology,
    read_pod_group,
    spec_of_pod,
)
from koord.util.errors import InvalidObject


def text(*rules: Any) -> str:
    return json.dumps({"gatherStrategy": list(rules)})


SPEC = text(
    {"layer": "SpineLayer", "strategy": "PreferGather"},
    {"layer": "BlockLayer", "strategy": "MustGather", "podCountMultiple": 4},
)


def test_a_spec_says_what_must_be_together_and_in_which_multiples():
    found = read_gang_topology(SPEC)
    assert found.rules == (
        GatherRule("SpineLayer"),
        GatherRule("BlockLayer", GatherStrategy.MUST, 4),
    )
    assert found.must_gather == {"BlockLayer"}
    assert found.multiples == {"BlockLayer": 4}


@pytest.mark.parametrize("multiple", [0, 1])
def test_multiples_of_0_and_1_are_ignored(multiple):
    """Worked example 53."""
    found = read_gang_topology(text({"layer": "BlockLayer", "podCountMultiple": multiple}))
    assert found.multiples == {}


@pytest.mark.parametrize(
    "found",
    [
        "",
        "[]",
        "[" * 4_000,
        '{"gatherStrategy": 7}',
        text("BlockLayer"),
        text({"strategy": "MustGather"}),
        text({"layer": "x" * 300}),
        text({"layer": "BlockLayer", "strategy": "mustgather"}),
        text({"layer": "BlockLayer", "podCountMultiple": -1}),
        text({"layer": "BlockLayer", "podCountMultiple": 2**40}),
        text({"layer": "BlockLayer", "podCountMultiple": "4"}),
        text(*[{"layer": "L"}] * (MAX_RULES + 1)),
        json.dumps({"gatherStrategy": [], "filler": "x" * MAX_SPEC_BYTES}),
    ],
)
def test_absurd_specs_are_refused(found):
    with pytest.raises(InvalidObject):
        read_gang_topology(found)


@given(st.text() | st.recursive(st.integers() | st.text(), st.lists).map(lambda one: text(one)))
def test_whatever_an_annotation_has_is_read_or_refused(found):
    with suppress(InvalidObject):
        assert len(read_gang_topology(found).rules) <= MAX_RULES


def test_gangs_of_pods_and_of_pod_groups_have_it():
    annotations = {MIN_AVAILABLE: "2", NETWORK_TOPOLOGY_SPEC: SPEC}
    spec = spec_of_pod("ns/g", {}, annotations)
    assert spec is not None
    assert spec.topology == read_gang_topology(SPEC)
    assert spec_of_pod("ns/g", {}, {MIN_AVAILABLE: "2"}).topology is None  # type: ignore[union-attr]
    found = read_pod_group(
        {
            "metadata": {"namespace": "ns", "name": "g", "annotations": annotations},
            "spec": {"minMember": 2},
        }
    )
    assert found.spec is not None
    assert found.spec.topology == spec.topology
    assert not found.problem


def test_a_pod_group_with_an_absurd_spec_says_so():
    meta = {"namespace": "ns", "name": "g", "annotations": {NETWORK_TOPOLOGY_SPEC: "{"}}
    found = read_pod_group({"metadata": meta, "spec": {"minMember": 2}})
    assert found.spec is not None
    assert found.spec.topology is None
    assert "network-topology-spec: wanted JSON" in found.problem


def test_a_spec_without_rules_is_one():
    assert read_gang_topology("{}") == GangTopology()
