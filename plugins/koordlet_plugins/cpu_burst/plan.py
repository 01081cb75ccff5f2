"""CPUBurst's plan for a pod, made once for each version of its object. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.annotations import json_annotation
from koord.api.nodeslo import CPU_BURST
from koord.api.pod import Container, Pod, pod_limit
from koord.api.qos import QoSClass
from koord.api.qosstrategy import CPUBurst
from koord.api.quantity import Quantity
from koordlet.plugin import ContainerMeta, PodMeta, Target
from koordlet.plugin.pods import containers_of, milli_to_quota, scaled_quota
from koordlet_plugins.cpu_burst.rules import burst_budget, uses_budget

ANNOTATION = "koordinator.sh/cpuBurst"
_OWN_CPUS = (QoSClass.LSE, QoSClass.LSR)
_EXEMPT = (*_OWN_CPUS, QoSClass.BE)
_NODE_WIDE = "sharePoolThresholdPercent"  # no pod may set it for itself


class NodeSettings(NamedTuple):
    """Settings for all pods."""

    burst: CPUBurst
    budget_within_quota: bool  # the kernel takes no burst budget above the quota (mainline)
    normalization: float  # divisor of quotas; 1.0: none


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container with a CPU limit."""

    target: Target
    meta: ContainerMeta
    running: bool
    limit_milli: int  # thousandths of a core
    base: int  # quota of its limit, in us
    least: int  # the same, divided by the node's normalization ratio
    budget: int  # burst budget in us; 0: none

    def usage_percent(self, cores: float | None) -> float:
        """Usage in percent of the limit; 100 when it is not known."""
        return 100.0 if cores is None else cores * 100_000 / self.limit_milli


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod that may burst. settings are the node's with those of its annotation on top."""

    pod: PodMeta
    settings: CPUBurst
    target: Target
    base: int  # quota of its limit, in us; -1: it has none
    containers: tuple[ContainerPlan, ...]


def may_burst(pod: Pod) -> bool:
    """Whether a pod is latency-sensitive by its label, or has none, and shares its CPUs."""
    return pod.active and pod.raw_qos_class not in _EXEMPT


def has_own_cpus(pod: Pod) -> bool:
    """Whether a pod's CPU request is taken out of the share pool."""
    return pod.active and pod.raw_qos_class in _OWN_CPUS


def outside_share_pool(pod: Pod) -> bool:
    """Whether a pod's usage does not count as usage of the share pool."""
    return pod.raw_qos_class in _EXEMPT


def own_settings(pod: Pod) -> Mapping[str, object]:
    """Return the settings in a pod's annotation, as canonical JSON; empty without one.

    Raises:
        InvalidObject: its annotation is malformed, or a value is out of its limits.
    """
    own = json_annotation(pod, ANNOTATION, CPU_BURST)
    return {k: v for k, v in own.items() if k != _NODE_WIDE} if isinstance(own, dict) else {}


def plan_for(pod: PodMeta, own: Mapping[str, object], node: NodeSettings) -> PodPlan:
    """Return the plan of a pod; own: see own_settings."""
    settings = CPU_BURST.load(CPU_BURST.overlay(CPU_BURST.dump(node.burst), own))
    limit = pod_limit(pod.pod, "cpu")
    return PodPlan(
        pod=pod,
        settings=settings,
        target=Target.of_pod(pod),
        base=-1 if limit is None else milli_to_quota(limit.milli),
        containers=tuple(_containers(pod, settings, node)),
    )


def cpu_limit_milli(container: Container) -> int:
    """Return a container's CPU limit in thousandths of a core, 0 when it has none."""
    text = container.limits.get("cpu")
    return max(Quantity.parse(text).milli, 0) if text else 0


def _containers(pod: PodMeta, settings: CPUBurst, node: NodeSettings) -> Iterator[ContainerPlan]:
    limits = {one.name: cpu_limit_milli(one) for one in pod.pod.containers}
    running = {status.container_id for status in pod.pod.statuses if status.running}
    percent = settings.cpu_burst_percent if uses_budget(settings) else 0
    for meta in containers_of(pod):
        limit_milli = limits.get(meta.name, 0)
        if limit_milli > 0:
            base = milli_to_quota(limit_milli)
            least = scaled_quota(base, node.normalization)
            budget = burst_budget(limit_milli, percent)
            yield ContainerPlan(
                target=Target.of_container(pod, meta),
                meta=meta,
                running=meta.container_id in running,
                limit_milli=limit_milli,
                base=base,
                least=least,
                budget=min(budget, least) if node.budget_within_quota else budget,
            )
