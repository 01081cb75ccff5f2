"""What the agent gives its status page: everything at first, then what has changed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from koord.api.slo.nodeslo import NodeSLO
from koord.component.page.health import health_section
from koord.component.page.sections import FRESH, Cursors, Sections
from koord.util.clock import Clock
from koord.util.health import Health
from koordlet.executor.audit.query import AuditQuery
from koordlet.metriccache.cache import MetricCache
from koordlet.server.ctl.top import top
from koordlet.server.explain import Explain
from koordlet.server.page.charts import (
    NODE_CHARTS,
    NODE_HISTORY,
    POD_HISTORY,
    SETTLED,
    ChartReader,
    Points,
    joined,
    pod_charts,
)
from koordlet.server.page.marks import Marks
from koordlet.server.page.nodeslo import effective
from koordlet.statesinformer.informer import StatesInformer

SPARKLINES = 4.9  # seconds between two sparklines, whose points are 5 s apart
STEP = 1.0  # seconds that wall time may drift before all points are sent anew
LONGEST_NAME = 512  # characters of what a client asks about
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
    marks: Marks


@dataclass(slots=True)
class _Cursor:
    """How far the reader of one answer is."""

    version: int  # of sections
    marks: int
    newest: dict[str, float]  # seconds since boot, by chart that has a point


@dataclass(slots=True)
class _Seen:
    """What was read last, and when."""

    read: float = float("-inf")  # boot time, as next
    sparklines: float = float("-inf")
    slo: NodeSLO | None = None  # of which the section "nodeslo" is
    sections: Sections = field(default_factory=Sections)


class AgentPage:
    """Reads only when it is asked. All methods belong to the event loop.

    Charts come as points to append, marks as those to add or to replace by number; each other
    section comes whole. An answer with "whole" replaces all that the page has.
    """

    view = "agent.js"

    def __init__(self, sources: AgentPageSources, clock: Clock) -> None:
        self.title = f"koordlet on {sources.node}"
        self._sources = sources
        self._clock = clock
        self._seen = _Seen()
        self._cursors: Cursors[_Cursor] = Cursors()
        self._reading = asyncio.Lock()
        self._wall_at_boot = clock.wall() - clock.boottime()

    async def snapshot(self) -> Mapping[str, object]:
        """Everything."""
        return await self._answer(None)

    async def changes(self, since: float) -> Mapping[str, object]:
        """What changed after the answer whose "now" was since; everything, if that is forgotten."""
        self._notice_step()
        return await self._answer(self._cursors.get(since))

    async def detail(self, kind: str, name: str) -> Mapping[str, object] | None:
        """A pod by its UID, why a pod or cgroup is held to what it is, or the audit log.

        None: there is no such kind, or nothing of that name.
        """
        if len(name) > LONGEST_NAME:
            return None
        if kind == "pod":
            return await self._pod(name)
        if kind == "explain":
            answer = await self._sources.explain(name)
            return await asyncio.to_thread(answer)
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
        answer = await self._sources.explain(uid)
        charts = pod_charts(uid)

        def read() -> Mapping[str, object]:
            return {
                "uid": uid,
                "name": f"{meta.pod.namespace}/{meta.pod.name}",
                "lines": joined(charts),
                "charts": {c.name: reader.read(c, POD_HISTORY, end)[0] for c in charts},
                "explain": answer(),
            }

        return await asyncio.to_thread(read)

    async def _answer(self, cursor: _Cursor | None) -> Mapping[str, object]:
        self._notice_step()
        async with self._reading:
            await self._refresh()
            marks, revision = self._marks(cursor)
            end = self._clock.boottime() - SETTLED
            charts, newest = await asyncio.to_thread(self._charts, cursor, end)
            known = 0 if cursor is None else cursor.version
            sections = self._seen.sections.after(known)
            if charts:
                sections["charts"] = charts
            if marks or cursor is None:
                sections["marks"] = marks
            reached = _Cursor(self._seen.sections.version, revision, newest)
            now = self._cursors.remember(self._clock.wall(), reached)
        answer: dict[str, object] = {"now": now, "sections": sections}
        return answer if cursor is not None else {**answer, "whole": True}

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
            "lines": joined(NODE_CHARTS),
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

    def _marks(self, cursor: _Cursor | None) -> tuple[list[Mapping[str, object]], int]:
        marks = self._sources.marks
        return marks.after(0 if cursor is None else cursor.marks), marks.revision

    def _notice_step(self) -> None:
        """After a step of wall time the times of points are others: everything is sent anew."""
        wall_at_boot = self._clock.wall() - self._clock.boottime()
        if abs(wall_at_boot - self._wall_at_boot) > STEP:
            self._wall_at_boot = wall_at_boot
            self._cursors.clear()

    def _reader(self) -> ChartReader:
        return ChartReader(self._sources.cache, self._wall_at_boot)


def _sparklines(rows: Values) -> Mapping[str, object]:
    """CPU of each pod over a minute, by UID, out of the rows: they change less often than those."""
    for row in (rows["node"], *rows["qos"]):
        del row["cpu_history"]
    return {pod["uid"]: pod.pop("cpu_history") for pod in rows["pods"]}
