"""Decisions about pods and their reasons: the latest for explain, all of them counted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import UnknownMetricFamily
from prometheus_client.registry import Collector

from koord.api.eviction import EvictionOutcome
from koord.api.nodemetric import time_text
from koord.api.pod import Pod
from koord.util.clock import Clock

MAX_DECISIONS = 256  # decisions
REPEAT_WINDOW = 600.0  # seconds after which the same decision about the same pod is a new one
MAX_TEXT_LENGTH = 1000  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Something that was done, would have been done, or was not done, and why.

    pod is empty when it is about none. inputs are the numbers that decided, candidates the pods
    that could have been chosen, first choice first, freed what was released.
    """

    plugin: str
    feature: str
    action: str
    namespace: str
    pod: str
    uid: str
    reason: str
    outcome: str
    message: str
    dry_run: bool
    inputs: Mapping[str, float | str] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()
    freed: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def what(self) -> tuple[object, ...]:
        """Decisions that are equal in this are one decision taken again."""
        return self.plugin, self.feature, self.action, self.uid, self.outcome, self.dry_run


@dataclass(slots=True)
class _DecisionEntry:
    decision: Decision  # as taken last
    first: float  # Unix seconds, as last
    last: float
    times: int = 1


class Decisions:
    """A bounded record. A decision that is repeated, for example each second, is one entry."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[object, ...], _DecisionEntry] = {}  # latest last

    def record(self, decision: Decision) -> bool:
        """Keep a decision; return whether it is a new one."""
        now = self._clock.wall()
        entry = self._entries.pop(decision.what, None)
        is_new = entry is None or not 0 <= now - entry.last <= REPEAT_WINDOW
        if entry is None or is_new:
            entry = _DecisionEntry(decision, now, now)
        else:
            entry.decision, entry.last, entry.times = decision, now, entry.times + 1
        self._entries[decision.what] = entry
        if len(self._entries) > MAX_DECISIONS:
            del self._entries[next(iter(self._entries))]
        return is_new

    def record_freed(self, uid: str, freed: Mapping[str, float | str]) -> None:
        """Add what a pod has released to the latest decision about it, if that is still kept."""
        for entry in reversed(self._entries.values()):
            if entry.decision.uid == uid:
                entry.decision = replace(entry.decision, freed=freed)
                return

    def explain(self, pod: str = "") -> list[dict[str, object]]:
        """The decisions as JSON, latest first: all, or those about one pod.

        pod is namespace/name, name or UID; the pod may be gone by now.
        """
        entries = reversed(self._entries.values())
        return [_decision_json(entry) for entry in entries if _concerns(entry.decision, pod)]


def _concerns(decision: Decision, pod: str) -> bool:
    names = (decision.uid, decision.pod, f"{decision.namespace}/{decision.pod}")
    return not pod or pod in names


def _decision_json(entry: _DecisionEntry) -> dict[str, object]:
    decision = entry.decision
    return {
        "first": time_text(entry.first),
        "last": time_text(entry.last),
        "times": entry.times,
        "plugin": decision.plugin,
        "feature": decision.feature,
        "action": decision.action,
        "pod": f"{decision.namespace}/{decision.pod}" if decision.pod else "",
        "uid": decision.uid,
        "outcome": decision.outcome,
        "reason": decision.reason[:MAX_TEXT_LENGTH],
        "message": decision.message[:MAX_TEXT_LENGTH],
        "dryRun": decision.dry_run,
        "inputs": dict(decision.inputs),
        "candidates": list(decision.candidates),
        "freed": dict(decision.freed),
    }


POD_SERIES_EXPIRY = (
    300.0  # seconds after its last increase that a pod's series is shown, as in Koordinator
)
MAX_PODS = 100  # shown at a time
_REASON = "evicted"  # Koordinator knows no other; the feature is a label of our own family

_PodLabels = tuple[str, str]  # namespace, name


class EvictionMetrics(Collector):
    """Register it with the daemon's registry; rendered on any thread.

    Koordinator's counters have no _total, so they are made at scrape time.
    """

    def __init__(self, node: str, clock: Clock, registry: CollectorRegistry) -> None:
        self._node = node
        self._clock = clock
        self._evicted = 0
        self._by_pod: dict[
            _PodLabels, tuple[int, float]
        ] = {}  # count, monotonic time of the last one
        self._outcomes = Counter(
            "koordlet_evictions_total",
            "Evictions that plugins asked for, by feature (reason) and outcome; a request that is "
            "repeated while the answer still holds is not counted.",
            ["plugin", "reason", "outcome"],
            registry=registry,
        )
        registry.register(self)

    def count(self, plugin: str, feature: str, outcome: EvictionOutcome) -> None:
        """Count one decision."""
        self._outcomes.labels(plugin, feature, outcome.value).inc()

    def count_pod(self, pod: Pod) -> None:
        """Count a pod that ends by a decision; once, however many decisions it took."""
        self._evicted += 1
        key = (pod.namespace, pod.name)
        count, at = self._by_pod.pop(key, (0, 0.0))
        now = self._clock.monotonic()
        self._by_pod[key] = (count + 1 if now - at <= POD_SERIES_EXPIRY else 1, now)
        if len(self._by_pod) > MAX_PODS:
            del self._by_pod[next(iter(self._by_pod))]

    def describe(self) -> list[Metric]:
        return []  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        total = UnknownMetricFamily(
            "koordlet_pod_eviction", "Pods evicted.", labels=["node", "reason"]
        )
        detail = UnknownMetricFamily(
            "koordlet_pod_eviction_detail",
            "Pods evicted, by pod; shown for five minutes after the last time.",
            labels=["node", "pod_namespace", "pod_name", "reason"],
        )
        if self._evicted:
            total.add_metric([self._node, _REASON], self._evicted)
        since = self._clock.monotonic() - POD_SERIES_EXPIRY
        for (namespace, name), (count, at) in list(self._by_pod.items()):
            if at > since:
                detail.add_metric([self._node, namespace, name, _REASON], count)
        yield from (total, detail)
