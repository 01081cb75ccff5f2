"""Workloads as Kubernetes' API server has them."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.workload import read_workload
from koord.util.errors import InvalidObject


def workload(*groups: Any) -> Any:
    return {"metadata": {"namespace": "ns", "name": "job"}, "spec": {"podGroups": list(groups)}}


def gang(name: str, minimum: Any) -> Any:
    return {"name": name, "policy": {"gang": {"minCount": minimum}}}


def test_groups_have_a_minimum_or_none():
    found = read_workload(workload(gang("a", 3), {"name": "b", "policy": {"basic": {}}}))
    assert (found.key, dict(found.minimums)) == ("ns/job", {"a": 3, "b": None})


@pytest.mark.parametrize(
    "groups",
    [
        [gang("a", 0)],
        [gang("a", -1)],
        [gang("a", 2**31)],
        [gang("a", "3")],
        [gang("a", 1), gang("a", 1)],
        [gang(str(at), 1) for at in range(9)],
        [{"name": "a", "policy": {}}],
        [{"name": "a", "policy": {"basic": {}, "gang": {"minCount": 1}}}],
        [{"policy": {"basic": {}}}],
        [5],
    ],
)
def test_what_the_api_server_would_not_take_is_refused(groups):
    with pytest.raises(InvalidObject):
        read_workload(workload(*groups))


KEYS = ["name", "policy", "gang", "minCount", "spec", "metadata", "podGroups"]
JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda one: st.lists(one) | st.dictionaries(st.sampled_from(KEYS), one),
)


@given(JSON)
def test_any_json_is_read_or_refused(item):
    with suppress(InvalidObject):
        assert len(read_workload(item).minimums) <= 8
