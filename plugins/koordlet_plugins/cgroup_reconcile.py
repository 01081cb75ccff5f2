"""Memory QoS: protects, throttles and reclaims memory of pods by NodeSLO and annotations.

Writes memory.min, low and high, and on Anolis kernels watermarks, OOM priorities and page cache
limits, for pods, containers and the cgroups of their Kubernetes QoS classes.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from koord.api.annotations import json_annotation
from koord.api.gojson import shape_of, wire
from koord.api.nodeslo import RECOMMENDED
from koord.api.pod import BATCH_MEMORY, Container, Pod, pod_limit, pod_request
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import MemoryQoS, QoSClassStrategy, ResourceQoS
from koord.api.quantity import Quantity
from koord.plugin import Stop
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    FlagSet,
    Level,
    MetricCache,
    PluginRegistry,
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

ANNOTATION = "koordinator.sh/memoryQOS"
NONE, AUTO = "none", "auto"  # policies; any other keeps the node's values


@dataclass(frozen=True, slots=True)
class OwnMemoryQoS:
    """A pod's annotation: a policy, and canonical JSON of the fields that it has."""

    policy: str = ""
    fields: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings of a pod or class. given: JSON keys that count; None: all of them do.

    A setting that does not count leaves the kernel's value unchanged.
    """

    values: MemoryQoS
    given: frozenset[str] | None = None

    def has(self, key: str) -> bool:
        """Whether a setting, by its JSON key, counts."""
        return self.given is None or key in self.given


NOTHING = Effective(MemoryQoS(), frozenset())


@dataclass(frozen=True, slots=True)
class _Policy:
    policy: str = wire("policy", "")


_POLICY = shape_of(_Policy)
_FIELDS = shape_of(MemoryQoS)


def own_memory_qos(pod: Pod) -> OwnMemoryQoS:
    """Return the settings in a pod's annotation.

    Raises:
        InvalidObject: its annotation is malformed or out of the limits.
    """
    policy, fields = (json_annotation(pod, ANNOTATION, shape) for shape in (_POLICY, _FIELDS))
    if not isinstance(policy, dict) or not isinstance(fields, dict):
        return OwnMemoryQoS()
    return OwnMemoryQoS(policy.get("policy", ""), fields)


def merged(own: OwnMemoryQoS, node: ResourceQoS, qos: QoSClass) -> Effective:
    """Return the settings of a pod: its own fields over its policy's values or the node's."""
    if own.policy == NONE:
        return NOTHING
    values = of_class(node, qos).memory
    if own.policy == AUTO:
        values = replace(of_class(RECOMMENDED, qos).memory, enable=True)
    fields = own.fields or {}
    values = _FIELDS.load(_FIELDS.overlay(_FIELDS.dump(values), fields))
    return Effective(values, None if values.enable else frozenset(fields))


def settings_of_directory(node: ResourceQoS, qos: KubeQoS) -> Effective:
    """Return the settings of a Kubernetes QoS class's own cgroup."""
    values = _BY_DIRECTORY[qos](node).memory
    return Effective(values) if values.enable else NOTHING


def of_class(node: ResourceQoS, qos: QoSClass) -> QoSClassStrategy:
    """Return the strategy for pods of a class."""
    match qos:
        case QoSClass.LSE | QoSClass.LSR:
            return node.lsr
        case QoSClass.BE:
            return node.be
        case QoSClass.SYSTEM:
            return node.system
        case _:
            return node.ls


_BY_DIRECTORY = {
    KubeQoS.GUARANTEED: lambda node: node.lsr,
    KubeQoS.BURSTABLE: lambda node: node.ls,
    KubeQoS.BEST_EFFORT: lambda node: node.be,
}


NO_LIMIT = -1


def memory_name(pod: Pod) -> str:
    """Return the name of the resource in which a pod requests memory."""
    return BATCH_MEMORY if pod.raw_qos_class is QoSClass.BE else "memory"


def requested(pod: Pod) -> int:
    """Return the memory that a pod requests."""
    return max(pod_request(pod, memory_name(pod)), 0)


def request_and_limit(container: Container, name: str) -> tuple[int, int]:
    """Return a container's request, 0 without one, and its limit."""
    request, limit = (
        Quantity.parse(quantities.get(name, "0")).integer
        for quantities in (container.requests, container.limits)
    )
    return max(request, 0), limit if limit > 0 else NO_LIMIT


def share(request: int, percent: int) -> int:
    """Return percent % of a request."""
    return request * percent // 100


def guaranteed(request: int, settings: MemoryQoS) -> tuple[int, int]:
    """Return the memory that is never reclaimed (min), and that reclaimed only in need (low)."""
    least = share(request, settings.min_limit_percent)
    low = share(request, settings.low_limit_percent)
    return least, max(low, least) if low > 0 else low


def throttled_from(request: int, limit: int, node: int, settings: MemoryQoS) -> int:
    """Return the usage from which allocations are slowed down (high).

    node is the memory of all pods together; it replaces a missing limit.
    """
    percent = settings.throttling_percent
    if percent == 0:
        return NO_LIMIT
    most = limit if limit > 0 else node
    high = request + max(most - request, 0) * percent // 100
    high -= high % mmap.PAGESIZE
    least, _ = guaranteed(request, settings)
    return max(high, least) if high > 0 else high


class PageCacheLimit(NamedTuple):
    """The values to write; None: unchanged."""

    enable: int | None = None  # 0 or 1
    size: int | None = None  # bytes
    sync: int | None = None  # 1: reclaim while allocating


def page_cache_limit(settings: MemoryQoS, memory_limit: int) -> PageCacheLimit:
    """Return the limit of a pod with this memory limit in bytes, -1 for none."""
    found = _of_size(_size(settings, memory_limit), reclaim=bool(settings.page_cache_reclaim_sync))
    if settings.page_cache_enable is None:
        return found
    return found._replace(enable=int(settings.page_cache_enable))


def _size(settings: MemoryQoS, memory_limit: int) -> int | None:
    size, percent = settings.page_cache_limit_size, settings.page_cache_limit_percent
    if size is not None:
        return min(size, memory_limit) if memory_limit > 0 else size
    if percent is not None and memory_limit > 0:
        return memory_limit * percent // 100
    return None


def _of_size(size: int | None, *, reclaim: bool) -> PageCacheLimit:
    if size is None:
        return PageCacheLimit()
    if size <= 0:
        return PageCacheLimit(enable=0, size=0)
    return PageCacheLimit(enable=1, size=size, sync=int(reclaim))


MIN, LOW, THROTTLING = "minLimitPercent", "lowLimitPercent", "throttlingPercent"


@dataclass(frozen=True, slots=True)
class MemoryValue:
    """A value for one file of a cgroup, and its reason."""

    resource: Resource[int]
    value: int
    reason: str
    inputs: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlainSetting:
    """A setting that is written unchanged. key is its name in JSON."""

    key: str
    resource: Resource[int]
    value: Callable[[MemoryQoS], int]


CLASS_WIDE = (  # of the cgroups of classes, too
    PlainSetting("priority", resources.MEMORY_PRIORITY, lambda qos: qos.priority),
    PlainSetting(
        "priorityEnable", resources.MEMORY_USE_PRIORITY_OOM, lambda qos: qos.priority_enable
    ),
    PlainSetting("oomKillGroup", resources.MEMORY_OOM_GROUP, lambda qos: qos.oom_kill_group),
)
EVERYWHERE_ELSE = (
    PlainSetting("wmarkRatio", resources.MEMORY_WMARK_RATIO, lambda qos: qos.wmark_ratio),
    PlainSetting(
        "wmarkScalePermill",
        resources.MEMORY_WMARK_SCALE_FACTOR,
        lambda qos: qos.wmark_scale_permill,
    ),
    PlainSetting("wmarkMinAdj", resources.MEMORY_WMARK_MIN_ADJ, lambda qos: qos.wmark_min_adj),
    *CLASS_WIDE,
)
PAGE_CACHE_KEYS = (
    "pageCacheEnable",
    "pageCacheLimitPercent",
    "pageCacheLimitSize",
    "pageCacheReclaimSync",
)
PAGE_CACHE = (
    resources.MEMORY_PAGECACHE_LIMIT_ENABLE,
    resources.MEMORY_PAGECACHE_LIMIT_SIZE,
    resources.MEMORY_PAGECACHE_LIMIT_SYNC,
)


@dataclass(frozen=True, slots=True)
class Shares:
    """A pod's part of the values of its class's cgroup, in bytes; None: no setting counts."""

    least: int | None
    low: int | None


def shares_of(pod: Pod, settings: Effective) -> Shares:
    """Return a pod's part of the values of its class."""
    request, qos = requested(pod), settings.values
    return Shares(
        share(request, qos.min_limit_percent) if settings.has(MIN) else None,
        share(request, qos.low_limit_percent) if settings.has(LOW) else None,
    )


def class_shares(pods: Iterable[tuple[KubeQoS, Shares]]) -> Mapping[KubeQoS, Shares]:
    """Return the sums of shares by class; the cgroup of guaranteed pods holds all others, too."""
    pods = list(pods)
    return {
        qos: Shares(
            _sum(shares.least for kind, shares in pods if _is_below(kind, qos)),
            _sum(shares.low for kind, shares in pods if _is_below(kind, qos)),
        )
        for qos in KubeQoS
    }


def of_pod(pod: Pod, settings: Effective) -> Iterator[MemoryValue]:
    """Return the values of a pod's own cgroup."""
    yield from _protection(requested(pod), settings)
    yield from _plain_values(EVERYWHERE_ELSE, settings)
    if any(map(settings.has, PAGE_CACHE_KEYS)):
        yield from _page_cache(pod, settings.values)


def of_container(
    container: Container, name: str, node: int, settings: Effective
) -> Iterator[MemoryValue]:
    """Return a container's values. name: see memory_name; node: allocatable memory in bytes."""
    request, limit = request_and_limit(container, name)
    yield from _protection(request, settings)
    if settings.has(THROTTLING):
        percent = settings.values.throttling_percent
        yield MemoryValue(
            resources.MEMORY_HIGH,
            throttled_from(request, limit, node, settings.values),
            f"{THROTTLING} of the way from the request to the limit, or to the node's allocatable",
            {
                "request_bytes": request,
                "limit_bytes": limit,
                "allocatable_bytes": node,
                "percent": percent,
            },
        )
    yield from _plain_values(EVERYWHERE_ELSE, settings)


def of_directory(shares: Shares, settings: Effective) -> Iterator[MemoryValue]:
    """Return the values of the cgroup of a class; shares are the sums of its pods."""
    for resource, value in (
        (resources.MEMORY_MIN, shares.least),
        (resources.MEMORY_LOW, shares.low),
    ):
        if value is not None:
            yield MemoryValue(resource, value, "what its pods are granted together")
    yield from _plain_values(CLASS_WIDE, settings)


def _protection(request: int, settings: Effective) -> Iterator[MemoryValue]:
    qos = settings.values
    least, low = guaranteed(request, qos)
    for key, resource, value, percent in (
        (MIN, resources.MEMORY_MIN, least, qos.min_limit_percent),
        (LOW, resources.MEMORY_LOW, low, qos.low_limit_percent),
    ):
        if settings.has(key):
            inputs = {"request_bytes": request, "percent": percent}
            yield MemoryValue(resource, value, f"{key} of the memory request", inputs)


def _page_cache(pod: Pod, qos: MemoryQoS) -> Iterator[MemoryValue]:
    total = pod_limit(pod, memory_name(pod))
    limit = NO_LIMIT if total is None else total.integer
    for resource, value in zip(PAGE_CACHE, page_cache_limit(qos, limit), strict=True):
        if value is not None:
            yield MemoryValue(
                resource, value, "limit of the pod's page cache", {"limit_bytes": limit}
            )


def _plain_values(rows: tuple[PlainSetting, ...], settings: Effective) -> Iterator[MemoryValue]:
    for row in rows:
        if settings.has(row.key):
            yield MemoryValue(row.resource, row.value(settings.values), f"{row.key} as it is set")


def _is_below(kind: KubeQoS, directory: KubeQoS) -> bool:
    return directory in (KubeQoS.GUARANTEED, kind)


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


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


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("CgroupReconcile", None, CgroupReconcile())
