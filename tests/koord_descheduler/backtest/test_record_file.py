"""Files of blocks: cut off and damaged at every place, full, and not theirs."""

from pathlib import Path

import pytest

from koord.util.errors import InvalidObject
from koord_descheduler.backtest.records import MAGIC, RecordFull, RecordReader, RecordWriter

BLOCKS = [b"first", b"second" * 50, b"", b"third"]


def write(path: Path, *blocks: bytes) -> None:
    writer = RecordWriter(path, 1 << 20)
    for block in blocks:
        writer.append(block)
    writer.close()


def test_blocks_come_back_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, *BLOCKS)
    reader = RecordReader(path)

    assert list(reader.blocks()) == BLOCKS
    assert reader.damage == ""
    assert path.stat().st_mode & 0o777 == 0o640


def test_cut_off_anywhere_it_has_what_is_whole(tmp_path: Path) -> None:
    """Whole blocks from the beginning, and why it ends."""
    path, cut = tmp_path / "r", tmp_path / "cut"
    write(path, *BLOCKS)
    data = path.read_bytes()
    ends = set()
    for length in range(len(MAGIC), len(data)):
        cut.write_bytes(data[:length])
        reader = RecordReader(cut)
        found = list(reader.blocks())
        assert found == BLOCKS[: len(found)]
        ends.add(len(found))
        if not reader.damage:  # between two blocks
            write(tmp_path / str(length), *found)
            assert (tmp_path / str(length)).read_bytes() == data[:length]
        else:
            assert "cut off; what is before it counts" in reader.damage
    assert ends == {0, 1, 2, 3}


def test_one_wrong_byte_ends_it_before_its_block(tmp_path: Path) -> None:
    """Nothing that was not written comes back."""
    path, bad = tmp_path / "r", tmp_path / "bad"
    write(path, *BLOCKS)
    data = path.read_bytes()
    for at in range(len(MAGIC), len(data)):
        bad.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        reader = RecordReader(bad)
        found = list(reader.blocks())
        assert found == BLOCKS[: len(found)]
        assert len(found) < len(BLOCKS)
        assert reader.damage


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "wanted a file of koord-descheduler record"),
        (b"PK\x03\x04", "wanted a file of koord-descheduler record"),
        (MAGIC[:-1] + b"\x02", "wanted version 1, found 2"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, wanted: str) -> None:
    """With what it is."""
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(InvalidObject, match=wanted):
        list(RecordReader(tmp_path / "r").blocks())


def test_a_full_file_stays_whole(tmp_path: Path) -> None:
    """The block that has no room is left out as a whole."""
    writer = RecordWriter(tmp_path / "r", 60)
    writer.append(b"one")
    with pytest.raises(RecordFull, match="raise --max-size"):
        writer.append(bytes(range(256)) * 4)
    writer.close()

    reader = RecordReader(tmp_path / "r")
    assert list(reader.blocks()) == [b"one"]
    assert reader.damage == ""


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    """Nor followed, if it is a link."""
    (tmp_path / "r").write_bytes(b"dear")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("r", "link"):
        with pytest.raises(FileExistsError):
            RecordWriter(tmp_path / name, 1000)
    assert (tmp_path / "r").read_bytes() == b"dear"
    assert not (tmp_path / "elsewhere").exists()
