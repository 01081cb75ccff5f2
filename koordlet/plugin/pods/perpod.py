"""Results of a plugin for each pod, kept until the pod or the plugin's settings change."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from koordlet.statesinformer.model import PodMeta

S = TypeVar("S")
T = TypeVar("T")


class _Kept(NamedTuple, Generic[S, T]):
    pod: PodMeta
    settings: S
    result: T


class PerPod(Generic[S, T]):
    """Remembers a result for each pod of the latest round.

    A round then costs one comparison per pod, as pods and settings are replaced, never modified.
    """

    def __init__(self, work_out: Callable[[PodMeta, S], T], forget: Callable[[str], None]) -> None:
        """forget is called with the uid of a pod that is no longer among those of a round."""
        self._work_out = work_out
        self._forget = forget
        self._settings: S | None = None
        self._kept: dict[str, _Kept[S, T]] = {}

    async def of(self, pods: Iterable[PodMeta], settings: S) -> list[T]:
        """Return the results in the order of the pods; other tasks run between new ones."""
        if self._settings is not None and settings == self._settings:
            settings = self._settings  # so that comparing it again, for each pod, costs nothing
        self._settings = settings
        before, self._kept = self._kept, {}
        for pod in pods:
            kept = before.get(pod.uid)
            if kept is None or kept.settings is not settings or not _same(kept.pod, pod):
                kept = _Kept(pod, settings, self._work_out(pod, settings))
                await asyncio.sleep(0)
            self._kept[pod.uid] = kept
        for uid in before.keys() - self._kept.keys():
            self._forget(uid)
        return [kept.result for kept in self._kept.values()]


def _same(before: PodMeta, now: PodMeta) -> bool:
    return before is now or before == now  # comparing an object with itself field by field is dear
