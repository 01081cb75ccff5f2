"""Tables of commands: names that are too long for them."""

from hypothesis import given
from hypothesis import strategies as st

from koord.component.terminal import shorten


@given(st.text(min_size=1), st.integers(1, 40))
def test_a_shortened_name_fits_and_keeps_both_ends(text, width):
    """It is as long as there is room for."""
    short = shorten(text, width)

    assert len(short) == min(len(text), width)
    assert short[0] in (text[0], "…")
    if len(text) <= width:
        assert short == text


def test_names_are_cut_in_the_middle():
    """Namespace and the ReplicaSet's suffix distinguish pods."""
    assert shorten("default/web-7d9c5b8f6-abcde", 16) == "default/…6-abcde"
