"""Listen addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.goformat import split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9316", "", 9316),
        ("127.0.0.1:9316", "127.0.0.1", 9316),
        ("[::1]:9316", "::1", 9316),
        ("localhost:0", "localhost", 0),
    ],
)
def test_good_addresses(text, host, port):
    assert split_address(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "9316", "localhost", "::1:9316", ":", ":http", ":-1", ":65536", ":٣"]
)
def test_bad_addresses(text):
    with pytest.raises(ValueError, match="wanted"):
        split_address(text)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        _, port = split_address(text)
    except ValueError:
        return
    assert 0 <= port <= 65535
