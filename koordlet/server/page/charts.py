"""The charts of the status page: series on one time line, and annotations where a plugin acted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
from koordlet.metriccache.layout import SeriesKey
from koordlet.server.top import CARRIED

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
