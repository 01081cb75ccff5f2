"""The map of the ways: each lists files of the repository, once; their daemons check the rest."""

import pytest

from tests.support.programs import REPOSITORY
from tests.support.ways import NODE_METRIC, NODE_SLO, POD, Map


@pytest.mark.parametrize("way", [POD, NODE_METRIC, NODE_SLO], ids=lambda way: way.heading)
def test_a_way_lists_files_once_each(way: Map) -> None:
    """As many as the test of the way allows, and all of them exist."""
    files = way.files()

    assert len(files) == len(set(files)) == way.most
    assert [name for name in files if not (REPOSITORY / name).is_file()] == []
