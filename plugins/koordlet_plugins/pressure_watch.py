"""Reports when tasks of the node, a QoS class or a pod wait too long for cpu, memory or io.

Reads pressure (PSI, "some", averaged over ten seconds) from the metric cache; writes log events and
two metrics; changes nothing on the host.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.plugin import OptionError, Stop
from koordlet.plugin import (
    Client,
    ExtensionPlugin,
    FeatureSpec,
    FlagSet,
    MetricCache,
    PluginRegistry,
    States,
    kinds,
)

NAME = "PressureWatch"
RESOURCES = ("cpu", "mem", "io")
SCOPES: Mapping[str, kinds.AnyKind] = {
    "node": kinds.NODE_PSI,
    "qos": kinds.QOS_PSI,
    "pod": kinds.POD_PSI,
}
DEFAULT_LEVELS = "cpu=60,mem=20,io=40"
LOGGED = 20  # subjects a round logs in full; a node in trouble has hundreds


class PressureSubject(NamedTuple):
    """The node, a QoS class or a pod. name is "" for the node, the QoS class, or the pod's uid."""

    scope: str
    name: str
    resource: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """Levels from which pressure counts as high."""

    levels: Mapping[str, float]  # by resource, in percent of the time
    release: float = 0.8  # share of the level below which it is over
    interval: float = 5.0  # seconds between looks

    def __post_init__(self) -> None:
        if not 0 < self.release <= 1:
            raise OptionError("--pressure-watch-release", self.release, "use a share up to 1")
        if self.interval < 1:
            raise OptionError("--pressure-watch-interval", self.interval, "use at least 1s")


class Crossings(NamedTuple):
    """Changes between two looks, and the subjects under pressure now."""

    began: frozenset[PressureSubject]
    ended: frozenset[PressureSubject]  # those that were measured below, and those that are gone
    high: frozenset[PressureSubject]


def parse_levels(text: str) -> dict[str, float]:
    """Return the levels of "cpu=60,mem=20": percent of the time, by resource.

    Raises:
        OptionError: a pair is malformed, or a level is not in (0, 100].
    """
    levels: dict[str, float] = {}
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        resource, _, level = pair.partition("=")
        try:
            percent = float(level)
        except ValueError:
            percent = math.nan
        if resource not in RESOURCES or not 0 < percent <= 100:
            hint = f"write {DEFAULT_LEVELS}: {', '.join(RESOURCES)}, above 0 and up to 100 percent"
            raise OptionError("--pressure-watch-levels", pair, hint)
        levels[resource] = percent
    return levels


def find_crossings(
    pressures: Mapping[PressureSubject, float],
    high: frozenset[PressureSubject],
    options: WatchOptions,
) -> Crossings:
    """Return the subjects that crossed their level; high ones end below the release. Pure."""

    def is_high(subject: PressureSubject, percent: float) -> bool:
        level = options.levels.get(subject.resource, math.inf)
        return percent >= (level * options.release if subject in high else level)

    now = frozenset(subject for subject, percent in pressures.items() if is_high(subject, percent))
    return Crossings(now - high, high - now, now)


class PressureWatch(ExtensionPlugin):
    """Logs and counts when pressure crosses its level."""

    needs = ("PSICollector",)

    def init_flags(self, flags: FlagSet) -> None:
        self._levels = flags.string(
            "pressure-watch-levels",
            DEFAULT_LEVELS,
            "Pressure that counts as high, in percent of the time; what is left out is not watched",
        )
        self._release = flags.float(
            "pressure-watch-release", 0.8, "Share of the level below which high pressure is over"
        )
        self._interval = flags.duration("pressure-watch-interval", 5.0, "Time between two looks")

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._cache = metric_cache
        self._states = states_informer
        self._options = WatchOptions(
            levels=parse_levels(self._levels.value),
            release=self._release.value,
            interval=self._interval.value,
        )
        labels = {"scope": tuple(SCOPES), "resource": RESOURCES}
        self._crossings = self.metrics.counter(
            "crossings_total", "How often pressure rose to its level.", labels
        )
        self._high = self.metrics.gauge(
            "high", "How many of a scope are under high pressure.", labels
        )

    async def run(self, stop: Stop) -> None:
        high: frozenset[PressureSubject] = frozenset()
        async for _ in stop.every(self._options.interval):
            pressures = dict(self._read())
            crossings = find_crossings(pressures, high, self._options)
            self._report(crossings, pressures)
            high = crossings.high

    def _read(self) -> Iterator[tuple[PressureSubject, float]]:
        for scope, kind in SCOPES.items():
            for key, percent in self._cache.last_values(kind).items():
                *name, resource, _, degree = key
                if degree == "some":
                    yield PressureSubject(scope, "".join(name), resource), percent

    def _report(self, crossings: Crossings, pressures: Mapping[PressureSubject, float]) -> None:
        for subject in crossings.began:
            self._crossings.inc(scope=subject.scope, resource=subject.resource)
        for scope in SCOPES:
            for resource in RESOURCES:
                count = sum(s.scope == scope and s.resource == resource for s in crossings.high)
                self._high.set(count, scope=scope, resource=resource)
        self._log("pressure.rose", crossings.began, pressures)
        self._log("pressure.fell", crossings.ended, pressures)

    def _log(
        self,
        event: str,
        subjects: frozenset[PressureSubject],
        pressures: Mapping[PressureSubject, float],
    ) -> None:
        for subject in sorted(subjects)[:LOGGED]:
            self.log.info(
                event,
                scope=subject.scope,
                name=self._name(subject),
                resource=subject.resource,
                percent=pressures.get(subject),  # None: it is gone
                level_percent=self._options.levels.get(subject.resource),
            )
        if len(subjects) > LOGGED:
            self.log.info("pressure.omitted", of=event, subjects=len(subjects) - LOGGED)

    def _name(self, subject: PressureSubject) -> str:
        meta = self._states.pod(subject.name) if subject.scope == "pod" else None
        return f"{meta.pod.namespace}/{meta.pod.name}" if meta else subject.name


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, FeatureSpec(), PressureWatch())
