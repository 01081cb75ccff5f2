"""What of a cluster's state is a change, and when it is written."""

from pathlib import Path

import pytest

from koord.cluster import kinds
from koord.controlplane.testing import make_node, make_pod, make_report
from koord_descheduler.backtest.recorder import Recorder, RecordingState
from koord_descheduler.backtest.records import (
    Eviction,
    Header,
    RecordFull,
    RecordReader,
    RecordWriter,
    Tick,
    TickDecoder,
)


def read(path: Path) -> list[Tick]:
    decoder, reader = TickDecoder(), RecordReader(path)
    return [
        tick
        for at, data in enumerate(reader.blocks())
        for tick in (decoder.ticks(data) if at else ())
    ]


def test_of_an_object_the_last_state_counts_and_what_is_the_same_does_not() -> None:
    """As after a list that comes again."""
    state = RecordingState()
    node, pod = make_node("n1"), make_pod("web", node="n1")
    report = make_report("n1", at=100.0, usage={"cpu": 1, "memory": 1})
    for _ in range(2):
        state.put(kinds.NODE, node)
        state.put(kinds.POD, pod)
        state.put(kinds.NODE_METRIC, report)
        tick = state.take_changes(1.0)
    assert not tick

    state.put(kinds.POD, make_pod("web", node="n2"))
    state.put(kinds.POD, moved := make_pod("web", node="n3"))
    state.put(kinds.NODE, make_node("n1", cpu=8))
    state.remove(kinds.NODE, "n1")
    state.remove(kinds.NODE_METRIC, "n1")
    state.remove(kinds.POD, "default/none")
    tick = state.take_changes(2.0)

    assert {(one.kind.name, one.key, one.item) for one in tick.changes} == {
        ("pod", "default/web", moved),
        ("node", "n1", None),
        ("NodeMetric", "n1", None),
    }
    assert not tick.reports


def test_of_another_uid_nothing_is_removed() -> None:
    """The pod that has taken its name stays in the record, too."""
    state = RecordingState()
    state.put(kinds.POD, make_pod("web"))
    state.take_changes(1.0)

    state.remove(kinds.POD, "default/web", "another")

    assert not state.take_changes(2.0)


def test_blocks_are_written_each_minute_and_at_the_end(tmp_path: Path) -> None:
    """An eviction once, however often the ledger has it."""
    path, state = tmp_path / "r", RecordingState()
    writer = RecordWriter(path, 1 << 20)
    recorder = Recorder(state, writer, Header(began=0.0))
    eviction = Eviction(at=5.0, pod="default/web", uid="u", node="n1")
    for second in range(0, 90, 10):
        state.put(kinds.POD, make_pod("web", labels={"at": str(second)}))
        recorder.tick(float(second), [eviction])
    assert [tick.at for tick in read(path)] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    recorder.flush()
    recorder.flush()
    writer.close()

    found = read(path)
    assert [tick.at for tick in found] == [float(at) for at in range(0, 90, 10)]
    assert [tick.evictions for tick in found if tick.evictions] == [[eviction]]
    assert recorder.evictions == 1


def test_a_record_that_is_full_ends_whole(tmp_path: Path) -> None:
    """What was written before can be played."""
    path, state = tmp_path / "r", RecordingState()
    writer = RecordWriter(path, 2500)
    recorder = Recorder(state, writer, Header(began=0.0))

    def record() -> None:
        for second in range(0, 10_000, 100):
            state.put(kinds.POD, make_pod(f"web-{second}", labels={"at": str(second)}))
            recorder.tick(float(second))
            recorder.flush()

    with pytest.raises(RecordFull):
        record()
    writer.close()

    assert len(read(path)) > 3
    assert path.stat().st_size <= 2500
