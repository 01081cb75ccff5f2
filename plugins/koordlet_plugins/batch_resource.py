"""Gives best-effort pods the CPU shares, CPU quota and memory limit of their batch resources.

Reads batch-cpu and batch-memory of the pods' containers (or of their annotation), the NodeSLO's CPU
suppress policy and the node's CPU normalization ratio; claims the values of the pods' and
containers' cgroups. The kubelet does not know batch resources and leaves these values at their
minimum.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from koord.api.annotations import pod_annotation
from koord.api.gojson import shape_of, wire
from koord.api.nodeslo import NodeSLO
from koord.api.pod import (
    BATCH_CPU,
    BATCH_MEMORY,
    EXTENDED_RESOURCES,
    Container,
    Pod,
    Share,
    is_sidecar,
    running_total,
)
from koord.api.qos import QoSClass
from koord.api.qosstrategy import CPUSuppressPolicy
from koord.api.quantity import Quantity
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.pods import (
    NodeRatio,
    ReconcilingPlugin,
    containers_of,
    milli_to_quota,
    milli_to_shares,
    scaled_quota,
)

NAME = "BatchResource"
NO_LIMIT = -1
_RESOURCES = (resources.CPU_SHARES, resources.CPU_QUOTA, resources.MEMORY_LIMIT)


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Batch resources of a container, or of a pod as a whole. None: no limit."""

    cpu_request: int = 0  # thousandths of a core
    cpu_limit: int | None = None  # thousandths of a core
    memory_limit: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class BatchResources:
    """Batch resources of a pod, and of those of its containers that have any, by name."""

    pod: BatchShare
    containers: Mapping[str, BatchShare]


@dataclass(frozen=True, slots=True)
class _Extended:
    requests: Mapping[str, Quantity] = wire("requests", factory=dict)
    limits: Mapping[str, Quantity] = wire("limits", factory=dict)


@dataclass(frozen=True, slots=True)
class _ExtendedSpec:
    containers: Mapping[str, _Extended] = wire("containers", factory=dict)


_STRUCT = shape_of(_ExtendedSpec)
_NO_EXTENDED = BatchShare()


@dataclass(frozen=True, slots=True)
class BatchRule:
    """Settings for all best-effort pods."""

    quota: bool = True  # False: their CPU is limited as a whole, by the quota of their class
    ratio: float | None = None  # CPU normalization ratio; None: not normalized


def has_own_quota(slo: NodeSLO | None) -> bool:
    """Whether each best-effort pod has a quota: not while CPU suppress limits them all by one."""
    if slo is None or not slo.threshold.enable:
        return True
    return slo.threshold.cpu_suppress_policy is not CPUSuppressPolicy.CFS_QUOTA


def batch_resources(pod: Pod) -> BatchResources | None:
    """Return the requests of a pod's containers, or of its annotation when these have none.

    None: neither has any. A container that is missing has no limit, and so the pod has none. Init
    containers count as with Kubernetes; the annotation does not contain them.

    Raises:
        InvalidObject: the annotation is needed and malformed.
    """
    init: Sequence[Container] = pod.init_containers
    named = dict(_from_spec((*pod.containers, *init)))
    if not named:
        init, named = (), dict(_from_annotation(pod))
    return BatchResources(_total(pod, init, named), named) if named else None


def _from_spec(containers: Sequence[Container]) -> Iterator[tuple[str, BatchShare]]:
    for container in containers:
        if {BATCH_CPU, BATCH_MEMORY} & (container.requests.keys() | container.limits.keys()):
            yield container.name, _share(_parsed(container.requests), _parsed(container.limits))


def _from_annotation(pod: Pod) -> Iterator[tuple[str, BatchShare]]:
    found = pod_annotation(pod, EXTENDED_RESOURCES, _STRUCT) or _ExtendedSpec()
    for container in pod.containers:
        if entry := found.containers.get(container.name):
            yield container.name, _share(entry.requests, entry.limits)


def _parsed(quantities: Mapping[str, str]) -> Mapping[str, Quantity]:
    return {
        name: Quantity.parse(quantities[name])
        for name in (BATCH_CPU, BATCH_MEMORY)
        if name in quantities
    }


def _share(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> BatchShare:
    return BatchShare(
        cpu_request=_amount(requests, BATCH_CPU),
        cpu_limit=_amount(limits, BATCH_CPU) or None,
        memory_limit=_amount(limits, BATCH_MEMORY) or None,
    )


def _total(pod: Pod, init: Sequence[Container], named: Mapping[str, BatchShare]) -> BatchShare:
    """The pod as a whole, overhead included."""
    everyone, overhead = (*pod.containers, *init), _parsed(pod.overhead)

    def share(container: Container) -> BatchShare:
        return named.get(container.name, _NO_EXTENDED)

    def total(resource: str, amount: Callable[[BatchShare], int | None]) -> int | None:
        if any(amount(share(one)) is None for one in everyone):
            return None
        before = (Share(amount(share(one)) or 0, is_sidecar(one)) for one in init)
        regular = (amount(share(one)) or 0 for one in pod.containers)
        return running_total(regular, before) + _amount(overhead, resource)

    return BatchShare(
        cpu_request=total(BATCH_CPU, lambda share: share.cpu_request) or 0,
        cpu_limit=total(BATCH_CPU, lambda share: share.cpu_limit),
        memory_limit=total(BATCH_MEMORY, lambda share: share.memory_limit),
    )


def _amount(quantities: Mapping[str, Quantity], name: str) -> int:
    """Whole units; what is absent or negative is nothing."""
    return max(quantities[name].integer, 0) if name in quantities else 0


def batch_claims(meta: PodMeta, batch: BatchResources, rule: BatchRule) -> Iterator[Claim]:
    """Return the claims of a best-effort pod, and of those of its containers that have shares."""
    yield from _claims(Target.of_pod(meta), batch.pod, rule)
    for container in containers_of(meta):
        share = batch.containers.get(container.name)
        if share is not None:
            yield from _claims(Target.of_container(meta, container), share, rule)


def _claims(target: Target, share: BatchShare, rule: BatchRule) -> Iterator[Claim]:
    yield Claim(
        target=target,
        resource=resources.CPU_SHARES,
        value=milli_to_shares(share.cpu_request),
        reason="CPU shares of the batch-cpu request",
        inputs={"batch_cpu_request_cores": share.cpu_request / 1000},
    )
    yield _quota_claim(target, share.cpu_limit, rule)
    limited = share.memory_limit is not None
    yield Claim(
        target=target,
        resource=resources.MEMORY_LIMIT,
        value=share.memory_limit if limited else NO_LIMIT,
        reason="the batch-memory limit" if limited else "no batch-memory limit",
        inputs={"batch_memory_limit_bytes": share.memory_limit} if share.memory_limit else {},
    )


def _quota_claim(target: Target, limit: int | None, rule: BatchRule) -> Claim:
    """limit is in thousandths of a core; None: no limit."""
    value, inputs = NO_LIMIT, {}
    if not rule.quota:
        reason = "no CPU quota of its own: CPU suppress limits best-effort pods as a whole"
    elif limit is None:
        reason = "no batch-cpu limit"
    else:
        reason = "CPU quota of the batch-cpu limit"
        value = scaled_quota(milli_to_quota(limit), rule.ratio or 1.0)
        inputs = {"batch_cpu_limit_cores": limit / 1000}
        if rule.ratio is not None:
            inputs["cpu_normalization_ratio"] = rule.ratio
    return Claim(
        target=target, resource=resources.CPU_QUOTA, value=value, reason=reason, inputs=inputs
    )


class BatchResource(ReconcilingPlugin[BatchRule, BatchResources]):
    """Keeps the cgroups of best-effort pods at their batch resources."""

    gates = (NAME,)
    may_claim = tuple(
        ClaimScope(resource, level, frozenset({QoSClass.BE}))
        for resource in _RESOURCES
        for level in (Level.POD, Level.CONTAINER)
    )
    follows = (StateType.NODE_SLO_SPEC, StateType.NODE_METADATA)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._ratio = NodeRatio(states_informer, self.rejections)

    def rule(self) -> BatchRule:
        return BatchRule(has_own_quota(self.states.node_slo()), self._ratio.now())

    def pod_settings(self, pod: Pod) -> BatchResources | None:
        return batch_resources(pod) if pod.raw_qos_class is QoSClass.BE else None

    def claims(
        self, meta: PodMeta, pod_settings: BatchResources, rule: BatchRule
    ) -> Iterator[Claim]:
        return batch_claims(meta, pod_settings, rule)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, BatchResource())
