"""Values as the text that sets them, and the text that would set again what stands there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host import resources
from koordlet.host.resources import RESOURCES

ROWS = [  # resource, version, value, what is written, what the file shows then
    (resources.CPU_QUOTA, 1, 50_000, "50000", b"50000\n"),
    (resources.CPU_QUOTA, 1, -1, "-1", b"-1\n"),
    (resources.CPU_QUOTA, 2, 50_000, "50000", b"50000 100000\n"),
    (resources.CPU_QUOTA, 2, -1, "max", b"max 100000\n"),
    (resources.CPU_SHARES, 1, 1024, "1024", b"1024\n"),
    (resources.CPU_SHARES, 2, 1024, "39", b"39\n"),
    (resources.CPU_SHARES, 2, 2597, "99", b"99\n"),
    (resources.CPUSET_CPUS_WANTED, 1, {0, 1, 2, 8}, "0-2,8", b"0-2,8\n"),
    (resources.CPUSET_CPUS_WANTED, 2, frozenset(), "", b"\n"),
    (resources.MEMORY_LIMIT, 1, -1, "-1", b"9223372036854771712\n"),
    (resources.MEMORY_LIMIT, 2, -1, "max", b"max\n"),
    (resources.MEMORY_HIGH, 2, 1_000_000, "999424", b"999424\n"),  # whole pages
    (resources.MEMORY_WMARK_MIN_ADJ, 1, -1, "-1", b"-1\n"),
    (resources.OOM_SCORE_ADJ, 1, -998, "-998", b"-998\n"),
]


@pytest.mark.parametrize(("resource", "version", "value", "text", "shown"), ROWS)
def test_a_value_is_recognized_after_it_was_written(resource, version, value, text, shown):
    """Whatever the file makes of it, so that what is in force is not written again."""
    how = resource.files[version].text

    assert how.of(value) == text
    assert how.shown(shown) == text


def test_what_stands_there_can_be_set_again_exactly():
    """Through CPU shares the default weight of 100 would become another."""
    weight = resources.CPU_SHARES.files[2].text

    assert weight.shown(b"100\n") == "100"
    assert weight.of(weight.value("100")) != "100"


def test_a_quota_keeps_its_period():
    """The file of v2 holds both."""
    quota = resources.CPU_QUOTA.files[2].text

    assert quota.content("50000", b"max 20000\n") == "50000 20000"
    assert quota.content("max", b"50000 20000\n") == "max 20000"


@pytest.mark.parametrize("value", [None, "5", 1.5, True, {"0"}, [1]])
def test_values_of_another_type_are_refused(value):
    """Before anything is written."""
    rows = (resources.CPU_SHARES, resources.MEMORY_LIMIT, resources.CPUSET_CPUS_WANTED)
    for resource in rows:
        for file in resource.files.values():
            with pytest.raises(ValueError, match="wanted"):
                file.text.of(value)


@given(st.sampled_from(RESOURCES), st.sampled_from([1, 2]), st.integers(0, 5000))
def test_every_number_that_can_be_written_can_be_read(resource, version, number):
    """And the text that is kept of it is the one that was written."""
    file = resource.files.get(version)
    if file is None or file.text is None or resource is resources.CPUSET_CPUS_WANTED:
        return
    if file.text.by_line or resource.name.startswith(("resctrl", "traffic", "terway")):
        return  # no numbers; tests of their own
    number = max(number, 2)
    shown = f"{file.text.of(number)}\n"
    shown = shown.replace("\n", " 100000\n") if file.name == "cpu.max" else shown
    shown = (
        f"default {shown}" if resource in (resources.IO_WEIGHT, resources.IO_BFQ_WEIGHT) else shown
    )

    assert file.text.shown(shown.encode()) == file.text.of(number)
    assert file.text.of(file.parse(shown.encode())) is not None
