"""The agent's status page: history, pods, plugins, health, decisions."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from koord.api.nodeslo import (
    CPU_BURST,
    RESOURCE_QOS,
    SYSTEM,
    THRESHOLD,
    NodeSLO,
    effective_cpu_burst,
    effective_resource_qos,
    effective_system,
    effective_threshold,
)
from koord.component.page.sections import FRESH, Cursors, Sections, health_section
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.health import Health
from koordlet.executor.audit.files import AuditQuery
from koordlet.executor.claims.claim import Change
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    NODE_BE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_MEMORY_USAGE_WITH_PAGE_CACHE,
    NODE_NETWORK_RECEIVE,
    NODE_NETWORK_TRANSMIT,
    NODE_PSI,
    POD_CPU_THROTTLED,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    POD_NETWORK_RECEIVE,
    POD_NETWORK_TRANSMIT,
    POD_PSI,
    QOS_CPU_USAGE,
    QOS_MEMORY_USAGE,
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    AnyKind,
)
from koordlet.metriccache.ring import SeriesKey
from koordlet.server.app import Explain
from koordlet.server.top import CARRIED, top
from koordlet.statesinformer.informer import StatesInformer

NODE_HISTORY, POD_HISTORY = 1800.0, 300.0  # seconds
SETTLE_DELAY = 0.5  # seconds after a tick in which all of its samples have arrived
GAP = 2.5  # intervals without a sample, from which on a line is broken

Points = dict[str, Any]
"""{"t": Unix seconds, "series": {line: values}}; None where there is no sample."""

_CLASSES = ("guaranteed", "burstable", "besteffort")
_WAITS = (("cpu", "cpu"), ("memory", "mem"), ("io", "io"))


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart.

    key None: the sum over the network interfaces of the node whose traffic no other one carries.
    scale leads from the kind's unit to the chart's.
    """

    name: str
    kind: AnyKind
    key: SeriesKey | None = ()
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines in one unit, which are measured at the same moments."""

    name: str
    unit: str
    lines: tuple[ChartLine, ...]


NODE_CHARTS = (
    Chart(
        "cpu",
        "cores",
        (
            ChartLine("node", NODE_CPU_USAGE),
            ChartLine("system", SYS_CPU_USAGE),
            *(ChartLine(name, QOS_CPU_USAGE, (name,)) for name in _CLASSES),
            ChartLine("besteffort_limit", NODE_BE, ("cpu", "real-limit"), 1 / 1000),
        ),
    ),
    Chart(
        "memory",
        "bytes",
        (
            ChartLine("node", NODE_MEMORY_USAGE),
            ChartLine("with_page_cache", NODE_MEMORY_USAGE_WITH_PAGE_CACHE),
            ChartLine("system", SYS_MEMORY_USAGE),
            *(ChartLine(name, QOS_MEMORY_USAGE, (name,)) for name in _CLASSES),
        ),
    ),
    Chart(
        "pressure",
        "percent",
        tuple(ChartLine(name, NODE_PSI, (resource, "10", "some")) for name, resource in _WAITS),
    ),
    Chart(
        "network",
        "bytes per second",
        (
            ChartLine("receive", NODE_NETWORK_RECEIVE, None),
            ChartLine("transmit", NODE_NETWORK_TRANSMIT, None),
        ),
    ),
)


def pod_charts(uid: str) -> tuple[Chart, ...]:
    """The charts of one pod."""
    return (
        Chart("cpu", "cores", (ChartLine("usage", POD_CPU_USAGE, (uid,)),)),
        Chart("throttled", "ratio", (ChartLine("throttled", POD_CPU_THROTTLED, (uid,)),)),
        Chart("memory", "bytes", (ChartLine("usage", POD_MEMORY_USAGE, (uid,)),)),
        Chart(
            "pressure",
            "percent",
            tuple(
                ChartLine(name, POD_PSI, (uid, resource, "10", "some")) for name, resource in _WAITS
            ),
        ),
        Chart(
            "network",
            "bytes per second",
            (
                ChartLine("receive", POD_NETWORK_RECEIVE, (uid,)),
                ChartLine("transmit", POD_NETWORK_TRANSMIT, (uid,)),
            ),
        ),
    )


class ChartReader:
    """Reads charts from the cache. Any thread; times are seconds since boot.

    wall_at_boot: Unix seconds at boot, which the points' times count from.
    """

    def __init__(self, cache: MetricCache, wall_at_boot: float) -> None:
        self._cache = cache
        self._wall_at_boot = wall_at_boot

    def read(self, chart: Chart, seconds: float, end: float) -> tuple[Points, float | None]:
        """The points of [end - seconds, end], and the time of the newest, None without one."""
        return self._points(chart, seconds, end, None)

    def read_after(self, chart: Chart, after: float, end: float) -> tuple[Points, float]:
        """The points of ]after, end], and the time of the newest; after where there is none.

        A hole between after and the first of them breaks the line there.
        """
        if end <= after:
            return _empty(chart), after
        points, newest = self._points(chart, end - after, end, after)
        return points, after if newest is None else newest

    def _points(
        self, chart: Chart, seconds: float, end: float, after: float | None
    ) -> tuple[Points, float | None]:
        lines = {line.name: self._values(line, seconds, end) for line in chart.lines}
        known = {boot for values in lines.values() for boot in values}
        boots = sorted(boot for boot in known if after is None or boot > after)
        interval = max((self._cache.interval(line.kind) for line in chart.lines), default=1.0)
        times = list(_broken(boots, interval, after))
        return {
            "t": [round(self._wall_at_boot + boot, 2) for boot in times],
            "series": {
                name: [_rounded(values.get(boot)) for boot in times]
                for name, values in lines.items()
            },
        }, (boots[-1] if boots else None)

    def _values(self, line: ChartLine, seconds: float, end: float) -> dict[float, float]:
        """Value by time."""
        if line.key is None:
            return self._sums(line.kind, seconds, end, lambda key: not key[0].startswith(CARRIED))
        points = self._cache.series(line.kind, line.key, seconds, end)
        if line.scale == 1.0:
            return dict(points)
        return {boot: value * line.scale for boot, value in points}

    def _sums(
        self, kind: AnyKind, seconds: float, end: float, counts: Callable[[SeriesKey], bool]
    ) -> dict[float, float]:
        sums: dict[float, float] = {}
        for key in filter(counts, self._cache.keys(kind)):
            for boot, value in self._cache.series(kind, key, seconds, end):
                sums[boot] = sums.get(boot, 0.0) + value
        return sums


def chart_outlines(charts: Iterable[Chart]) -> Mapping[str, Mapping[str, object]]:
    """Unit and lines of each chart, for the page to draw before there is a point."""
    return {
        chart.name: {"unit": chart.unit, "lines": [line.name for line in chart.lines]}
        for chart in charts
    }


def _broken(boots: list[float], interval: float, after: float | None) -> Iterable[float]:
    """The times, with one more in each hole, at which nothing has a value."""
    before = after
    for boot in boots:
        if before is not None and boot - before > GAP * interval:
            yield before + interval
        yield boot
        before = boot


def _rounded(value: float | None) -> float | None:
    """Five digits: more cannot be seen, and would be half of what is sent."""
    return None if value is None else float(f"{value:.5g}")


def _empty(chart: Chart) -> Points:
    return {"t": [], "series": {line.name: [] for line in chart.lines}}


MAX_ANNOTATIONS = 512  # marks
MAX_AGE = 1800.0  # seconds that one is shown
MAX_TEXT = 300  # characters
MAX_INPUTS = 20

_Place = tuple[int, str, tuple[str, ...], str]


@dataclass(slots=True)
class _ChangeAnnotation:
    number: int
    revision: int  # of the latest change
    first: float  # Unix seconds
    change: Change  # the latest of them
    times: int = 1


class ChangeAnnotations:
    """A listener to changes of claimed values; see koordlet.executor.claims.claim.

    Changes of one second, resource, owner and kind are one mark. Oldest marks go first.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._annotations: dict[_Place, _ChangeAnnotation] = {}
        self.revision = 0  # rises with each change

    def __call__(self, change: Change) -> None:
        now = self._wall()
        place = (int(now), change.what, change.owners, change.key.resource.name)
        self.revision += 1
        mark = self._annotations.get(place)
        if mark is None:
            self._annotations[place] = _ChangeAnnotation(self.revision, self.revision, now, change)
            if len(self._annotations) > MAX_ANNOTATIONS:
                del self._annotations[next(iter(self._annotations))]
        else:
            mark.change, mark.revision, mark.times = change, self.revision, mark.times + 1

    def after(self, revision: int) -> list[Mapping[str, object]]:
        """The marks that are new or changed since that revision, oldest first.

        Call it on the event loop, where changes are noted. The page puts one that it has by its
        number in the place of the older form.
        """
        oldest = self._wall() - MAX_AGE
        return [
            _as_json(mark)
            for mark in self._annotations.values()
            if mark.revision > revision and mark.first >= oldest
        ]


def _as_json(mark: _ChangeAnnotation) -> Mapping[str, object]:
    change = mark.change
    target = change.key.target
    return {
        "number": mark.number,
        "t": round(mark.first, 2),
        "times": mark.times,
        "what": change.what,
        "plugins": [_text(owner) for owner in change.owners[:MAX_INPUTS]],
        "resource": change.key.resource.name,
        "unit": change.key.resource.unit,
        "target": _text(target),
        "level": target.level.value,
        "place": _text(target.uid or target.place),
        "pod": _text(target.pod),
        "old": _text(change.old),
        "new": _text(change.new),
        "reason": _text(change.reason),
        "inputs": {
            _text(name): value if isinstance(value, int | float) else _text(value)
            for name, value in list(change.inputs.items())[:MAX_INPUTS]
        },
    }


def _text(value: Any) -> str:
    if isinstance(value, set | frozenset):
        value = sorted(value)
    return str(value)[:MAX_TEXT]


MAX_VALUES = 500


class Origin(StrEnum):
    """The origin of a value."""

    NODESLO = "NodeSLO"
    DEFAULT = "default"
    LAST_GOOD = "last good NodeSLO"  # the present one has a wrong field in this section
    OFF = "block is off"  # the NodeSLO has one, but its block is not enabled


@dataclass(frozen=True, slots=True)
class _Section:
    key: str
    dump: Callable[[NodeSLO], Any]
    check: Callable[[object, str], object]


_SECTIONS = (
    _Section(
        "resourceUsedThresholdWithBE",
        lambda slo: THRESHOLD.dump(slo.threshold),
        effective_threshold,
    ),
    _Section(
        "resourceQOSStrategy",
        lambda slo: RESOURCE_QOS.dump(slo.resource_qos),
        effective_resource_qos,
    ),
    _Section("cpuBurstStrategy", lambda slo: CPU_BURST.dump(slo.cpu_burst), effective_cpu_burst),
    _Section("systemStrategy", lambda slo: SYSTEM.dump(slo.system), effective_system),
)


def effective(slo: NodeSLO | None) -> Mapping[str, object]:
    """The values with their origin, and what is wrong with the object; slo None: there is none."""
    if slo is None:
        return {"known": False, "values": [], "problems": []}
    values: list[Mapping[str, object]] = []
    problems: list[str] = []
    for section in _SECTIONS:
        received = slo.spec.get(section.key)
        try:
            section.check(received, section.key)
            refused = False
        except InvalidObject as err:
            refused = True
            problems.append(str(err)[:MAX_TEXT])
        for path, value in _leaves(section.dump(slo)):
            origin = Origin.LAST_GOOD if refused else _origin(received, path, value)
            values.append(
                {
                    "path": ".".join((section.key, *path)),
                    "value": value if isinstance(value, bool | int | float) else _shortened(value),
                    "origin": origin.value,
                }
            )
    return {"known": True, "values": values[:MAX_VALUES], "problems": problems}


def _origin(received: object, path: tuple[str, ...], value: object) -> Origin:
    """The origin of a value of a section without a mistake."""
    found = received
    above: Mapping[str, object] = {}
    for step in path:
        if not isinstance(found, Mapping) or found.get(step) is None:
            return Origin.DEFAULT
        above, found = found, found[step]
    is_off = path[-1] != "enable" and "enable" in above and above["enable"] is False
    return Origin.OFF if is_off and found != value else Origin.NODESLO


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values below, with their path; a list is one value, and what is not set is left out."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, (*path, str(name)))
    elif value is not None:
        yield path, value


def _shortened(value: object) -> str:
    return str(value)[:MAX_TEXT]


SPARKLINES = 4.9  # seconds between two sparklines, whose points are 5 s apart
CLOCK_STEP = 1.0  # seconds that wall time may drift before all points are sent anew
MAX_NAME = 512  # characters of what a client asks about
AUDIT_LINES = 200

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentPageSources:
    """The sources of the page.

    cpu_limits, plugins, dry_run and decisions are called on the event loop and must be quick.
    audit reads the log, in a worker thread; flush has it see what was noted before.
    """

    node: str
    cache: MetricCache
    states: StatesInformer
    health: Health
    cpu_limits: Callable[[], Mapping[str, float]]
    plugins: Callable[[], Iterable[Mapping[str, object]]]
    dry_run: Callable[[], Mapping[str, object]]
    decisions: Callable[[], list[dict[str, object]]]
    explain: Explain
    flush: Callable[[], Awaitable[None]]
    audit: Callable[[AuditQuery], Mapping[str, object]]
    annotations: ChangeAnnotations


@dataclass(slots=True)
class _Cursor:
    """The position of the reader of one response."""

    version: int  # of sections
    annotations: int
    newest: dict[str, float]  # seconds since boot, by chart that has a point


@dataclass(slots=True)
class _LastRead:
    """The latest read of each source, and its time."""

    read: float = float("-inf")  # boot time, as next
    sparklines: float = float("-inf")
    slo: NodeSLO | None = None  # of which the section "nodeslo" is
    sections: Sections = field(default_factory=Sections)


class AgentPage:
    """Reads only when it is asked. All methods belong to the event loop.

    Charts come as points to append, marks as those to add or to replace by number; each other
    section comes whole. A response with "whole" replaces all that the page has.
    """

    view = "agent.js"

    def __init__(self, sources: AgentPageSources, clock: Clock) -> None:
        self.title = f"koordlet on {sources.node}"
        self._sources = sources
        self._clock = clock
        self._seen = _LastRead()
        self._cursors: Cursors[_Cursor] = Cursors()
        self._reading = asyncio.Lock()
        self._wall_at_boot = clock.wall() - clock.boottime()

    async def snapshot(self) -> Mapping[str, object]:
        """Everything."""
        return await self._answer(None)

    async def changes(self, since: float) -> Mapping[str, object]:
        """Return the changes after the response whose "now" was since.

        Returns all data if that response is forgotten.
        """
        self._notice_step()
        return await self._answer(self._cursors.get(since))

    async def detail(self, kind: str, name: str) -> Mapping[str, object] | None:
        """A pod by its UID, why a pod or cgroup is held to what it is, or the audit log.

        None: there is no such kind, or nothing of that name.
        """
        if len(name) > MAX_NAME:
            return None
        if kind == "pod":
            return await self._pod(name)
        if kind == "explain":
            response = await self._sources.explain(name)
            return await asyncio.to_thread(response)
        if kind == "audit":
            await self._sources.flush()
            query = AuditQuery(most=AUDIT_LINES, pod=name)
            return await asyncio.to_thread(self._sources.audit, query)
        return None

    async def _pod(self, uid: str) -> Mapping[str, object] | None:
        meta = self._sources.states.pod(uid)
        if meta is None:
            return None
        reader, end = self._reader(), self._clock.boottime()
        response = await self._sources.explain(uid)
        charts = pod_charts(uid)

        def read() -> Mapping[str, object]:
            return {
                "uid": uid,
                "name": f"{meta.pod.namespace}/{meta.pod.name}",
                "lines": chart_outlines(charts),
                "charts": {c.name: reader.read(c, POD_HISTORY, end)[0] for c in charts},
                "explain": response(),
            }

        return await asyncio.to_thread(read)

    async def _answer(self, cursor: _Cursor | None) -> Mapping[str, object]:
        self._notice_step()
        async with self._reading:
            await self._refresh()
            annotations, revision = self._annotations(cursor)
            end = self._clock.boottime() - SETTLE_DELAY
            charts, newest = await asyncio.to_thread(self._charts, cursor, end)
            known = 0 if cursor is None else cursor.version
            sections = self._seen.sections.after(known)
            if charts:
                sections["charts"] = charts
            if annotations or cursor is None:
                sections["marks"] = annotations
            reached = _Cursor(self._seen.sections.version, revision, newest)
            now = self._cursors.remember(self._clock.wall(), reached)
        response: dict[str, object] = {"now": now, "sections": sections}
        return response if cursor is not None else {**response, "whole": True}

    async def _refresh(self) -> None:
        """Read the sections that come whole, unless another page has just had them read."""
        if self._clock.boottime() - self._seen.read < FRESH:
            return
        self._seen.read = self._clock.boottime()
        sources = self._sources
        sections: Values = {
            "health": health_section(sources.health),
            "plugins": list(sources.plugins()),
            "dryRun": sources.dry_run(),
            "decisions": sources.decisions(),
            "lines": chart_outlines(NODE_CHARTS),
        }
        node, limits, slo = sources.states.node(), sources.cpu_limits(), sources.states.node_slo()
        capacity = node.capacity if node else {}
        pods = sources.states.pods()
        is_new = slo is not self._seen.slo or not self._seen.sections.version
        due = self._clock.boottime() - self._seen.sparklines >= SPARKLINES
        if due:
            self._seen.sparklines = self._clock.boottime()

        def read() -> Values:
            cache = sources.cache
            found = top(cache, sources.node, capacity, pods, limits, histories=due)
            if due:
                found["sparklines"] = _sparklines(found)
            if is_new:
                found["nodeslo"] = effective(slo)
            return found

        self._seen.sections.take({**sections, **await asyncio.to_thread(read)})
        self._seen.slo = slo

    def _charts(
        self, cursor: _Cursor | None, end: float
    ) -> tuple[dict[str, Points], dict[str, float]]:
        """The charts with a new point, or all; and how far each is."""
        reader = self._reader()
        found: dict[str, Points] = {}
        newest: dict[str, float] = {}
        for chart in NODE_CHARTS:
            after = None if cursor is None else cursor.newest.get(chart.name)
            if after is None:
                points, last = reader.read(chart, NODE_HISTORY, end)
            else:
                points, last = reader.read_after(chart, after, end)
            if last is not None:
                newest[chart.name] = last
            if cursor is None or points["t"]:
                found[chart.name] = points
        return found, newest

    def _annotations(self, cursor: _Cursor | None) -> tuple[list[Mapping[str, object]], int]:
        annotations = self._sources.annotations
        return annotations.after(0 if cursor is None else cursor.annotations), annotations.revision

    def _notice_step(self) -> None:
        """After a step of wall time the times of points are others: everything is sent anew."""
        wall_at_boot = self._clock.wall() - self._clock.boottime()
        if abs(wall_at_boot - self._wall_at_boot) > CLOCK_STEP:
            self._wall_at_boot = wall_at_boot
            self._cursors.clear()

    def _reader(self) -> ChartReader:
        return ChartReader(self._sources.cache, self._wall_at_boot)


def _sparklines(rows: Values) -> Mapping[str, object]:
    """CPU of each pod over a minute, by UID, out of the rows: they change less often than those."""
    for row in (rows["node"], *rows["qos"]):
        del row["cpu_history"]
    return {pod["uid"]: pod.pop("cpu_history") for pod in rows["pods"]}
