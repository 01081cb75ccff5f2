"""Dataclasses from JSON: every fault is found, and what is written reads back to the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.gojson import wire
from koord.component.config.componentconfig import (
    Int32,
    Reader,
    Rejected,
    Seconds,
    UInt,
    UInt32,
    to_json,
)


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    name: str
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    is_on: bool = False
    some_count: Int32 = 3
    most: UInt | None = None
    times: UInt32 = 0
    timeout: Seconds = 60.0
    either: int | str | None = None
    colour: Colour = Colour.RED
    percents: Mapping[str, float] | None = None
    parts: tuple[Part, ...] = ()
    colours: tuple[Colour, ...] = (Colour.BLUE,)
    part: Part | None = None
    raw: object = None
    qps: float = wire("QPS", 5.0)


def read(value: object, *, strict: bool = True) -> tuple[Whole | None, list[str]]:
    reader = Reader()
    try:
        found = reader.read(Whole, value, (), strict=strict)
    except Rejected:
        return None, [str(fault) for fault in reader.faults]
    return found, [str(fault) for fault in reader.faults]


def test_an_absent_field_and_null_have_the_default():
    assert read({"isOn": None, "timeout": None, "parts": None}) == (Whole(), [])


def test_keys_are_camel_case_or_declared():
    found, faults = read({"someCount": 4, "QPS": 1, "timeout": "1m30s", "percents": {}})

    assert not faults
    assert found == Whole(some_count=4, qps=1.0, timeout=90.0, percents={})


def test_an_empty_map_is_not_an_absent_one():
    assert read({"percents": {}})[0] != read({})[0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"isOn": "yes"}, 'isOn: Invalid value: "yes": wanted true or false'),
        ({"isOn": 1}, "isOn: Invalid value: 1: wanted true or false"),
        ({"someCount": 1.0}, "someCount: Invalid value: 1.0: wanted a whole number of 32 bits"),
        ({"someCount": 2**31}, f"someCount: Invalid value: {2**31}: wanted a whole number"),
        ({"someCount": True}, "someCount: Invalid value: true: wanted a whole number"),
        ({"most": -1}, "most: Invalid value: -1: wanted a whole number, 0 or more"),
        ({"times": 2**32}, "wanted a whole number, 0 or more"),
        ({"timeout": 60}, "timeout: Invalid value: 60: wanted a duration"),
        ({"timeout": "60"}, 'timeout: Invalid value: "60": wanted a duration'),
        ({"colour": "red"}, 'Unsupported value: "red": supported values: "Red", "Blue"'),
        ({"percents": {"cpu": "75"}}, 'percents[cpu]: Invalid value: "75": wanted a number'),
        ({"percents": [1]}, "percents: Invalid value: [1]: wanted an object"),
        ({"parts": {}}, "parts: Invalid value: {}: wanted a list"),
        ({"parts": [{}]}, "parts[0].name: Required value"),
        ({"parts": [3]}, "parts[0]: Invalid value: 3: wanted an object"),
        ({"part": {"name": 1}}, "part.name: Invalid value: 1: wanted a text"),
        ({"either": 1.5}, "either: Invalid value: 1.5: wanted a whole number or a text"),
        ({"qps": 5}, 'unknown field "qps"; did you mean "QPS"?'),
        ({"ison": True}, 'unknown field "ison"; did you mean "isOn"?'),
        ([], "Invalid value: []: wanted an object"),
    ],
)
def test_a_fault_names_path_value_and_wish(value, message):
    faults = read(value)[1]

    assert len(faults) == 1
    assert message in faults[0]


def test_all_faults_are_found():
    """Also behind the first one of an object and of a list."""
    value = {"isOn": 1, "parts": [{"name": 1, "weight": ""}, {"x": 1}], "colours": ["x", "y"]}

    assert [fault.partition(":")[0] for fault in read(value)[1]] == [
        "isOn",
        "parts[0].name",
        "parts[0].weight",
        "parts[1].x",
        "parts[1].name",
        "colours[0]",
        "colours[1]",
    ]


def test_not_strict_takes_keys_in_any_case_and_warns_of_unknown_ones():
    reader = Reader()

    found = reader.read(Whole, {"ISON": True, "other": 1}, (), strict=False)

    assert found == Whole(is_on=True)
    assert [(fault.path, fault.is_warning) for fault in reader.faults] == [(("other",), True)]


def test_a_class_without_shape_is_a_mistake_of_its_author():
    @dataclass
    class Odd:
        found: set[int]

    with pytest.raises(TypeError, match="no JSON shape"):
        Reader().read(Odd, {}, ())


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_PARTS = st.builds(Part, name=_TEXTS, weight=_FLOATS)
_WHOLES = st.builds(
    Whole,
    is_on=st.booleans(),
    some_count=st.integers(-(2**31), 2**31 - 1),
    most=st.none() | st.integers(0, 2**64 - 1),
    timeout=st.integers(-(10**15), 10**15).map(lambda nanoseconds: nanoseconds / 1e9),
    either=st.none() | _TEXTS | st.integers(-(2**31), 2**31 - 1),
    colour=st.sampled_from(Colour),
    percents=st.none() | st.dictionaries(_TEXTS, _FLOATS, max_size=3),
    parts=st.lists(_PARTS, max_size=3).map(tuple),
    colours=st.lists(st.sampled_from(Colour), max_size=3).map(tuple),
    part=st.none() | _PARTS,
    qps=_FLOATS,
)


@given(_WHOLES)
def test_what_is_written_reads_back(whole):
    assert read(to_json(whole)) == (whole, [])


_KEYS = st.sampled_from(["isOn", "parts", "name", "percents", "timeout", "colours"]) | _TEXTS
_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _FLOATS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(_ANY_JSON, st.booleans())
def test_any_json_is_read_or_refused(value, strict):
    """There is always an object, or a fault that says why not."""
    found, faults = read(value, strict=strict)

    assert found is not None or faults
