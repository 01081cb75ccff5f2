"""Values by block device: what files say, what is written, and that all comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host import resources as r
from koordlet.host.cgroups.keyed_files import (
    MAX_DEVICES,
    parse_default_weight,
    parse_device_numbers,
)

THROTTLE = r.BLKIO_READ_BPS.files[1]
IOPS = r.BLKIO_WRITE_IOPS.files[1]
MAX = r.IO_MAX.files[2]
LATENCY = r.IO_LATENCY.files[2]
WEIGHT = r.IO_WEIGHT.files[2]
WEIGHTS = (r.IO_DEVICE_WEIGHT.files[2], r.BFQ_DEVICE_WEIGHT.files[1], r.BLKIO_COST_WEIGHT.files[1])
QOS, MODEL = r.BLKIO_COST_QOS.files[2], r.BLKIO_COST_MODEL.files[2]

devices = st.builds("{}:{}".format, st.integers(0, 4095), st.integers(0, 2**20 - 1))
limits = st.dictionaries(st.sampled_from(["rbps", "wbps", "riops", "wiops"]), st.integers(1, 10**9))
by_device = st.dictionaries(devices, limits.filter(bool), max_size=6)
numbers = st.dictionaries(devices, st.integers(1, 2**63), max_size=6)


def test_throttles_are_numbers_by_device():
    """The kernel shows the newest first; the text is sorted, so that it can be compared."""
    assert THROTTLE.parse(b"7:10 5\n7:1 1048576\n") == {"7:10": 5, "7:1": 1048576}
    assert THROTTLE.text.shown(b"7:10 5\n7:1 1048576\n") == "7:1 1048576\n7:10 5"
    assert THROTTLE.parse(b"") == {}


def test_a_throttle_is_written_and_removed_by_device():
    """A line each, "0" for a device that goes; what stays is not written."""
    assert THROTTLE.text.content("7:1 20\n7:2 5", b"7:1 10\n7:2 5\n7:9 1\n") == "7:1 20\n7:9 0"
    assert THROTTLE.text.content("", b"7:1 10\n") == "7:1 0"


def test_io_max_is_limits_by_device_and_name():
    """ "max" is no limit, and is not in the value."""
    shown = b"8:16 rbps=2097152 wbps=max riops=max wiops=120\n"
    assert MAX.parse(shown) == {"8:16": {"rbps": 2097152, "wiops": 120}}
    assert MAX.text.of(MAX.parse(shown)) == MAX.text.shown(shown) == shown.decode().strip()


def test_a_device_leaves_io_max_with_all_its_limits():
    """The kernel docs' way of taking a device out."""
    shown = b"8:16 rbps=2097152 wbps=max riops=max wiops=120\n"
    assert MAX.text.content("", shown) == "8:16 rbps=max wbps=max riops=max wiops=max"


def test_settings_of_newer_kernels_are_left_alone():
    """They are not ours to set, and must not make the file unreadable."""
    assert MAX.parse(b"8:16 rbps=5 newer=1 idle=max\n") == {"8:16": {"rbps": 5}}
    assert MAX.parse(b"8:16 newer=1\n") == {}


def test_latency_targets():
    """One setting, "max" for none."""
    assert LATENCY.parse(b"8:16 target=75000\n") == {"8:16": {"target": 75000}}
    assert LATENCY.text.content("", b"8:16 target=75000\n") == "8:16 target=max"


def test_the_weight_of_a_group_leaves_those_of_devices_alone():
    """They have lines of their own in the same file."""
    assert WEIGHT.parse(b"default 100\n8:16 200\n") == 100
    assert WEIGHT.text.shown(b"default 100\n8:16 200\n") == "100"
    assert WEIGHT.text.content("300", b"default 100\n8:16 200\n") == "default 300"
    assert not WEIGHT.validate("10001")
    assert WEIGHT.validate("1")


@pytest.mark.parametrize(
    ("file", "value"),
    [
        (THROTTLE, {"sda": 1}),
        (THROTTLE, {"8:0": -1}),
        (THROTTLE, {"8:0": True}),
        (THROTTLE, {"8:0": 1.5}),
        (THROTTLE, {"08:0": 1}),
        (THROTTLE, {"8:0\n8:1": 1}),
        (THROTTLE, 5),
        (THROTTLE, None),
        (THROTTLE, {f"8:{minor}": 1 for minor in range(MAX_DEVICES + 1)}),
        (MAX, {"8:0": 5}),
        (MAX, {"8:0": {"bps": 5}}),
        (MAX, {"8:0": {"rbps": "max"}}),
        (WEIGHT, "100"),
    ],
)
def test_values_of_another_shape_are_refused(file, value):
    """Before anything is written."""
    with pytest.raises(ValueError, match="wanted"):
        file.text.of(value)


def test_operations_stay_within_what_the_kernel_keeps():
    """It keeps 32 bits of them: 2^32 operations would become none at all, and stop the device."""
    assert IOPS.validate("8:0 4294967294")
    assert not IOPS.validate("8:0 4294967295")
    assert not IOPS.validate("8:0 4294967296")
    assert not MAX.validate("8:0 rbps=max wbps=max riops=4294967295 wiops=max")
    assert MAX.validate("8:0 rbps=4294967295 wbps=max riops=max wiops=max")


@pytest.mark.parametrize(
    "data",
    [b"8:0\n", b"8:0 x\n", b"8:0 5", b"8:0 5\n8:0 6\n", b"sda 5\n", b"8:0  5\n", b"\xff\n",
     b"8:0 -5\n", b"Total 5\n"],
)  # fmt: skip
def test_malformed_throttles(data):
    """What the kernel does not write is refused as a whole."""
    with pytest.raises(ValueError, match=r"wanted|decode"):
        THROTTLE.parse(data)


@pytest.mark.parametrize("data", [b"", b"100\n", b"default\n", b"default x\n", b"default 100"])
def test_malformed_weights(data):
    with pytest.raises(ValueError, match="wanted"):
        parse_default_weight(data)


def applied(text, shown: bytes, gone: str) -> bytes:
    """What a file shows after a content was written line by line."""
    lines = {line.split()[0]: line for line in shown.decode().splitlines()}
    for line in text.splitlines():
        device, _, rest = line.partition(" ")
        lines.pop(device, None)
        if rest != gone:
            lines = {device: line, **lines}
    return "".join(f"{line}\n" for line in lines.values()).encode()


@given(numbers, numbers)
def test_any_throttles_become_any_others(now, then):
    """And the text of what the kernel shows afterwards is the one that was wanted."""
    shown = "".join(f"{device} {number}\n" for device, number in now.items()).encode()
    wanted = THROTTLE.text.of(then)

    after = applied(THROTTLE.text.content(wanted, shown), shown, "0")

    assert THROTTLE.text.shown(after) == wanted
    assert THROTTLE.text.value(wanted) == THROTTLE.parse(after) == then
    assert THROTTLE.validate(wanted)
    assert not THROTTLE.text.content(wanted, after)


@given(by_device, by_device)
def test_any_limits_become_any_others(now, then):
    shown = MAX.text.of(now)
    shown = f"{shown}\n".encode() if shown else b""
    wanted = MAX.text.of(then)

    after = applied(MAX.text.content(wanted, shown), shown, "rbps=max wbps=max riops=max wiops=max")

    assert MAX.text.shown(after) == wanted
    assert MAX.text.value(wanted) == MAX.parse(after) == then
    assert MAX.validate(wanted)


@given(
    st.binary(max_size=80) | st.text("0123456789: =maxrbpswiodeft\n", max_size=60).map(str.encode)
)
def test_any_file_is_read_or_refused(data):
    """Whatever stands there, and what was read can be written again."""
    for file in (THROTTLE, MAX, LATENCY, WEIGHT):
        try:
            text = file.text.shown(data)
        except ValueError:
            continue
        assert file.text.of(file.text.value(text)) == text


@given(st.text(max_size=40))
def test_any_text_is_judged(text):
    """A journal may hold anything."""
    for file in (THROTTLE, MAX, LATENCY, WEIGHT):
        assert file.validate(text) in (True, False)


def test_numbers_are_read_once_per_device():
    assert parse_device_numbers(b"259:0 0\n") == {"259:0": 0}


def test_weights_of_single_devices():
    """The group's own, in the first line of the same file, is neither read nor written."""
    [by_cost, _, of_anolis] = WEIGHTS
    shown = b"default 100\n8:16 300\n8:0 40\n"
    assert by_cost.parse(shown) == {"8:16": 300, "8:0": 40}
    assert by_cost.text.content("8:0 50", shown) == "8:0 50\n8:16 default"
    assert of_anolis.parse(b"8:16 100\n8:0 40\n") == {"8:0": 40}
    assert of_anolis.text.content("", b"8:16 100\n8:0 40\n") == "8:0 100"


@given(st.sampled_from(WEIGHTS), st.dictionaries(devices, st.integers(1, 99), max_size=6))
def test_weights_come_back_as_they_were(file, value):
    text = file.text.of(value)
    assert file.text.value(text) == file.parse(f"{text}\n".encode() if text else b"") == value
    assert file.validate(text)
    assert file.may_restore(text)


COST = (
    b"7:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.50 wlat=4000 min=1.00 max=10000.00\n"
    b"7:1 enable=0 ctrl=auto rpct=0.00 rlat=250000 wpct=0.00 wlat=250000 min=1.00 max=10000.00\n"
)


def test_settings_of_iocost():
    """A line that says off is no setting; what is not ours to set stays as it is."""
    text = QOS.text.shown(COST)
    assert text == "7:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.50 wlat=4000"
    assert QOS.text.of(QOS.parse(COST)) == text
    assert QOS.may_restore(text)
    assert QOS.text.content("", COST) == "7:0 enable=0"
    assert QOS.text.content(text, b"") == text
    assert MODEL.text.shown(b"7:0 ctrl=auto model=linear rbps=1 rseqiops=1\n") == ""
    assert MODEL.text.content("", b"7:0 ctrl=user model=linear rbps=1\n") == "7:0 ctrl=auto"


@pytest.mark.parametrize("words", [{"rlat": "1 enable=0"}, {"min": "1"}, {"ctrl": 5}, ["ctrl"]])
def test_words_that_iocost_does_not_have(words):
    with pytest.raises(ValueError, match="wanted"):
        QOS.text.of({"7:0": words})


@given(st.sampled_from((*WEIGHTS, QOS, MODEL)), st.binary(max_size=80))
def test_any_bytes_are_weights_or_costs_or_a_value_error(file, data):
    try:
        value = file.parse(data)
    except ValueError:
        return
    assert file.text.value(file.text.of(value)) == value
