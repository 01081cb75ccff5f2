"""Record a cluster, and the evictions in the ledger of its descheduler, to a file."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from koord.cluster import kinds
from koord.cluster.decoder import ObjectKind
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.state import ClusterState
from koord.component.supervisor import supervise
from koord.controlplane.clusterfeed import ClusterFeed
from koord.kube.client import CONFIG_MAPS, ApiClient
from koord.kube.errors import KubeError, NotFound
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord_descheduler.backtest.records import (
    Change,
    Eviction,
    Header,
    RecordWriter,
    Tick,
    TickEncoder,
    header_block,
)
from koord_descheduler.ledger.entries import from_text
from koord_descheduler.ledger.ledger import KEY, NAME

T = TypeVar("T")

BLOCK_SECONDS = 60.0  # of ticks in a block: what a crash may cost
BLOCK_OBJECTS = 20_000  # changes and reports in a block at most


class RecordingState(ClusterState):
    """A cluster state that remembers what has changed since it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[tuple[ObjectKind[Any], str], Any] = {}  # None: removed
        self._known: dict[tuple[ObjectKind[Any], str], Any] = {}  # but pods and reports

    def put(self, kind: ObjectKind[T], item: T) -> None:
        """Add or replace an object; an equal object is not recorded as a change."""
        key: str = getattr(item, "key")  # noqa: B009 - all facts have one
        old = self._last(kind, key)
        super().put(kind, item)
        if old == item:
            return
        self._changed[kind, key] = item
        if kind not in (kinds.POD, kinds.NODE_METRIC):
            self._known[kind, key] = item

    def remove(self, kind: ObjectKind[Any], key: str, uid: str = "") -> None:
        """Remove an object and record that."""
        old = self._last(kind, key)
        super().remove(kind, key, uid)
        if old is not None and (kind is not kinds.POD or self.pod(key) is None):
            self._known.pop((kind, key), None)
            self._changed[kind, key] = None

    def take_changes(self, at: float) -> Tick:
        """Return the changes since the last call as one tick, with each object's last state."""
        tick = Tick(at)
        for (kind, key), item in self._changed.items():
            if kind is kinds.NODE_METRIC and item is not None:
                tick.reports.append(item)
            else:
                tick.changes.append(Change(kind, key, item))
        self._changed.clear()
        return tick

    def _last(self, kind: ObjectKind[Any], key: str) -> Any:
        if kind is kinds.POD:
            return self.pod(key)
        if kind is kinds.NODE_METRIC:
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
        """Record the changes up to now, in Unix seconds; an eviction may be passed more than once.

        Raises:
            RecordFull, OSError: see RecordWriter.append; nothing more can be recorded.
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


INTERVAL = 1.0  # seconds between two moments of a record
LEDGER_INTERVAL = 10.0  # seconds between two looks at the ledger

log = get_logger("koord_descheduler.record")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordProgress:
    """How far a record is."""

    seconds: float
    nodes: int
    reports: int
    evictions: int
    size: int  # bytes written


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordOptions:
    """Options of the recorder: source, destination and limits."""

    path: Path
    namespace: str  # of the descheduler's Lease, where its ledger is
    config: str  # text of the descheduler's configuration
    recorder: str  # name and version of this program
    most_bytes: int
    most_seconds: float | None = None  # None: until it is stopped


class LiveRecorder:
    """Follows a cluster and records it. Nothing is changed in it."""

    def __init__(
        self,
        client: ApiClient,
        clock: Clock,
        options: RecordOptions,
        *,
        show: Callable[[RecordProgress], None],
        wait: Callable[[str], None],
        kept: KeptFields = NO_FIELDS,
    ) -> None:
        """Every ten seconds wait gets what is still to be listed, and then show how far it is.

        kept: what plugins read of pods and nodes beyond what is always kept.
        """
        self._client = client
        self._clock = clock
        self._options = options
        self._show = show
        self._wait = wait
        self._state = RecordingState()
        self._feed = ClusterFeed(client, self._state, clock, kept=kept)
        self._away = LogState(log)

    async def run(self, stop: Stop) -> RecordProgress | None:
        """Record until stop, or as long as the options say; None: stop was set before it began.

        Raises:
            RecordFull: the file has its size; what is in it is whole.
            OSError: the file is there already, or cannot be written.
        """
        end, error = Stop(self._clock), None
        result: RecordProgress | None = None
        writer = RecordWriter(self._options.path, self._options.most_bytes)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(supervise("cluster", self._feed.run, end, self._clock))
                try:
                    await self._listed(stop)
                    if not stop.is_set():
                        result = await self._record(writer, stop)
                except (KoordError, OSError) as err:  # a task group would wrap it
                    error = err
                finally:
                    end.set()
        finally:
            writer.close()
        if error is not None:
            raise error
        return result

    async def _listed(self, stop: Stop) -> None:
        """Return when the whole cluster is known, or stop is set."""
        listed = asyncio.Event()

        async def wait() -> None:
            await self._feed.wait_synced()
            listed.set()

        waiting = asyncio.ensure_future(wait())
        try:
            while not listed.is_set() and not stop.is_set():
                await stop.sleep(LEDGER_INTERVAL, wake=listed)
                if not listed.is_set():
                    self._wait(self._feed.health().reason)
        finally:
            waiting.cancel()

    async def _record(self, writer: RecordWriter, stop: Stop) -> RecordProgress:
        options, began = self._options, self._clock.wall()
        header = Header(began=began, config=options.config, recorder=options.recorder)
        recorder = Recorder(self._state, writer, header)
        looked, moment = began - LEDGER_INTERVAL, began
        try:
            async for _ in stop.every(INTERVAL):
                moment = self._clock.wall()
                evictions: list[Eviction] = []
                if moment - looked >= LEDGER_INTERVAL:
                    looked = moment
                    evictions = await self._evictions(began)
                    self._show(self._progress(recorder, writer, moment - began))
                recorder.tick(moment, evictions)
                if options.most_seconds is not None and moment - began >= options.most_seconds:
                    break
        finally:
            recorder.flush()
        return self._progress(recorder, writer, moment - began)

    async def _evictions(self, since: float) -> list[Eviction]:
        """The evictions that the ledger has from then on; what cannot be read now comes later."""
        path = CONFIG_MAPS.object(NAME, namespace=self._options.namespace)
        try:
            data = (await self._client.get(path)).get("data")
            text = data.get(KEY) if isinstance(data, dict) else None
            entries = from_text(text).entries if isinstance(text, str) else ()
        except NotFound:
            entries = ()  # nothing was evicted yet
        except (KubeError, InvalidObject) as err:
            self._away.failed("ledger.read_failed", error=str(err))
            return []
        self._away.ended("ledger.read")
        return [
            Eviction(
                at=one.at,
                pod=one.pod,
                uid=one.uid,
                node=one.node,
                plugin=one.plugin,
                reason=one.reason,
            )
            for one in entries
            if one.at >= since
        ]

    def _progress(self, recorder: Recorder, writer: RecordWriter, seconds: float) -> RecordProgress:
        return RecordProgress(
            seconds=seconds,
            nodes=len(self._state.snapshot),
            reports=recorder.reports,
            evictions=recorder.evictions,
            size=writer.size,
        )
