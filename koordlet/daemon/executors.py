"""Build what applies decisions: claims, evictions, journal, audit log and dry-run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from koord.component.supervisor import ComponentSet
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.ownedfiles import OwnedDirectory
from koordlet.daemon.other_agents import ActingLock, OtherAgent
from koordlet.daemon.settings import Settings
from koordlet.executor.audit.files import AuditQuery, AuditReader, LogBudget
from koordlet.executor.audit.log import AuditLog, AuditPages, AuditWriter
from koordlet.executor.change_observers import ChangeAudit, ClaimMetrics
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.claims.claim import AuditText, Change, ChangeListener, InitialValue, Key
from koordlet.executor.evictions.decisions import Decisions, EvictionMetrics
from koordlet.executor.evictions.eviction import EvictionApi, EvictionFallback
from koordlet.executor.evictions.evictor import Evictor
from koordlet.executor.evictions.kill import PodKiller
from koordlet.executor.evictions.limits import EvictionBudget
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.plan import OnForeignChange
from koordlet.executor.kernel.view import KernelView, ThreadWorker, ValueWatcher
from koordlet.executor.kernel.writer import Writer
from koordlet.executor.restorer import Restorer
from koordlet.features import INJECTORS
from koordlet.host.cgroups.layout import Layout
from koordlet.host.errors import Unsupported
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.resource import Level
from koordlet.plugin.base import ExtensionPlugin
from koordlet.server.app import EventSources


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """The log and its readers."""

    directory: Path
    log: AuditLog
    pages: AuditPages
    events: EventSources

    def add_to(self, components: ComponentSet) -> None:
        """Add the audit log and its pages."""
        components.add("audit log", self.log)
        components.runs["audit pages"] = self.pages.run

    async def flush(self) -> None:
        """Write all earlier events to disk, so that readers see them."""
        await self.log.flush()

    def answer(self, query: AuditQuery) -> dict[str, object]:
        """Return what `koordletctl audit` shows. Blocks: not for the event loop."""
        return {
            "enabled": self.log.enabled(),
            "directory": str(self.directory),
            "problem": self.log.problem,
            "events": query.find(self.directory),
        }


def build_audit(settings: Settings, clock: Clock, registry: CollectorRegistry) -> Audit:
    """Make the parts; no file is touched before the first event."""
    options, gates = settings.options, settings.gates
    directory = Path(options.audit_log_dir.value)
    budget = LogBudget.of(options.audit_max_disk_space_mb.value)
    log = AuditLog(
        AuditWriter(directory, budget, clock),
        clock,
        registry,
        enabled=lambda: gates.enabled("AuditEvents"),
        verbose=options.audit_verbose.value,
    )
    pages = AuditPages(
        lambda: AuditReader(directory), clock, most=options.audit_max_concurrent_readers.value
    )
    events = EventSources(
        pages=pages,
        flush=log.flush,
        served=lambda: gates.enabled("AuditEventsHTTPHandler"),
        recorded=log.enabled,
        most=options.audit_max_events_limit.value,
    )
    return Audit(directory=directory, log=log, pages=pages, events=events)


def audit_listener(settings: Settings, audit: AuditLog) -> ChangeListener:
    """Return the listener that turns changes of values into events of the audit log."""
    host, registry = Host(settings.paths), settings.plugins.registry

    def path(key: Key) -> str:
        group = "" if key.target.level is Level.NODE else key.target.place
        try:
            return host.path(key.resource, group)
        except Unsupported:
            return str(key)

    def audit_text(change: Change) -> AuditText | None:
        """The wording of the first owner that has one."""
        found = filter(None, map(registry.get, change.owners))
        return next(filter(None, (_words(each.plugin, change.key) for each in found)), None)

    return ChangeAudit(audit.record, path, audit_text)


def _words(plugin: ExtensionPlugin, key: Key) -> AuditText | None:
    """A plugin's words for a value: those of its claim, else its own."""
    may_claim = (may.audit_text for may in plugin.may_claim if may.is_for(key))
    return next(filter(None, may_claim), plugin.audit_text)


_CLAIMED, _LOOKED_AT, _WATCHED = 2048, 1024, 64  # kernel files that are held open for each
EXECUTOR_DESCRIPTORS = _CLAIMED + _LOOKED_AT + _WATCHED


@dataclass(frozen=True, kw_only=True, slots=True)
class Executors:
    """The parts through which plugins act."""

    decisions: Decisions
    budget: EvictionBudget
    evictor: Evictor
    claims: ClaimManager
    restorer: Restorer
    kernel: KernelView
    other_agent: OtherAgent  # while there is one, every plugin is in dry-run
    lock: ActingLock  # while another koordlet has it, the same
    listeners: Sequence[ChangeListener]  # notified of every changed value
    expect: Callable[[Sequence[InitialValue]], Awaitable[list[str]]]  # as Writer.expect

    def observe_only(self) -> str:
        """Return why no plugin acts; "" when plugins outside dry-run may act."""
        return self.other_agent.observe_only() or self.lock.reject_reason


def build_executors(
    settings: Settings,
    clock: Clock,
    run_dir: OwnedDirectory,
    boot_id: str,
    registry: CollectorRegistry,
    api: EvictionApi | None,
    other_agent: OtherAgent,
    audit: AuditLog,
    listeners: Sequence[ChangeListener],
    layout: Callable[[], Layout],
) -> Executors:
    """Make the parts. api None: there is no API server. listeners are notified of changed values.

    layout: as the pods' cgroups show it now.
    """
    options = settings.options

    async def is_dry_run(plugin: str) -> bool:
        if settings.dry_run.covers(plugin) or await other_agent.wait_observe_only():
            return True
        return bool(await lock.wait_observe_only())

    def needed() -> bool:
        """Whether a plugin may act, or has values in force."""
        may_act = not other_agent.observe_only() and _any_acts(settings)
        return may_act or claims.any_in_force()

    paths = settings.paths
    lock = ActingLock(paths.cgroup, paths.proc, clock, needed=needed)

    decisions = Decisions(clock)
    budget = EvictionBudget(
        lambda: options.evict_budget_per_hour.value, clock, directory=run_dir, boot_id=boot_id
    )
    metrics = EvictionMetrics(settings.node_name, clock, registry)
    host = Host(settings.paths, Descriptors(_CLAIMED))
    evictor = Evictor(
        api,
        clock=clock,
        dry_run=is_dry_run,
        budget=budget,
        decisions=decisions,
        metrics=metrics,
        killer=_killer(settings, host, clock),
        audit=audit.record,
    )
    worker = ThreadWorker("koordlet-write")
    journal, claim_metrics = Journal(run_dir, boot_id), ClaimMetrics(registry)
    writer = Writer(
        host,
        journal,
        clock,
        policy=lambda: OnForeignChange(options.on_foreign_change.value),
        stats=claim_metrics.stats,
    )
    Gauge(
        "koordlet_observe_only",
        "1 while another QoS agent is on the node, or another koordlet acts on this host, "
        "so that this one only observes.",
        registry=registry,
    ).set_function(lambda: other_agent.observing or bool(lock.reject_reason))
    all_listeners = [audit_listener(settings, audit), claim_metrics.record, *listeners]
    claims = ClaimManager(writer, worker, clock, dry_run=is_dry_run, listeners=all_listeners)
    claim_metrics.watch(claims.count, journal)

    async def expect(expected: Sequence[InitialValue]) -> list[str]:
        return await worker.do(lambda: writer.expect(expected))

    return Executors(
        decisions=decisions,
        budget=budget,
        evictor=evictor,
        claims=claims,
        restorer=Restorer(writer, worker, clock, all_listeners),
        kernel=_kernel(settings, clock, layout),
        other_agent=other_agent,
        lock=lock,
        listeners=all_listeners,
        expect=expect,
    )


def _any_acts(settings: Settings) -> bool:
    """Whether a plugin, or an injector, is on that is not in dry-run."""
    gates, covers = settings.gates, settings.dry_run.covers
    if any(gates.enabled(name) and not covers(name) for name in INJECTORS):
        return True
    return any(
        not covers(registration.name)
        and any(gates.enabled(gate) for gate in registration.gates if gate in gates.names())
        for registration in settings.plugins.registry
    )


def _kernel(settings: Settings, clock: Clock, layout: Callable[[], Layout]) -> KernelView:
    """Plugins look at the kernel in threads that no write holds up."""
    paths = settings.paths
    watched, looked_at = (Host(paths, Descriptors(held)) for held in (_WATCHED, _LOOKED_AT))
    watcher = ValueWatcher(watched, ThreadWorker("koordlet-watch"), clock)
    return KernelView(looked_at, ThreadWorker("koordlet-look"), clock, layout, watcher)


def _killer(settings: Settings, host: Host, clock: Clock) -> PodKiller | None:
    options = settings.options
    if options.evict_fallback.value != EvictionFallback.KILL or options.only_evict_by_api.value:
        return None
    return PodKiller(host, ThreadWorker("koordlet-kill"), clock)


ALL = "all"  # in place of a plugin's name

log = get_logger("koordlet.daemon")


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRunSwitch:
    """Lists the plugins in dry-run, and switches it."""

    settings: Settings
    executors: Executors

    def describe(self) -> Mapping[str, object]:
        """All plugins: whether they are in dry-run, and whether that was switched by hand."""
        dry_run = self.settings.dry_run
        return {
            "observeOnly": self.executors.observe_only(),
            "plugins": [
                {
                    "name": name,
                    "dryRun": dry_run.covers(name),
                    "byHand": dry_run.by_hand(name),
                }
                for name in self.settings.plugins.acting_names()
            ],
        }

    async def switch(self, plugin: str, *, on: bool) -> Mapping[str, object]:
        """Put a plugin, or all, in dry-run or have it act; return the new description.

        Switched on, the values that it has in force are restored first.

        Raises:
            OptionError: there is no such plugin.
        """
        plugins = self.settings.plugins
        if plugin != ALL:
            plugins.check_names("plugin", [plugin])
        self.settings.dry_run.switch(plugins.acting_names() if plugin == ALL else [plugin], on)
        log.warning("dry_run.switched", plugin=plugin, on=on)
        await self.executors.claims.refresh()
        await self.executors.lock.settle()
        return self.describe()
