"""Containers whose first process is there, and does not run its program so far."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from koordlet.statesinformer.model import PodMeta

ARRIVAL = 60.0  # seconds that a container may take from its announcement until it is known


class _Announced(NamedTuple):
    meta: PodMeta  # with this one container
    until: float  # monotonic


class StartingContainers:
    """Those that the container runtime has announced, until they are among the known pods."""

    def __init__(self, now: Callable[[], float]) -> None:
        """now is in seconds, monotonic."""
        self._now = now
        self._announced: dict[str, _Announced] = {}  # by cgroup

    def add(self, meta: PodMeta) -> None:
        """Announce the one container of a pod."""
        [container] = meta.containers
        self._announced[container.cgroup] = _Announced(meta, self._now() + ARRIVAL)

    def clear(self) -> None:
        """Forget all."""
        self._announced.clear()

    def among(self, pods: Iterable[PodMeta]) -> Iterator[PodMeta]:
        """Yield the pods with their announced containers, and those that are not known yet."""
        if not self._announced:
            yield from pods
            return
        now = self._now()
        new: dict[str, PodMeta] = {}  # by UID, with the announced containers only
        known = {meta.uid: meta for meta in pods}
        there = {one.cgroup for meta in known.values() for one in meta.containers}
        for group, (meta, until) in list(self._announced.items()):
            if group in there or until <= now:
                del self._announced[group]
            else:
                earlier = new.get(meta.uid)
                containers = (*(earlier.containers if earlier else ()), *meta.containers)
                new[meta.uid] = replace(meta, containers=containers)
        for uid, meta in known.items():
            more = new.pop(uid, None)
            yield replace(meta, containers=meta.containers + more.containers) if more else meta
        yield from new.values()
