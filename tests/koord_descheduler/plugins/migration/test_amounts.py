"""How many pods of a workload may migrate: the table of the specification, and what must hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_descheduler_plugins.migration.rules import has_enough_replicas, max_pods_of


@pytest.mark.parametrize(
    ("replicas", "setting", "most", "enough"),
    [
        (1, None, 1, False),
        (2, None, 1, True),
        (3, None, 1, True),
        (4, None, 2, True),
        (2, 2, 2, False),
        (6, "80%", 4, True),
        (6, "150%", 6, False),
        (6, 7, 6, False),
        (6, 0, 1, True),
        (50, "0%", 1, True),
        (11, None, 1, True),
        (25, None, 2, True),
        (0, None, 0, False),
    ],
)
def test_the_table_of_amounts(
    replicas: int, setting: int | str | None, most: int, enough: bool
) -> None:
    """The specification's rows: value, and the check that some replicas stay."""
    assert max_pods_of(replicas, setting) == most
    assert has_enough_replicas(replicas, setting, None) == (
        enough and replicas != max_pods_of(replicas, None)
    )
    assert has_enough_replicas(replicas, setting, setting) == enough


@given(st.integers(0, 10**5), st.one_of(st.none(), st.integers(-5, 10**6), st.integers(-9, 500)))
def test_at_least_one_and_never_more_than_there_are(replicas: int, setting: int | None) -> None:
    """Whatever is configured, as a number and as a percentage."""
    for value in (setting, None if setting is None else f"{setting}%"):
        assert min(1, replicas) <= max_pods_of(replicas, value) <= replicas
