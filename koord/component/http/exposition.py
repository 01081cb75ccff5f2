"""Renders the bodies of the metrics endpoints: off the event loop, once a second at most."""

import asyncio
import gzip
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from koord.component.http.families import FamilyRules, FamilySource, IsolatingRegistry
from koord.component.http.scrapebody import ScrapeBody
from koord.component.http.shared import Shared
from koord.component.http.textformat import TextFormat
from koord.util.clock import Clock, SystemClock
from koord.util.errors import error_text
from koord.util.logs import LogState, get_logger

FRESH_SECONDS = 1.0  # in which scrapes get what was rendered before: samples are no newer either

log = get_logger("koord.server")

T = TypeVar("T")

FORMATS = 2  # text 0.0.4 and OpenMetrics
_GZIP_LEVEL = 1  # level 6 takes twice the time and saves another 15%


class View(Enum):
    """The part of the families that an endpoint shows."""

    ALL = "all"  # internal families, then external ones
    INTERNAL = "internal"  # about the daemon itself
    EXTERNAL = "external"  # for users


@dataclass(frozen=True, eq=False, slots=True)
class _Rendered:
    """A page, and what was made of it so far: bodies by view and whether they are compressed."""

    page: ScrapeBody
    bodies: Shared[tuple[View, bool], bytes]


class Exposition:
    """The metric families of the daemon and their rendering.

    internal and external take the metric objects of the daemon's parts; a collector in them that
    fails is skipped and counted. Sources are asked at each rendering for the families that are made
    on demand. All views and encodings of a format are made from one rendering.
    """

    def __init__(
        self,
        rules: FamilyRules,
        *sources: Callable[[], Iterable[FamilySource]],
        clock: Clock | None = None,
    ) -> None:
        self.rules = rules
        self._sources = list(sources)
        self._clock = clock or SystemClock()
        self._lasting: dict[str, LogState] = {}  # by source; one rendering runs at a time
        self._failed_now: set[str] = set()
        self._pages: Shared[TextFormat, _Rendered] = Shared(
            self._clock, FORMATS, lasts=lambda _: FRESH_SECONDS
        )
        self._turn = asyncio.Lock()  # one rendering at a time: they share the interpreter anyway
        self.internal: CollectorRegistry = IsolatingRegistry(self._failed)
        self.external: CollectorRegistry = IsolatingRegistry(self._failed)
        self._failures = Counter(
            f"{rules.prefix}_exposition_failures_total",
            "Collectors or families left out of a scrape because they failed.",
            ["source"],
            registry=self.internal,
        )
        self._duration = Histogram(
            f"{rules.prefix}_exposition_duration_seconds",
            "Time to render all metric families once, for the scrapes of a second.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
            registry=self.internal,
        )
        ProcessCollector(registry=self.internal)
        PlatformCollector(registry=self.internal)
        GCCollector(registry=self.internal)

    def add_sources(self, sources: Callable[[], Iterable[FamilySource]]) -> None:
        """Ask these at each rendering, too."""
        self._sources.append(sources)

    async def body(self, view: View, form: TextFormat, *, compress: bool) -> bytes:
        """The exposition, gzipped if compress; scrapes of the same second share it."""
        rendered = await self._pages.get(form, lambda: self._rendered(form))
        return await rendered.bodies.get(
            (view, compress),
            lambda: self._in_thread(lambda: _body(rendered.page, view, compress=compress)),
        )

    async def _rendered(self, form: TextFormat) -> _Rendered:
        page = await self._in_thread(lambda: self._page(form))
        return _Rendered(page, Shared(self._clock, 2 * len(View), lasts=lambda _: math.inf))

    async def _in_thread(self, make: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(make)

    def render(self, view: View, form: TextFormat, *, compress: bool = False) -> bytes:
        """As body, anew and in the calling thread."""
        return _body(self._page(form), view, compress=compress)

    def _page(self, form: TextFormat) -> ScrapeBody:
        """All families of now."""
        start = time.perf_counter()  # what it costs, not when it happens: real time
        page = ScrapeBody(form, self.rules, self._failed)
        for sources in self._sources:
            for source in sources():
                page.add(source.name, source.families, self.rules.internal.__contains__)
        page.add("internal", self.internal.collect, lambda _: True)
        page.add("external", self.external.collect, lambda _: False)
        self._duration.observe(time.perf_counter() - start)
        self._log_recovered()
        self._failed_now.clear()
        return page

    def _failed(self, source: str, err: Exception) -> None:
        self._failures.labels(source).inc()
        self._failed_now.add(source)
        state = self._lasting.setdefault(source, LogState(log))
        state.failed("exposition.incomplete", source=source, error=error_text(err))

    def _log_recovered(self) -> None:
        for source in self._lasting.keys() - self._failed_now:
            self._lasting.pop(source).ended("exposition.recovered", source=source)


def _body(page: ScrapeBody, view: View, *, compress: bool) -> bytes:
    body = page.body(internal=view is not View.EXTERNAL, external=view is not View.INTERNAL)
    return gzip.compress(body, _GZIP_LEVEL, mtime=0) if compress else body
