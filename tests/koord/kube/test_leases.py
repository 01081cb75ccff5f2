"""Leases as they are read and written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube.leases import (
    LeaseHolding,
    held_lease,
    new_lease,
    read_holding,
    released_lease,
)

NOW = 1_700_000_000.25
MOMENT = "2023-11-14T22:13:20.250000Z"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = ("holderIdentity", "leaseDurationSeconds", "renewTime", "leaseTransitions", "x")
SPECS = st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON


@pytest.mark.parametrize(
    ("seconds", "longest", "duration"),
    [
        (40, 120.0, 40),
        (121, 120.0, 15.0),
        (121, 3600.0, 121),
        (0, 120.0, 15.0),
        ("40", 120.0, 15.0),
    ],
)
def test_a_duration_that_is_malformed_counts_as_absent(
    seconds: object, longest: float, duration: float
) -> None:
    """Kubernetes' default takes its place; the reader says what is too long."""
    item = {"spec": {"holderIdentity": "a", "leaseDurationSeconds": seconds}}

    assert read_holding(item, longest=longest) == LeaseHolding("a", "", duration)


def test_a_renewal_keeps_the_acquire_time_and_a_takeover_counts() -> None:
    """Durations are written in whole seconds, rounded up: nobody may take it too early."""
    first = new_lease("ns", "lease", "a", 14.2, NOW)
    assert first["metadata"] == {"name": "lease", "namespace": "ns"}
    assert first["spec"] == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": MOMENT,
        "renewTime": MOMENT,
        "leaseTransitions": 0,
    }
    renewed = held_lease(first, "a", 14.2, NOW + 2)
    assert renewed["spec"] == first["spec"] | {"renewTime": "2023-11-14T22:13:22.250000Z"}
    free = released_lease(renewed, NOW)
    assert read_holding(free) is None
    taken = held_lease(free, "b", 15, NOW)
    assert (taken["spec"]["leaseTransitions"], taken["spec"]["acquireTime"]) == (1, MOMENT)
    assert held_lease(taken, "a", 15, NOW)["spec"]["leaseTransitions"] == 2


@given(SPECS)
def test_whatever_a_lease_holds_can_be_read_taken_and_released(spec: Any) -> None:
    """The object that was given stays as it was, and what was not ours stays in the new one."""
    item = {"metadata": {"resourceVersion": "5"}, "spec": spec}
    before = repr(item)
    read_holding(item)
    held = held_lease(item, "me", 15.0, NOW)

    assert read_holding(held) == LeaseHolding("me", MOMENT, 15)
    assert 0 <= held["spec"].get("leaseTransitions", 0) < 2**31 or spec["holderIdentity"] == "me"
    assert held["metadata"] == item["metadata"]
    if isinstance(spec, dict) and "x" in spec:
        assert held["spec"]["x"] == spec["x"]
    assert read_holding(released_lease(held, NOW)) is None
    assert repr(item) == before
