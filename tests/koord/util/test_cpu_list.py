"""Lists of CPU numbers."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.machine import format_cpulist, parse_cpulist, parse_cpulist_file


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-5,34,46-48", {0, 1, 2, 3, 4, 5, 34, 46, 47, 48}),
        ("", set()),
        ("5-3", set()),
        ("7", {7}),
        ("9999", {9999}),
        ("3,1-2,2", {1, 2, 3}),
        ("0-4096", set(range(4097))),
    ],
)
def test_lists(text, numbers):
    """Items are numbers or ranges; a range backwards holds nothing."""
    assert parse_cpulist(text) == numbers


@pytest.mark.parametrize("text", ["0-4097", " 1", "1 ", "-1", "1-2-3", "a", "1,", ",", "1,,2", "²",
                                  ",".join(["0-4096"] * 17)])  # fmt: skip
def test_malformed_lists(text):
    """Everything else is refused, and so is what would fill the memory or take long."""
    with pytest.raises(ValueError, match="wanted"):
        parse_cpulist(text)


def test_files_end_in_a_newline():
    """An empty cpuset is a newline; a list cut short in the middle of a number is no list."""
    assert parse_cpulist_file(b"\n") == frozenset()
    assert parse_cpulist_file(b"0-3\n") == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="newline"):
        parse_cpulist_file(b"0-3")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [({0, 1, 2, 6, 7}, "0-2,6-7"), (set(), ""), ({5}, "5"), ([3, 1, 1], "1,3")],
)
def test_formatting(numbers, text):
    """Neighbours are merged, in ascending order."""
    assert format_cpulist(numbers) == text


@given(st.frozensets(st.integers(0, 4096)))
def test_what_is_written_is_read_back(numbers):
    """Formatting and parsing are inverse."""
    assert parse_cpulist(format_cpulist(numbers)) == numbers


@given(st.binary(max_size=40))
def test_any_bytes_are_a_list_or_a_value_error(data):
    """A corrupt file is an error with a message, whatever it holds."""
    with suppress(ValueError):
        assert isinstance(parse_cpulist_file(data), frozenset)
