"""Kubernetes quantities: the worked examples of the API conventions, and round trips."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.quantity import Quantity, cpu_text, memory_text

CAP = (2**63 - 1) * 10**9


@pytest.mark.parametrize(
    ("value", "nano"),
    [
        ("0", 0),
        ("2", 2 * 10**9),
        (2, 2 * 10**9),
        (1.5, 15 * 10**8),
        ("100n", 100),
        ("7u", 7000),
        ("250m", 250 * 10**6),
        ("28k", 28_000 * 10**9),
        ("1M", 10**15),
        ("1G", 10**18),
        ("1T", 10**21),
        ("1P", 10**24),
        ("1E", 10**27),
        ("1Ki", 1024 * 10**9),
        ("1.5Gi", 1610612736 * 10**9),
        ("1Ei", 2**60 * 10**9),
        ("1e3", 1000 * 10**9),
        ("1E3", 1000 * 10**9),
        ("12e-1", 12 * 10**8),
        ("+1.25", 125 * 10**7),
        ("-500m", -5 * 10**8),
        (".5", 5 * 10**8),
        ("5.", 5 * 10**9),
        ("0.0000000001", 1),  # finer than a billionth: rounded up
        ("99E", CAP),
        ("-99E", -CAP),
        ("1e999999999", CAP),
        ("1e-999999999", 1),
        ("0e999999999", 0),
        (" 1", 10**9),
        ("\u00a01Ki\u3000 ", 1024 * 10**9),
    ],
)
def test_reads_every_suffix(value, nano):
    """Decimal, binary and exponent forms, as text, with blanks around it or not, or number."""
    assert Quantity.parse(value).nano == nano


@pytest.mark.parametrize(
    "value",
    ["", " ", "1 0", "\x1f1", "\u200b1", "one", "1K", "1ki", "1Mi2", "1e", "1ee3", ".", "+", "m",
     "--1", "0x10", "1_0", "٣", "1.2.3", "9" * 300, float("nan"), float("inf"), True, None, [], {}],
)  # fmt: skip
def test_refuses_the_rest(value):
    with pytest.raises(ValueError, match="not a quantity"):
        Quantity.parse(value)


@pytest.mark.parametrize(
    ("text", "milli", "integer"),
    [("1500m", 1500, 2), ("1.0001", 1001, 2), ("2", 2000, 2), ("1n", 1, 1), ("-1500m", -1500, -1)],
)
def test_conversions_round_up(text, milli, integer):
    """A request is never made smaller than it was."""
    assert Quantity.parse(text).milli == milli
    assert Quantity.parse(text).integer == integer


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Quantity.of_milli(1234), "1234m"),
        (Quantity.of_milli(3000), "3"),
        (Quantity.of_milli(1523), "1523m"),
        (Quantity.of_milli(0), "0"),
        (Quantity.of_milli(2_000_000), "2k"),
        (Quantity.of_milli(28_000_000), "28k"),
        (Quantity.of_milli(33_600_000), "33600"),
        (Quantity.of_bytes(1073741824), "1Gi"),
        (Quantity.of_bytes(1610612736), "1536Mi"),
        (Quantity.of_bytes(3221225472), "3Gi"),
        (Quantity.of_bytes(1073741825), "1073741825"),
        (Quantity.of_bytes(1000), "1k"),
        (Quantity.of_bytes(800), "800"),
        (Quantity.of_bytes(1025), "1025"),
        (Quantity.of_bytes(0), "0"),
        (Quantity.parse("1500m"), "1500m"),
        (Quantity.parse("1024"), "1024"),
        (Quantity.parse("1.5Ki"), "1536"),
        (Quantity.parse("0.5Ki"), "512"),
        (Quantity.parse("1.0001Ki"), "1024102400u"),
        (Quantity.parse("0.1Mi"), "104857600m"),
        (Quantity.parse("12e6"), "12e6"),
        (Quantity.parse("1e1"), "10"),
        (Quantity.parse("-2048Ki"), "-2Mi"),
    ],
)
def test_canonical_text(quantity, text):
    """The largest suffix that leaves an integer, as Go prints it."""
    assert str(quantity) == text


@pytest.mark.parametrize(
    ("cores", "text"), [(1.2349, "1234m"), (2.0, "2"), (0.0004, "0"), (2.9996, "2999m"), (3.0, "3")]
)
def test_cores_are_cut_to_milli(cores, text):
    assert cpu_text(cores) == text


@pytest.mark.parametrize(("count", "text"), [(3221225472.0, "3Gi"), (1025.9, "1025"), (0.0, "0")])
def test_bytes_are_cut_to_whole_ones(count, text):
    assert memory_text(count) == text


def test_amounts_compare_whatever_their_spelling():
    """1000m is 1, and 1Ki is 1024."""
    assert Quantity.parse("1000m") == Quantity.parse("1")
    assert Quantity.parse("1Ki") == Quantity.parse("1024")


@given(
    st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from([Quantity.of_milli, Quantity.of_bytes])
)
def test_canonical_text_means_the_same(number, make):
    """What is written is read back as the same amount."""
    quantity = make(number)
    assert Quantity.parse(str(quantity)) == quantity


@given(
    st.decimals(0, 10**6, places=6),
    st.sampled_from([("", 1), ("m", Decimal("0.001")), ("k", 1000), ("Ki", 1024), ("e2", 100)]),
)
def test_value_is_number_times_suffix(number, suffix):
    """Against exact decimal arithmetic, rounded up to billionths."""
    name, factor = suffix
    exact = number * factor * 10**9
    assert Quantity.parse(f"{number:f}{name}").nano == int(exact.to_integral_value("ROUND_CEILING"))


@given(st.text(alphabet="0123456789.+-eEinumkKMGTP ", max_size=20))
def test_any_text_is_read_or_refused(text):
    """No other exception, and what is read has a canonical form of the same amount."""
    try:
        quantity = Quantity.parse(text)
    except ValueError:
        return
    assert Quantity.parse(str(quantity)) == quantity
