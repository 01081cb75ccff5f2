"""The ledger: measures what evictions brought, and rejects those that would bring nothing.

LedgerStore keeps it in the API, so that the next leader goes on with it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge

from koord.api.nodemetric import time_text
from koord.cluster.facts import ClusterPod, ReportedUsage
from koord.cluster.kinds import UsageReport
from koord.cluster.placement import Workloads, controller_of
from koord.cluster.state import ClusterState
from koord.kube.client import CONFIG_MAPS, ApiClient
from koord.kube.errors import Conflict, KubeError, NotFound
from koord.kube.events import Event, EventType, ObjectRef
from koord.util import goformat
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord_descheduler.config import EvictionLedger
from koord_descheduler.framework.interfaces import EvictOptions, Relief
from koord_descheduler.ledger.entries import (
    BARE,
    FAILURES,
    MAX_ENTRIES,
    MAX_PAUSE,
    MAX_PAUSES,
    Baseline,
    Entry,
    LedgerDocument,
    Outcome,
    Pause,
    WorkloadRef,
    after_failure,
    after_success,
    from_text,
    is_forgotten,
    merge_entries,
    merge_pauses,
    to_text,
)


class LedgerMetrics:
    """Outcomes of evictions, and workloads that are left alone."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = Counter(
            "descheduler_eviction_outcomes_total",
            "Evictions for load by outcome: relieved, not-relieved, returned or unknown.",
            ["outcome"],
            registry=registry,
        )
        self.paused = Gauge(
            "descheduler_paused_workloads",
            "Workloads that are left alone because their evictions did not relieve.",
            registry=registry,
        )
        self.writes = Counter(
            "descheduler_ledger_writes_total",
            "Writes of the ledger to the API by outcome: ok, conflict or failed.",
            ["outcome"],
            registry=registry,
        )


def workload_of(pod: ClusterPod, workloads: Workloads) -> WorkloadRef:
    """The workload of a pod: the outermost controller that is known; a bare pod by itself."""
    known = workloads.of(pod)
    if known is not None:
        return WorkloadRef(known.kind, known.namespace, known.name, known.uid)
    owner = controller_of(pod.owners)
    if owner is not None:
        return WorkloadRef(owner.kind, pod.namespace, owner.name, owner.uid)
    return WorkloadRef(BARE, pod.namespace, pod.name)


SHARE = 0.5  # of the predicted relief that has to be measured
MIN_RELIEF = 0.01  # of what the node has; less may be noise


def baseline(report: UsageReport, pod: str, is_neighbour: Callable[[str], bool]) -> Baseline | None:
    """Return the part of a report that is compared; None: the report lacks the node's usage.

    pod: the evicted one, as namespace/name. is_neighbour gets the other pods in the same form.
    """
    if report.update_time is None or not _is_sane(report.usage):
        return None
    own, cores, memory = None, 0.0, 0.0
    for metric in report.pods:
        key = f"{metric.namespace}/{metric.name}"
        if not _is_sane(metric.usage):
            continue
        if key == pod:
            own = metric.usage
        elif is_neighbour(key):
            cores += metric.usage.cores
            memory += metric.usage.memory_bytes
    assert report.usage is not None  # noqa: S101 - it is sane
    return Baseline(
        time=report.update_time,
        node=report.usage,
        system=_system(report),
        neighbours=ReportedUsage(cores, memory) if report.pods else None,
        pod=own,
    )


def measured_relief(before: Baseline, after: Baseline) -> ReportedUsage:
    """Return the usage that the node lost, in cores and bytes; negative: its usage grew."""
    had_system = before.system is not None and after.system is not None
    had_neighbours = before.neighbours is not None and after.neighbours is not None
    one = _footprint(before, system=had_system, neighbours=had_neighbours)
    other = _footprint(after, system=had_system, neighbours=had_neighbours)
    return ReportedUsage(one.cores - other.cores, one.memory_bytes - other.memory_bytes)


def is_relieved(
    predicted: ReportedUsage, measured: ReportedUsage, room: ReportedUsage
) -> bool | None:
    """Whether at least half of what was predicted was measured, of each resource that counts.

    room: the node's allocatable. A resource counts when at least 1 % of that was predicted; None:
    none does.
    """
    counted = [
        found >= wanted * SHARE
        for wanted, found, most in (
            (predicted.cores, measured.cores, room.cores),
            (predicted.memory_bytes, measured.memory_bytes, room.memory_bytes),
        )
        if wanted > 0 and wanted >= most * MIN_RELIEF
    ]
    return all(counted) if counted else None


def _system(report: UsageReport) -> ReportedUsage | None:
    """Return the usage outside of pods; None: the report does not have it."""
    system, host = report.system_usage, report.host_usage
    if system is None or not _is_sane(system):
        return None
    if host is None or not _is_sane(host):
        return system
    return ReportedUsage(system.cores + host.cores, system.memory_bytes + host.memory_bytes)


def _footprint(found: Baseline, *, system: bool, neighbours: bool) -> ReportedUsage:
    cores, memory = found.node.cores, found.node.memory_bytes
    for part, counts in ((found.system, system), (found.neighbours, neighbours)):
        if part is not None and counts:
            cores -= part.cores
            memory -= part.memory_bytes
    return ReportedUsage(cores, memory)


def _is_sane(usage: ReportedUsage | None) -> bool:
    """Whether a usage can be one."""
    return usage is not None and all(
        math.isfinite(value) and value >= 0 for value in (usage.cores, usage.memory_bytes)
    )


MAX_WAIT = 3600.0  # seconds; for a pod to leave, and then for reports
COMPONENT = "koord-descheduler"

_GROUPS = {
    BARE: "v1",
    "ReplicationController": "v1",
    "ReplicaSet": "apps/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "CloneSet": "apps.kruise.io/v1alpha1",
}

log = get_logger("koord_descheduler.ledger")


class Ledger:
    """Entries of evictions and pauses of workloads. Belongs to the event loop.

    It is the gate of all profiles (see AdmissionGate): evictions with a predicted relief are
    rejected while their workload is left alone, or too soon after another one of it. Other
    evictions are only noted.
    """

    def __init__(
        self,
        cluster: ClusterState,
        settings: EvictionLedger,
        metrics: LedgerMetrics,
        emit: Callable[[Event], None],
    ) -> None:
        """emit takes events to report; see koord.kube.events."""
        self.settings = settings
        self.changed = False  # since it was saved; the caller that saves it clears this
        self._cluster = cluster
        self._metrics = metrics
        self._emit = emit
        self._entries: dict[str, Entry] = {}  # by uid of the pod, the oldest first
        self._replaced: dict[str, Entry] = {}  # by uid: the entry before the one that is there
        self._of_workload: dict[WorkloadRef, dict[str, None]] = {}  # uids of entries
        self._pauses: dict[WorkloadRef, Pause] = {}
        self._planned: dict[WorkloadRef, float] = {}  # last evictions of dry-runs, Unix seconds

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, the oldest first."""
        return tuple(self._entries.values())

    @property
    def pauses(self) -> tuple[Pause, ...]:
        """The pauses that are kept, those that are over too."""
        return tuple(self._pauses.values())

    def document(self) -> LedgerDocument:
        """All that it knows."""
        return LedgerDocument(self.entries, self.pauses)

    def take_over(self, found: LedgerDocument) -> None:
        """Take over what another leader, or this one before, has written."""
        merged = merge_entries(self._entries.values(), found.entries)
        self._entries.clear()
        self._of_workload.clear()
        for entry in merged:
            self._put(entry)
        self._pauses = merge_pauses(self._pauses, {one.workload: one for one in found.pauses})
        self._bound()

    def reject_reason(
        self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool
    ) -> str:
        """Return why the pod may not be evicted for load now, for people; "": it may."""
        if not self.settings.enabled or options.relief is None:
            return ""
        workload = workload_of(pod, self._cluster.workloads)
        pause = self._pauses.get(workload)
        if pause is not None and 0 < pause.until - now <= MAX_PAUSE:
            until = time_text(pause.until)
            return f"{workload} is left alone until {until}: evictions of it did not relieve"
        spacing = self.settings.spacing
        times = self._evictions(workload, dry_run=dry_run)
        last = max((at for at in times if abs(now - at) < spacing), default=None)
        if last is not None:
            wanted = goformat.format_duration(spacing)
            return f"{workload} had an eviction at {time_text(last)}: {wanted} lie between them"
        return ""

    def noted(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> None:
        """Add an eviction that is about to be carried out."""
        if not self.settings.enabled:
            return
        workload = workload_of(pod, self._cluster.workloads)
        if dry_run:
            self._planned[workload] = now
            return
        uid = pod.uid or pod.key
        old = self._entries.pop(uid, None)
        if old is not None:
            self._replaced[uid] = old
        relief = options.relief
        entry = Entry(
            pod=pod.key,
            uid=uid,
            node=pod.node,
            workload=workload,
            at=now,
            plugin=options.plugin_name,
            reason=options.reason,
            predicted=None if relief is None else _usage(relief),
            newest=self._newest(pod),
            outcome=Outcome.NOT_FOR_LOAD if relief is None else Outcome.PENDING,
        )
        report = self._cluster.reports.get(pod.node)
        if report is not None and relief is not None:
            entry = replace(entry, before=self._baseline(report, entry))
        self._put(entry)
        self._bound()
        self.changed = True

    def undone(self, pod: ClusterPod) -> None:
        """Remove the entry of an eviction that did not take place; restore the one it replaced."""
        uid = pod.uid or pod.key
        if uid not in self._entries:
            return
        old = self._replaced.get(uid)
        self._drop(uid)
        if old is not None:
            self._put(old)
        self.changed = True

    def observe(self, now: float) -> None:
        """Check which pods have left and what the reports say; settle the entries that can be."""
        for entry in [one for one in self._entries.values() if one.outcome is Outcome.PENDING]:
            found = self._followed(entry, now)
            if found == entry:
                continue
            self._entries[entry.uid] = found
            self.changed = True
            if found.outcome is not Outcome.PENDING:
                self._settle(found, now)
        spacing = self.settings.spacing
        self._planned = {key: at for key, at in self._planned.items() if abs(now - at) < spacing}
        forgotten = [key for key, pause in self._pauses.items() if is_forgotten(pause, now)]
        for workload in forgotten:
            del self._pauses[workload]
            self.changed = True
        self._metrics.paused.set(sum(pause.until > now for pause in self._pauses.values()))

    def _followed(self, entry: Entry, now: float) -> Entry:
        """The entry as the cluster of now shows it."""
        if self._has_returned(entry):
            return replace(entry, outcome=Outcome.RETURNED, settled=now)
        pod, report = self._cluster.pod(entry.pod), self._cluster.reports.get(entry.node)
        if pod is not None and (pod.uid or pod.key) == entry.uid and not pod.finished:
            if now > entry.at + MAX_WAIT:
                return replace(entry, outcome=Outcome.UNKNOWN, settled=now)
            if report is None or pod.deleting or not _is_newer(report, entry.before):
                return entry
            return replace(entry, before=self._baseline(report, entry) or entry.before)
        left = now if entry.left is None else entry.left
        entry = replace(entry, left=left)
        due = left + self.settings.settle_time
        if now < due:
            return entry
        if report is not None and _is_newer(report, entry.before):
            assert report.update_time is not None  # noqa: S101 - it is newer
            if report.update_time >= due:
                return self._measured(entry, report, now)
        if now > due + MAX_WAIT:
            return replace(entry, outcome=Outcome.UNKNOWN, settled=now)
        return entry

    def _measured(self, entry: Entry, report: UsageReport, now: float) -> Entry:
        """The entry, settled by a report that has nothing of the pod any more."""
        room, after = self._room(entry.node), self._baseline(report, entry)
        outcome, measured = Outcome.UNKNOWN, None
        if entry.before is not None and entry.predicted is not None and room and after:
            measured = measured_relief(entry.before, after)
            relieved = is_relieved(entry.predicted, measured, room)
            if relieved is not None:
                outcome = Outcome.RELIEVED if relieved else Outcome.NOT_RELIEVED
        return replace(entry, outcome=outcome, measured=measured, settled=now)

    def _settle(self, entry: Entry, now: float) -> None:
        """Draw the conclusion of an outcome."""
        self._metrics.outcomes.labels(entry.outcome.value).inc()
        old = pause = self._pauses.get(entry.workload)
        if entry.outcome in FAILURES:
            pause = after_failure(old, entry.workload, entry.at, now)
            self._pauses[entry.workload] = pause
            if pause is not old:
                self._emit(_event(entry, pause))
        elif entry.outcome is Outcome.RELIEVED and old is not None:
            pause = after_success(old, entry.at)
            if pause is None:
                del self._pauses[entry.workload]
            else:
                self._pauses[entry.workload] = pause
        log.info(
            "eviction.settled",
            pod=entry.pod,
            node=entry.node,
            workload=str(entry.workload),
            outcome=entry.outcome.value,
            **_figures("predicted", entry.predicted),
            **_figures("measured", entry.measured),
            paused_until=None if pause is None or pause.until <= now else time_text(pause.until),
        )

    def _has_returned(self, entry: Entry) -> bool:
        """Whether a pod of the workload is on the node that was created after the eviction.

        Later than all pods that the workload had then, by the API server's clock.
        """
        return any(
            (pod.uid or pod.key) != entry.uid
            and pod.created is not None
            and entry.newest is not None
            and pod.created > entry.newest
            and not pod.finished
            and workload_of(pod, self._cluster.workloads) == entry.workload
            for pod in self._cluster.pods_of_node(entry.node)
        )

    def _baseline(self, report: UsageReport, entry: Entry) -> Baseline | None:
        workloads = self._cluster.workloads

        def is_neighbour(key: str) -> bool:
            pod = self._cluster.pod(key)
            if pod is None or workload_of(pod, workloads) != entry.workload:
                return True
            evicted = self._entries.get(pod.uid or pod.key)
            return evicted is not None and evicted.outcome is Outcome.PENDING

        return baseline(report, entry.pod, is_neighbour)

    def _newest(self, pod: ClusterPod) -> float | None:
        """Return the creation time of the newest pod of a workload; None: no time is known."""
        workloads = self._cluster.workloads
        known = workloads.of(pod)
        pods = workloads.siblings(pod) if known is None else workloads.pods(known)
        times = (one.created for one in (pod, *pods))
        return max((at for at in times if at is not None), default=None)

    def _room(self, node: str) -> ReportedUsage | None:
        """Return the allocatable of a node, in cores and bytes; None: the node is unknown."""
        view = self._cluster.view()
        row = view.row(node)
        if row is None:
            return None
        amounts = dict(view.node(row).allocatable)
        return ReportedUsage(amounts.get("cpu", 0) / 1000, float(amounts.get("memory", 0)))

    def _evictions(self, workload: WorkloadRef, *, dry_run: bool) -> Iterator[float]:
        """Yield the times of the workload's evictions; in dry-run also of planned ones."""
        for uid in self._of_workload.get(workload, ()):
            yield self._entries[uid].at
        if dry_run and workload in self._planned:
            yield self._planned[workload]

    def _put(self, entry: Entry) -> None:
        self._entries[entry.uid] = entry
        self._of_workload.setdefault(entry.workload, {})[entry.uid] = None

    def _drop(self, uid: str) -> None:
        entry = self._entries.pop(uid)
        self._replaced.pop(uid, None)
        uids = self._of_workload[entry.workload]
        uids.pop(uid, None)
        if not uids:
            del self._of_workload[entry.workload]

    def _bound(self) -> None:
        """Forget the oldest of what is too much, settled entries first."""
        for uid in list(self._surplus()):
            self._drop(uid)
        while len(self._pauses) > MAX_PAUSES:
            del self._pauses[min(self._pauses, key=lambda key: self._pauses[key].until)]

    def _surplus(self) -> Iterator[str]:
        surplus = len(self._entries) - MAX_ENTRIES
        if surplus > 0:
            pending = (Outcome.PENDING,)
            oldest = sorted(
                self._entries.values(), key=lambda one: (one.outcome in pending, one.at)
            )
            yield from (one.uid for one in oldest[:surplus])


def _usage(relief: Relief) -> ReportedUsage:
    return ReportedUsage(relief.cpu, relief.memory)


def _is_newer(report: UsageReport, before: Baseline | None) -> bool:
    if report.update_time is None:
        return False
    return before is None or report.update_time > before.time


def _figures(name: str, usage: ReportedUsage | None) -> dict[str, float]:
    if usage is None:
        return {}
    return {
        f"{name}_cores": round(usage.cores, 3),
        f"{name}_memory_bytes": round(usage.memory_bytes),
    }


def _event(entry: Entry, pause: Pause) -> Event:
    """The event on a workload that is left alone."""
    workload = entry.workload
    wanted = "" if entry.predicted is None else f" to take {_text(entry.predicted)} off it"
    if entry.outcome is Outcome.RETURNED:
        reason, found = "EvictedPodReturned", "a new pod of the workload runs there again"
    else:
        reason = "EvictionDidNotRelieve"
        found = f"measured {_text(entry.measured or ReportedUsage(0.0, 0.0))}"
    left_alone = goformat.format_duration(pause.until - pause.began)
    return Event(
        about=ObjectRef(
            _GROUPS.get(workload.kind, ""),
            workload.kind,
            workload.name,
            workload.namespace,
            workload.uid,
        ),
        type=EventType.WARNING,
        reason=reason,
        message=f"Pod {entry.pod} was evicted from node {entry.node}{wanted}: {found}; "
        f"no pod is evicted for load for {left_alone}",
        component=COMPONENT,
    )


def _text(usage: ReportedUsage) -> str:
    return f"{usage.cores:.2f} cores and {usage.memory_bytes / (1 << 20):.0f} MiB"


NAME = "koord-descheduler-ledger"
KEY, ASIDE = "ledger.json", "ledger.json.malformed"
INTERVAL = 10.0  # seconds between two looks at the cluster, and two writes at least
_MAX_ASIDE = 32 << 10  # characters
_TRIES = 3  # of a write that finds a newer version


class LedgerStore:
    """Reads the ledger when leadership begins, has it observe, and writes what has changed.

    A write replaces only the version that was read; when another leader was faster, both ledgers
    become one. Without the API the ledger goes on in memory.
    """

    def __init__(
        self,
        ledger: Ledger,
        client: ApiClient,
        namespace: str,
        clock: Clock,
        metrics: LedgerMetrics,
    ) -> None:
        self._ledger = ledger
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._metrics = metrics
        self._found: dict[str, Any] | None = None  # the ConfigMap as it was read or written
        self._loaded = False
        self._away = LogState(log)
        self._error = ""  # of the last attempt; "": it went well

    def health(self) -> PartHealth:
        """Degraded: the ledger is only in memory."""
        return PartHealth(HealthStatus.DEGRADED, self._error) if self._error else OK

    async def load(self) -> None:
        """Take over what is in the API; what cannot be read now is read before the first write."""
        try:
            await self._load()
        except KubeError as err:
            self._failed(err)

    async def run(self, stop: Stop) -> None:
        """Observe and write until stop, and once more then."""
        async for _ in stop.every(INTERVAL):
            self._ledger.observe(self._clock.wall())
            await self.save()
        await self.save()

    async def save(self) -> None:
        """Write the ledger if it has changed since."""
        if not self._ledger.changed and self._loaded:
            return
        try:
            if not self._loaded:
                await self._load()
            if self._ledger.changed:
                await self._write()
        except KubeError as err:
            self._metrics.writes.labels("failed").inc()
            self._failed(err)
        else:
            self._error = ""
            self._away.ended("ledger.written")

    async def _load(self) -> None:
        path = CONFIG_MAPS.object(NAME, namespace=self._namespace)
        try:
            self._found = await self._client.get(path)
        except NotFound:
            self._found = None
        text = _data(self._found).get(KEY)
        if text:
            try:
                self._ledger.take_over(from_text(text))
            except InvalidObject as err:
                self._put_aside(text, err)
        self._loaded = True

    def _put_aside(self, text: str, err: InvalidObject) -> None:
        """Keep a malformed ledger under another key with the next write."""
        log.error("ledger.malformed", error=str(err), kept_as=ASIDE)
        assert self._found is not None  # noqa: S101 - the text was in it
        data = {**_data(self._found), ASIDE: text[:_MAX_ASIDE]}
        self._found = {**self._found, "data": data}

    async def _write(self) -> None:
        for left in reversed(range(_TRIES)):
            self._ledger.changed = False
            try:
                self._found = await self._store(to_text(self._ledger.document()))
            except (Conflict, NotFound) as err:
                self._ledger.changed = True
                self._metrics.writes.labels("conflict").inc()
                if not left:
                    raise
                log.info("ledger.conflict", error=str(err))
                await self._load()
            except BaseException:
                self._ledger.changed = True
                raise
            else:
                self._metrics.writes.labels("ok").inc()
                return

    async def _store(self, text: str) -> dict[str, Any]:
        """Create or replace the ConfigMap; return it as stored. Raises Conflict, NotFound."""
        if self._found is None:
            body = {
                "apiVersion": CONFIG_MAPS.api_version,
                "kind": "ConfigMap",
                "metadata": {"name": NAME, "namespace": self._namespace},
                "data": {KEY: text},
            }
            return await self._client.create(CONFIG_MAPS.collection(self._namespace), body)
        body = {**self._found, "data": {**_data(self._found), KEY: text}}
        path = CONFIG_MAPS.object(NAME, namespace=self._namespace)
        return await self._client.replace(path, body)

    def _failed(self, err: KubeError) -> None:
        self._error = f"the ledger of evictions is only in memory: {err}"
        self._away.failed("ledger.write_failed", error=str(err))


def _data(found: dict[str, Any] | None) -> dict[str, str]:
    data = (found or {}).get("data")
    return (
        {key: text for key, text in data.items() if isinstance(text, str)}
        if isinstance(data, dict)
        else {}
    )
