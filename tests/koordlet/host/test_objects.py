"""The table of kernel objects: each kind names its reader, and its writer, if it has one."""

import pytest

from koordlet.executor.claims.claim import Target, levels_of_root
from koordlet.host.object_writers import make_writer
from koordlet.host.objects import KINDS, SOCKET_CGROUPS, VETH_PEERS, make_reader
from koordlet.host.paths import HostPaths
from koordlet.host.resource import ObjectKind
from koordlet.host.resources import RESOURCES

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.reader)


@kinds
def test_each_kind_has_a_value_and_a_reader(kind: ObjectKind, tmp_path):
    """The names in the row are those of the module."""
    reader = make_reader(kind, HostPaths.below(tmp_path))
    (row,) = (row for row in RESOURCES if row.files[max(row.files)].root is kind)

    assert row.is_object
    assert levels_of_root(row.files[1]) == (kind.level,)
    assert reader.path("x")


def test_all_kinds_but_those_of_facts_can_be_set(tmp_path):
    """A kind without a writer has no text to write either."""
    paths = HostPaths.below(tmp_path)
    writers = {kind: make_writer(kind, paths) for kind in KINDS if kind.writer}
    texts = {row.files[1].root: row.files[1].text for row in RESOURCES if row.is_object}

    assert set(KINDS) - set(writers) == {VETH_PEERS, SOCKET_CGROUPS}
    assert {kind for kind, text in texts.items() if text} == set(writers)
    assert all(callable(writer.identity) and callable(writer.write) for writer in writers.values())


@kinds
@pytest.mark.parametrize("place", ["", "..", "../x", "a/../b", "/x", "a\nb"])
def test_no_kind_has_a_place_elsewhere(kind: ObjectKind, place):
    """A hostile journal names no object outside of its directory."""
    assert not Target(kind.level, place).is_valid
