"""The scheduler's cache and queue as plugins may use them."""

from collections.abc import Iterable

from koord.cluster.facts import ClusterPod
from koord_scheduler.cache.assumed import SchedulerState
from koord_scheduler.framework.events import WILDCARD
from koord_scheduler.framework.extension.control import SchedulerControl
from koord_scheduler.framework.extension.handlers import ForgetHandlers
from koord_scheduler.queue.schedulingqueue import SchedulingQueue


class CacheAndQueue(SchedulerControl):
    """See SchedulerControl. One event loop."""

    def __init__(
        self, state: SchedulerState, queue: SchedulingQueue, forgotten: ForgetHandlers
    ) -> None:
        self._state = state
        self._queue = queue
        self._forgotten = forgotten

    def pod(self, key: str) -> ClusterPod | None:
        return self._state.pod(key)

    def is_assumed(self, uid: str) -> bool:
        return self._state.is_assumed(uid)

    def forget_pod(self, pod: ClusterPod) -> bool:
        was_assumed = self._state.forget(pod.uid)
        self._forgotten.forgotten(pod)
        return was_assumed

    def put_own_pod(self, pod: ClusterPod) -> None:
        self._state.put_own_pod(pod)

    def remove_own_pod(self, key: str) -> None:
        self._state.remove_own_pod(key)

    def activate(self, uids: Iterable[str]) -> None:
        self._queue.activate(uids)

    def activate_all(self) -> None:
        self._queue.happened(WILDCARD)
