"""Builds what acts on the node's pods: claims, evictions, and the record of both."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from koord.util.clock import Clock
from koord.util.owneddir import OwnedDirectory
from koordlet.daemon.act.audit import audit_listener
from koordlet.daemon.agents.actinglock import ActingLock
from koordlet.daemon.agents.otheragent import OtherAgent
from koordlet.daemon.settings.settings import Settings
from koordlet.executor.audit.log import AuditLog
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.claimmetrics import ClaimMetrics
from koordlet.executor.claims.desired import Expected, Listener
from koordlet.executor.evictions.budget import EvictionBudget
from koordlet.executor.evictions.decisions import Decisions
from koordlet.executor.evictions.eviction import EvictionApi, Fallback
from koordlet.executor.evictions.evictor import Evictor
from koordlet.executor.evictions.kill import PodKiller
from koordlet.executor.evictions.metrics import EvictionMetrics
from koordlet.executor.journal.journal import Journal
from koordlet.executor.kernel.conflicts import OnForeignChange
from koordlet.executor.kernel.view import KernelView
from koordlet.executor.kernel.watching import Watcher
from koordlet.executor.kernel.worker import ThreadWorker
from koordlet.executor.kernel.writer import Writer
from koordlet.executor.restorer import Restorer
from koordlet.features import INJECTORS
from koordlet.host.cgroups.layout import Layout
from koordlet.host.descriptors import Descriptors
from koordlet.host.host import Host

_CLAIMED, _LOOKED_AT, _WATCHED = 2048, 1024, 64  # kernel files that are held open for each
ACTION_DESCRIPTORS = _CLAIMED + _LOOKED_AT + _WATCHED


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions:
    """The parts through which plugins act."""

    decisions: Decisions
    budget: EvictionBudget
    evictor: Evictor
    claims: ClaimManager
    restorer: Restorer
    kernel: KernelView
    other_agent: OtherAgent  # while there is one, every plugin is in dry-run
    lock: ActingLock  # while another koordlet has it, the same
    listeners: Sequence[Listener]  # notified of every changed value
    expect: Callable[[Sequence[Expected]], Awaitable[list[str]]]  # as Writer.expect

    def observe_only(self) -> str:
        """Why no plugin acts; "" when those may that are not in dry-run."""
        return self.other_agent.observe_only() or self.lock.refusal


def build_actions(
    settings: Settings,
    clock: Clock,
    run_dir: OwnedDirectory,
    boot_id: str,
    registry: CollectorRegistry,
    api: EvictionApi | None,
    other_agent: OtherAgent,
    audit: AuditLog,
    listeners: Sequence[Listener],
    layout: Callable[[], Layout],
) -> Actions:
    """Make the parts. api None: there is no API server. listeners are notified of changed values.

    layout: as the pods' cgroups show it now.
    """
    options = settings.options

    async def is_dry_run(plugin: str) -> bool:
        if settings.dry_run.covers(plugin) or await other_agent.judged():
            return True
        return bool(await lock.judged())

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
        audit=audit.note,
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
    ).set_function(lambda: other_agent.observing or bool(lock.refusal))
    all_listeners = [audit_listener(settings, audit), claim_metrics.note, *listeners]
    claims = ClaimManager(writer, worker, clock, dry_run=is_dry_run, listeners=all_listeners)
    claim_metrics.watch(claims.count, journal)

    async def expect(expected: Sequence[Expected]) -> list[str]:
        return await worker.do(lambda: writer.expect(expected))

    return Actions(
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
    watcher = Watcher(watched, ThreadWorker("koordlet-watch"), clock)
    return KernelView(looked_at, ThreadWorker("koordlet-look"), clock, layout, watcher)


def _killer(settings: Settings, host: Host, clock: Clock) -> PodKiller | None:
    options = settings.options
    if options.evict_fallback.value != Fallback.KILL or options.only_evict_by_api.value:
        return None
    return PodKiller(host, ThreadWorker("koordlet-kill"), clock)
