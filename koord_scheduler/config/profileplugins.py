"""Which plugins a profile runs at each extension point: defaults, its own words, multiPoint.

Source: Kubernetes, pkg/scheduler/apis/config/v1/default_plugins.go (mergePluginSet) and
pkg/scheduler/framework/runtime/framework.go (expandMultiPointPlugins).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from koord.component.config.faults import Fault, FieldPath, duplicate, invalid, required, warning
from koord.util.nearest import nearest
from koord.util.snakecase import snake_case
from koord_scheduler.config.defaults import DEFAULT_WEIGHTS
from koord_scheduler.config.points import Point
from koord_scheduler.config.profiles import EnabledPlugin, Profile
from koord_scheduler.config.v1 import (
    ALL,
    DEFAULT_SCHEDULER_NAME,
    GROUP,
    KubeSchedulerProfile,
    NamedPlugin,
    Plugins,
    PluginSet,
)

Implements = Mapping[str, frozenset[Point]]
"""The plugins that there are, and the extension points of each."""

_DEFAULTS = tuple(NamedPlugin(name=name, weight=weight) for name, weight in DEFAULT_WEIGHTS.items())
_ATTRIBUTES = {point: snake_case(point) for point in Point}


def profiles_of(
    external: Sequence[KubeSchedulerProfile],
    implements: Implements,
    percentage: int | None = None,
) -> tuple[tuple[Profile, ...], list[Fault]]:
    """Return what profiles mean, and their faults; errors make them unusable.

    Without a profile there is one of defaults. percentage is the percentageOfNodesToScore of all
    profiles that have none of their own.
    """
    given = external or (KubeSchedulerProfile(),)
    faults: list[Fault] = []
    made, names, sorts = [], set[str](), set[str]()
    for index, one in enumerate(given):
        path: FieldPath = ("profiles", index)
        name = one.scheduler_name or (DEFAULT_SCHEDULER_NAME if len(given) == 1 else "")
        if not name:
            faults.append(required((*path, "schedulerName")))
        elif name in names:
            faults.append(duplicate((*path, "schedulerName"), name))
        names.add(name)
        own = one.percentage_of_nodes_to_score
        if own is not None and not 0 <= own <= 100:
            place = (*path, "percentageOfNodesToScore")
            faults.append(invalid(place, own, "not in valid range [0-100]"))
        plugins, found = plugins_by_point(one.plugins, implements, (*path, "plugins"))
        faults += found
        faults += _check_args(one, path)
        sorts |= {each.name for each in plugins[Point.QUEUE_SORT]}
        made.append(
            Profile(
                scheduler_name=name,
                plugins=plugins,
                args={each.name: each.args for each in one.plugin_config if each.args is not None},
                percentage_of_nodes_to_score=percentage if own is None else own,
            )
        )
    if len(sorts) > 1:
        hint = "wanted the same queueSort plugin in all profiles"
        faults.append(invalid(("profiles",), sorted(sorts), hint))
    return tuple(made), faults


def plugins_by_point(
    plugins: Plugins, implements: Implements, path: FieldPath
) -> tuple[dict[Point, tuple[EnabledPlugin, ...]], list[Fault]]:
    """Return the plugins that run at each extension point, in their order, and all faults."""
    faults = list(_check_names(plugins, implements, path))
    multi = merged(_DEFAULTS, plugins.multi_point)
    listed = {one.name for one in plugins.multi_point.enabled}
    for one in multi:
        if one.name not in implements and one.name not in listed:
            text = f'the default plugin "{one.name}" is not built; disable it here'
            faults.append(warning((*path, "multiPoint"), text))
    weights = {one.name: one.weight for one in multi}
    found: dict[Point, tuple[EnabledPlugin, ...]] = {}
    for point in Point:
        own: PluginSet = getattr(plugins, _ATTRIBUTES[point])
        names = expanded([one.name for one in multi], own, point, implements)
        mine = {one.name: one.weight for one in own.enabled}
        found[point] = tuple(
            EnabledPlugin(name, mine.get(name, weights.get(name, 0)) or 1) for name in names
        )
    if all(fault.is_warning for fault in faults):
        faults += _check_needed(found, path)
    return found, faults


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


def expanded(
    multi: Iterable[str], own: PluginSet, point: Point, implements: Implements
) -> tuple[str, ...]:
    """Names at one extension point: those of multiPoint that have it, and the point's own.

    First come those of both, as the point lists them, then the rest of multiPoint, then the rest
    of the point.
    """
    listed = tuple(one.name for one in own.enabled)
    disabled = {one.name for one in own.disabled}
    if ALL in disabled:
        return listed
    wide = tuple(
        name for name in multi if point in implements.get(name, ()) and name not in disabled
    )
    overriding = tuple(name for name in listed if name in wide)
    return (
        *overriding,
        *(name for name in wide if name not in listed),
        *(name for name in listed if name not in overriding),
    )


def _check_names(plugins: Plugins, implements: Implements, path: FieldPath) -> Iterator[Fault]:
    """Plugins that are unknown, listed twice, or at a point that they do not have."""
    for point in (*Point, None):
        key = "multiPoint" if point is None else point.value
        own = plugins.multi_point if point is None else getattr(plugins, _ATTRIBUTES[point])
        seen: set[str] = set()
        for at, one in enumerate(own.enabled):
            place = (*path, key, "enabled", at, "name")
            if not one.name:
                yield required(place)
            elif one.name in seen:
                yield duplicate(place, one.name)
            elif one.name not in implements:
                close = nearest(one.name, implements)
                hint = f'; did you mean "{close}"?' if close else ""
                yield invalid(place, one.name, f'plugin "{one.name}" does not exist{hint}')
            elif point is not None and point not in implements[one.name]:
                points = ", ".join(sorted(implements[one.name]))
                wanted = f'plugin "{one.name}" does not extend {key}; it is for {points}'
                yield invalid(place, one.name, wanted)
            if one.weight < 0:
                yield invalid((*place[:-1], "weight"), one.weight, "wanted 0 or more")
            seen.add(one.name)


def _check_needed(
    found: Mapping[Point, Sequence[EnabledPlugin]], path: FieldPath
) -> Iterator[Fault]:
    sorts = [one.name for one in found[Point.QUEUE_SORT]]
    if len(sorts) != 1:
        yield invalid((*path, "queueSort"), sorts, "wanted exactly one queueSort plugin")
    if not found[Point.BIND]:
        yield required((*path, "bind"), "at least one bind plugin is needed")


def _check_args(profile: KubeSchedulerProfile, path: FieldPath) -> Iterator[Fault]:
    """The rules of pluginConfig: a name once, arguments of the plugin's own kind."""
    seen: set[str] = set()
    for index, one in enumerate(profile.plugin_config):
        place: FieldPath = (*path, "pluginConfig", index)
        if not one.name:
            yield required((*place, "name"))
        elif one.name in seen:
            yield duplicate((*place, "name"), one.name)
        seen.add(one.name)
        if one.args is None:
            continue
        if not isinstance(one.args, Mapping):
            yield invalid((*place, "args"), one.args, "wanted an object")
            continue
        kind = one.args.get("kind")
        if kind is not None and kind != f"{one.name}Args":
            yield invalid((*place, "args", "kind"), kind, f'wanted "{one.name}Args"')
        version = one.args.get("apiVersion")
        if version is not None and version != f"{GROUP}/v1":
            yield invalid((*place, "args", "apiVersion"), version, f'wanted "{GROUP}/v1"')
