"""Label selectors as kubectl writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement, parse_selector_text
from koord.util.errors import InvalidObject


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("  ", []),
        ("a", [("a", "Exists", ())]),
        ("!a", [("a", "DoesNotExist", ())]),
        ("a=b", [("a", "In", ("b",))]),
        ("a==b", [("a", "In", ("b",))]),
        ("a=", [("a", "In", ("",))]),
        ("a!=b", [("a", "NotIn", ("b",))]),
        ("a in (b, c)", [("a", "In", ("b", "c"))]),
        ("a notin (b)", [("a", "NotIn", ("b",))]),
        ("a in ()", [("a", "In", ("",))]),
        (
            " x.io/zone = a , disk in(ssd),! old ",
            [("x.io/zone", "In", ("a",)), ("disk", "In", ("ssd",)), ("old", "DoesNotExist", ())],
        ),
        ("in=notin", [("in", "In", ("notin",))]),
    ],
)
def test_the_forms_of_a_requirement(text, found):
    selector = parse_selector_text(text, "x")

    assert selector.match_expressions == tuple(Requirement(*one) for one in found)


@pytest.mark.parametrize(
    ("labels", "matches"), [({"a": "b"}, False), ({"a": "c"}, True), ({}, True)]
)
def test_what_differs_from_a_value_may_be_absent(labels, matches):
    assert parse_selector_text("a!=b", "x").matches(labels) is matches


@pytest.mark.parametrize(
    "text",
    ["a=b,", ",", "a b", "a in b", "a in (b", "a=b c", "=b", "!", "a>1", "a<1", "-=x", "a=-"]
    + ["a in (b!)", "a=b)", "a" * 5000, "a,,b", "ä=b", "a/b/c=d"],
)
def test_what_is_none_is_refused(text):
    with pytest.raises(InvalidObject, match=r"^x"):
        parse_selector_text(text, "x")


_LABELS = st.from_regex(r"[a-z]([-a-z]{0,3}[a-z])?", fullmatch=True)
_VALUES = st.lists(_LABELS, min_size=1, max_size=3).map(tuple)
_REQUIREMENTS = st.builds(
    Requirement, _LABELS, st.sampled_from(["Exists", "DoesNotExist"])
) | st.builds(Requirement, _LABELS, st.sampled_from(["In", "NotIn"]), _VALUES)


def written(one: Requirement) -> str:
    plain = {"Exists": one.key, "DoesNotExist": f"!{one.key}"}
    values = ",".join(one.values)
    return plain.get(one.operator, f"{one.key} {one.operator.lower()} ({values})")


@given(st.lists(_REQUIREMENTS, max_size=4))
def test_what_is_written_is_read(requirements):
    text = ",".join(map(written, requirements))

    assert parse_selector_text(text, "x").match_expressions == tuple(requirements)


@given(st.text("ab=!(), in<>-", max_size=20) | st.text(max_size=20))
def test_any_text_is_a_selector_or_refused(text):
    """And a selector can be asked."""
    try:
        selector = parse_selector_text(text, "x")
    except InvalidObject:
        return
    assert selector.matches({}) in (True, False)
