"""Network QoS of pods: limits from annotations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qosstrategy import ANNOTATION, MIN_RATE, PodLimits, pod_limits
from koord.util.errors import InvalidObject


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (None, (0, 0)),
        ("{}", (0, 0)),
        ('{"egressLimit": "100M"}', (0, 12_500_000)),
        ('{"ingressLimit":"10M","egressLimit":"20M"}', (1_250_000, 2_500_000)),
        ('{"ingressLimit": "0", "other": 1}', (0, 0)),
        ('{"ingressLimit": 8000}', (1000, 0)),
    ],
)
def test_limits_of_a_pod(text, limits):
    assert pod_limits({} if text is None else {ANNOTATION: text}) == PodLimits(*limits)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "10M",
        "[" * 1000,
        '{"egressLimit": "-1"}',
        '{"egressLimit": "1"}',
        '{"egressLimit": "ten"}',
        '{"egressLimit": true}',
        '{"egressLimit": {}}',
        '{"egressLimit": NaN}',
        '{"egressLimit": "100P"}',
        json.dumps({"egressLimit": "1M" + " " * 2000}),
    ],
)
def test_what_is_no_limit(text):
    with pytest.raises(InvalidObject, match="networkQOS"):
        pod_limits({ANNOTATION: text})


@given(
    st.text(max_size=60)
    | st.dictionaries(
        st.sampled_from(["ingressLimit", "egressLimit"]),
        st.none()
        | st.booleans()
        | st.floats()
        | st.integers()
        | st.text("0123456789MG-", max_size=8),
    ).map(json.dumps)
)
def test_any_annotation_is_limits_or_an_error(text):
    try:
        limits = pod_limits({ANNOTATION: text})
    except InvalidObject:
        return
    assert all(each == 0 or each >= MIN_RATE for each in (limits.ingress, limits.egress))
