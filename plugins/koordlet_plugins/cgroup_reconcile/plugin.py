"""The plugin: claims the granted values of pods that changed and of the classes above them."""

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from koord.api.pod import Pod
from koord.api.qos import KubeQoS
from koord.api.qosstrategy import ResourceQoS
from koord.api.quantity import Quantity
from koord.plugin import Stop
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    FlagSet,
    Level,
    MetricCache,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.kernel import AuditText, Resource
from koordlet.plugin.pods import (
    PodSettings,
    ReconcilingPlugin,
    containers_of,
    pods_of,
    strategy_interval,
)
from koordlet_plugins.cgroup_reconcile.settings import (
    NOTHING,
    OwnMemoryQoS,
    merged,
    own_memory_qos,
    settings_of_directory,
)
from koordlet_plugins.cgroup_reconcile.values import (
    CLASS_WIDE,
    EVERYWHERE_ELSE,
    PAGE_CACHE,
    MemoryValue,
    Shares,
    class_shares,
    memory_name,
    of_container,
    of_directory,
    of_pod,
    shares_of,
)

RECHECK_INTERVAL = 30.0  # seconds after which files that the kernel lacked are looked for again
DIRECTORIES = "classes"  # scope of the claims for cgroups of classes
_PROTECTION = (resources.MEMORY_MIN, resources.MEMORY_LOW)
_PLAIN = tuple(row.resource for row in EVERYWHERE_ELSE)
_BY_LEVEL = {
    Level.QOS: (*_PROTECTION, *(row.resource for row in CLASS_WIDE)),
    Level.POD: (*_PROTECTION, *_PLAIN, *PAGE_CACHE),
    Level.CONTAINER: (*_PROTECTION, resources.MEMORY_HIGH, *_PLAIN),
}
_ALL = tuple(dict.fromkeys(row for rows in _BY_LEVEL.values() for row in rows))
_MERGEABLE = (*_PROTECTION, resources.MEMORY_HIGH)


class MemoryQoSRule(NamedTuple):
    """Settings and facts for all pods."""

    classes: ResourceQoS
    allocatable: int  # bytes of the node's memory that pods may request
    supported: frozenset[Resource[int]]  # what this kernel has


def _may_claim() -> Iterator[ClaimScope]:
    for level, rows in _BY_LEVEL.items():
        for row in rows:
            kind = "mergeable mem" if row in _MERGEABLE else "mem"
            message = f"update calculated {kind} resources: {row.files[2].name} to : {{value}}"
            yield ClaimScope(row, level, audit_text=AuditText("cgroup reconcile", message))


class CgroupReconcile(ReconcilingPlugin[MemoryQoSRule, OwnMemoryQoS]):
    """Reconciles the memory values of pods and their classes with their memory QoS."""

    gates = ("CgroupReconcile",)
    follows = (StateType.NODE_SLO_SPEC, StateType.NODE_METADATA)
    may_claim: ClassVar[tuple[ClaimScope, ...]] = tuple(_may_claim())

    def init_flags(self, flags: FlagSet) -> None:
        self._interval = strategy_interval(flags)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self.settings = PodSettings(self.pod_settings, self.rejections, otherwise=OwnMemoryQoS())

    async def run(self, stop: Stop) -> None:
        self._shares: dict[str, tuple[KubeQoS, Shares]] = {}  # by uid
        self._claimed: list[Claim] = []  # for cgroups of classes
        self._supported: frozenset[Resource[int]] = frozenset()
        self._looked_at = float("-inf")
        self._last: MemoryQoSRule | None = None
        await super().run(stop)

    async def reconcile(self) -> None:
        """Reconcile pods, and the cgroups of the QoS classes."""
        await self._look_for_files()
        await super().reconcile()
        if self._last is not None:
            await self._reconcile_classes(self._last)

    def rule(self) -> MemoryQoSRule | None:
        """The rule; as it was while the NodeSLO or the node's memory is not known."""
        slo, node = self.states.node_slo(), self.states.node()
        memory = node.allocatable.get("memory") if node else None
        if slo is not None and memory is not None:
            allocatable = Quantity.parse(memory).integer
            self._last = MemoryQoSRule(slo.resource_qos, allocatable, self._supported)
        return self._last

    def pod_settings(self, pod: Pod) -> OwnMemoryQoS:
        return own_memory_qos(pod)

    def claims(
        self, meta: PodMeta, pod_settings: OwnMemoryQoS, rule: MemoryQoSRule
    ) -> Iterator[Claim]:
        """Yield the claims of a pod, and record its part of the class's values."""
        settings = merged(pod_settings, rule.classes, meta.qos)
        self._shares[meta.uid] = (meta.kube_qos, shares_of(meta.pod, settings))
        if settings == NOTHING:
            return
        yield from _claims(Target.of_pod(meta), of_pod(meta.pod, settings), rule)
        spec = {container.name: container for container in meta.pod.containers}
        name = memory_name(meta.pod)
        for container in containers_of(meta):
            if container.name in spec:
                grants = of_container(spec[container.name], name, rule.allocatable, settings)
                yield from _claims(Target.of_container(meta, container), grants, rule)

    async def _reconcile_classes(self, rule: MemoryQoSRule) -> None:
        here = {meta.uid for meta in pods_of(self.states)}
        self._shares = {uid: known for uid, known in self._shares.items() if uid in here}
        shares = class_shares(self._shares.values())
        claims = [
            claim
            for qos in KubeQoS
            for claim in _claims(
                Target.qos_class(self.kernel.layout, qos),
                of_directory(shares[qos], settings_of_directory(rule.classes, qos)),
                rule,
            )
        ]
        if claims != self._claimed:
            await self.claim_all(claims, scope=DIRECTORIES)
            self._claimed = claims

    async def _look_for_files(self) -> None:
        """Find out which files this kernel has; log it once, and again when it changes."""
        now = self.clock.monotonic()
        missing = [row for row in _ALL if row not in self._supported]
        if not missing or now - self._looked_at < RECHECK_INTERVAL:
            return
        is_first = self._looked_at < 0
        self._looked_at = now
        root = self.kernel.layout.qos_dir(KubeQoS.GUARANTEED)
        found = {row for row in missing if await self.kernel.supports(row, root)}
        self._supported |= found
        if found or is_first:
            self.log.info(
                "memory_qos.files_found",
                found=sorted(row.name for row in self._supported),
                missing=sorted(row.name for row in missing if row not in found),
            )


def _claims(target: Target, grants: Iterable[MemoryValue], rule: MemoryQoSRule) -> Iterator[Claim]:
    for grant in grants:
        if grant.resource in rule.supported:
            yield Claim(
                target=target,
                resource=grant.resource,
                value=grant.value,
                reason=grant.reason,
                inputs=grant.inputs,
            )
