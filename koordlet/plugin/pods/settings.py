"""Settings of pods in labels, annotations and spec; a pod keeps its last good ones."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from koord.api.pods.pod import Pod
from koord.util.errors import InvalidObject
from koordlet.plugin.rejections import Rejections

W = TypeVar("W")


class PodSettings(Generic[W]):
    """Reads the settings of each version of a pod once."""

    def __init__(
        self,
        read: Callable[[Pod], W | None],
        rejections: Rejections,
        otherwise: W | None = None,
    ) -> None:
        """read: returns None for a pod that does not matter; raises InvalidObject.

        otherwise: the settings of a pod whose own could never be used.
        """
        self._read = read
        self._rejections = rejections
        self._otherwise = otherwise
        self._kept: dict[str, tuple[Pod, W | None]] = {}  # by UID

    def of(self, pod: Pod) -> W | None:
        """Return a pod's settings; the last good ones while the present ones cannot be used."""
        kept = self._kept.get(pod.uid)
        if kept is not None and kept[0] is pod:
            return kept[1]
        found = self._last_good(pod, self._otherwise if kept is None else kept[1])
        self._kept[pod.uid] = (pod, found)
        return found

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._kept.pop(uid, None)
        self._rejections.forget(uid)

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all pods but these."""
        for uid in self._kept.keys() - set(uids):
            self.forget(uid)

    def _last_good(self, pod: Pod, last: W | None) -> W | None:
        try:
            found = self._read(pod)
        except InvalidObject as err:
            self._rejections.reject(pod.uid, err, pod)
            return last
        self._rejections.accept(pod.uid)
        return found
