"""Profiles: extension points, default plugins, and the plugins that run at each extension point.

The plugins of a profile are the defaults, changed by its own sets and by multiPoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    duplicate,
    invalid,
    required,
    warning,
)
from koord.component.plugins.args import ArgsType
from koord.util.text import nearest, snake_case
from koord_scheduler.config.v1 import ALL, NamedPlugin, Plugins, PluginSet


class Point(StrEnum):
    """An extension point, as profiles name it."""

    label: str  # in metrics and messages: "PreFilter"

    def __new__(cls, value: str) -> "Point":
        point = str.__new__(cls, value)
        point._value_ = value
        point.label = value[0].upper() + value[1:]
        return point

    PRE_ENQUEUE = "preEnqueue"
    QUEUE_SORT = "queueSort"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    POST_FILTER = "postFilter"
    PRE_SCORE = "preScore"
    SCORE = "score"
    RESERVE = "reserve"
    PERMIT = "permit"
    PRE_BIND = "preBind"
    BIND = "bind"
    POST_BIND = "postBind"


_POINTS = {
    "PE": Point.PRE_ENQUEUE,
    "QS": Point.QUEUE_SORT,
    "PF": Point.PRE_FILTER,
    "F": Point.FILTER,
    "PoF": Point.POST_FILTER,
    "PS": Point.PRE_SCORE,
    "S": Point.SCORE,
    "R": Point.RESERVE,
    "PB": Point.PRE_BIND,
    "B": Point.BIND,
}
_TABLE = """
    SchedulingGates                  0  PE
    PrioritySort                     0  QS
    NodeUnschedulable                0  F
    NodeName                         0  F
    TaintToleration                  3  F PS S
    NodeAffinity                     2  PF F PS S
    NodePorts                        0  PF F
    NodeResourcesFit                 1  PF F PS S
    VolumeRestrictions               0  PF F
    NodeVolumeLimits                 0  PF F
    VolumeBinding                    0  PF F PS S R PB
    VolumeZone                       0  PF F
    PodTopologySpread                2  PF F PS S
    InterPodAffinity                 2  PF F PS S
    DynamicResources                 2  PE PF F PoF R PB S
    DefaultPreemption                0  PoF PE
    NodeResourcesBalancedAllocation  1  PS S
    ImageLocality                    1  S
    DefaultBinder                    0  B
"""

_ROWS = [line.split() for line in _TABLE.split("\n") if line.strip()]

DEFAULT_WEIGHTS: Mapping[str, int] = {name: int(weight) for name, weight, *_ in _ROWS}
"""The default plugins in their order, with the weight of their scores; 0: none of their own."""

DEFAULT_POINTS: Mapping[str, frozenset[Point]] = {
    name: frozenset(_POINTS[short] for short in points) for name, _, *points in _ROWS
}
"""The extension points of each."""

DEFAULT_PRE_BIND = "DefaultPreBind"
MISSING_PLUGINS = "MissingPlugins"  # rejects pods that need one that is not there
KOORDINATOR_PLUGINS = (
    "Coscheduling",
    DEFAULT_PRE_BIND,
    "DeviceShare",
    "ElasticQuota",
    "LoadAwareScheduling",
    "NodeNUMAResource",
    "NodeResourcesFitPlus",
    "Reservation",
    "ScarceResourceAvoidance",
    "SchedulingHint",
)
"""The plugins of Koordinator's scheduler."""


@dataclass(frozen=True, slots=True)
class KnownPlugin:
    """A plugin as the configuration knows it."""

    points: frozenset[Point]
    args: ArgsType | None = None  # None: any object, which the plugin reads itself
    is_opaque: bool = False  # which of the points it has is not known before it is made


KnownPlugins = Mapping[str, KnownPlugin]
"""The plugins that profiles may name."""


def is_not_built(name: str, known: KnownPlugins) -> bool:
    """Whether a plugin is Kubernetes' or Koordinator's, and this build does not have it."""
    return name not in known and (name in DEFAULT_WEIGHTS or name in KOORDINATOR_PLUGINS)


@dataclass(frozen=True, slots=True)
class EnabledPlugin:
    """A plugin at an extension point."""

    name: str
    weight: int = 1  # of its scores; elsewhere without a meaning


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Plugins that schedule the pods of one scheduler name."""

    scheduler_name: str
    plugins: Mapping[Point, tuple[EnabledPlugin, ...]] = field(default_factory=dict)
    args: Mapping[str, object] = field(default_factory=dict)  # of enabled plugins, by their names
    percentage_of_nodes_to_score: int | None = None  # None: all; 0: fewer, the more there are
    not_built: tuple[str, ...] = ()  # plugins that it names, and that this build does not have

    def enabled(self, point: Point) -> tuple[EnabledPlugin, ...]:
        """The plugins of an extension point, in the order in which they run."""
        return self.plugins.get(point, ())

    @property
    def names(self) -> tuple[str, ...]:
        """All plugins of the profile, each once, in the order in which they are made."""
        return tuple(dict.fromkeys(one.name for point in Point for one in self.enabled(point)))


_DEFAULTS = tuple(NamedPlugin(name=name, weight=weight) for name, weight in DEFAULT_WEIGHTS.items())
_ATTRIBUTES = {point: snake_case(point) for point in Point}
_SORT = "PrioritySort"  # for a queue whose own sort is not built
_OPAQUE = (
    "its extension points are not known before it is made; enable it at each, or annotate what its "
    "factory returns"
)


@dataclass(frozen=True, slots=True)
class PointPlugins:
    """The plugins of a profile, by extension point."""

    enabled: Mapping[Point, tuple[EnabledPlugin, ...]]
    not_built: tuple[str, ...]  # named, but not in this build


def plugins_by_point(
    plugins: Plugins, known: KnownPlugins, path: FieldPath
) -> tuple[PointPlugins, list[FieldError]]:
    """Return the plugins that run at each extension point, in their order, and all faults."""
    faults = list(_check_names(plugins, known, path))
    multi = merged(_DEFAULTS, plugins.multi_point)
    found = {point: _at_point(point, plugins, multi, known) for point in Point}
    not_built = _not_built(plugins, multi, known)
    for name, (points, place) in not_built.items():
        text = f'plugin "{name}" is not built: the profile runs without it at {", ".join(points)}'
        faults.append(warning((*path, *place), text))
    sorting = [one.name for one in plugins.queue_sort.enabled if is_not_built(one.name, known)]
    if sorting and not found[Point.QUEUE_SORT] and _SORT in known:
        found[Point.QUEUE_SORT] = (EnabledPlugin(_SORT),)
        text = f'"{_SORT}" sorts the queue, as plugin "{sorting[0]}" is not built'
        faults.append(warning((*path, Point.QUEUE_SORT.value), text))
    if all(fault.is_warning for fault in faults):
        faults += _check_needed(found, path)
    return PointPlugins(found, tuple(not_built)), faults


def _at_point(
    point: Point, plugins: Plugins, multi: Sequence[NamedPlugin], known: KnownPlugins
) -> tuple[EnabledPlugin, ...]:
    own = _own(plugins, point)
    scores = point is Point.SCORE
    weights = {one.name: one.weight for one in (*multi, *own.enabled) if scores}
    wide = [one.name for one in multi if _is_wide(one.name, point, known)]
    return tuple(
        EnabledPlugin(name, weights.get(name) or 1)
        for name in expanded(wide, own)
        if not is_not_built(name, known)
    )


def _own(plugins: Plugins, point: Point) -> PluginSet:
    own: PluginSet = getattr(plugins, _ATTRIBUTES[point])
    return own


def _is_wide(name: str, point: Point, known: KnownPlugins) -> bool:
    """Whether multiPoint enables a plugin at an extension point."""
    plugin = known.get(name)
    return plugin is not None and point in plugin.points and not plugin.is_opaque


def _not_built(
    plugins: Plugins, multi: Sequence[NamedPlugin], known: KnownPlugins
) -> dict[str, tuple[list[str], FieldPath]]:
    """Plugins that the profile names and this build lacks: their points, and where one is."""
    found: dict[str, tuple[list[str], FieldPath]] = {}
    given = [one.name for one in plugins.multi_point.enabled]
    for one in multi:
        if is_not_built(one.name, known):
            points = [point for point in Point if point in DEFAULT_POINTS.get(one.name, Point)]
            place: FieldPath = ("multiPoint",)
            if one.name in given:
                place = (*place, "enabled", given.index(one.name), "name")
            left = [point.value for point in points if not _is_out(one.name, _own(plugins, point))]
            if left:
                found[one.name] = (left, place)
    for point in Point:
        for at, one in enumerate(_own(plugins, point).enabled):
            if is_not_built(one.name, known):
                points_of, _ = found.setdefault(
                    one.name, ([], (point.value, "enabled", at, "name"))
                )
                if point.value not in points_of:
                    points_of.append(point.value)
    return found


def _is_out(name: str, own: PluginSet) -> bool:
    """Whether a plugin of multiPoint is disabled at an extension point."""
    return bool({ALL, name} & {one.name for one in own.disabled})


def merged(defaults: Sequence[NamedPlugin], own: PluginSet) -> tuple[NamedPlugin, ...]:
    """The defaults, changed by what a profile says: one that is listed again changes in place."""
    disabled = {one.name for one in own.disabled}
    again = {one.name: one for one in own.enabled}
    kept = () if ALL in disabled else tuple(one for one in defaults if one.name not in disabled)
    replaced = {one.name for one in kept} & again.keys()
    return (
        *(again.get(one.name, one) for one in kept),
        *(one for one in own.enabled if one.name not in replaced),
    )


def expanded(wide: Sequence[str], own: PluginSet) -> tuple[str, ...]:
    """Names at one extension point: those of multiPoint that have it, and the point's own.

    First come those of both, as the point lists them, then the rest of multiPoint, then the rest
    of the point.
    """
    listed = tuple(one.name for one in own.enabled)
    disabled = {one.name for one in own.disabled}
    if ALL in disabled:
        return listed
    kept = tuple(name for name in wide if name not in disabled)
    overriding = tuple(name for name in listed if name in kept)
    return (
        *overriding,
        *(name for name in kept if name not in listed),
        *(name for name in listed if name not in overriding),
    )


def _check_names(plugins: Plugins, known: KnownPlugins, path: FieldPath) -> Iterator[FieldError]:
    """Plugins that are unknown, listed twice, or at a point that they do not have."""
    for point in (*Point, None):
        key = "multiPoint" if point is None else point.value
        own = plugins.multi_point if point is None else _own(plugins, point)
        seen: set[str] = set()
        for at, one in enumerate(own.enabled):
            place = (*path, key, "enabled", at, "name")
            if not one.name:
                yield required(place)
            elif one.name in seen:
                yield duplicate(place, one.name)
            elif one.name not in known:
                if not is_not_built(one.name, known):
                    close = nearest(one.name, known)
                    hint = f'; did you mean "{close}"?' if close else ""
                    yield invalid(place, one.name, f'plugin "{one.name}" does not exist{hint}')
            elif point is None and known[one.name].is_opaque:
                yield invalid(place, one.name, f'plugin "{one.name}": {_OPAQUE}')
            elif point is not None and point not in known[one.name].points:
                points = ", ".join(sorted(known[one.name].points))
                wanted = f'plugin "{one.name}" does not extend {key}; it is for {points}'
                yield invalid(place, one.name, wanted)
            if one.weight < 0:
                yield invalid((*place[:-1], "weight"), one.weight, "wanted 0 or more")
            seen.add(one.name)


def _check_needed(
    found: Mapping[Point, Sequence[EnabledPlugin]], path: FieldPath
) -> Iterator[FieldError]:
    sorts = [one.name for one in found[Point.QUEUE_SORT]]
    if len(sorts) != 1:
        yield invalid((*path, "queueSort"), sorts, "wanted exactly one queueSort plugin")
    if not found[Point.BIND]:
        yield required((*path, "bind"), "at least one bind plugin is needed")
