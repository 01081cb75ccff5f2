"""Objects from files: JSON and YAML, however broken."""

import copy
import json
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koord.util.documents import (
    MAX_DEPTH,
    MAX_VALUES,
    MAX_YAML_BYTES,
    EarlierItems,
    ListStream,
    decode,
    decode_line,
)
from koord.util.errors import InvalidObject

TEXTS = st.text(
    st.characters(
        exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028\u2029\ufeff\ufffe\uffff"
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=5)


class Quoting(yaml.SafeDumper):
    """Writes every text in double quotes."""


Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@given(OBJECTS)
def test_any_object_written_as_json_is_read_back(value: dict[str, object]) -> None:
    """Compact and indented."""
    assert decode(json.dumps(value).encode(), "f") == value
    assert decode(json.dumps(value, indent=2, ensure_ascii=False).encode(), "f") == value


@given(OBJECTS)
def test_any_object_written_as_yaml_is_read_back(value: dict[str, object]) -> None:
    """All texts in quotes: PyYAML knows other ones that need none. Not in flow style, as JSON."""
    text = yaml.dump(value, Dumper=Quoting, default_flow_style=False, allow_unicode=True)
    if value:
        assert decode(text.encode(), "f") == value


@given(
    st.binary(max_size=200)
    | st.text(alphabet='{}[]":,-&*!|>?%@`#\n 01ae.', max_size=60).map(str.encode)
)
def test_any_bytes_give_an_object_or_one_clear_error(data: bytes) -> None:
    """Never another exception, and the error names the file."""
    error = ""
    try:
        decode(data, "/etc/pods.yaml")
    except InvalidObject as err:
        error = str(err)

    assert not error or error.startswith("/etc/pods.yaml: wanted JSON or YAML, found ")


@given(OBJECTS, st.data())
def test_json_cut_short_is_never_taken_for_whole(
    value: dict[str, object], data: st.DataObject
) -> None:
    """Whatever place the writer has reached."""
    text = json.dumps(value).encode()
    end = data.draw(st.integers(1, len(text) - 1))

    with pytest.raises(InvalidObject):
        decode(text[:end], "f")


def streamed(
    text: bytes, read: Callable[[object], object] = lambda item: item, size: int = 1 << 20
) -> dict[str, object]:
    """What a stream makes of a text that comes in pieces of a size."""
    stream = ListStream("f", read, item_bytes=1 << 20)
    for at in range(0, len(text), size):
        stream.feed(text[at : at + size])
    return stream.end()


@given(st.lists(VALUES))
def test_the_items_of_a_list_are_read_one_by_one(items: list[object]) -> None:
    """Each once and in order; what reading makes of them stands in their place."""
    seen: list[object] = []

    def read(item: object) -> int:
        seen.append(item)
        return len(seen)

    text = json.dumps({"kind": "List", "items": items}).encode()
    found = streamed(text, read, 1 << 20)

    assert seen == items
    assert found == {"kind": "List", "items": [turn + 1 for turn in range(len(items))]}


@given(OBJECTS, st.data())
def test_what_is_cut_short_has_no_list(value: dict[str, object], data: st.DataObject) -> None:
    """A part of a list must not be taken for the whole."""
    text = json.dumps(value).encode()
    assert streamed(text) == value

    end = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(InvalidObject, match="wanted a JSON object"):
        streamed(text[:end])


@given(st.dictionaries(st.text(), VALUES | st.lists(VALUES)), st.integers(1, 9))
def test_it_does_not_matter_how_the_bytes_of_a_list_come(
    value: dict[str, object], size: int
) -> None:
    """Not even where a number or a character is cut."""
    for indent in (None, 1):
        text = json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "surrogatepass")
        try:
            wanted = streamed(text)
        except InvalidObject:
            with pytest.raises(InvalidObject):
                streamed(text, size=size)
        else:
            assert streamed(text, size=size) == wanted


ITEMS = st.lists(st.dictionaries(st.sampled_from(["metadata", "spec"]), VALUES) | VALUES)


@given(ITEMS, ITEMS, st.data(), st.integers(1, 400))
def test_an_item_that_stood_in_the_list_before_is_what_it_was(
    before: list[object], new: list[object], data: st.DataObject, size: int
) -> None:
    """With the text of another one before it, after it or in it; however the bytes come."""
    wanted = data.draw(st.permutations(before + new))
    first = ListStream("f", copy.deepcopy, item_bytes=1 << 20, earlier=EarlierItems())
    first.feed(json.dumps({"items": before}).encode())
    first.end()

    stream = ListStream("f", copy.deepcopy, item_bytes=1 << 20, earlier=first.items_read)
    text = json.dumps({"items": wanted}).encode()
    for at in range(0, len(text), size):
        stream.feed(text[at : at + size])

    assert stream.end() == {"items": wanted}


def test_an_item_that_has_not_changed_is_not_read_again() -> None:
    """In whatever order; one that has changed in its last character is."""
    read: list[object] = []

    def note(item: object) -> object:
        read.append(item)
        return item

    def pod(number: int, phase: str) -> dict[str, object]:
        return {"metadata": {"name": f"pod-{number}", "notes": "x" * 1000}, "status": phase}

    earlier = EarlierItems()
    lists = ([pod(1, "a"), pod(2, "a")], [pod(2, "a"), pod(1, "b")], [pod(1, "b"), pod(3, "a")])
    for items in lists:
        stream = ListStream("f", note, item_bytes=1 << 20, earlier=earlier)
        stream.feed(json.dumps({"items": items}).encode())
        assert stream.end() == {"items": items}
        earlier = stream.items_read

    assert read == [pod(1, "a"), pod(2, "a"), pod(1, "b"), pod(3, "a")]


def test_a_list_is_as_long_as_it_likes_but_not_one_of_its_items() -> None:
    """Nor may an item have too many values; what is whole has been read by then."""
    seen: list[object] = []
    stream = ListStream("f", seen.append, item_bytes=1 << 20)
    stream.feed(b'{"items": ["a"')
    for _ in range(100):
        stream.feed(b', "' + b"x" * 100_000 + b'"')
    assert len(seen) == 101
    with pytest.raises(InvalidObject, match="a value of more than 1048576 characters"):
        stream.feed(b', "' + b"x" * (3 << 20))

    many = ListStream("f", seen.append, item_bytes=16 << 20)
    with pytest.raises(InvalidObject, match="more than 1000000 values"):
        many.feed(b'{"items": [[' + b'"",' * 5_000_000)


def test_yaml_values_are_those_of_kubernetes() -> None:
    """A date stays a text, a key becomes one, quoted numbers are texts."""
    text = b"""
        date: 2024-01-01T00:00:00Z
        number: 1
        hex: 0x1F
        share: 1.5
        quoted: "1"
        block: |
          5
        yes: yes
        none: ~
        time: 1:30
        tagged: ! 5
        5: five
        0x1F: hex
        2024-01-01: date
        'no': quoted
    """

    assert decode(text, "f") == {
        "date": "2024-01-01T00:00:00Z",
        "number": 1,
        "hex": 31,
        "share": 1.5,
        "quoted": "1",
        "block": "5\n",
        "true": True,
        "none": None,
        "time": "1:30",
        "tagged": "5",
        "5": "five",
        "31": "hex",
        "2024-01-01": "date",
        "no": "quoted",
    }


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 documents"),
        (b"# nothing but a comment\n", "0 documents"),
        (b"a: 1\n---\nb: 2\n", "2 documents"),
        (b"[" * 100_000, "nesting too deep"),
        (b'{"a":' * 100_000, "nesting too deep"),
        (b"a: " + b"{a: " * 100_000, "nesting too deep"),
        (b"- " * 100_000, "nesting too deep"),
        (b"a: &a [1]\nb: *a\n", "the alias *a; write the value out"),
        (b"a: {<<: {b: 1}}\n", "the merge key <<; write the fields out"),
        (b"~: 1\n", "a key that is no text"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "nesting too deep"),
        (b'{"a":[' + b"[]," * MAX_VALUES + b"1]}", "more than 1000000 values"),
        (b"[" + b"[]," * MAX_VALUES + b"1]", "more than 1000000 values"),
        (b"a: !!python/object/apply:os.system [id]\n", "the tag tag:yaml.org,2002:python"),
        (b"a: !mine 1\n", "the tag !mine"),
        (b"a: .nan\n", "the number .nan"),
        (b'{"a": NaN}', "the number NaN"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b"? [a]\n: b\n", "a key that is no text"),
        (b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"a": 1,}', "Expecting value"),
        (b'{"a": 1} x', "expecting nothing more"),
        (b'{1: 2}', "expecting the name of a field"),
        (b"\x00\x01\x02", "unacceptable character"),
        (b"\xff\xfe", "can't decode byte"),
        (b"a: b: c\n", "mapping values are not allowed in this context"),
        (b"a: 1\n" * (MAX_YAML_BYTES // 5 + 1), "bytes of YAML; write so much as JSON"),
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused_with_the_reason(data: bytes, found: str) -> None:
    """Deep nesting above all: PyYAML's own loader takes the process with it."""
    with pytest.raises(InvalidObject, match="f: wanted JSON or YAML, found") as raised:
        decode(data, "f")

    assert found in str(raised.value)


def test_nesting_is_allowed_to_its_limit() -> None:
    """Far beyond any Kubernetes object."""
    depth = MAX_DEPTH - 1
    assert decode(b"a: " + b"[" * depth + b"]" * depth, "f")


def test_half_a_character_is_left_to_callers_that_want_it() -> None:
    """One in a list costs its own item there."""
    data = b'{"items": ["\\ud800", "x"]}'
    assert decode(data, "f", half_characters=True) == {"items": ["\ud800", "x"]}


@given(st.binary(max_size=100) | st.text('[]{},:"01tn ', max_size=60).map(str.encode))
def test_any_line_is_json_or_one_clear_error(data: bytes) -> None:
    """As the standard library reads it, less what cannot be written."""
    try:
        found = decode_line(data, "line 3")
    except InvalidObject as err:
        assert str(err).startswith("line 3: wanted JSON, found ")  # noqa: PT017
    else:
        assert found == json.loads(data.decode())


@given(st.integers(0, 3000), st.booleans())
def test_nesting_is_bounded_whatever_it_is_made_of(depth: int, flow: bool) -> None:
    """The same bound for YAML and JSON, far from where Python's own stack ends."""
    opened, closed = (b"[" * depth, b"]" * depth) if flow else (b'{"a":' * depth, b"}" * depth)
    for data in (b'{"a":' + opened + b"1" + closed + b"}", b"a: " + opened + b"1" + closed):
        try:
            decode(data, "f")
        except InvalidObject as err:
            assert "nesting too deep" in str(err)  # noqa: PT017
            assert depth >= MAX_DEPTH
        else:
            assert depth <= MAX_DEPTH


def test_a_byte_order_mark_is_skipped() -> None:
    """Editors of other systems write one."""
    assert decode(b'\xef\xbb\xbf{"a": 1}', "f") == {"a": 1}
