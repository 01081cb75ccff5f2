"""Pressure files."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.procfiles import Pressure, Stall, parse_pressure

SOME = b"some avg10=1.50 avg60=0.20 avg300=0.00 total=123\n"
FULL = b"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
NONE = Stall(0.0, 0.0, 0.0, 0)

percent = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)
stalls = st.builds(Stall, percent, percent, percent, st.integers(0, 2**64 - 1))


def test_both_lines():
    """The usual file of a kernel from 5.13 on."""
    assert parse_pressure(SOME + FULL) == Pressure(
        Stall(1.5, 0.2, 0.0, 123), Stall(0.0, 0.0, 0.0, 7), full_supported=True
    )


def test_a_real_file():
    """A file captured from Linux 6.18."""
    data = Path(__file__).with_name("data").joinpath("pressure_cpu").read_bytes()

    assert parse_pressure(data).full_supported


def test_old_kernels_have_no_full_line_for_cpu():
    """Then it is zero and marked as not supported."""
    assert parse_pressure(SOME) == Pressure(Stall(1.5, 0.2, 0.0, 123), NONE, full_supported=False)


def test_blank_lines_and_text_after_the_total_are_ignored():
    """Later kernels may add to a line."""
    assert parse_pressure(b"\n" + SOME[:-1] + b" more=1\n\n").some.total_us == 123


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        FULL,
        SOME[:-1],
        SOME + FULL[:20],
        b"some avg10=0.00 total=0\n",
        b"wrong avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        b"some avg10=nan avg60=0.00 avg300=0.00 total=0\n",
        b"some avg10=-1.0 avg60=0.00 avg300=0.00 total=0\n",
        b"some avg10=1.0.0 avg60=0.00 avg300=0.00 total=0\n",
        b"\0\xff\n",
    ],
)
def test_malformed_files(data):
    """A file without "some", or with a line that is not one, is refused whole."""
    with pytest.raises(ValueError, match=r"wanted|float"):
        parse_pressure(data)


@given(stalls, stalls)
def test_what_the_kernel_prints_is_read_back(some, full):
    """All values within the kernel's ranges come out as they went in."""
    text = "".join(
        f"{kind} avg10={s.avg10:.2f} avg60={s.avg60:.2f} avg300={s.avg300:.2f} total={s.total_us}\n"
        for kind, s in (("some", some), ("full", full))
    )

    assert parse_pressure(text.encode()) == Pressure(some, full, full_supported=True)


@given(st.binary(max_size=80) | st.integers(0, len(SOME + FULL)).map(lambda n: (SOME + FULL)[:n]))
def test_any_bytes_are_a_pressure_or_a_value_error(data):
    """A corrupt or cut file never becomes another figure than the kernel's."""
    with suppress(ValueError):
        assert parse_pressure(data).some == Stall(1.5, 0.2, 0.0, 123)
