"""Observers of changed kernel values: metrics and audit events."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from koord.api.machine import format_cpulist
from koordlet.executor.audit.files import AuditEvent, AuditSubject
from koordlet.executor.claims.claim import ANY_CGROUP, ANY_FILE, AuditText, Change, Key
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.writer import WriterStats
from koordlet.host.resource import Level

_Claims = Callable[[], Mapping[str, Mapping[str, int]]]

_BUCKETS = tuple(0.01 * 4**n for n in range(8))  # milliseconds, as in Koordinator


class ClaimMetrics(Collector):
    """Register it with the daemon's registry; rendered on any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.stats = WriterStats(self._observe)
        self._durations = Histogram(
            "koordlet_resource_update_duration_milliseconds",
            "How long writes to the kernel took, by kind of file and whether it was accepted.",
            ["type", "status"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._changes = Counter(
            "koordlet_kernel_value_changes_total",
            "What became of kernel values that plugins claim: set, restored, failed; foreign, "
            "retaken, yielded when another agent changed one; would_set and would_restore in "
            "dry-run.",
            ["plugin", "change"],
            registry=registry,
        )
        self._registry = registry
        self._claims: _Claims = dict
        self._journal: Journal | None = None

    def watch(self, claims: _Claims, journal: Journal) -> None:
        """Show claims and the journal's extent, too. claims: counts by plugin and state."""
        self._claims, self._journal = claims, journal
        self._registry.register(self)

    def record(self, change: Change) -> None:
        """Count a change, for each plugin that has a part in it."""
        for plugin in change.owners:
            self._changes.labels(plugin, change.what).inc()

    def describe(self) -> list[Metric]:
        return []  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        claims = GaugeMetricFamily(
            "koordlet_claims",
            "Kernel values that plugins claim, by what became of the claims.",
            labels=["plugin", "state"],
        )
        for plugin, states in self._claims().items():
            for state, count in states.items():
                claims.add_metric([plugin, state], count)
        writes = CounterMetricFamily(
            "koordlet_kernel_writes",
            "Writes to kernel files, by value and outcome: accepted or refused.",
            labels=["resource", "outcome"],
        )
        for (resource, accepted), count in list(self.stats.writes.items()):
            writes.add_metric([resource, "accepted" if accepted else "refused"], count)
        skips = CounterMetricFamily(
            "koordlet_kernel_write_skips",
            "Claims that needed no write, as the value was in force already.",
            value=self.stats.skips,
        )
        records = GaugeMetricFamily(
            "koordlet_journal_records",
            "Kernel values that are changed, and whose originals are on disk to be restored.",
            value=len(self._journal.records) if self._journal else 0,
        )
        yield from (claims, writes, skips, records)

    def _observe(self, kind: str, accepted: bool, milliseconds: float) -> None:
        self._durations.labels(kind, "success" if accepted else "failed").observe(milliseconds)


_SUBJECTS = {
    Level.NODE: AuditSubject.NODE,
    Level.QOS: AuditSubject.NODE,
    Level.POD: AuditSubject.POD,
}
_DRY_RUN = "would_"


class ChangeAudit:
    """A listener to changes of claimed values; see koordlet.executor.claims.claim."""

    def __init__(
        self,
        note: Callable[[AuditEvent], None],
        path: Callable[[Key], str],
        audit_text: Callable[[Change], AuditText | None],
    ) -> None:
        """path: the kernel file of a value. audit_text: a plugin's own text for a change."""
        self._note = note
        self._path = path
        self._wording = audit_text

    def __call__(self, change: Change) -> None:
        target = change.key.target
        namespace, _, name = target.pod.partition("/")
        in_container = target.level is Level.CONTAINER
        reason, message = self._words(change)
        self._note(
            AuditEvent(
                type=_SUBJECTS.get(target.level, AuditSubject.NONE),
                namespace=namespace,
                name=name,
                container=target.place.rpartition("/")[2] if in_container else "",
                reason=reason,
                message=f"{message}, {', '.join(change.owners)}: {_reason(change)}",
            )
        )

    def _words(self, change: Change) -> tuple[str, str]:
        """Reason and message; those of dry-run are marked so."""
        in_cgroup = change.key.target.level.is_cgroup
        words = self._wording(change) or (ANY_CGROUP if in_cgroup else ANY_FILE)
        what = change.what.removeprefix(_DRY_RUN)
        prefix = _DRY_RUN if what != change.what else ""
        path, value = self._path(change.key), _text(change.new)
        if what == "set":
            return prefix + words.reason, words.message.format(path=path, value=value)
        return prefix + words.reason, f"{what} {path}: {_text(change.old)}, now {value}"


def _text(value: Any) -> str:
    return format_cpulist(value) if isinstance(value, set | frozenset) else str(value)


def _reason(change: Change) -> str:
    """The rule and its numbers."""
    numbers = ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in change.inputs.items()
    )
    return f"{change.reason} ({numbers})" if numbers else change.reason
