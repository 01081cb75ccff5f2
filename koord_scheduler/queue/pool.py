"""Pods that wait for something to happen: rejected ones and gated ones, by the plugins' names."""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice, takewhile

from koord_scheduler.framework.queuedpod import QueuedPod


class Pool:
    """Pods by uid, in the order in which they came, and by (profile, plugin) that rejected them."""

    def __init__(self) -> None:
        self._pods: dict[str, QueuedPod] = {}
        self._plugins: dict[tuple[str, str], dict[str, QueuedPod]] = {}
        self._of_pod: dict[str, tuple[tuple[str, str], ...]] = {}
        self._rejected: dict[str, QueuedPod] = {}  # those that are not gated; the oldest first

    @property
    def gated(self) -> int:
        """How many of them a PreEnqueue plugin keeps."""
        return len(self._pods) - len(self._rejected)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[QueuedPod]:
        """All of them, the oldest first; nothing may change meanwhile."""
        return iter(self._pods.values())

    @property
    def plugins(self) -> Collection[tuple[str, str]]:
        """Profiles and plugins that have rejected any of them."""
        return tuple(self._plugins)

    def rejected_by(self, profile: str, plugin: str) -> Mapping[str, QueuedPod]:
        """The pods, by uid, that a plugin has rejected."""
        return self._plugins.get((profile, plugin), {})

    def get(self, uid: str) -> QueuedPod | None:
        return self._pods.get(uid)

    def add(self, queued: QueuedPod) -> None:
        """Add a pod; its plugins do not change while it is here."""
        uid, profile = queued.pod.uid, queued.pod.scheduler_name
        names = {queued.gating_plugin} if queued.gating_plugin else queued.rejecting_plugins
        self._pods[uid] = queued
        self._of_pod[uid] = tuple((profile, name) for name in sorted(names))
        if not queued.gating_plugin:
            self._rejected[uid] = queued
        for key in self._of_pod[uid]:
            self._plugins.setdefault(key, {})[uid] = queued

    def remove(self, uid: str) -> QueuedPod | None:
        """Take a pod out; None: it is not here."""
        queued = self._pods.pop(uid, None)
        if queued is None:
            return None
        self._rejected.pop(uid, None)
        for key in self._of_pod.pop(uid):
            pods = self._plugins[key]
            del pods[uid]
            if not pods:
                del self._plugins[key]
        return queued

    def older_than(self, moment: float, most: int) -> list[QueuedPod]:
        """Rejected pods that came before that moment, in monotonic seconds; at most so many."""
        older = takewhile(lambda queued: queued.timestamp < moment, self._rejected.values())
        return list(islice(older, most))
