"""YAML that Kubernetes' rules read back to the same, whatever the texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.documents import decode, to_yaml

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["y", "NO", "1e3", "0x1F", "0o7", "1:30", "~", "null", "<<", ".inf", "12_000", "2001-01-01"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | _FLOATS | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(_TEXTS, _JSON, min_size=1, max_size=3))
def test_yaml_reads_back(value):
    assert decode(to_yaml(value).encode(), "x") == value


def test_repeated_objects_are_written_out():
    """The reader has no aliases."""
    part = {"a": [1]}

    assert decode(to_yaml({"x": part, "y": part}).encode(), "x") == {"x": part, "y": part}


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_what_json_cannot_say_is_refused(number):
    with pytest.raises(ValueError, match="the number"):
        to_yaml({"a": number})
