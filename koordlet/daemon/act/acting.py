"""Acting: plugins, what they act through, and the records of what they did."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord.component.components import ComponentSet
from koord.component.http.exposition import Exposition
from koord.util.clock import Clock
from koord.util.owneddir import OwnedDirectory
from koordlet.daemon.act.actions import Actions, build_actions
from koordlet.daemon.act.allocations import RefusedAllocations
from koordlet.daemon.act.audit import Audit, build_audit
from koordlet.daemon.act.dryrun import DryRunSwitch
from koordlet.daemon.act.explain import Explainer
from koordlet.daemon.act.runtimehooks import HooksPart
from koordlet.daemon.agents.otheragent import OtherAgent
from koordlet.daemon.measure.measuring import Measuring
from koordlet.daemon.measure.statesources import StateSources
from koordlet.daemon.settings.settings import Settings
from koordlet.host.host import Host
from koordlet.host.proc.otheragent import other_agent_process
from koordlet.metriccache.cache import MetricCache
from koordlet.plugin.client import UnavailableClient
from koordlet.plugin.pods.times import ahead_times
from koordlet.qosmanager.manager import QOSManager
from koordlet.statesinformer.informer import StatesInformer

if TYPE_CHECKING:
    from koordlet.daemon.cluster.cluster import Cluster
    from koordlet.server.page.marks import Marks


@dataclass(frozen=True, kw_only=True, slots=True)
class Acting:
    """The plugins of one daemon and what stands between them and the node."""

    actions: Actions
    audit: Audit
    plugins: QOSManager
    explainer: Explainer
    dry_run: DryRunSwitch
    hooks: HooksPart | None  # None: --enable-nri-runtime-hook=false
    marks: "Marks | None"  # of changed values, for the status page; None: there is no page

    def add_to(self, components: ComponentSet) -> None:
        """Have run what plugins act through, and register its health.

        The plugins themselves are not among it: they start last and end first.
        """
        actions = self.actions
        components.add("other agent", actions.other_agent)
        components.add("acting lock", actions.lock)
        components.add("evictions", actions.evictor)
        components.runs["claims"] = actions.claims.run
        components.add("executor", actions.restorer)
        components.add("runtime hooks", self.hooks)
        self.audit.add_to(components)


def build_acting(
    settings: Settings,
    states: StatesInformer,
    host: Host,
    clock: Clock,
    run_dir: OwnedDirectory,
    boot_id: str,
    exposition: Exposition,
    components: ComponentSet,
    *,
    measuring: Measuring,
    sources: StateSources,
    cluster: "Cluster | None",
    other_agent: OtherAgent,
) -> Acting:
    """Make the parts; plugins register their health in components."""
    recorder = measuring.recorder
    audit = build_audit(settings, clock, exposition.internal)
    marks = _marks(clock) if settings.options.status_page.value else None
    actions = build_actions(
        settings,
        clock,
        run_dir,
        boot_id,
        exposition.internal,
        cluster.evictions if cluster else None,
        other_agent,
        audit.log,
        [recorder.changed] if marks is None else [recorder.changed, marks],
        layout=lambda: sources.pods.layout,
    )
    plugins = QOSManager(
        settings.plugins,
        client=UnavailableClient() if cluster is None else cluster.plugin_client,
        metric_cache=measuring.cache,
        states_informer=states,
        evictor=actions.evictor,
        claims=actions.claims,
        kernel=recorder.kernel(actions.kernel),
        health=components.health,
        run_dir=run_dir,
        boot_id=boot_id,
        problems=settings.plugin_problems,
    )
    hooks = _build_hooks(settings, states, actions, plugins, clock, exposition, measuring.cache)
    explainer = Explainer(
        settings=settings,
        states=states,
        actions=actions,
        host=host,
        clock=clock,
        hooks=hooks,
        allocations=RefusedAllocations(states, actions.evictor, exposition.internal),
    )
    return Acting(
        actions=actions,
        audit=audit,
        plugins=plugins,
        explainer=explainer,
        dry_run=DryRunSwitch(settings=settings, actions=actions),
        hooks=hooks,
        marks=marks,
    )


def _marks(clock: Clock) -> "Marks":
    """Import what is for the page alone."""
    from koordlet.server.page.marks import Marks

    return Marks(clock.wall)


def _build_hooks(
    settings: Settings,
    states: StatesInformer,
    actions: Actions,
    plugins: QOSManager,
    clock: Clock,
    exposition: Exposition,
    cache: MetricCache,
) -> HooksPart | None:
    if not settings.options.hooks.nri.value:
        return None
    return HooksPart(
        settings=settings,
        states=states,
        actions=actions,
        plugins=plugins,
        clock=clock,
        times=ahead_times(exposition.internal),
        cache=cache,
    )


def build_other_agent(settings: Settings, states: StatesInformer, clock: Clock) -> OtherAgent:
    """Make what looks for another agent; so far it looks at the node's processes."""
    other_agent = OtherAgent(
        clock,
        synced=states.has_synced,
        force=settings.options.force.value,
    )

    def process() -> str:
        pid = other_agent_process(settings.paths.proc)
        return "" if pid is None else f"Koordinator's koordlet runs here (process {pid})"

    other_agent.look_for(process)
    return other_agent
