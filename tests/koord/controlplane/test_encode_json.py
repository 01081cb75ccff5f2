"""Bodies of requests: quicker, and the same bytes."""

import json
import math
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.controlplane.transport import encode_json_fast
from koord.kube.client import encode_json


class _Own(str):
    """A str of a class of its own, as a plugin may hand in."""


class _Named(StrEnum):
    A = "a"


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_PLAIN = st.none() | st.booleans() | st.integers() | _TEXT | st.sampled_from([_Own("x"), _Named.A])
_VALUES = st.recursive(_PLAIN, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner))


@given(st.dictionaries(_TEXT, _VALUES))
def test_the_bytes_are_those_of_the_usual_encoder(body: dict[str, object]) -> None:
    assert encode_json_fast(body) == encode_json(body)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_as_they_were(number: float) -> None:
    assert json.loads(encode_json_fast({"n": number})) == {"n": number}


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_does_not_become_a_field_to_be_removed(number: float) -> None:
    """In a merge patch null removes a field; the server refuses NaN."""
    assert encode_json_fast({"n": number}) == encode_json({"n": number})
    assert b"null" not in encode_json_fast({"n": number})


def test_half_a_character_is_an_error_of_the_caller() -> None:
    for encode in (encode_json_fast, encode_json):
        with pytest.raises(UnicodeEncodeError):
            encode({"a": "\ud800"})


def test_what_json_cannot_say_is_an_error() -> None:
    with pytest.raises(TypeError):
        encode_json_fast({"a": MappingProxyType({})})
    assert (
        encode_json_fast({"a": datetime(2026, 1, 2, tzinfo=UTC)}) == b'{"a":"2026-01-02T00:00:00Z"}'
    )
