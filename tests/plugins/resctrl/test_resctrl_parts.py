"""Parts of caches and bandwidth: the specification's tables, and what no machine could do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qosstrategy import ResctrlQoS
from koord.plugin import InvalidObject
from koordlet.plugin.testing import make_pod
from koordlet_plugins.resctrl import (
    AMD,
    ANNOTATION,
    ResctrlMachine,
    bandwidth,
    class_lines,
    l3_mask,
    lines_for,
    parts_of,
)

INTEL = "GenuineIntel"
TWO = ResctrlMachine(INTEL, 0x7FF, 1, (0, 1), (0, 1))


@pytest.mark.parametrize(
    ("mask", "start", "end", "found"),
    [
        (0x7FF, 0, 30, 0xF),
        (0x7FF, 10, 50, 0x3C),
        (0x7FF, 0, 100, 0x7FF),
        (0x3FF, 10, 80, 0xFE),
        (0x3FF, 10, 85, 0x1FE),
        (0x3FF, 0, 30, 0x7),
        (0xFFFFF, 0, 30, 0x3F),
        (0xFFFFF, 0, 25, 0x1F),
        (0xFFFFF, 0, 100, 0xFFFFF),
        (0xFFF, 50, 100, 0xFC0),
        (0xFFF, 0, 1, 0x1),
    ],
)
def test_ways_of_a_cache(mask, start, end, found):
    """Source: 03 §3.7, 04 §3.10, 05 §6.9."""
    assert l3_mask(mask, 1, start, end) == found


@pytest.mark.parametrize(
    ("mask", "start", "end"),
    [
        (0x101, 0, 100),
        (0x4, 0, 100),
        (0, 0, 100),
        (0x7FE, 0, 100),
        (0xFF, 30, 30),
        (0xFF, -10, 100),
        (0xFF, 50, 40),
        (0xFF, 0, 101),
        (0xF, 10, 20),  # both ends round to one way: the kernel takes no empty mask
    ],
)
def test_ways_that_no_kernel_takes(mask, start, end):
    with pytest.raises(ValueError, match="wanted"):
        l3_mask(mask, 1, start, end)


def test_a_machine_may_want_more_ways_than_one():
    """AMD takes one, many Intel CPUs take two."""
    assert l3_mask(0x7FF, 2, 0, 10) == 0x3
    with pytest.raises(ValueError, match="wanted 2 ways at least, found 1 from 0 to 9 percent"):
        l3_mask(0x7FF, 2, 0, 9)


@given(st.integers(1, 32), st.integers(0, 100), st.integers(0, 100))
def test_any_range_is_one_run_of_ways_or_refused(ways, start, end):
    mask = (1 << ways) - 1
    try:
        found = l3_mask(mask, 1, start, end)
    except ValueError:
        return
    run = found // (found & -found)
    assert 0 < found <= mask
    assert run & (run + 1) == 0


@pytest.mark.parametrize(
    ("percent", "intel", "amd"),
    [
        (100, 100, 2048),
        (90, 90, 144),
        (91, 100, 145),
        (99, 100, 158),
        (50, 50, 80),
        (45, 50, 72),
        (33, 40, 52),
        (30, 30, 48),
        (15, 20, 24),
        (5, 10, 8),
        (1, 10, 1),
    ],
)
def test_bandwidth(percent, intel, amd):
    assert (bandwidth(percent, INTEL), bandwidth(percent, AMD)) == (intel, amd)


@pytest.mark.parametrize("percent", [0, 101, -1])
def test_no_bandwidth(percent):
    with pytest.raises(ValueError, match="wanted 1 to 100"):
        bandwidth(percent, INTEL)


def settings(start=0, end=100, mba=100):
    return ResctrlQoS(
        enable=True, cat_range_start_percent=start, cat_range_end_percent=end, mba_percent=mba
    )


@pytest.mark.parametrize(
    ("machine", "asked", "l3", "mb"),
    [
        (TWO, settings(10, 50, 90), "0=3c;1=3c", "0=90;1=90"),
        (TWO, settings(0, 30), "0=f;1=f", "0=100;1=100"),
        (TWO, settings(mba=0), "0=7ff;1=7ff", ""),
        (TWO._replace(vendor=AMD), settings(mba=33), "0=7ff;1=7ff", "0=52;1=52"),
        (TWO._replace(bandwidths=()), settings(), "0=7ff;1=7ff", ""),
        (TWO._replace(mask=0), settings(5, 5), "", "0=100;1=100"),
        (TWO._replace(caches=()), settings(mba=1), "", "0=10;1=10"),
    ],
)
def test_lines_of_a_class(machine, asked, l3, mb):
    """A part that a machine cannot divide stays out, whatever is asked for."""
    assert class_lines(asked, machine, "NodeSLO") == (l3, mb)


@pytest.mark.parametrize(("start", "end"), [(30, 30), (60, 20), (100, 100), (0, 0)])
def test_bad_ranges_of_a_class(start, end):
    with pytest.raises(InvalidObject, match="beClass: wanted a range that this machine can have"):
        class_lines(settings(start, end), TWO, "beClass")


def pod(annotation):
    text = annotation if isinstance(annotation, str) else json.dumps(annotation)
    return make_pod("web", annotations={ANNOTATION: text}).pod


def lines(annotation, machine=TWO):
    parts = parts_of(pod(annotation))
    return tuple(lines_for(parts, machine, "web"))


@pytest.mark.parametrize(
    ("annotation", "l3", "mb"),
    [
        (
            {
                "llc": {
                    "schemata": {"range": [0, 50]},
                    "schemataPerCache": [{"cacheID": 0, "range": [0, 80]}],
                },
                "mb": {
                    "schemata": {"percent": 50},
                    "schemataPerCache": [{"cacheID": 1, "percent": 90}],
                },
            },
            "0=1ff;1=3f",
            "0=50;1=90",
        ),
        ({"llc": {"schemata": {"range": [10, 50]}}}, "0=3c;1=3c", ""),
        ({"mb": {"schemata": {"percent": 35}}}, "", "0=40;1=40"),
        ({"LLC": {"Schemata": {"Range": [0, 100]}}}, "0=7ff;1=7ff", ""),  # as Go reads it
        ({"llc": {"schemataPerCache": [{"cacheID": 0, "range": [0, 80]}]}}, "", ""),
        ({"mb": {"schemata": {"percent": 0}}}, "", ""),
        (
            {"mb": {"schemata": {"percent": 50}, "schemataPerCache": [{"cacheID": 1}]}},
            "",
            "0=50;1=50",
        ),
        ({}, "", ""),
        ("null", "", ""),
    ],
)
def test_lines_of_a_pod(annotation, l3, mb):
    """Source: 05 §6.9."""
    assert lines(annotation) == (l3, mb)


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "{",
        "[]",
        '"all"',
        {"llc": []},
        {"llc": {"schemata": {"range": [50]}}},
        {"llc": {"schemata": {"range": [1, 2, 3]}}},
        {"llc": {"schemata": {"range": [50, 10]}}},
        {"llc": {"schemata": {"range": [0, 101]}}},
        {"llc": {"schemata": {"range": ["0", "50"]}}},
        {"llc": {"schemataPerCache": [{"cacheID": -1, "range": [0, 50]}]}},
        {"llc": {"schemataPerCache": [{"cacheID": 0}] * 257}},
        {"mb": {"schemata": {"percent": 101}}},
        {"mb": {"schemata": {"percent": -5}}},
        {"mb": {"schemata": {"percent": 1.5}}},
        {"mb": {"schemataPerCache": [{"cacheID": 0, "percent": 1000}]}},
    ],
)
def test_bad_annotations_are_refused_whole(annotation):
    with pytest.raises(InvalidObject, match=r"pod default/web: node\.koordinator\.sh/resctrl"):
        parts_of(pod(annotation))


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ({"llc": {"schemataPerCache": [{"cacheID": 7, "range": [0, 50]}]}}, "found cacheID 7"),
        ({"mb": {"schemataPerCache": [{"cacheID": 7, "percent": 5}]}}, "found cacheID 7"),
        ({"llc": {"schemata": {"range": [1, 2]}}}, "wanted 1 ways at least, found 0"),
    ],
)
def test_what_this_machine_cannot_do_is_refused(annotation, message):
    with pytest.raises(InvalidObject, match=message):
        lines(annotation)


@given(st.text())
def test_any_annotation_is_parts_or_refused(text):
    try:
        found = parts_of(pod(text))
        if found is not None:
            lines_for(found, TWO, "web")
    except InvalidObject:
        return
