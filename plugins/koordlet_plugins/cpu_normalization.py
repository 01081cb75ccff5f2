"""Lowers the CPU quotas of latency-sensitive pods where CPUs are faster than the cluster counts on.

Reads the ratio in the node's annotations and the CPU limits of pods and containers; claims a ratio
for their CPU quotas. The quota without it follows from the limit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from koord.api.annotations import allocated_cpus
from koord.api.pod import Container, Pod, pod_limit
from koord.api.qos import QoSClass
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
from koordlet.plugin.kernel import Part
from koordlet.plugin.pods import NodeRatio, ReconcilingPlugin, containers_of, milli_to_quota

NAME = "CPUNormalization"


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """CPU limits in thousandths of a core. pod None: there is none for it as a whole."""

    pod: int | None
    containers: Mapping[str, int]  # of those that have one


def cpu_limits(pod: Pod) -> CpuLimits | None:
    """Return the limits to normalize; None: the class of the pod is not normalized, or it has none.

    Raises:
        InvalidObject: it is not clear whether the scheduler has given CPUs to the pod.
    """
    if not _is_normalized(pod):
        return None
    everyone = pod.containers + pod.init_containers
    named = {one.name: milli for one in everyone if (milli := _limit(one)) > 0}
    total = pod_limit(pod, "cpu")
    return CpuLimits(total.milli if total else None, named) if named else None


def _is_normalized(pod: Pod) -> bool:
    """LS pods, and those without a class that share their CPUs as well."""
    if pod.raw_qos_class is QoSClass.NONE:
        return not allocated_cpus(pod)
    return pod.raw_qos_class is QoSClass.LS


def _limit(container: Container) -> int:
    text = container.limits.get("cpu")
    return Quantity.parse(text).milli if text else 0


def ratio_claims(meta: PodMeta, limits: CpuLimits, ratio: float) -> Iterator[Claim]:
    """Return the claims of a pod and of its containers that have a limit."""
    if limits.pod is not None:
        yield _claim(Target.of_pod(meta), limits.pod, ratio)
    for container in containers_of(meta):
        if container.name in limits.containers:
            target = Target.of_container(meta, container)
            yield _claim(target, limits.containers[container.name], ratio)


def _claim(target: Target, limit: int, ratio: float) -> Claim:
    return Claim(
        target=target,
        resource=resources.CPU_QUOTA,
        part=Part.RATIO,
        value=ratio,
        original=milli_to_quota(limit),
        reason="CPU quota of the limit, divided by the node's CPU normalization ratio",
        inputs={"cpu_limit_cores": limit / 1000, "cpu_normalization_ratio": ratio},
    )


class CPUNormalization(ReconcilingPlugin[float, CpuLimits]):
    """Keeps the quotas of latency-sensitive pods at the work of a usual CPU in that time."""

    gates = (NAME,)
    may_claim = tuple(
        ClaimScope(resources.CPU_QUOTA, level, part=Part.RATIO)
        for level in (Level.POD, Level.CONTAINER)
    )
    follows = (StateType.NODE_METADATA,)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._ratio = NodeRatio(states_informer, self.rejections)

    def rule(self) -> float | None:
        """The ratio; None where it would not lower a quota."""
        ratio = self._ratio.now()
        return ratio if ratio is not None and ratio > 1 else None

    def pod_settings(self, pod: Pod) -> CpuLimits | None:
        return cpu_limits(pod)

    def claims(self, meta: PodMeta, pod_settings: CpuLimits, rule: float) -> Iterator[Claim]:
        return ratio_claims(meta, pod_settings, rule)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, CPUNormalization())
