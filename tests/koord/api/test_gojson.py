"""Configuration is decoded and overlaid by Go's rules."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.gojson import (
    DURATION,
    INT32,
    INT64,
    INT_OR_TEXT,
    NUMBER,
    QUANTITY,
    TEXT,
    Struct,
    parse_json,
    shape_of,
    wire,
)
from koord.api.nodeslo import CPU_BURST, RESOURCE_QOS, SYSTEM, THRESHOLD
from koord.util.errors import InvalidObject


@dataclass(frozen=True, slots=True)
class Windows:
    durations: tuple[str, ...] = wire("durations", ())


@dataclass(frozen=True, slots=True)
class Features:
    features: Mapping[str, bool] = wire("schedFeatures", factory=dict)


@dataclass(frozen=True, slots=True)
class Cache:
    cache_id: int | None = wire("cacheID")


WINDOWS, FEATURES, CACHE = shape_of(Windows), shape_of(Features), shape_of(Cache)


def be_blocks(*blocks):
    return {"beClass": {"blkioQOS": {"blocks": list(blocks)}}}


@pytest.mark.parametrize(
    ("shape", "base", "new", "result"),
    [
        (
            THRESHOLD,
            {"enable": False, "cpuSuppressThresholdPercent": 65, "memoryEvictThresholdPercent": 70},
            {"enable": True, "cpuSuppressThresholdPercent": 80},
            {"enable": True, "cpuSuppressThresholdPercent": 80, "memoryEvictThresholdPercent": 70},
        ),
        (THRESHOLD, {"enable": True}, {"enable": None}, {"enable": True}),
        (THRESHOLD, {"enable": True}, {"enable": False}, {"enable": False}),
        (
            THRESHOLD,
            {"cpuSuppressPolicy": "x"},
            {"cpuSuppressPolicy": ""},
            {"cpuSuppressPolicy": "x"},
        ),
        (THRESHOLD, {"enable": True}, {"other": 1}, {"enable": True}),
        (CPU_BURST, {"cpuBurstPercent": 5}, {"cpuBurstPercent": 0}, {"cpuBurstPercent": 0}),
        (WINDOWS, {"durations": ["5m", "10m"]}, {"durations": ["1m"]}, {"durations": ["1m"]}),
        (WINDOWS, {"durations": ["5m"]}, {"durations": []}, {"durations": ["5m"]}),
        (
            RESOURCE_QOS,
            be_blocks(
                {"name": "A", "type": "device", "ioCfg": {"readIOPS": 100}},
                {"name": "C", "ioCfg": {}},
            ),
            be_blocks({"name": "B", "ioCfg": {"writeIOPS": 5}}),
            be_blocks({"name": "B", "type": "device", "ioCfg": {"readIOPS": 100, "writeIOPS": 5}}),
        ),
        (
            RESOURCE_QOS,
            be_blocks({"name": "A", "ioCfg": {}}),
            be_blocks({"type": "device"}, {"name": "B"}),
            be_blocks({"name": "A", "type": "device", "ioCfg": {}}, {"name": "B", "ioCfg": {}}),
        ),
        (RESOURCE_QOS, {}, {"lsClass": {}}, {"lsClass": {}}),
        (
            FEATURES,
            {"schedFeatures": {"a": True, "b": False}},
            {"schedFeatures": {"b": True, "c": True}},
            {"schedFeatures": {"a": True, "b": True, "c": True}},
        ),
        (
            FEATURES,
            {"schedFeatures": {"a": True}},
            {"schedFeatures": {}},
            {"schedFeatures": {"a": True}},
        ),
        (
            SYSTEM,
            {"minFreeKbytesFactor": 100, "totalNetworkBandwidth": "10G"},
            {"minFreeKbytesFactor": 120},
            {"minFreeKbytesFactor": 120, "totalNetworkBandwidth": "0"},
        ),
    ],
)
def test_overlay(shape: Struct, base, new, result):
    assert shape.overlay(base, shape.read(new, "new")) == result


@pytest.mark.parametrize(
    ("found", "value"),
    [
        ({"cacheid": 1}, {"cacheID": 1}),
        ({"CACHEID": 1, "cacheID": 2}, {"cacheID": 2}),
        ({"cacheID": 1, "CACHEID": 2}, {"cacheID": 2}),
        ({"cacheID": 1, "CACHEID": None}, {"cacheID": 1}),
        ({"caheID": 1, "caßheID": 2, "cachéID": 3}, {}),
        ({"cache": 1, 7: 2}, {}),
    ],
)
def test_the_case_of_keys_matters_only_to_the_api_server(found, value):
    """Annotations and ConfigMaps are decoded by Go's own JSON, which ignores it."""
    assert CACHE.read(found, "x", fold_case=True) == value
    assert CACHE.read({"cacheid": 1}, "x") == {}


def test_keys_of_maps_keep_their_case():
    found = FEATURES.read({"SCHEDFEATURES": {"A": True, "a": None}}, "x", fold_case=True)
    assert found == {"schedFeatures": {"A": True, "a": False}}


@pytest.mark.parametrize(
    ("shape", "value", "canonical"),
    [
        (INT64, 2**63 - 1, 2**63 - 1),
        (INT32, -(2**31), -(2**31)),
        (NUMBER, 1, 1.0),
        (QUANTITY, "1500m", "1500m"),
        (QUANTITY, "1000M", "1G"),
        (QUANTITY, 1000, "1k"),
        (DURATION, "90s", "1m30s"),
        (DURATION, "0", "0s"),
        (INT_OR_TEXT, "6G", "6G"),
        (INT_OR_TEXT, 60, 60),
        (TEXT, "é", "é"),
    ],
)
def test_canonical_values(shape, value, canonical):
    assert shape.read(value, "x") == canonical


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (INT64, 1.0),
        (INT64, "1"),
        (INT64, True),
        (INT64, 2**63),
        (INT32, 2**31),
        (NUMBER, "1"),
        (NUMBER, float("inf")),
        (NUMBER, 10**400),
        (QUANTITY, "ten"),
        (QUANTITY, None),
        (QUANTITY, ""),
        (DURATION, 5),
        (DURATION, "5"),
        (INT_OR_TEXT, 1.5),
        (INT_OR_TEXT, 2**31),
        (TEXT, 1),
        (TEXT, "\ud800"),
    ],
)
def test_what_go_would_not_decode(shape, value):
    with pytest.raises(InvalidObject, match=r"^place: wanted"):
        shape.read(value, "place")


@pytest.mark.parametrize(
    "text", ["", "{", "{} x", "NaN", "[Infinity]", "\ufeff{}", "[" * 100_000, "9" * 5000, None, {}]
)
def test_what_is_no_json(text):
    with pytest.raises(InvalidObject, match=r"^key: wanted"):
        parse_json(text, "key")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NUMBERS = st.none() | st.integers(0, 100)
FLAGS = st.none() | st.booleans()
BLOCK = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["", "a", "b"]),
        "type": st.sampled_from(["device", "x"]),
        "ioCfg": st.none() | st.fixed_dictionaries({}, optional={"readIOPS": NUMBERS}),
    },
)
CLASS = st.fixed_dictionaries(
    {},
    optional={
        "cpuQOS": st.fixed_dictionaries({}, optional={"enable": FLAGS, "groupIdentity": NUMBERS}),
        "blkioQOS": st.fixed_dictionaries({}, optional={"blocks": st.lists(BLOCK | st.none())}),
    },
)
QOS = st.fixed_dictionaries({}, optional={"lsClass": st.none() | CLASS, "beClass": CLASS})
STRATEGIES = st.one_of(
    st.tuples(st.just(RESOURCE_QOS), QOS, QOS),
    *(st.tuples(st.just(shape), ANY_JSON, ANY_JSON) for shape in (THRESHOLD, SYSTEM, FEATURES)),
)


@given(STRATEGIES)
def test_overlaying_twice_is_overlaying_once(case):
    """Whatever is overlaid wins, and is there already the second time."""
    shape, base, new = case
    with contextlib.suppress(InvalidObject):
        base, new = shape.read(base, "base"), shape.read(new, "new")
        once = shape.overlay(base, new)
        assert shape.overlay(once, new) == once
        assert shape.overlay(base, once) == once
        assert shape.read(json.loads(json.dumps(once)), "once") == once


@given(QOS)
def test_python_values_survive_the_wire(value):
    """A dataclass dumped and loaded is the same; so is its canonical JSON."""
    loaded = RESOURCE_QOS.load(RESOURCE_QOS.read(value, "x"))
    dumped = RESOURCE_QOS.dump(loaded)
    assert RESOURCE_QOS.read(dumped, "x") == dumped
    assert RESOURCE_QOS.load(dumped) == loaded


@given(st.sampled_from([THRESHOLD, RESOURCE_QOS, CPU_BURST, SYSTEM]), ANY_JSON, st.booleans())
def test_any_json_is_read_or_refused(shape, value, fold_case):
    with contextlib.suppress(InvalidObject):
        shape.check(shape.read(value, "x", fold_case=fold_case), "x")


@given(st.text())
def test_any_text_is_json_or_refused(text):
    with contextlib.suppress(InvalidObject):
        parse_json(text, "x")
