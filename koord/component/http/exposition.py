"""Render the metrics endpoints: off the event loop, at most once a second."""

import asyncio
import gzip
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    Metric,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from koord.component.metrics import Failed, FamilyRules, FamilySource, IsolatingRegistry
from koord.util.clock import Clock, SystemClock
from koord.util.errors import error_text
from koord.util.logs import LogState, get_logger
from koord.util.timebudget import SingleFlightCache

_END = b"# EOF\n"
_WITH_CREATED = frozenset({"counter", "histogram", "summary"})


@dataclass(frozen=True)
class TextFormat:
    """One of the text formats."""

    content_type: str
    write: Callable[[Collector], bytes]
    end: bytes = b""  # the last line of a page
    unsuffixed_counter: bytes = b"unknown"  # the type of a counter whose name lacks `_total`

    def encode(self, family: Metric, *, unsuffixed_counter: bool = False) -> bytes:
        """The lines of one family.

        Raises:
            Exception: whatever the content of the family leads to; a plugin may have made it.
        """
        text = self.write(_One(_plain(family, unsuffixed_counter))).removesuffix(self.end)
        if unsuffixed_counter:
            kind = b"# TYPE %b " % family.name.encode()
            text = text.replace(kind + b"untyped\n", kind + self.unsuffixed_counter + b"\n", 1)
        return text


class _One(Collector):
    """A registry for the library that holds one family alone."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _plain(family: Metric, unsuffixed_counter: bool) -> Metric:
    """The family without creation times, and of type unknown if it is an unsuffixed counter."""
    plain = Metric(family.name, family.documentation, family.type, family.unit)
    plain.samples = family.samples
    if unsuffixed_counter:
        plain.type = "unknown"
    elif family.type in _WITH_CREATED:
        created = f"{family.name}_created"
        plain.samples = [sample for sample in family.samples if sample.name != created]
    return plain


TEXT = TextFormat(
    "text/plain; version=0.0.4; charset=utf-8", generate_text, unsuffixed_counter=b"counter"
)
OPENMETRICS = TextFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", generate_openmetrics, _END
)


class ScrapeBody:
    """Internal families, then external ones, each encoded as soon as it is made.

    Kept until the end, thousands of samples would grow old enough for the garbage collector to look
    through the whole heap, which holds up the event loop for tens of milliseconds.
    """

    def __init__(self, form: TextFormat, rules: FamilyRules, failed: Failed) -> None:
        self._form = form
        self._unsuffixed_counters = rules.unsuffixed_counters
        self._failed = failed
        self._names: set[str] = set()
        self._internal: list[bytes] = []
        self._external: list[bytes] = []

    def add(
        self, source: str, make: Callable[[], Iterable[Metric]], is_internal: Callable[[str], bool]
    ) -> None:
        """Add the families that make returns; all of them or, when it raises, none.

        A family that cannot be encoded, or whose name was used before, is left out alone.
        """
        encoded: dict[str, bytes] = {}
        try:
            for family in make():
                self._encode(family, encoded)
        except Exception as err:  # one broken collector must not cost the scrape
            self._failed(source, err)
            return
        self._names |= encoded.keys()
        for name, text in encoded.items():
            (self._internal if is_internal(name) else self._external).append(text)

    def body(self, *, internal: bool = True, external: bool = True) -> bytes:
        """The whole, or only one of its two parts."""
        parts = self._internal * internal + self._external * external
        return b"".join([*parts, self._form.end])

    def _encode(self, family: Metric, encoded: dict[str, bytes]) -> None:
        name = family.name
        if name in self._names or name in encoded:
            self._failed(name, ValueError(f"metric family {name} is exported twice"))
            return
        try:
            unsuffixed = name in self._unsuffixed_counters
            encoded[name] = self._form.encode(family, unsuffixed_counter=unsuffixed)
        except Exception as err:  # whatever a plugin put into its family
            self._failed(name, err)


FRESH_SECONDS = 1.0  # in which scrapes get what was rendered before: samples are no newer either

log = get_logger("koord.server")

T = TypeVar("T")

FORMATS = 2  # text 0.0.4 and OpenMetrics
_GZIP_LEVEL = 1  # level 6 takes twice the time and saves another 15%


class FamilySelection(Enum):
    """The part of the families that an endpoint shows."""

    ALL = "all"  # internal families, then external ones
    INTERNAL = "internal"  # about the daemon itself
    EXTERNAL = "external"  # for users


@dataclass(frozen=True, eq=False, slots=True)
class _Rendered:
    """A page, and what was made of it so far: bodies by view and whether they are compressed."""

    page: ScrapeBody
    bodies: SingleFlightCache[tuple[FamilySelection, bool], bytes]


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
        self._pages: SingleFlightCache[TextFormat, _Rendered] = SingleFlightCache(
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

    async def body(self, view: FamilySelection, form: TextFormat, *, compress: bool) -> bytes:
        """The exposition, gzipped if compress; scrapes of the same second share it."""
        rendered = await self._pages.get(form, lambda: self._rendered(form))
        return await rendered.bodies.get(
            (view, compress),
            lambda: self._in_thread(lambda: _body(rendered.page, view, compress=compress)),
        )

    async def _rendered(self, form: TextFormat) -> _Rendered:
        page = await self._in_thread(lambda: self._page(form))
        return _Rendered(
            page, SingleFlightCache(self._clock, 2 * len(FamilySelection), lasts=lambda _: math.inf)
        )

    async def _in_thread(self, make: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(make)

    def render(self, view: FamilySelection, form: TextFormat, *, compress: bool = False) -> bytes:
        """Return the exposition, rendered anew in the calling thread."""
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


def _body(page: ScrapeBody, view: FamilySelection, *, compress: bool) -> bytes:
    body = page.body(
        internal=view is not FamilySelection.EXTERNAL, external=view is not FamilySelection.INTERNAL
    )
    return gzip.compress(body, _GZIP_LEVEL, mtime=0) if compress else body
