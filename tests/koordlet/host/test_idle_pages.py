"""Cold memory of Anolis kernels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.idle_pages import parse_idle_pages

KINDS = "csei dsei cfei dfei csui dsui cfui dfui csea dsea cfea dfea csua dsua cfua dfua slab"
CFEI = "2633728 4640768 66531328 340172800 52834304 52834304 0 0"


def idle_page_stats() -> str:
    """A file with cold pages in one row only."""
    head = [
        "# version: 1.0",
        "# page_scans: 24",
        "# slab_scans: 0",
        "# scan_period_in_seconds: 120",
        "# use_hierarchy: 1",
        "# buckets: 1,2,5,15,30,60,120,240",
        *["#"] * 8,
    ]
    rows = [f"  {row} {CFEI if row == 'cfei' else '0 ' * 8}" for row in KINDS.split(" ")]
    return "\n".join(head + rows) + "\n"


@pytest.mark.parametrize(("boundary", "cold"), [(5, 52834304), (3, 445841408), (8, 0)])
def test_cold_bytes_are_those_from_the_boundary_on(boundary, cold):
    """The boundary says from which bucket on a page counts as cold."""
    pages = parse_idle_pages(idle_page_stats().encode())

    assert pages.cold_bytes(boundary) == cold
    assert pages.settings["scan_period_in_seconds"] == 120
    assert pages.buckets[0] == 1


@pytest.mark.parametrize(
    ("period", "hierarchy", "seconds", "cold"),
    [
        (5, 1, 300, 52834304),
        (5, 1, 75, 445841408),
        (120, 1, 300, 66531328 + 445841408),
        (1, 1, 300, None),
        (0, 1, 300, None),
        (5, 0, 300, None),
    ],
)
def test_cold_is_what_was_idle_for_so_long(period, hierarchy, seconds, cold):
    """Whatever the period of the scanner; unknown where it does not count that far, or is off."""
    text = idle_page_stats().replace("seconds: 120", f"seconds: {period}")
    pages = parse_idle_pages(text.replace("hierarchy: 1", f"hierarchy: {hierarchy}").encode())
    assert pages.cold_after(seconds) == cold


@pytest.mark.parametrize(
    ("old", "new"),
    [("cfei", "xxxx"), ("# page_scans", "# other"), (": 120", ": x"), ("2633728", "-"), (":", "")],
)
def test_other_text_is_refused(old, new):
    """A file of another kind, or another version of it, is an error."""
    with pytest.raises(ValueError, match=r"wanted|invalid"):
        parse_idle_pages(idle_page_stats().replace(old, new).encode())


@given(st.integers(0, len(idle_page_stats()) - 30) | st.binary(max_size=50))
def test_parts_and_garbage_are_refused(cut):
    """Too few lines are too few."""
    data = idle_page_stats().encode()[:cut] if isinstance(cut, int) else cut
    with pytest.raises(ValueError, match=r"wanted|decode"):
        parse_idle_pages(data)
