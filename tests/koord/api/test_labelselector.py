"""Label selectors, as Kubernetes understands them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import SELECTOR, LabelSelector, parse_selector
from koord.util.errors import InvalidObject


def selector(value) -> LabelSelector:
    return parse_selector(SELECTOR.read(value, "s", fold_case=True), "s")


def expression(operator, *values, key="pool"):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("value", "labels", "matches"),
    [
        ({}, {}, True),
        ({}, {"pool": "a"}, True),
        ({"matchLabels": {"pool": "a"}}, {"pool": "a", "x": "y"}, True),
        ({"matchLabels": {"pool": "a"}}, {"pool": "b"}, False),
        ({"matchLabels": {"pool": "a", "zone": "z"}}, {"pool": "a"}, False),
        ({"matchlabels": {"pool": ""}}, {"pool": ""}, True),
        ({"matchLabels": {"pool": ""}}, {}, False),
        (expression("In", "a", "b"), {"pool": "b"}, True),
        (expression("In", "a", "b"), {"pool": "c"}, False),
        (expression("In", "a"), {}, False),
        (expression("NotIn", "a"), {"pool": "b"}, True),
        (expression("NotIn", "a"), {"pool": "a"}, False),
        (expression("NotIn", "a"), {}, True),
        (expression("Exists"), {"pool": ""}, True),
        (expression("Exists"), {}, False),
        (expression("DoesNotExist"), {}, True),
        (expression("DoesNotExist"), {"pool": "a"}, False),
        ({"matchLabels": {"x": "y"}, **expression("Exists")}, {"pool": "a"}, False),
        ({"matchLabels": {"x": "y"}, **expression("Exists")}, {"pool": "a", "x": "y"}, True),
    ],
)
def test_matching(value, labels, matches):
    assert selector(value).matches(labels) is matches


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (expression("Equals", "a"), r"matchExpressions\[0\].operator: wanted In or NotIn"),
        (expression(None, "a"), r"operator: wanted In or NotIn"),
        (expression("In"), r"\[0\].values: wanted values only with In and NotIn"),
        (expression("Exists", "a"), r"\[0\].values: wanted values only with In and NotIn"),
        (expression("Exists", key="a b"), r"\[0\].key: wanted a label key"),
        (expression("Exists", key="/x"), r"wanted a label key"),
        (expression("Exists", key="a" * 64), r"wanted a label key"),
        (expression("Exists", key="a" * 254 + "/x"), r"wanted a label key"),
        (expression("NotIn", "-a"), r"values: wanted a label value"),
        ({"matchLabels": {"a": "b c"}}, r"matchLabels.a: wanted a label value"),
        ({"matchLabels": {"": "b"}}, r"matchLabels: wanted a label key"),
        ({"matchLabels": ["a"]}, r"matchLabels: wanted an object"),
        ({"matchExpressions": [{"key": 1}]}, r"matchExpressions\[0\].key: wanted a text"),
    ],
)
def test_what_kubernetes_would_refuse(value, message):
    with pytest.raises(InvalidObject, match=message):
        selector(value)


@pytest.mark.parametrize("key", ["a", "node.koordinator.sh/x_Y.z", "a" * 63, "0", "a.b/c"])
def test_label_keys(key):
    assert selector(expression("Exists", key=key)).matches({key: ""})


TEXTS = st.text(max_size=4) | st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])
REQUIREMENTS = st.fixed_dictionaries(
    {}, optional={"key": TEXTS, "operator": TEXTS, "values": st.lists(TEXTS | st.none())}
)
SELECTORS = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": st.dictionaries(TEXTS, TEXTS | st.integers()),
        "matchExpressions": st.lists(REQUIREMENTS | st.none()),
    },
)


@given(SELECTORS, st.dictionaries(TEXTS, TEXTS))
def test_any_selector_matches_or_not_or_is_refused(value, labels):
    with contextlib.suppress(InvalidObject):
        assert selector(value).matches(labels) in (True, False)
