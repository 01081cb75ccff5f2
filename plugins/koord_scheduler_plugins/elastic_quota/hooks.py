"""Hooks of quotas: third parties' code that has a say about pods, and follows quotas and pods.

An installed distribution names a factory as an entry point of koord_scheduler.quota_hooks; an entry
of hookPlugins names that entry point as its factoryKey.

Source: Koordinator, pkg/scheduler/plugins/elasticquota/core/hook_plugin.go.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ParamSpec, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Histogram

from koord.api.elasticquota import Amounts, ElasticQuota
from koord.plugin import Clock, KoordError, LimitedLog, get_logger
from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.elastic_quota.quotas import Quotas

GROUP = "koord_scheduler.quota_hooks"
MAX_ANNOTATIONS, MAX_BYTES = 16, 4096  # that a hook may write into a quota, and of each
MAX_REASON = 256  # characters of why a hook rejects a pod
T = TypeVar("T")
P = ParamSpec("P")

log = get_logger("koord_scheduler.elastic_quota")


@dataclass(frozen=True, kw_only=True, slots=True)
class HookPlugin:
    """An entry of hookPlugins."""

    key: str = ""
    factory_key: str = ""
    factory_args: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaInfo:
    """A quota at one moment. Amounts are by resource, cpu in millicores, all else in units."""

    name: str
    parent: str
    tree: str
    min: Amounts
    max: Amounts
    used: Amounts  # by its pods on nodes and those of its descendants
    request: Amounts
    limit: Amounts  # what it may use now


class QuotaReader(Protocol):
    """The quotas as they are when it is asked."""

    def quota(self, name: str) -> QuotaInfo | None:
        """Return a quota; None: there is none of that name."""

    def children(self, name: str) -> Sequence[QuotaInfo]:
        """Return the quotas below a quota, by name; none: it has none."""


class QuotaHook:
    """A hook. Its methods are called on the event loop of the scheduler and must be fast."""

    def check_pod(self, quota: QuotaInfo, pod: ClusterPod) -> str:
        """Return why a pod that its quota has room for is not admitted; "": it is."""
        return ""

    def quota_changed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        """Follow an object that has come (old None), was written, or has gone (new None)."""

    def pod_changed(self, quota: str, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Follow a pod of a quota on a node: it came (old None), changed, or went (new None)."""

    def status_annotations(self, quota: QuotaInfo) -> Mapping[str, str]:
        """Return annotations that are written with the status of a quota, while this one leads."""
        return {}


HookFactory = Callable[[QuotaReader, str, Any], QuotaHook]
"""Makes a hook of the quotas, the entry's key, and its factoryArgs as they are in JSON."""


class HookError(KoordError):
    """Entries of hookPlugins cannot be used."""


class HookMetrics:
    """Durations of hooks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.latency = Histogram(
            "scheduler_elastic_quota_hook_plugin_latency",
            "Seconds that hook plugins of quotas take, by their key and what they are asked.",
            ["plugin", "operation"],
            buckets=tuple(1e-6 * 2**power for power in range(24)),
            registry=registry,
        )


class SnapshotReader:
    """A QuotaReader of what a function returns. Belongs to one thread."""

    def __init__(self, quotas: Callable[[], Quotas]) -> None:
        self._quotas = quotas

    def quota(self, name: str) -> QuotaInfo | None:
        """See QuotaReader."""
        return quota_info(self._quotas(), name)

    def children(self, name: str) -> Sequence[QuotaInfo]:
        """See QuotaReader."""
        quotas = self._quotas()
        trees = (state.tree for state in quotas.states.values())
        names = {one.name for tree in trees for one in tree.quotas if one.parent == name}
        found = (quota_info(quotas, one) for one in sorted(names))
        return [one for one in found if one is not None]


def quota_info(quotas: Quotas, name: str) -> QuotaInfo | None:
    """Return a quota; None: there is none of that name."""
    state = quotas.state_of(name)
    quota = None if state is None else state.tree.find(name)
    if state is None or quota is None:
        return None
    return QuotaInfo(
        name=name,
        parent=quota.parent,
        tree=quotas.index.trees.get(name, ""),
        min=quota.min,
        max=quota.max,
        used=state.used(name),
        request=state.request(name),
        limit=state.limit(name),
    )


class QuotaHooks:
    """All hooks of a scheduler, in the order of the configuration.

    What a hook raises is logged; a pod about which it raises is not admitted.
    """

    def __init__(
        self,
        entries: Sequence[HookPlugin],
        quotas: Callable[[], Quotas],
        metrics: HookMetrics,
        clock: Clock,
    ) -> None:
        """Raises HookError: everything that is wrong with the entries."""
        self.entries = tuple(entries)
        self._quotas = quotas
        self._metrics = metrics
        self._failures = LimitedLog(log, clock)
        self._hooks: list[tuple[str, QuotaHook]] = []
        self._shown: dict[str, tuple[str, ClusterPod]] = {}  # quota and pod by uid, on nodes
        self._assumed: set[str] = set()  # uids of these whose binding is not confirmed
        reader, problems = SnapshotReader(quotas), []
        for number, entry in enumerate(self.entries):
            try:
                self._hooks.append((entry.key, _made(entry, reader)))
            except Exception as err:  # a third party's code
                problems.append(f"hookPlugins[{number}]: {err}")
        if problems:
            raise HookError("; ".join(problems))

    def __len__(self) -> int:
        return len(self._hooks)

    def rejection(self, quota: str, pod: ClusterPod) -> str:
        """Return why a pod is not admitted, in Koordinator's words; "": it is."""
        info = quota_info(self._quotas(), quota) if self._hooks else None
        if info is None:
            return ""
        for key, hook in self._hooks:
            try:
                found = self._timed(key, "check_pod", hook.check_pod, info, pod)
            except Exception as err:
                self._failed(key, err)
                found = f"{type(err).__name__}: {err}"
            if found:
                return f"CheckPod failed for hook plugin {key}, err: {found!s:.{MAX_REASON}}"
        return ""

    def quota_changed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        """Notify all hooks of an object."""
        for key, hook in self._hooks:
            self._call(key, "post_quota_update", hook.quota_changed, old, new)

    def pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Notify all hooks of a pod, if it is or was on a node."""
        if not self._hooks:
            return
        if old is not None and (new is None or new.uid != old.uid):
            self._show(old.uid, None)
        if new is not None and (new.node or new.uid not in self._assumed):
            self._show(new.uid, _on_node(new))

    def reserved(self, pod: ClusterPod) -> None:
        """Notify all hooks of a pod that is assumed to be on a node: it may count there now."""
        self._show(pod.uid, pod)
        self._assumed.add(pod.uid)

    def unreserved(self, pod: ClusterPod) -> None:
        """Notify all hooks of a pod that has given up its node."""
        self._show(pod.uid, None)

    def _show(self, uid: str, pod: ClusterPod | None) -> None:
        """pod: as it is on a node; None: it is on none."""
        self._assumed.discard(uid)
        # The quota may be another one by now: a pod leaves the one in which it was shown.
        was, before = self._shown.pop(uid, ("", None))
        now = self._quota_of(pod)
        if pod is not None and now:
            self._shown[uid] = now, pod
        moves = [(now, before, pod)] if was == now else [(was, before, None), (now, None, pod)]
        for quota, one, other in moves:
            for key, hook in self._hooks if quota else ():
                self._call(key, "on_pod_update", hook.pod_changed, quota, one, other)

    def annotations(self, quota: str) -> Mapping[str, str]:
        """Return what hooks want to be written into a quota; of two the later one counts."""
        info = quota_info(self._quotas(), quota) if self._hooks else None
        found: dict[str, str] = {}
        if info is not None:
            for key, hook in self._hooks:
                wanted = self._call(key, "update_quota_status", _annotations_of, hook, info)
                found.update(wanted or {})
        return found

    def _quota_of(self, pod: ClusterPod | None) -> str:
        """The quota of a pod by name; "": it has none."""
        found = None if pod is None else self._quotas().quota_of(pod)
        return "" if found is None else found[0]

    def _call(
        self, key: str, operation: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        try:
            return self._timed(key, operation, work, *args, **kwargs)
        except Exception as err:
            self._failed(key, err)
            return None

    def _timed(
        self, key: str, operation: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        began = time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            took = time.perf_counter() - began
            self._metrics.latency.labels(key, operation).observe(took)

    def _failed(self, key: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._failures.error("quota_hook.failed", hook=key, error=text[:MAX_REASON])


def hook_problems(entries: Iterable[HookPlugin]) -> Iterable[str]:
    """Yield what is wrong with entries by themselves."""
    known: set[str] = set()
    for entry in entries:
        if not entry.key:
            yield "hook plugin key is empty"
        elif not entry.factory_key:
            yield f"hook plugin {entry.key}: factoryKey is empty"
        elif entry.key in known:
            yield f"hook plugin key {entry.key} is there twice"
        known.add(entry.key)


def _made(entry: HookPlugin, reader: QuotaReader) -> QuotaHook:
    found = tuple(entry_points(group=GROUP, name=entry.factory_key))
    if not found:
        known = sorted(one.name for one in entry_points(group=GROUP))
        listed = ", ".join(known) or "none"
        raise HookError(
            f"wanted an entry point {entry.factory_key!r} of {GROUP}, installed are: {listed}"
        )
    factory: HookFactory = found[0].load()
    hook = factory(reader, entry.key, entry.factory_args)
    if not isinstance(hook, QuotaHook):
        raise HookError(f"{found[0].value}: wanted a QuotaHook, found {hook!r:.80}")
    return hook


def _on_node(pod: ClusterPod | None) -> ClusterPod | None:
    return pod if pod is not None and pod.node and not pod.finished else None


def _annotations_of(hook: QuotaHook, quota: QuotaInfo) -> Mapping[str, str]:
    annotations = hook.status_annotations(quota)
    if len(annotations) > MAX_ANNOTATIONS:
        raise HookError(f"wanted at most {MAX_ANNOTATIONS} annotations, found {len(annotations)}")
    for key, text in annotations.items():
        if not isinstance(text, str) or len(text.encode()) > MAX_BYTES:
            raise HookError(f"annotation {key!r:.80}: wanted a text of at most {MAX_BYTES} bytes")
    return annotations
