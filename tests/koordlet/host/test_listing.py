"""Listings: what changed, and since when something was known to be absent."""

from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.cgroups.tree import Listing, ListingChange

EMPTY: frozenset[str] = frozenset()


def test_the_first_listing_knows_only_when_the_directory_was_absent() -> None:
    """None for a directory that was there at the first look."""
    assert Listing(None).update({"a": 1}, 3, now=5.0) == ListingChange(EMPTY, frozenset("a"), None)
    assert Listing(4.0).update({"a": 1}, 3, now=5.0) == ListingChange(EMPTY, frozenset("a"), 4.0)


def test_the_link_count_vouches_for_absence_since_it_was_checked() -> None:
    """Only added to: what is fresh was not there at the latest check."""
    listing = Listing(None)
    listing.update({"a": 1}, 3, now=1.0)
    assert not listing.is_stale(3, now=2.0)
    assert listing.is_stale(4, now=3.0)

    assert listing.update({"a": 1, "b": 2}, 4, now=3.0) == ListingChange(EMPTY, frozenset("b"), 2.0)


def test_a_replaced_child_may_be_there_since_the_listing_before() -> None:
    """The link count was the same all the time."""
    listing = Listing(None)
    listing.update({"a": 1}, 3, now=1.0)
    assert not listing.is_stale(3, now=2.0)

    change = listing.update({"b": 2}, 3, now=3.0)
    assert change == ListingChange(frozenset("a"), frozenset("b"), 1.0)


def test_a_child_made_anew_is_gone_and_fresh() -> None:
    """Its name is the same, its counters are not."""
    listing = Listing(None)
    listing.update({"a": 1}, 3, now=1.0)

    assert listing.update({"a": 2}, 3, now=2.0) == ListingChange(
        frozenset("a"), frozenset("a"), 1.0
    )


def test_file_systems_that_count_no_links_are_always_stale() -> None:
    """Overlay and btrfs say 1 for every directory."""
    listing = Listing(None)
    listing.update({"a": 1}, 1, now=1.0)

    assert listing.is_stale(1, now=2.0)


@given(
    st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), max_size=4), max_size=10)
)
def test_changes_add_up_to_the_latest_listing(listings: list[dict[str, int]]) -> None:
    """Whoever follows the changes knows what is there, and no absence lies in the future."""
    listing, followed = Listing(None), set[str]()
    for now, found in enumerate(listings, start=1):
        change = listing.update(found, 2 + len(found), float(now))
        followed = followed - change.gone | change.fresh
        assert followed == set(found)
        assert change.absent_at is None or change.absent_at < now
        assert bool(change) == bool(change.gone or change.fresh)
