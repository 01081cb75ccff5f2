"""The document of --config: read whole or rejected with a line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.config.document import MAX_BYTES, parse_document, read_config
from koord.util.errors import OptionError

PATH = Path("/etc/daemon.yaml")


def test_an_example_in_json_is_yaml_too():
    assert parse_document(b'{"addr": ":1"}', PATH).values == {"addr": ":1"}


@pytest.mark.parametrize("data", [b"", b"# nothing yet\n", b"---\n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_entries(data):
    assert parse_document(data, PATH).values == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"- addr\n", "wanted a map of names to values"),
        (b"just text\n", "wanted a map of names to values"),
        (
            b"addr: ':1'\nlog-level: info\naddr: ':2'\n",
            "daemon.yaml:3: found 'addr'; the same key",
        ),
        (b'{"addr": ":1", "addr": ":2"}', "the same key is on line 1"),
        (b"feature-gates:\n  A: true\n  A: false\n", "daemon.yaml:3: found 'A'; the same key"),
        (b"a:\n- b:\n    c: 1\n    c: 2\n", "daemon.yaml:4: found 'c'; the same key"),
        (b"addr: [", "not YAML"),
        (b"addr: \x00", "not YAML"),
        (b"\xff\xfe", "not YAML"),
        (b"a: 1\n---\nb: 2\n", "a single document"),
        (b"a: &x [1]\nb: *x\n", "alias"),
        (b"a: !!python/object/apply:os.system [id]\n", "tag"),
        (b"[" * 5000, "YAML"),
        (b"a: " + b"[" * 500 + b"]" * 500, "not YAML"),
    ],
)
def test_a_bad_file_is_refused_whole(data, message):
    """The message names the file and, where one is at fault, the line."""
    with pytest.raises(OptionError) as caught:
        parse_document(data, PATH)
    assert message in str(caught.value)
    assert str(PATH) in str(caught.value)


def test_unreadable_and_huge_files_are_refused(tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        read_config(tmp_path / "none", parse_document)
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(OptionError, match=f"larger than {MAX_BYTES} bytes"):
        read_config(huge, parse_document)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data):
    """Nothing but OptionError comes out."""
    try:
        assert set(parse_document(data, PATH).lines) <= set(parse_document(data, PATH).values)
    except OptionError:
        return
