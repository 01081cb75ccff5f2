"""Faults name their field as Kubernetes does, and the line of the file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.config.document import decode_with_lines
from koord.component.config.field_errors import (
    InvalidConfig,
    Key,
    duplicate,
    independent,
    invalid,
    invalid_duration,
    path_text,
    required,
    unknown_field,
    unsupported,
)
from koord.util.documents import decode
from koord.util.errors import InvalidObject, KoordError

PATH = Path("/etc/daemon.yaml")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (invalid(("a", 0, "b"), -1, "wanted more"), "a[0].b: Invalid value: -1: wanted more"),
        (invalid(("a", Key("cpu")), "x", "bad"), 'a[cpu]: Invalid value: "x": bad'),
        (invalid((), None, "wanted an object"), "Invalid value: null: wanted an object"),
        (invalid(("a",), "\x1b[2J", "bad"), 'a: Invalid value: "\\u001b[2J": bad'),
        (invalid(("a",), "\u202e", "bad"), 'a: Invalid value: "\\u202e": bad'),
        (invalid_duration(("a",), -300.0, "bad"), 'a: Invalid value: "-5m0s": bad'),
        (required(("a",)), "a: Required value"),
        (required(("a",), "or b"), "a: Required value: or b"),
        (duplicate(("a", 1), "x"), 'a[1]: Duplicate value: "x"'),
        (
            unsupported(("a",), "x", ("y", "z")),
            'a: Unsupported value: "x": supported values: "y", "z"',
        ),
        (
            unknown_field(("a", "dryrun"), ["dryRun"]),
            'a.dryrun: unknown field "dryrun"; did you mean "dryRun"?',
        ),
    ],
)
def test_the_texts_are_those_of_kubernetes(fault, text):
    """Kubernetes' field.Error: path, kind, value found, and what was wanted."""
    assert str(fault) == text


def test_a_long_value_is_shortened():
    assert len(str(invalid(("a",), "x" * 10_000, "bad"))) < 200


def test_a_long_list_of_faults_is_shortened():
    error = InvalidConfig(PATH, [required((f"a{index}",)) for index in range(1000)])

    assert str(error).endswith("and 980 more")
    assert len(error.faults) == 1000


def test_a_field_that_could_not_be_read_has_no_further_faults():
    """Its rules would judge its default; those around and below it neither."""
    unread = [invalid(("a", "b"), 1, "wanted a text")]
    others = [required(path) for path in [("a",), ("a", "b"), ("a", "b", 0), ("a", "c"), ("d",)]]

    left = [path_text(fault.path) for fault in independent(others, unread)]

    assert left == ["a.c", "d"]


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a:\n  b:\n  - c: 1\n", ("a", "b", 0, "c"), 3),
        ("a:\n- 1\n- 2\n", ("a", 1), 3),
        ("a: {b: 1}\n", ("a", "missing", "deep"), 1),
        ("a: 1\n", ("missing",), 0),
        ('{\n\t"a": {\n\t\t"b": 1}}', ("a", "b"), 3),
        ("yes: 1\n", ("true",), 1),
        ("0x1F: 1\n", ("31",), 1),
        ("'0x1F': 1\n", ("0x1F",), 1),
    ],
)
def test_a_fault_has_the_line_of_its_field(text, path, line):
    """That of the object around it when the field is not there."""
    placed = decode_with_lines(text.encode(), "x")

    assert placed.place(required(path)).line == line


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\nb: 2\na: 3\n", [(("a",), 3)]),
        ("a:\n- b: 1\n  b: 2\n  c: {d: 1, d: 2}\n", [(("a", 0, "b"), 3), (("a", 0, "c", "d"), 4)]),
        ('{"a": 1,\n "a": 2}', [(("a",), 2)]),
        ("yes: 1\ntrue: 2\n", [(("true",), 2)]),
        ("a: {b: 1}\nc: {b: 1}\n", []),
    ],
)
def test_each_field_that_is_there_twice_is_named(text, found):
    placed = decode_with_lines(text.encode(), "x")

    assert [(fault.path, fault.line) for fault in placed.duplicates] == found


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_the_values_are_those_of_the_strict_reader(data):
    """Whatever the bytes: the same value as without places, or both refuse."""
    try:
        placed = decode_with_lines(data, "x")
    except KoordError:
        return
    if placed.value is not None:
        assert placed.value == decode(data, "x")


@pytest.mark.parametrize("data", [b"a: &x 1\nb: *x\n", b"a: [" * 300, b"\xff", b'{"a": 1'])
def test_what_cannot_be_decoded_is_refused(data):
    with pytest.raises(InvalidObject):
        decode_with_lines(data, "x")
