"""ElasticQuota and ElasticQuotaProfile objects from outside."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.elasticquota import (
    ALLOW_LENT_RESOURCE,
    IS_PARENT,
    MAX_AMOUNT,
    MAX_NAMESPACES,
    MAX_RESOURCES,
    NAMESPACES,
    PARENT,
    RESOURCE_KEYS,
    ROOT_QUOTA,
    SHARED_WEIGHT,
    TOTAL_RESOURCE,
    read_elastic_quota,
    read_elastic_quota_profile,
)
from koord.util.errors import InvalidObject

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def quota_json(
    low: object = None, high: object = None, labels: Any = None, **annotations: object
) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "quotas",
            "name": "team-a",
            "labels": labels or {},
            "annotations": annotations,
        },
        "spec": {"min": low, "max": high},
    }


def test_the_object_of_the_specification():
    item = quota_json(
        {"cpu": "20", "memory": "40Gi"},
        {"cpu": "60", "memory": "120Gi"},
        {PARENT: "dept-x", IS_PARENT: "false", ALLOW_LENT_RESOURCE: "true"},
        **{
            SHARED_WEIGHT: '{"cpu":"40","memory":"40Gi"}',
            NAMESPACES: '["team-a-dev","team-a-ci"]',
        },
    )

    quota = read_elastic_quota(item)

    assert (quota.name, quota.parent, quota.is_parent, quota.lends) == (
        "team-a",
        "dept-x",
        False,
        True,
    )
    assert quota.min == {"cpu": 20_000, "memory": 40 << 30}
    assert quota.max == {"cpu": 60_000, "memory": 120 << 30}
    assert quota.weight == {"cpu": 40_000, "memory": 40 << 30}
    assert quota.namespaces == ("team-a-dev", "team-a-ci")
    assert quota.problems == ()


def test_deprecated_names_of_batch_resources_are_renamed():
    quota = read_elastic_quota(quota_json({}, {"koordinator.sh/batch-cpu": "5"}))

    assert quota.max == {"kubernetes.io/batch-cpu": 5}


@pytest.mark.parametrize("weight", ["", "{", "[]", '{"cpu":"0"}', '{"cpu":"-1"}', '{"cpu":{}}'])
def test_a_weight_that_makes_no_sense_is_max(weight):
    quota = read_elastic_quota(quota_json({}, {"cpu": "3"}, **{SHARED_WEIGHT: weight}))

    assert quota.weight == {"cpu": 3000}


def test_a_resource_without_a_weight_has_its_max():
    """Worked example 60."""
    quota = read_elastic_quota(
        quota_json({}, {"cpu": "3", "memory": "8"}, **{SHARED_WEIGHT: '{"cpu":"2"}'})
    )

    assert quota.weight == {"cpu": 2000, "memory": 8}


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        ({"cpu": "-1"}, {"cpu": "1"}, "min.cpu"),
        ({}, {"cpu": "x"}, "max.cpu"),
        ({}, {"cpu": True}, "max.cpu"),
        ([], {}, "spec.min"),
        ({}, {f"r{at}": "1" for at in range(MAX_RESOURCES + 1)}, "spec.max"),
    ],
)
def test_absurd_amounts_make_no_quota(low, high, wanted):
    with pytest.raises(InvalidObject, match=re.escape(wanted)):
        read_elastic_quota(quota_json(low, high))


def test_amounts_are_cut_at_64_bits():
    quota = read_elastic_quota(quota_json({}, {"cpu": "9223372036854775807", "memory": "1e40"}))

    assert quota.max == {"cpu": MAX_AMOUNT, "memory": MAX_AMOUNT}


def test_a_quota_has_a_bounded_number_of_namespaces():
    names = [f"ns{at}" for at in range(MAX_NAMESPACES + 5)]
    quota = read_elastic_quota(quota_json({}, {}, **{NAMESPACES: json.dumps(names)}))

    assert quota.namespaces == tuple(names[:MAX_NAMESPACES])
    assert NAMESPACES in quota.problems[0]


def test_a_parent_label_without_text_is_the_root():
    assert read_elastic_quota(quota_json({}, {}, {PARENT: ""})).parent == ROOT_QUOTA


@given(JSON, JSON, JSON, JSON)
def test_reading_a_quota_raises_invalid_object_at_most(low, high, labels, annotation):
    item = quota_json(low, high, labels)
    item["metadata"]["annotations"] = {
        key: json.dumps(annotation) for key in (SHARED_WEIGHT, NAMESPACES, TOTAL_RESOURCE)
    }
    try:
        quota = read_elastic_quota(item)
    except InvalidObject:
        return
    else:
        every = (quota.min, quota.max, quota.weight, quota.total or {})
        assert all(0 <= amount <= MAX_AMOUNT for one in every for amount in one.values())


@given(JSON)
def test_reading_anything_raises_invalid_object_at_most(value):
    for read in (read_elastic_quota, read_elastic_quota_profile):
        with pytest.raises(InvalidObject):
            read(value)


@given(st.text())
def test_an_annotation_of_any_text_is_read(text):
    quota = read_elastic_quota(quota_json({}, {"cpu": "1"}, **{SHARED_WEIGHT: text}))

    assert quota.max == {"cpu": 1000}


def test_a_profile():
    item = {
        "metadata": {"namespace": "ns", "name": "p", "annotations": {RESOURCE_KEYS: '["gpu"]'}},
        "spec": {
            "quotaName": "q",
            "quotaLabels": {"a": "b"},
            "resourceRatio": "0.9",
            "nodeSelector": {"matchLabels": {"pool": "x"}},
        },
    }

    profile = read_elastic_quota_profile(item)

    assert (profile.quota, profile.ratio, profile.labels) == ("q", "0.9", {"a": "b"})
    assert profile.resources == ("gpu",)
    assert profile.selector.matches({"pool": "x"})
    assert not profile.selector.matches({"pool": "y"})
