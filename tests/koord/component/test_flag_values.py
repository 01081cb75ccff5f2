"""Values of flags: Go's literals and their YAML forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component import flag_values
from koord.component.flag_values import read_bool, read_bool_map, read_float, read_int


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_true_literals(text):
    assert read_bool(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_false_literals(text):
    assert read_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "on", "tRUE", " true", "2"])
def test_other_words_are_no_bools(text):
    with pytest.raises(ValueError, match="true or false"):
        read_bool(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("42", 42),
        ("-7", -7),
        ("+7", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 15),
        ("0b101", 5),
        ("1_000", 1000),
        ("-0x10", -16),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_whole_numbers_as_go_reads_them(text, number):
    """Decimal, hexadecimal, octal (both spellings), binary, underscores, 64 bits."""
    assert read_int(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "1.0", "1e3", " 1", "1 ", "0x", "08", "1__0", "٣", "9223372036854775808", "ten", "9" * 99],
)
def test_other_texts_are_no_whole_numbers(text):
    with pytest.raises(ValueError, match="whole number"):
        read_int(text)


@pytest.mark.parametrize(
    ("text", "number"), [("20", 20), ("2.5", 2.5), ("-.5", -0.5), ("1e3", 1000)]
)
def test_numbers(text, number):
    assert read_float(text) == number


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e999", "1_0", " 1", "1,5", "."])
def test_other_texts_are_no_numbers(text):
    """NaN and infinity are numbers to Go, but no flag could use them."""
    with pytest.raises(ValueError, match="number"):
        read_float(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        (",CPUBurst = false,", {"CPUBurst": False}),
        ("BECPUEvict=false,AllAlpha=true", {"BECPUEvict": False, "AllAlpha": True}),
        (" A=1 , B=F ", {"A": True, "B": False}),
        ("A=true,A=false", {"A": False}),
    ],
)
def test_maps_of_bool(text, values):
    """Blanks and empty pieces do not count; of two values of a key the last does."""
    assert read_bool_map(text) == values


@pytest.mark.parametrize("text", ["A", "A=", "CPUBurst=yes", "=true", "A=true=false"])
def test_malformed_pairs(text):
    with pytest.raises(ValueError, match="expect string=bool"):
        read_bool_map(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    """Whatever stands on the command line, a value or a ValueError comes out."""
    for read in (read_bool, read_int, read_float, read_bool_map):
        try:
            read(text)
        except ValueError:
            continue


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive_writing(number):
    assert read_int(str(number)) == read_int(hex(number)) == number


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (flag_values.BOOL, [True, False], [1, "true", None]),
        (flag_values.INT, [3], [True, "3", 3.0, 2**63, None]),
        (flag_values.FLOAT, [3, 2.5], [True, "3", float("nan"), None]),
        (flag_values.STRING, [":9316"], [9316, True, None, []]),
        (flag_values.DURATION, ["10s", 0], [10, True, "10", None]),
        (flag_values.BOOL_MAP, [{"A": True}, {}], [{"A": "true"}, {1: True}, "A=true", None]),
        (flag_values.STRING_LIST, [["a,b"], []], ["a", [1], None]),
    ],
)
def test_yaml_values_need_the_right_type(kind, good, bad):
    """YAML has types of its own, so a text is no number and a number no text."""
    for value in good:
        kind.from_yaml(value)
    for value in bad:
        with pytest.raises(ValueError, match=r"wanted|duration"):
            kind.from_yaml(value)
