"""Go durations: what is read, what is refused, how they are written."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util import goformat

MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("+0", 0),
        ("300ms", 0.3),
        ("10s", 10),
        ("1h30m", 5400),
        ("90s", 90),
        ("5m0s", 300),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("-1m", -60),
        ("+2us", 2e-6),
        ("2µs", 2e-6),
        ("2μs", 2e-6),
        ("7ns", 7e-9),
    ],
)
def test_reads_what_go_reads(text, seconds):
    """All units, fractions, signs and repetitions of Go's grammar."""
    assert goformat.parse_duration(text) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "1.5",
        "s",
        ".s",
        "1 s",
        " 1s",
        "1s ",
        "1d",
        "--1s",
        "1e3s",
        "1s2",
        "٣s",
        "9" * 200 + "s",
    ],
)
def test_refuses_what_go_refuses(text):
    """A bare number other than 0, unknown units and stray characters are errors."""
    with pytest.raises(ValueError, match="not a duration"):
        goformat.parse_duration(text)


def test_longest_duration_is_exact_and_a_longer_one_refused():
    """The default of --runtime-hooks-nri-backoff-cap survives; 64 bits are the limit."""
    assert goformat.parse_duration_ns("4611686018427387903ns") == 2**62 - 1
    assert goformat.format_duration_ns(2**62 - 1) == "1281023h53m38.427387903s"
    with pytest.raises(ValueError, match="292 years"):
        goformat.parse_duration(f"{2**63}ns")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (300, "5m0s"),
        (90, "1m30s"),
        (3600, "1h0m0s"),
        (600, "10m0s"),
        (1800, "30m0s"),
        (1.5, "1.5s"),
        (0.02, "20ms"),
        (0.0015, "1.5ms"),
        (1.5e-6, "1.5µs"),
        (3e-9, "3ns"),
        (-60.25, "-1m0.25s"),
    ],
)
def test_writes_what_go_writes(seconds, text):
    """The canonical text that goes into a NodeMetric."""
    assert goformat.format_duration(seconds) == text


@given(st.integers(-MAX, MAX))
def test_text_and_value_agree(nanoseconds):
    """What is written is read back as the same number of nanoseconds."""
    assert goformat.parse_duration_ns(goformat.format_duration_ns(nanoseconds)) == nanoseconds


@given(st.text(alphabet="0123456789.+-nuµmsh ", max_size=30))
def test_any_text_is_read_or_refused(text):
    """No other exception than ValueError comes out."""
    with contextlib.suppress(ValueError):
        assert abs(goformat.parse_duration_ns(text)) <= MAX
