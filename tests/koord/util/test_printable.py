"""Characters that steer a terminal or turn text around are shown, not obeyed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.text import printable, printable_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("web-1", "web-1"),
        ("Grüße 節点", "Grüße 節点"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nkoordletctl: all is well", "a\\nkoordletctl: all is well"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066a\u2069\u200b", "\\u2066a\\u2069\\u200b"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_is_not_printable_is_escaped(text, shown):
    assert printable(text) == shown


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_becomes_printable(text):
    """A lone surrogate, too, so that it can be encoded."""
    assert printable(text).isprintable()
    printable(text).encode()


@given(JSON)
def test_json_says_the_same(value):
    """With and without lines, and nothing in it steers what shows it."""
    for indent in (None, 2):
        text = printable_json(value, indent)
        assert text.replace("\n", "").isprintable()
        assert json.loads(text) == value


def test_a_surrogate_is_kept_in_json():
    """Unchanged, "\\ud800"; without the escape it could not be written."""
    text = printable_json({"\ud800": "\U0001f600\U000e0041"})

    assert text == '{"\\ud800": "\U0001f600\\udb40\\udc41"}'
    text.encode()
