"""Aggregates of one metric kind over a window: the answer of `koordletctl metrics`."""

from collections.abc import Iterable, Mapping

from koord.api.nodemetric import LONGEST_WINDOW
from koord.util import goduration
from koord.util.errors import OptionError
from koord.util.nearest import nearest
from koordlet.metriccache.aggregate import Aggregate
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import AnyKind
from koordlet.metriccache.layout import SeriesKey
from koordlet.statesinformer.model import PodMeta

DEFAULT_WINDOW = "1m0s"


def find_kind(name: str, cache: MetricCache) -> AnyKind:
    """Return the kind of that name.

    Raises:
        OptionError: there is none; the message names those that contain the text, or the nearest.
    """
    kinds = cache.kinds()
    if name not in kinds:
        similar = [known for known in kinds if name and name in known] or [nearest(name, kinds)]
        raise OptionError("metric", name, f"did you mean {' or '.join(similar)}?")
    return kinds[name]


def parse_window(text: str) -> float:
    """Return a window in seconds, at most an hour.

    Raises:
        OptionError: it is not a positive Go duration.
    """
    try:
        seconds = goduration.parse(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise OptionError("window", text, f'use a duration above 0, for example "{DEFAULT_WINDOW}"')
    return min(seconds, LONGEST_WINDOW)


def find_pod(name: str, pods: Iterable[PodMeta]) -> PodMeta:
    """Return the pod with that UID, namespace/name, or name.

    Raises:
        OptionError: none has it, or several have the name.
    """
    pods = list(pods)
    found = [pod for pod in pods if name in (pod.uid, _full_name(pod))]
    found = found or [pod for pod in pods if name == pod.pod.name]
    if len(found) > 1:
        raise OptionError("pod", name, f"use one of {', '.join(map(_full_name, found))}")
    if not found:
        names = [_full_name(pod) for pod in pods]
        hint = f"did you mean {nearest(name, names)}?" if names else "no pods are known"
        raise OptionError("pod", name, hint)
    return found[0]


def aggregates(
    cache: MetricCache,
    kind: AnyKind,
    window: float,
    pods: Iterable[PodMeta],
    only: PodMeta | None = None,
) -> dict[str, object]:
    """Name, unit and window, and one entry per series with samples in it.

    A series of a pod or container also gets the pod's namespace/name, and the container's name,
    while the pod is known. With
    `only` these are the series of that pod and of its containers.
    """
    series = cache.aggregate_all(kind, window)
    owners = _owners(kind, pods if only is None else (only,))
    return {
        "name": kind.name,
        "unit": kind.unit,
        "window_seconds": window,
        "series": [
            {**_subject(kind, key, owners), **_figures(series[key])}
            for key in sorted(series)
            if only is None or key[:1] in owners
        ],
    }


def _owners(kind: AnyKind, pods: Iterable[PodMeta]) -> dict[SeriesKey, dict[str, str]]:
    """Pod, and container, by the first property of a key, where that identifies one."""
    if kind.properties[:1] == ("pod_uid",):
        return {(pod.uid,): {"pod": _full_name(pod)} for pod in pods}
    if kind.properties[:1] == ("container_id",):
        return {
            (own.container_id,): {"pod": _full_name(pod), "container": own.name}
            for pod in pods
            for own in pod.containers
        }
    return {}


def _full_name(pod: PodMeta) -> str:
    return f"{pod.pod.namespace}/{pod.pod.name}"


def _subject(
    kind: AnyKind, key: SeriesKey, owners: Mapping[SeriesKey, Mapping[str, str]]
) -> dict[str, str]:
    return {**owners.get(key[:1], {}), **dict(zip(kind.properties, key, strict=True))}


def _figures(aggregate: Aggregate) -> dict[str, float]:
    return {
        "last": aggregate.last,
        "avg": aggregate.avg(),
        "p50": aggregate.percentile(50),
        "p90": aggregate.percentile(90),
        "p95": aggregate.percentile(95),
        "p99": aggregate.percentile(99),
        "count": aggregate.count,
        "span_seconds": aggregate.span,
    }
