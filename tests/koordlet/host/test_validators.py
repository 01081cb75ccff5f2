"""Values that may be written into kernel files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host import resources
from koordlet.host.resource import in_range


def valid(resource, text, version=1):
    validate = resource.files[version].validate
    assert validate is not None
    return validate(text)


@pytest.mark.parametrize(
    ("resource", "text", "ok"),
    [
        (resources.CPU_BVT, "-1", True),
        (resources.CPU_BVT, "3", False),
        (resources.MEMORY_HIGH, "max", True),
        (resources.MEMORY_HIGH, "-1", False),
        (resources.MEMORY_HIGH, "", False),
        (resources.MEMORY_HIGH, "9223372036854775808", False),
        (resources.MEMORY_WMARK_MIN_ADJ, "-26", False),
        (resources.MEMORY_WMARK_MIN_ADJ, "-25", True),
        (resources.BLKIO_COST_WEIGHT, "253:0 0", False),
        (resources.BLKIO_COST_WEIGHT, "253:0 100", True),
        (resources.BLKIO_COST_WEIGHT, "253:0 101", False),
        (resources.BFQ_DEVICE_WEIGHT, "253:0 1000", True),
        (resources.BFQ_DEVICE_WEIGHT, "253:0 1001", False),
        (resources.BFQ_DEVICE_WEIGHT, "253:0 default", False),
        (resources.BLKIO_READ_BPS, "253:0 0", True),
        (resources.BLKIO_READ_BPS, "253:0 x", False),
        (
            resources.BLKIO_COST_QOS,
            "253:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=4000",
            True,
        ),
        (
            resources.BLKIO_COST_QOS,
            "253:0 enable=1 ctrl=user rpct=95.00 rlat=-1 wpct=95.00 wlat=4000",
            False,
        ),
        (resources.BLKIO_COST_QOS, "253:16 enable=0", True),
        (resources.BLKIO_COST_MODEL, "253:16 ctrl=auto", True),
        (
            resources.BLKIO_COST_MODEL,
            "253:0 ctrl=user rbps=1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1",
            True,
        ),
        (resources.BLKIO_COST_MODEL, "253:0 ctrl=own", False),
        (resources.NET_CLASS_ID, "0xaa", False),
        (resources.NET_CLASS_ID, "0x100001", True),
        (resources.NET_CLASS_ID, "-1", False),
        (resources.NET_CLASS_ID, "2147483647", True),
        (resources.NET_CLASS_ID, "2147483648", False),
        (resources.NET_CLASS_ID, "", False),
        (resources.CPUSET_CPUS_WANTED, "0-3,7", True),
        (resources.CPUSET_CPUS_WANTED, "", True),
        (resources.CPUSET_CPUS_WANTED, "0-", False),
        (resources.CPU_SHARES, "1", False),
        (resources.CPU_SHARES, "262144", True),
    ],
)
def test_values(resource, text, ok):
    """Koordinator's rules, by row of the table."""
    assert valid(resource, text) is ok


def test_shares_have_another_range_on_v2():
    """There the file holds a weight."""
    assert valid(resources.CPU_SHARES, "10000", version=2)
    assert not valid(resources.CPU_SHARES, "10001", version=2)


@given(st.integers(-(2**64), 2**64), st.integers(-(2**63), 2**63 - 1))
def test_ranges_are_inclusive(number, low):
    """The limits themselves are valid."""
    assert in_range(low)(str(number)) is (low <= number < 2**63)


@given(st.text(max_size=30))
def test_any_text_is_judged(text):
    """No validator raises, whatever an annotation holds."""
    for resource in resources.RESOURCES:
        for file in resource.files.values():
            if file.validate is not None:
                assert file.validate(text) in (True, False)
