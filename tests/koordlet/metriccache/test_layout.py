"""The ring file format: what is written is read back, anything else is called damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metriccache import ring
from koordlet.metriccache.ring import (
    HEADER_BYTES,
    ColumnStamp,
    DamagedRing,
    RingGeometry,
    RingIdentity,
    decode_key,
    encode_key,
    pack_entry,
    pack_header,
    pack_stamp,
    unpack_entry,
    unpack_header,
    valid_columns,
)

IDENTITY = RingIdentity("5f1d8f6e-0000-4000-8000-000000000001", "pod_cpu_usage")
GEOMETRY = RingGeometry(columns=304, rows=176, key_bytes=40)
plain = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=60)


def test_a_header_comes_back():
    """Boot, kind and geometry survive the round trip."""
    assert unpack_header(pack_header(IDENTITY, GEOMETRY)) == (IDENTITY, GEOMETRY)


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_header_is_damaged_or_the_change_does_not_matter(at, mask):
    """One flipped byte never yields another geometry."""
    data = bytearray(pack_header(IDENTITY, GEOMETRY))
    data[at] ^= mask
    try:
        found = unpack_header(bytes(data))
    except DamagedRing:
        return
    assert found == (IDENTITY, GEOMETRY)  # a padding byte


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_not_a_header(data):
    """Never an exception other than DamagedRing."""
    with pytest.raises(DamagedRing):
        unpack_header(data)


def test_another_version_is_named(monkeypatch):
    """The log line must distinguish an upgrade from a broken disk."""
    monkeypatch.setattr(ring, "VERSION", 2)
    data = pack_header(IDENTITY, GEOMETRY)
    monkeypatch.undo()

    with pytest.raises(DamagedRing, match="version 2 instead of 1"):
        unpack_header(data)


@given(st.lists(plain, max_size=4))
def test_keys_come_back(values):
    """Any strings without NUL, lone surrogates included."""
    key = tuple(values)

    assert decode_key(encode_key(key, len(key)), len(key)) == key


@given(st.binary(max_size=80), st.integers(0, 4))
def test_arbitrary_bytes_are_a_fitting_key_or_damaged(data, properties):
    """A key of another number of properties never gets through."""
    try:
        key = decode_key(data, properties)
    except DamagedRing:
        return
    assert len(key) == properties


@pytest.mark.parametrize("key", [(), ("a",), ("a", "b", "c"), ("a", "\0"), ("a", "x" * 1024)])
def test_keys_that_do_not_fit_are_refused(key):
    """Wrong number of values, NUL inside, too long."""
    with pytest.raises(ValueError, match=r"one plain string|longer"):
        encode_key(key, 2)


@given(st.floats(allow_nan=False), st.binary(max_size=100))
def test_directory_entries_come_back(created, key):
    """Whatever follows in the slot is ignored."""
    assert unpack_entry(pack_entry(created, key) + b"left over") == (created, key)


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_directory_entry_is_damaged(at, mask):
    """A flipped byte does not give a row to another series."""
    data = bytearray(pack_entry(12.5, b"3c1b7c0e-0000-4000-8000-000000000002"))
    at %= len(data)
    data[at] ^= mask
    if at in (14, 15):  # padding
        assert unpack_entry(bytes(data))
    else:
        with pytest.raises(DamagedRing):
            unpack_entry(bytes(data))


def test_a_free_row_is_empty():
    """Zeros, as a new file has them."""
    assert unpack_entry(bytes(64)) is None


@given(st.binary(min_size=3 * 32 + 3 * 2 * 8, max_size=3 * 32 + 3 * 2 * 8))
def test_arbitrary_columns_are_damaged(data):
    """Garbage in the column area is counted, never shown."""
    geometry = RingGeometry(columns=3, rows=2, key_bytes=8)
    file = bytes(geometry.stamps_at) + data

    columns, _ = valid_columns(memoryview(file), geometry)

    assert columns == []


@given(st.sets(st.integers(0, 2)), st.integers(0, 15), st.integers(1, 255))
def test_only_the_changed_column_is_damaged(flipped, at, mask):
    """Columns are judged one by one."""
    geometry = RingGeometry(columns=3, rows=2, key_bytes=8)
    heads, cells = b"", b""
    for sequence in (3, 1, 2):  # their slots are 0, 1 and 2
        body = bytes([sequence]) * 16
        heads += pack_stamp(ColumnStamp(sequence, 10.0 + sequence, 0.0, 2), body)
        cells += body
    data = bytearray(bytes(geometry.stamps_at) + heads + cells)
    for slot in flipped:
        data[geometry.cells_at + slot * 16 + at] ^= mask

    columns, damaged = valid_columns(memoryview(data), geometry)

    assert damaged == len(flipped)
    assert [stamp.sequence for stamp in columns] == sorted(
        sequence for slot, sequence in enumerate((3, 1, 2)) if slot not in flipped
    )
