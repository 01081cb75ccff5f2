"""Makes the bodies of the metrics endpoints, off the event loop and once for concurrent scrapes."""

import asyncio
import gzip
import time
from collections.abc import Callable, Iterable
from enum import Enum

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from koordlet.server.families import INTERNAL_FAMILIES, FamilySource, IsolatingRegistry
from koordlet.server.page import Page
from koordlet.server.textformat import TextFormat
from koordlet.util.logs import LogState, get_logger

log = get_logger("koordlet.server")

_GZIP_LEVEL = 1  # level 6 takes twice the time and saves another 15%


class View(Enum):
    """What an endpoint shows."""

    ALL = "all"  # internal families, then external ones
    INTERNAL = "internal"  # about the agent itself
    EXTERNAL = "external"  # for users


class Exposition:
    """The metric families of the daemon and their rendering.

    internal and external take the metric objects of the daemon's parts; a collector in them that
    fails is skipped and counted. Sources are asked at each scrape for the families that are made
    on demand.
    """

    def __init__(self, *sources: Callable[[], Iterable[FamilySource]]) -> None:
        self._sources = list(sources)
        self._lasting: dict[str, LogState] = {}  # by source; one rendering runs at a time
        self._failed_now: set[str] = set()
        self._rendering: dict[tuple[View, TextFormat, bool], asyncio.Task[bytes]] = {}
        self._turn = asyncio.Lock()  # one rendering at a time: they share the interpreter anyway
        self.internal: CollectorRegistry = IsolatingRegistry(self._failed)
        self.external: CollectorRegistry = IsolatingRegistry(self._failed)
        self._failures = Counter(
            "koordlet_exposition_failures_total",
            "Collectors or families left out of a scrape because they failed.",
            ["source"],
            registry=self.internal,
        )
        self._duration = Histogram(
            "koordlet_exposition_duration_seconds",
            "Time to render one scrape, compression included.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
            registry=self.internal,
        )
        ProcessCollector(registry=self.internal)
        PlatformCollector(registry=self.internal)
        GCCollector(registry=self.internal)

    def add_sources(self, sources: Callable[[], Iterable[FamilySource]]) -> None:
        """Ask these at each scrape, too."""
        self._sources.append(sources)

    async def body(self, view: View, form: TextFormat, *, compress: bool) -> bytes:
        """The exposition, gzipped if compress. Scrapes that wait for the same one share it."""
        key = (view, form, compress)
        task = self._rendering.get(key)
        if task is None:
            task = asyncio.create_task(self._render_in_thread(*key), name=f"render {view.value}")
            self._rendering[key] = task
            task.add_done_callback(lambda _: self._rendering.pop(key, None))
        return await asyncio.shield(task)  # one client that leaves does not cost the others theirs

    async def _render_in_thread(self, view: View, form: TextFormat, compress: bool) -> bytes:
        async with self._turn:
            return await asyncio.to_thread(self.render, view, form, compress=compress)

    def render(self, view: View, form: TextFormat, *, compress: bool = False) -> bytes:
        """As body, in the calling thread."""
        start = time.perf_counter()  # what it costs, not when it happens: real time
        body = self._page(view, form).body(
            internal=view is not View.EXTERNAL, external=view is not View.INTERNAL
        )
        if compress:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        self._duration.observe(time.perf_counter() - start)
        if view is View.ALL:  # the others do not ask everybody
            self._log_recovered()
        self._failed_now.clear()
        return body

    def _page(self, view: View, form: TextFormat) -> Page:
        page = Page(form, self._failed)
        for sources in self._sources:
            for source in sources():
                page.add(source.name, source.families, INTERNAL_FAMILIES.__contains__)
        if view is not View.EXTERNAL:
            page.add("internal", self.internal.collect, lambda _: True)
        if view is not View.INTERNAL:
            page.add("external", self.external.collect, lambda _: False)
        return page

    def _failed(self, source: str, err: Exception) -> None:
        self._failures.labels(source).inc()
        self._failed_now.add(source)
        state = self._lasting.setdefault(source, LogState(log))
        state.failed("exposition.incomplete", source=source, error=str(err) or repr(err))

    def _log_recovered(self) -> None:
        for source in self._lasting.keys() - self._failed_now:
            self._lasting.pop(source).ended("exposition.recovered", source=source)
