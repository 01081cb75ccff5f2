"""Plugins whose claims follow from pods and one rule: renewed only where something changed."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from koord.util.stop import Stop
from koordlet.executor.claims.claim import AuditText, Claim, ClaimOutcome, ClaimState
from koordlet.host.resource import Level, Resource
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.extensions import Rejections
from koordlet.plugin.interfaces import Client, States
from koordlet.plugin.pods.settings import PodSettings
from koordlet.statesinformer.informer import StateType
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram

    from koord.api.nodeslo import HostApplication
    from koord.api.pod import Pod
    from koord.component.flags import Flag, FlagSet
    from koordlet.metriccache.cache import MetricCache
    from koordlet.plugin.metrics import PluginMetrics


ARRIVAL_TIMEOUT = 60.0  # seconds that a container may take from its announcement until it is known


class _AnnouncedPod(NamedTuple):
    meta: PodMeta  # with this one container
    until: float  # monotonic


class StartingContainers:
    """Containers that the runtime has announced, until they are among the known pods."""

    def __init__(self, now: Callable[[], float]) -> None:
        """now is in seconds, monotonic."""
        self._now = now
        self._announced: dict[str, _AnnouncedPod] = {}  # by cgroup

    def add(self, meta: PodMeta) -> None:
        """Announce the one container of a pod."""
        [container] = meta.containers
        self._announced[container.cgroup] = _AnnouncedPod(meta, self._now() + ARRIVAL_TIMEOUT)

    def clear(self) -> None:
        """Forget all."""
        self._announced.clear()

    def among(self, pods: Iterable[PodMeta]) -> Iterator[PodMeta]:
        """Yield the pods with their announced containers, and those that are not known yet."""
        if not self._announced:
            yield from pods
            return
        now = self._now()
        new: dict[str, PodMeta] = {}  # by UID, with the announced containers only
        known = {meta.uid: meta for meta in pods}
        there = {one.cgroup for meta in known.values() for one in meta.containers}
        for group, (meta, until) in list(self._announced.items()):
            if group in there or until <= now:
                del self._announced[group]
            else:
                earlier = new.get(meta.uid)
                containers = (*(earlier.containers if earlier else ()), *meta.containers)
                new[meta.uid] = replace(meta, containers=containers)
        for uid, meta in known.items():
            more = new.pop(uid, None)
            yield replace(meta, containers=meta.containers + more.containers) if more else meta
        yield from new.values()


EARLY = "koordlet_runtime_hook_invoked_duration_milliseconds"
NAME = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds"
BUCKETS = tuple(0.01 * 4**power for power in range(8))  # milliseconds
_LEVELS = {
    Level.QOS: "kubeqos",
    Level.POD: "pod",
    Level.CONTAINER: "container",
    Level.PROCESS: "container",
}


def early_decision_times(registry: "CollectorRegistry") -> "Histogram":
    """Return the durations of decisions on pods that are not there yet; a registry has one."""
    from prometheus_client import Histogram

    return Histogram(
        EARLY,
        "Time a plugin took to decide on a pod that the container runtime asked about.",
        ("node", "hook", "stage", "status"),
        registry=registry,
        buckets=BUCKETS,
    )


class ReconcileTimes:
    """Times of the calls that brought claims into force, of all reconciling plugins together.

    A call counts once for each level and resource among its claims.
    """

    def __init__(self, metrics: "PluginMetrics") -> None:
        self._times = metrics.shared_histogram(
            NAME,
            "Time to bring the claims of a pod or class into force, when they have changed.",
            BUCKETS,
            ("node", "level", "resource_type", "status"),
        )

    def observe(
        self,
        node: str,
        claims: Iterable[Claim],
        outcomes: Iterable[ClaimOutcome],
        *,
        seconds: float,
        sandbox: str = "",
    ) -> None:
        """Count a call. sandbox: the cgroup that is not counted as a container's."""
        seen = set()
        for claim, outcome in zip(claims, outcomes, strict=True):
            target_level = claim.target.level
            level = _LEVELS.get(target_level, target_level.value)
            if sandbox and claim.target.place == sandbox:
                level = "sandbox"
            resource = _file(claim.resource)
            failed = outcome.state is ClaimState.FAILED
            seen.add((node, level, resource, "failed" if failed else "succeeded"))
        for labels in seen:
            self._times.labels(*labels).observe(seconds * 1000)


def _file(resource: Resource[Any]) -> str:
    """The file of cgroup v1, by which Koordinator names resources; of v2 where v1 has none.

    The resource's own name where it is no file.
    """
    name = resource.files[min(resource.files)].name.rpartition("/")[2]
    return resource.name if "{}" in name or not name else name


R = TypeVar("R")
W = TypeVar("W")

KATA = "kata"  # runtime class whose containers have no cgroups on this host


class _Reconciled(NamedTuple, Generic[R]):
    """A pod's claims, and the pod and rule that they follow from."""

    meta: PodMeta
    rule: R
    claims: tuple[Claim, ...]


class PodRoundsPlugin(ExtensionPlugin, Generic[W]):
    """Looks at all pods when one, or a state in follows, has changed.

    And every --runtime-hooks-reconcile-interval. What pods ask for is in settings.
    """

    audit_text = AuditText(
        "runtime-hooks", "update {path} to {value}"
    )  # Koordinator's, of its hooks
    follows: ClassVar[tuple[StateType, ...]] = ()
    """States that matter, in addition to the pods."""
    before_start: ClassVar[bool] = False
    """Whether a round is done for a new container's first process, before its program runs."""

    states: States
    rejections: Rejections
    settings: PodSettings[W]

    @abstractmethod
    def pod_settings(self, pod: "Pod") -> W | None:
        """Return the settings of a pod; None: this plugin has nothing to do with it.

        Called once for each version of a pod.

        Raises:
            InvalidObject: it cannot be used; what it asked for before stays.
        """

    @abstractmethod
    async def reconcile(self) -> None:
        """Do one round."""

    def begin(self) -> None:
        """Forget what was claimed: with the last run its claims have ended."""
        self._kept.clear()
        self._starting.clear()

    async def start(self, meta: PodMeta) -> None:
        """Do a round with the one container of a pod, whose first process waits for it.

        The container runtime asks for it (koordlet.runtimehooks) of those with before_start.
        """
        done = asyncio.get_running_loop().create_future()
        self._starting.add(meta)
        self._round_ends.append(done)
        self._changed.set()
        await done

    def pods(self) -> Iterator[PodMeta]:
        """The pods that run or are about to, with containers that are being started."""
        return self._starting.among(pods_of(self.states))

    def init_flags(self, flags: "FlagSet") -> None:
        self._interval: Flag[float] | Flag[int] = reconcile_interval(flags)

    def setup(self, client: Client, metric_cache: "MetricCache", states_informer: States) -> None:
        self.states = states_informer
        self.rejections = Rejections(self)
        self.settings = PodSettings(self.pod_settings, self.rejections)
        self._times = ReconcileTimes(self.metrics)
        self._kept: dict[str, tuple[Claim, ...]] = {}  # by scope
        self._changed = asyncio.Event()
        self._starting = StartingContainers(self.clock.monotonic)
        self._round_ends: list[asyncio.Future[None]] = []  # for the end of a round
        for state in (StateType.ALL_PODS, *self.follows):
            states_informer.register_callbacks(
                state, self.name, "have pods reconciled", lambda *_: self._changed.set()
            )

    async def keep(self, scope: str, claims: Iterable[Claim]) -> None:
        """Make these the claims of a scope that is no pod's, unless they are already."""
        wanted = tuple(claims)
        if wanted != self._kept.get(scope, ()):
            await self.apply_claims(wanted, scope=scope)
            self._kept[scope] = wanted
        if not wanted:
            self._kept.pop(scope, None)

    async def apply_claims(self, claims: Sequence[Claim], *, scope: str, sandbox: str = "") -> None:
        """Make these the claims of a scope, and count how long it took."""
        began = self.clock.monotonic()
        outcomes = await self.claim_all(claims, scope=scope)
        seconds, node = self.clock.monotonic() - began, self.states.node()
        name = node.name if node else ""
        self._times.observe(name, claims, outcomes, seconds=seconds, sandbox=sandbox)

    async def run(self, stop: Stop) -> None:
        self.begin()
        async for _ in stop.every(self._interval.value, self._changed):
            waiting, self._round_ends = self._round_ends, []
            try:
                if self.states.has_synced():
                    await self.reconcile()
            finally:
                for one in waiting:
                    if not one.done():
                        one.set_result(None)


class ReconcilingPlugin(PodRoundsPlugin[W], Generic[R, W]):
    """Keeps the claims of each pod what its settings and one rule say.

    The claims of a pod are one scope, named by its UID. A round in which nothing has changed looks
    at no kernel file.
    """

    @abstractmethod
    def rule(self) -> R | None:
        """Return the rule for all pods now; None: nothing is claimed."""

    @abstractmethod
    def claims(self, meta: PodMeta, pod_settings: W, rule: R) -> Iterable[Claim]:
        """Return the claims of a pod, the pod's before those of its containers. Pure."""

    def early_claims(self, meta: PodMeta) -> tuple[Claim, ...]:
        """Return what it would claim of a pod now, before its containers are there.

        The container runtime asks for it (koordlet.runtimehooks). The pod may not be among the
        states yet, and have just the containers that it is asked about.

        Raises:
            InvalidObject: the pod's settings cannot be used.
        """
        rule = self.rule()
        pod_settings = None if rule is None else self.pod_settings(meta.pod)
        return (
            ()
            if rule is None or pod_settings is None
            else tuple(self.claims(meta, pod_settings, rule))
        )

    async def prepare(self, meta: PodMeta) -> None:
        """Apply the claims of a pod that has a cgroup, but no container yet.

        They stay in force until its sandbox is seen, which may take ARRIVAL_TIMEOUT seconds.

        Raises:
            InvalidObject: as early_claims.
        """
        claims = self.early_claims(meta)
        if claims and meta.uid not in self._reconciled:
            self._arriving[meta.uid] = self.clock.monotonic() + ARRIVAL_TIMEOUT
            await self.apply_claims(claims, scope=meta.uid)

    def setup(self, client: Client, metric_cache: "MetricCache", states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._arriving: dict[str, float] = {}  # UIDs; until when, monotonic
        self._reconciled: dict[str, _Reconciled[R]] = {}  # by UID
        self._rule: R | None = None
        self._anew: set[str] = set()  # UIDs

    def begin(self) -> None:
        super().begin()
        self._reconciled.clear()
        self._arriving.clear()

    def invalidate(self, uids: Iterable[str]) -> None:
        """Renew the claims of these pods in the next round, even without a change."""
        self._anew.update(uids)

    async def reconcile(self) -> None:
        """Bring every pod's claims up to the present states."""
        rule = self.rule()
        if rule == self._rule:
            rule = self._rule  # so that comparing it again, for each pod, costs nothing
        self._rule = rule
        pods = () if rule is None else tuple(pods_of(self.states))
        uids = {meta.uid for meta in pods}
        self.settings.keep(uids)
        for uid in self._reconciled.keys() - uids:
            del self._reconciled[uid]
            await self.withdraw_all(scope=uid)
        await self._end_arrivals(uids, over=rule is None)
        if rule is not None:
            for meta in pods:
                await self._reconcile_pod(meta, rule)
            self._anew.clear()

    async def _end_arrivals(self, uids: Container[str], *, over: bool) -> None:
        """Forget announced pods that are there; those that did not come lose their claims."""
        now = self.clock.monotonic()
        for uid, until in list(self._arriving.items()):
            if uid in uids:
                del self._arriving[uid]
            elif over or until <= now:
                del self._arriving[uid]
                await self.withdraw_all(scope=uid)

    async def _reconcile_pod(self, meta: PodMeta, rule: R) -> None:
        before = self._reconciled.get(meta.uid)
        known = before is not None and before.rule is rule and meta.uid not in self._anew
        if before is not None and known and before.meta is meta:
            return
        if before is not None and known and before.meta == meta:
            self._reconciled[meta.uid] = before._replace(meta=meta)
            return
        pod_settings = self.settings.of(meta.pod)
        claims = () if pod_settings is None else tuple(self.claims(meta, pod_settings, rule))
        if claims != (before.claims if before else ()):
            await self.apply_claims(claims, scope=meta.uid, sandbox=meta.sandbox)
        self._reconciled[meta.uid] = _Reconciled(meta, rule, claims)
        await asyncio.sleep(0)  # other tasks need the loop: there can be many pods


def host_applications(states: States) -> "tuple[HostApplication, ...]":
    """The programs outside of Kubernetes that the NodeSLO names."""
    slo = states.node_slo()
    return slo.host_applications if slo else ()


def pods_of(states: States) -> Iterator[PodMeta]:
    """The pods that run or are about to, and have a cgroup."""
    for meta in states.pods():
        if meta.pod.active and (meta.containers or meta.sandbox):
            yield meta


def containers_of(meta: PodMeta) -> Iterator[ContainerMeta]:
    """The containers of a pod, init containers too, that its spec names and that have a cgroup.

    Of a pod without a spec, which is known from the cgroup tree alone, all of them.
    """
    if meta.pod.runtime_class != KATA:
        names = {container.name for container in meta.pod.containers + meta.pod.init_containers}
        yield from (one for one in meta.containers if not names or one.name in names)


def reconcile_interval(flags: "FlagSet") -> "Flag[float]":
    """Define, or find, the flag for the seconds between two rounds."""
    return flags.shared().duration(
        "runtime-hooks-reconcile-interval",
        10.0,
        "Longest time between two looks at the settings of pods; changes are seen at once",
        check=lambda seconds: "" if seconds >= 1 else "use at least 1s",
    )


def strategy_interval(flags: "FlagSet") -> "Flag[int]":
    """Define, or find, the flag for the seconds between two rounds of a reconciling plugin."""
    return flags.shared().int(
        "reconcile-interval-seconds",
        1,
        "Seconds between two rounds of BlkIOReconcile, CPUBurst, CgroupReconcile and SystemConfig",
        check=lambda seconds: "" if seconds >= 1 else "use 1 or more",
    )
