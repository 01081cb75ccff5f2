"""Numbers as Go reads them: what strconv.ParseFloat of Go 1.26 answered."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util import goformat


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.25", 1.25),
        ("+1.5", 1.5),
        ("-1", -1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("00.5", 0.5),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        ("1e-400", 0.0),
        ("1_0", 10.0),
        ("0_1", 1.0),
        ("1_23.50_0_0e+1_2", 1.235e14),
        ("0x1p1", 2.0),
        ("0X1.8P+1", 3.0),
        ("0x.8p0", 0.5),
        ("0x_1p0", 1.0),
        ("0x1_0p0", 16.0),
        ("0x1p1_0", 1024.0),
        ("0x1p-1080", 0.0),
        ("0x1.fffffffffffff7p1023", 1.7976931348623157e308),
        ("inf", math.inf),
        ("+Infinity", math.inf),
        ("-INF", -math.inf),
    ],
)
def test_reads(text, number):
    """Decimal and hexadecimal, with an underscore between two digits or not."""
    assert goformat.parse_float(text) == number


@pytest.mark.parametrize("text", ["nan", "NaN"])
def test_reads_what_is_no_number(text):
    assert math.isnan(goformat.parse_float(text))


@pytest.mark.parametrize(
    "text",
    ["", ".", "+", "e3", "1e", "1e+", "1d", "0b1", "0x1", "0x1.8", "0xp1", "0x.p1", "1p1", "0x1e1",
     " 1.2 ", " 1", "1\n", "\u0661", "\uff11", "_1", "1_", "1__0", "1_.5", "1._5", "1e_3", "1e3_",
     "0x1_p0", "-_1", "+nan", "infi", "\u017f", "1,5", "1e400", "1e99999999999999", "0x1p1024",
     "0x1.fffffffffffff8p1023", "--1"],
)  # fmt: skip
def test_refuses_the_rest(text):
    """Blanks, digits of other scripts, and what no float can hold."""
    with pytest.raises(ValueError, match="number"):
        goformat.parse_float(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_comes_back(number):
    """In both notations."""
    assert goformat.parse_float(repr(number)) == number
    assert goformat.parse_float(number.hex()) == number


@given(st.text() | st.from_regex(r"[+-]?(0x)?[0-9a-f_.]*([ep][+-]?[0-9_]*)?", fullmatch=True))
def test_any_text_is_read_or_refused(text):
    """And what is read is what Python reads in it, without its underscores."""
    try:
        number = goformat.parse_float(text)
    except ValueError:
        return
    read = float.fromhex if "x" in text.lower() else float
    assert number == read(text.replace("_", "")) or math.isnan(number)
