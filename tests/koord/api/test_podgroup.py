"""Gangs as pods and PodGroups declare them (worked examples 2 to 7 and 11 of the specification)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.podgroup import (
    GROUP_LABEL,
    GROUPS,
    LIGHTWEIGHT_MIN_LABEL,
    LIGHTWEIGHT_NAME_LABEL,
    MATCH_POLICY,
    MIN_AVAILABLE,
    MODE,
    NAME,
    POLICY_ALIAS,
    TOTAL_NUMBER,
    WAITING_TIME,
    GangSpec,
    MatchPolicy,
    Mode,
    gang_of,
    read_pod_group,
    spec_of_pod,
)
from koord.util.errors import InvalidObject


def own(minimum: int, **more: Any) -> GangSpec:
    values = {"total": minimum, "group": ("ns/g",)} | more
    return GangSpec(gang="ns/g", min_members=minimum, **values)


@pytest.mark.parametrize(
    ("labels", "annotations", "wanted"),
    [
        (
            {},
            {MIN_AVAILABLE: "2", TOTAL_NUMBER: "2", MODE: "NonStrict", WAITING_TIME: "30s"},
            own(2, wait=30.0, mode=Mode.NON_STRICT),
        ),
        ({}, {MIN_AVAILABLE: "xxx"}, None),
        (
            {},
            {
                MIN_AVAILABLE: "2",
                TOTAL_NUMBER: "1",
                MODE: "illegal",
                WAITING_TIME: "illegal",
                GROUPS: "ganga,gangx",
            },
            own(2),
        ),
        ({}, {MIN_AVAILABLE: "0", WAITING_TIME: "0", GROUPS: "[a,b]"}, own(0)),
        ({}, {MIN_AVAILABLE: "0", WAITING_TIME: "-20s"}, own(0)),
        ({LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "2"}, {MIN_AVAILABLE: "5"}, own(2)),
        ({}, {MIN_AVAILABLE: "2", GROUPS: "[]"}, own(2)),
        (
            {},
            {MIN_AVAILABLE: "2", GROUPS: json.dumps(["n/b", "n/a"])},
            own(2, group=("n/a", "n/b")),
        ),
        ({}, {MIN_AVAILABLE: "2", GROUPS: "[" * 9_000}, own(2)),
        ({}, {MIN_AVAILABLE: "-1"}, None),
        ({}, {MIN_AVAILABLE: "99999999999"}, None),
        (
            {},
            {MIN_AVAILABLE: "1", MATCH_POLICY: "only-waiting"},
            own(1, policy=MatchPolicy("only-waiting")),
        ),
        (
            {},
            {MIN_AVAILABLE: "1", POLICY_ALIAS: "waiting-and-running"},
            own(1, policy=MatchPolicy.WAITING_AND_RUNNING),
        ),
        ({}, {MIN_AVAILABLE: "1", MATCH_POLICY: "all"}, own(1)),
    ],
)
def test_a_pod_says_what_its_gang_is(labels, annotations, wanted):
    assert spec_of_pod("ns/g", labels, annotations) == wanted


@pytest.mark.parametrize(
    ("labels", "annotations", "wanted"),
    [
        ({}, {}, ""),
        ({GROUP_LABEL: "a", LIGHTWEIGHT_NAME_LABEL: "b"}, {NAME: "c"}, "ns/a"),
        ({LIGHTWEIGHT_NAME_LABEL: "b"}, {NAME: "c"}, "ns/b"),
        ({GROUP_LABEL: ""}, {NAME: "c"}, "ns/c"),
    ],
)
def test_the_first_of_three_ways_to_name_a_gang_counts(labels, annotations, wanted):
    assert gang_of(labels, annotations, "ns") == wanted


def pod_group(minimum: Any, seconds: Any = None, **annotations: str) -> dict[str, Any]:
    spec = {"minMember": minimum} | ({} if seconds is None else {"scheduleTimeoutSeconds": seconds})
    meta = {"namespace": "ns", "name": "g", "annotations": annotations}
    return {"metadata": meta, "spec": spec}


def test_a_pod_group_with_a_group_of_gangs():
    found = read_pod_group(
        pod_group(2, 300, **{MODE: "NonStrict", GROUPS: '["default/gangB","default/gangA"]'})
    )
    assert found.spec == own(
        2,
        wait=300.0,
        mode=Mode.NON_STRICT,
        group=("default/gangA", "default/gangB"),
        from_pod_group=True,
    )
    assert found.spec.group_id == "default/gangA,default/gangB"


def test_illegal_annotations_of_a_pod_group_are_ignored_and_named():
    found = read_pod_group(pod_group(4, **{MODE: "illegal", GROUPS: "a,b", TOTAL_NUMBER: "2"}))
    assert found.spec == own(4, from_pod_group=True)
    assert "wanted a JSON list of at most 64 texts" in found.problem


@pytest.mark.parametrize("minimum", [-1, 2**31, 2**63 - 1])
def test_an_absurd_minimum_makes_no_gang(minimum):
    with pytest.raises(InvalidObject, match=rf"minMember: wanted 0 to 2147483647, found {minimum}"):
        read_pod_group(pod_group(minimum))


@pytest.mark.parametrize("minimum", ["3", 1.5, [], 2**70])
def test_a_pod_group_of_another_shape_is_refused(minimum):
    with pytest.raises(InvalidObject, match="minMember"):
        read_pod_group(pod_group(minimum))


@given(
    st.dictionaries(
        st.sampled_from([MIN_AVAILABLE, TOTAL_NUMBER, MODE, WAITING_TIME, GROUPS]), st.text()
    )
)
def test_no_annotation_of_a_pod_raises(annotations):
    found = spec_of_pod("ns/g", {}, annotations)
    assert found is None or found.min_members <= found.total
