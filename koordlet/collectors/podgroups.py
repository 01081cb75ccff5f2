"""Pods and their containers as rows, which stay as they are while the pods do."""

from collections.abc import Iterator
from typing import NamedTuple

from koordlet.statesinformer.model import PodMeta


class GroupRow(NamedTuple):
    """One pod or container."""

    key: str  # UID of the pod, or id of the container
    series: tuple[str]  # the key of its samples
    group: str  # its cgroup
    absent_at: float | None  # a monotonic time at which it did not exist yet, if one is known
    pod: PodMeta | None  # None: a container


class PodGroups:
    """Makes the rows of the pods of a tick, anew only when those have changed.

    For one thread. Collectors share one of these.
    """

    def __init__(self) -> None:
        self._pods: tuple[PodMeta, ...] = ()
        self._rows: tuple[GroupRow, ...] = ()
        self._groups: tuple[str, ...] = ()

    def of(self, pods: tuple[PodMeta, ...]) -> tuple[tuple[GroupRow, ...], tuple[str, ...]]:
        """Return the rows, each pod before its containers, and the cgroup of each."""
        if pods is not self._pods:
            self._pods, self._rows = pods, tuple(_rows(pods))
            self._groups = tuple(row.group for row in self._rows)
        return self._rows, self._groups


def _rows(pods: tuple[PodMeta, ...]) -> Iterator[GroupRow]:
    for pod in pods:
        yield GroupRow(pod.uid, (pod.uid,), pod.cgroup, pod.absent_at, pod)
        for container in pod.containers:
            key = container.container_id
            yield GroupRow(key, (key,), container.cgroup, container.absent_at, None)
