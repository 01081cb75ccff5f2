"""Plain YAML scalars: the table is what sigs.k8s.io/yaml v1.6.0 makes of each."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.documents import resolve

KUBERNETES = {
    # no base 60, which PyYAML has
    "1:30": "1:30", "1:30:00": "1:30:00", "190:20:30.15": "190:20:30.15",
    # integers
    "0": 0, "-0": 0, "+5": 5, "1_000": 1000, "1_": 1, "_1": "_1", "00": 0, "017": 15, "010": 8,
    "-017": -15, "0777": 511, "0o17": 15, "0O17": 15, "0o18": "0o18", "0o": "0o", "08": 8,
    "0b11": 3, "0B11": 3, "-0b11": -3, "0b": "0b", "0b_1": 1, "0x1F": 31, "0X1f": 31,
    "-0x1F": -31, "0x": "0x", "0xg": "0xg", "0x1_F": 31,
    "9223372036854775808": 2**63, "-9223372036854775808": -(2**63),
    "18446744073709551615": 2**64 - 1, "18446744073709551616": 18446744073709552000.0,
    "-9223372036854775809": -9223372036854776000.0, "100000000000000000000": 1e20,
    "9" * 5000: "9" * 5000, "0x" + "f" * 17: "0x" + "f" * 17,
    # floats; whole ones are integers in JSON
    "1e3": 1000, "1E3": 1000, "1.e3": 1000, "1.": 1, "1.0": 1, ".5": 0.5, "-.5": -0.5,
    ".5e3": 500, "09.5": 9.5, "1.5_0": 1.5, "-1_0.5": -10.5, "0.0000001": 1e-7, "1e21": 1e21,
    "._5": "._5", ".e5": ".e5", "0x1p1": "0x1p1", "1e400": "1e400", ".1e400": ".1e400",
    "+": "+", "-": "-", ".": ".", "1-2": "1-2", "1,000": "1,000",
    # words
    "y": True, "Y": True, "yes": True, "Yes": True, "YES": True, "yEs": "yEs", "on": True,
    "On": True, "true": True, "True": True, "TRUE": True, "tRUE": "tRUE", "n": False, "N": False,
    "no": False, "No": False, "NO": False, "off": False, "OFF": False, "oN": "oN",
    "false": False, "False": False, "FALSE": False,
    "": None, "~": None, "null": None, "Null": None, "NULL": None, "nULL": "nULL",
    # texts
    "2024-01-01": "2024-01-01", "2024-01-01T00:00:00Z": "2024-01-01T00:00:00Z", "=": "=",
    "inf": "inf", "nan": "nan", ".Infinity": ".Infinity", "100m": "100m", "5Gi": "5Gi",
    "\u0663": "\u0663", "1\u0663": "1\u0663", "\uff11": "\uff11",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), KUBERNETES.items(), ids=lambda value: repr(value)[:20])
def test_scalars_are_those_of_kubernetes(text: str, value: object) -> None:
    """Value and type."""
    found = resolve(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", [".inf", "-.inf", "+.Inf", ".INF", ".nan", ".NaN", ".NAN"])
def test_what_json_cannot_say_is_refused(text: str) -> None:
    """As Kubernetes does."""
    with pytest.raises(ValueError, match="the number"):
        resolve(text)


@given(st.text(max_size=12) | st.text("0123456789_+-.eExXbBoO:aAfF", max_size=12))
def test_any_text_is_a_value_that_json_can_say(text: str) -> None:
    """Or refused; a text stays as it is."""
    try:
        found = resolve(text)
    except ValueError as err:
        assert str(err) == f"the number {text}"  # noqa: PT017
        return
    assert found == text if isinstance(found, str) else math.isfinite(found or 0)
    assert isinstance(found, str) or json.loads(json.dumps(found)) == found


@given(st.integers(-(2**63), 2**64 - 1))
def test_any_integer_is_itself(number: int) -> None:
    """In every base."""
    sign, digits = "-" * (number < 0), abs(number)
    for text in (f"{digits}", f"0x{digits:x}", f"0b{digits:b}", f"0o{digits:o}", f"0{digits:o}"):
        assert resolve(sign + text) == number
