"""Records the cluster of an API server, and the evictions that its descheduler's ledger has."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from koord.component.tasks import supervise
from koord.controlplane.clusterfeed import ClusterFeed
from koord.kube.client import ApiClient
from koord.kube.errors import KubeError, NotFound
from koord.kube.resource import CONFIG_MAPS
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord_descheduler.backtest.recorder import Recorder, RecordingState
from koord_descheduler.backtest.recordfile import RecordWriter
from koord_descheduler.backtest.ticks import Eviction, Header
from koord_descheduler.ledger.document import from_text
from koord_descheduler.ledger.keeper import KEY, NAME

INTERVAL = 1.0  # seconds between two moments of a record
LEDGER_INTERVAL = 10.0  # seconds between two looks at the ledger

log = get_logger("koord_descheduler.record")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a record is."""

    seconds: float
    nodes: int
    reports: int
    evictions: int
    size: int  # bytes written


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordOptions:
    """What to record, and where."""

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
        show: Callable[[Progress], None],
        wait: Callable[[str], None],
    ) -> None:
        """Every ten seconds wait gets what is still to be listed, and then show how far it is."""
        self._client = client
        self._clock = clock
        self._options = options
        self._show = show
        self._wait = wait
        self._state = RecordingState()
        self._feed = ClusterFeed(client, self._state, clock)
        self._away = LogState(log)

    async def run(self, stop: Stop) -> Progress | None:
        """Record until stop, or as long as the options say; None: stop came before it began.

        Raises:
            RecordFull: the file has its size; what is in it is whole.
            OSError: the file is there already, or cannot be written.
        """
        end, error = Stop(self._clock), None
        result: Progress | None = None
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
        """Return when the whole cluster is known, or stop came."""
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

    async def _record(self, writer: RecordWriter, stop: Stop) -> Progress:
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
            self._away.failed("ledger.unread", error=str(err))
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

    def _progress(self, recorder: Recorder, writer: RecordWriter, seconds: float) -> Progress:
        return Progress(
            seconds=seconds,
            nodes=len(self._state.snapshot),
            reports=recorder.reports,
            evictions=recorder.evictions,
            size=writer.size,
        )
