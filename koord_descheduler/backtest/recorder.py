"""Records a cluster: what changes in its state goes to a file, moment by moment."""

from collections.abc import Iterable
from typing import Any, TypeVar

from koord.cluster import decoding
from koord.cluster.decoder import Kind
from koord.cluster.state import ClusterState
from koord_descheduler.backtest.recordfile import RecordWriter
from koord_descheduler.backtest.ticks import (
    Change,
    Eviction,
    Header,
    Tick,
    TickEncoder,
    header_block,
)

T = TypeVar("T")

BLOCK_SECONDS = 60.0  # of ticks in a block: what a crash may cost
BLOCK_OBJECTS = 20_000  # changes and reports in a block at most


class RecordingState(ClusterState):
    """A cluster state that remembers what has changed since it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[tuple[Kind[Any], str], Any] = {}  # None: removed
        self._known: dict[tuple[Kind[Any], str], Any] = {}  # but pods and reports

    def put(self, kind: Kind[T], item: T) -> None:
        """As ClusterState.put. What is as it was before is no change."""
        key: str = getattr(item, "key")  # noqa: B009 - all facts have one
        old = self._last(kind, key)
        super().put(kind, item)
        if old == item:
            return
        self._changed[kind, key] = item
        if kind not in (decoding.POD, decoding.NODE_METRIC):
            self._known[kind, key] = item

    def remove(self, kind: Kind[Any], key: str, uid: str = "") -> None:
        """As ClusterState.remove."""
        old = self._last(kind, key)
        super().remove(kind, key, uid)
        if old is not None and (kind is not decoding.POD or self.pod(key) is None):
            self._known.pop((kind, key), None)
            self._changed[kind, key] = None

    def take_changes(self, at: float) -> Tick:
        """What has changed since the last time; of each object the last state."""
        tick = Tick(at)
        for (kind, key), item in self._changed.items():
            if kind is decoding.NODE_METRIC and item is not None:
                tick.reports.append(item)
            else:
                tick.changes.append(Change(kind, key, item))
        self._changed.clear()
        return tick

    def _last(self, kind: Kind[Any], key: str) -> Any:
        if kind is decoding.POD:
            return self.pod(key)
        if kind is decoding.NODE_METRIC:
            return self.reports.get(key)
        return self._known.get((kind, key))


class Recorder:
    """Writes what happens in a cluster. Call tick as often as times are to be exact."""

    def __init__(self, state: RecordingState, writer: RecordWriter, header: Header) -> None:
        """Raises RecordFull, OSError as RecordWriter.append."""
        self.evictions = 0  # recorded
        self.reports = 0
        self._state = state
        self._writer = writer
        self._encoder = TickEncoder()
        self._waiting: list[Tick] = []  # ticks of the block to come
        self._objects = 0  # in them
        self._seen: dict[str, float] = {}  # uids of evicted pods, and when
        writer.append(header_block(header))

    def tick(self, now: float, evictions: Iterable[Eviction] = ()) -> None:
        """Record what has happened up to now, in Unix seconds; evictions may come repeatedly.

        Raises:
            RecordFull, OSError: as RecordWriter.append; nothing more can be recorded.
        """
        tick = self._state.take_changes(now)
        for one in evictions:
            if self._seen.get(one.uid) != one.at:
                self._seen[one.uid] = one.at
                tick.evictions.append(one)
        if tick:
            self._waiting.append(tick)
            self._objects += len(tick.changes) + len(tick.reports)
            self.evictions += len(tick.evictions)
            self.reports += len(tick.reports)
        if self._waiting and (
            self._objects >= BLOCK_OBJECTS or now - self._waiting[0].at >= BLOCK_SECONDS
        ):
            self.flush()

    def flush(self) -> None:
        """Write what waits. Raises as tick."""
        if self._waiting:
            self._writer.append(self._encoder.block(self._waiting))
            self._waiting, self._objects = [], 0
