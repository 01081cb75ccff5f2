"""Which plugins of a profile can be served to a kube-scheduler, and by which verbs."""

from collections.abc import Iterator
from dataclasses import replace

from koord.util.errors import KoordError
from koord_scheduler.config.defaults import DEFAULT_POINTS
from koord_scheduler.config.known import DEFAULT_PRE_BIND, MISSING_PLUGINS
from koord_scheduler.config.points import Point
from koord_scheduler.config.profiles import EnabledPlugin, Profile

FILTER, PRIORITIZE, BIND = "filter", "prioritize", "bind"
"""Verbs, as the extender's configuration names them."""

VERBS = {
    FILTER: (Point.PRE_FILTER, Point.FILTER),
    PRIORITIZE: (Point.PRE_SCORE, Point.SCORE),
    BIND: (Point.RESERVE, Point.PRE_BIND, Point.BIND, Point.POST_BIND),
}
"""Verbs, and the extension points whose plugins need them."""

_REFUSED = {
    Point.PRE_ENQUEUE: "set spec.schedulingGates, which a controller removes",
    Point.QUEUE_SORT: "the queue is kube-scheduler's",
    Point.POST_FILTER: "preemption is kube-scheduler's",
    Point.PERMIT: "a pod cannot be made to wait after its node was chosen",
}
_THEIRS = frozenset((*DEFAULT_POINTS, DEFAULT_PRE_BIND, MISSING_PLUGINS))
"""Plugins that kube-scheduler runs itself, and what is only there for others."""


class NotServable(KoordError):
    """A profile has what the protocol cannot do, or nothing to serve."""


def served_profile(profile: Profile) -> Profile:
    """The profile without what kube-scheduler does itself.

    Kubernetes' default plugins are left out but where a binding needs them, and for the order of a
    queue that is never asked.

    Raises:
        NotServable: with each plugin and point that cannot be served.
    """
    errors = list(_errors(profile))
    if errors:
        raise NotServable(f"profile {profile.scheduler_name}: {'; '.join(errors)}")
    kept = {Point.QUEUE_SORT, Point.BIND}
    if BIND in verbs_of(profile):
        kept.add(Point.PRE_BIND)
    plugins = {
        point: profile.enabled(point) if point in kept else _own(profile, point) for point in Point
    }
    return replace(profile, plugins=plugins, percentage_of_nodes_to_score=None)


def verbs_of(profile: Profile) -> tuple[str, ...]:
    """The verbs that a profile's plugins need."""
    return tuple(
        verb for verb, points in VERBS.items() if any(_own(profile, point) for point in points)
    )


def _errors(profile: Profile) -> Iterator[str]:
    for point, hint in _REFUSED.items():
        for one in _own(profile, point):
            yield f'plugin "{one.name}" cannot be served at {point}: {hint}; disable it there'
    if not verbs_of(profile):
        yield "wanted a plugin to serve, found only those that kube-scheduler has itself"


def _own(profile: Profile, point: Point) -> tuple[EnabledPlugin, ...]:
    """The plugins at a point that kube-scheduler does not have."""
    return tuple(one for one in profile.enabled(point) if one.name not in _THEIRS)
