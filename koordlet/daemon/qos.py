"""Build the QoS plugins with what they act through, and explain what they decided."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter

from koord.api.pod import Pod
from koord.component.http.exposition import Exposition
from koord.component.supervisor import ComponentSet
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.ownedfiles import OwnedDirectory
from koord.util.timebudget import in_slices
from koordlet.daemon.executors import Audit, DryRunSwitch, Executors, build_audit, build_executors
from koordlet.daemon.measuring import Measuring, StateSources
from koordlet.daemon.other_agents import OtherAgent
from koordlet.daemon.runtimehooks import HooksPart
from koordlet.daemon.settings import Settings
from koordlet.executor.claims.table import (
    ClaimedValue,
    claimed_value_json,
    concerns,
    read_claimed_values,
)
from koordlet.host.host import Host
from koordlet.host.processes import other_agent_process
from koordlet.metriccache.cache import MetricCache
from koordlet.plugin.interfaces import UnavailableClient
from koordlet.plugin.pods.reconcile import early_decision_times
from koordlet.qosmanager.manager import QOSManager
from koordlet.rules.allocations import ALLOCATIONS, RefusedAllocation
from koordlet.statesinformer.informer import StatesInformer, StateType
from koordlet.statesinformer.podmeta import PodMeta

if TYPE_CHECKING:
    from koordlet.daemon.cluster import Cluster
    from koordlet.server.page import ChangeAnnotations


REASON = "AllocationRefused"  # of the Kubernetes event
_MAX_REASON = 300  # characters of a reason

log = get_logger("koordlet.statesinformer")


class EventAnnouncer(Protocol):
    """Records events on pods; koordlet.executor.evictions.evictor.Evictor does so."""

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None: ...


class RejectedAllocations:
    """Reports each rejected allocation once, and again when its reject reason changes."""

    def __init__(
        self, states: StatesInformer, announces: EventAnnouncer, registry: CollectorRegistry
    ) -> None:
        self._states = states
        self._announces = announces
        self._reported: Mapping[str, tuple[RefusedAllocation, ...]] = {}  # by UID
        self._count = Counter(
            "koordlet_allocations_refused_total",
            "Annotations of pods that give them what they do not request or an older pod has.",
            ["annotation"],
            registry=registry,
        )
        for annotation in ALLOCATIONS:
            self._count.labels(_short(annotation))
        states.register_callbacks(
            StateType.ALL_PODS, "allocations", "report refused allocations", lambda *_: self.look()
        )

    def look(self) -> None:
        """Report rejected allocations that are new."""
        refused = self._states.refused_allocations()
        earlier, self._reported = self._reported, refused
        for uid, found in refused.items():
            meta = self._states.pod(uid)
            for each in found:
                if meta is not None and each not in earlier.get(uid, ()):
                    self._report(meta.pod, each)

    def explain(self, place: str) -> list[dict[str, str]]:
        """Return the rejected allocations of a pod as JSON.

        place is namespace/name, name or UID; "": all pods.
        """
        return list(self._explained(place))

    def _explained(self, place: str) -> Iterator[dict[str, str]]:
        for uid, found in self._states.refused_allocations().items():
            meta = self._states.pod(uid)
            if meta is None:
                continue
            name = f"{meta.pod.namespace}/{meta.pod.name}"
            if place in ("", uid, meta.pod.name, name):
                for each in found:
                    yield {
                        "pod": name,
                        "uid": uid,
                        "annotation": each.annotation,
                        "reason": each.reason[:_MAX_REASON],
                    }

    def _report(self, pod: Pod, refused: RefusedAllocation) -> None:
        self._count.labels(_short(refused.annotation)).inc()
        reason = refused.reason[:_MAX_REASON]
        name = f"{pod.namespace}/{pod.name}"
        log.warning("allocation.rejected", pod=name, annotation=refused.annotation, reason=reason)
        message = f"The pod runs as without its annotation {refused.annotation}: it gives {reason}"
        self._announces.announce(pod, warning=True, reason=REASON, message=message)


def _short(annotation: str) -> str:
    return annotation.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explainer:
    """Answers for a pod, a cgroup, or all."""

    settings: Settings
    states: StatesInformer
    executors: Executors
    host: Host
    clock: Clock
    hooks: HooksPart | None
    allocations: RejectedAllocations

    async def explain(self, place: str) -> Callable[[], Mapping[str, object]]:
        """Look now and return what makes the response on any thread.

        place: namespace/name, name or UID of a pod, which may be gone by now, or a cgroup below or
        with the cgroup file system's path; "": everything. Values are what the kernel holds now;
        those that could not be read in time are as they were last, and say when that was.
        """
        executors, place = self.executors, self._below_root(place)
        pods = [pod for pod in self.states.pods() if _is(pod, place)]
        pod = place if _named(pods, place) or not pods else pods[0].uid
        about = await self._about(place, [pod.cgroup for pod in pods])
        seen = await read_claimed_values(executors.kernel, self.clock, [each.key for each in about])
        values = [
            (each, seen.get(each.key) or executors.claims.last_seen(each.value)) for each in about
        ]
        decisions = executors.decisions.explain(pod)
        asked = self.hooks.explain(pod) if self.hooks else []
        refused = self.allocations.explain(pod)
        head = {
            "dryRun": self.settings.dry_run.to_json(),
            "observeOnly": executors.observe_only(),
            "evictionBudget": {"perHour": executors.budget.limit, "used": executors.budget.used},
        }

        def answer() -> Mapping[str, object]:
            shown = [claimed_value_json(*each) for each in values]
            return {
                **head,
                "values": shown,
                "decisions": decisions,
                "runtimeHooks": asked,
                "refusedAllocations": refused,
            }

        return answer

    async def _about(self, place: str, groups: list[str]) -> list[ClaimedValue]:
        """The claimed values that concern a place, in order."""
        values = await self.executors.claims.snapshot_in_slices()
        found = [each async for each in in_slices(values) if concerns(each.key, place, groups)]
        return sorted(found, key=lambda each: (each.key.target.place, each.key.resource.name))

    def _below_root(self, place: str) -> str:
        """A cgroup as its path below the root, whichever hierarchy it was named in."""
        for hierarchy in self.host.cgroups.hierarchies():
            place = place.removeprefix(f"{hierarchy}/")
        return place.strip("/") if place.startswith("/") else place


def _is(pod: PodMeta, place: str) -> bool:
    return bool(place) and (_has_name(pod, place) or f"{place}/".startswith(f"{pod.cgroup}/"))


def _named(pods: list[PodMeta], place: str) -> bool:
    return any(_has_name(pod, place) for pod in pods)


def _has_name(pod: PodMeta, name: str) -> bool:
    return name in (pod.uid, pod.pod.name, f"{pod.pod.namespace}/{pod.pod.name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class QosParts:
    """The plugins of one daemon and what stands between them and the node."""

    executors: Executors
    audit: Audit
    plugins: QOSManager
    explainer: Explainer
    dry_run: DryRunSwitch
    hooks: HooksPart | None  # None: --enable-nri-runtime-hook=false
    annotations: (
        "ChangeAnnotations | None"  # of changed values, for the status page; None: there is no page
    )

    def add_to(self, components: ComponentSet) -> None:
        """Add the components that plugins act through, and register their health.

        The plugins themselves are not among them: they start last and end first.
        """
        executors = self.executors
        components.add("other agent", executors.other_agent)
        components.add("acting lock", executors.lock)
        components.add("evictions", executors.evictor)
        components.runs["claims"] = executors.claims.run
        components.add("executor", executors.restorer)
        components.add("runtime hooks", self.hooks)
        self.audit.add_to(components)


def build_qos(
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
) -> QosParts:
    """Make the parts; plugins register their health in components."""
    recorder = measuring.recorder
    audit = build_audit(settings, clock, exposition.internal)
    annotations = _annotations(clock) if settings.options.status_page.value else None
    executors = build_executors(
        settings,
        clock,
        run_dir,
        boot_id,
        exposition.internal,
        cluster.evictions if cluster else None,
        other_agent,
        audit.log,
        [recorder.changed] if annotations is None else [recorder.changed, annotations],
        layout=lambda: sources.pods.layout,
    )
    plugins = QOSManager(
        settings.plugins,
        client=UnavailableClient() if cluster is None else cluster.plugin_client,
        metric_cache=measuring.cache,
        states_informer=states,
        evictor=executors.evictor,
        claims=executors.claims,
        kernel=recorder.kernel(executors.kernel),
        health=components.health,
        run_dir=run_dir,
        boot_id=boot_id,
        problems=settings.plugin_problems,
    )
    hooks = _build_hooks(settings, states, executors, plugins, clock, exposition, measuring.cache)
    explainer = Explainer(
        settings=settings,
        states=states,
        executors=executors,
        host=host,
        clock=clock,
        hooks=hooks,
        allocations=RejectedAllocations(states, executors.evictor, exposition.internal),
    )
    return QosParts(
        executors=executors,
        audit=audit,
        plugins=plugins,
        explainer=explainer,
        dry_run=DryRunSwitch(settings=settings, executors=executors),
        hooks=hooks,
        annotations=annotations,
    )


def _annotations(clock: Clock) -> "ChangeAnnotations":
    """Import what is for the page alone."""
    from koordlet.server.page import ChangeAnnotations

    return ChangeAnnotations(clock.wall)


def _build_hooks(
    settings: Settings,
    states: StatesInformer,
    executors: Executors,
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
        executors=executors,
        plugins=plugins,
        clock=clock,
        times=early_decision_times(exposition.internal),
        cache=cache,
    )


def build_other_agent(settings: Settings, states: StatesInformer, clock: Clock) -> OtherAgent:
    """Return the detector of other agents; it begins with the node's processes."""
    other_agent = OtherAgent(
        clock,
        synced=states.has_synced,
        force=settings.options.force.value,
    )

    def process() -> str:
        pid = other_agent_process(settings.paths.proc)
        return "" if pid is None else f"Koordinator's koordlet runs here (process {pid})"

    other_agent.add_signs(process)
    return other_agent
