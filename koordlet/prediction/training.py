"""One pass of training: what pods, classes, system and node used in the interval that ended."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.node import Node
from koord.api.nodemetric import Amounts, Usage
from koord.api.pod import Pod, amount, pod_request
from koord.api.qos import KoordPriorityClass
from koord.util.errors import InvalidObject
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    AnyKind,
)
from koordlet.prediction.models import NODE, SYSTEM, Models, class_model

RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"  # an annotation: before amplification


def request_of(pod: Pod) -> Amounts:
    """Return the CPU and memory that a pod asks for."""
    return Amounts(pod_request(pod, "cpu"), pod_request(pod, "memory"))


def allocatable_of(node: Node) -> Amounts | None:
    """Return CPU and memory for pods; None: not known.

    Those of the annotation if it can be read and has both, for allocatable may be amplified.
    """
    for resources in (_raw_allocatable(node), node.allocatable):
        if "cpu" in resources and "memory" in resources:
            return Amounts(amount("cpu", resources["cpu"]), amount("memory", resources["memory"]))
    return None


def _raw_allocatable(node: Node) -> Mapping[str, str]:
    text = node.annotations.get(RAW_ALLOCATABLE)
    if text is None:
        return {}
    try:
        return Fields({"raw": parse_json(text, RAW_ALLOCATABLE)}, "annotations").quantities("raw")
    except InvalidObject:
        return {}


PERCENT = 90  # of the samples of the interval; what is above is a spike that others can bear


def samples(
    cache: MetricCache, pods: Iterable[Pod], models: Models, seconds: float
) -> dict[str, Usage]:
    """Return a sample for each model that there are measurements for, by its id.

    A pod that runs and was not measured counts in its class with its peak, or with its request
    while none is known: counted as nothing, it would let others have what it uses. The system needs
    a measurement of the node. Without any measurement there are no samples at all.
    """
    measured = _usages(cache, POD_CPU_USAGE, POD_MEMORY_USAGE, seconds)
    node = _usages(cache, NODE_CPU_USAGE, NODE_MEMORY_USAGE, seconds).get(())
    if node is None and not measured:
        return {}
    found: dict[str, Usage] = {}
    by_class: dict[KoordPriorityClass, list[Usage]] = defaultdict(list)
    for pod in pods:
        usage = measured.get((pod.uid,))
        if usage is not None:
            found[pod.uid] = usage
        elif pod.active:
            usage = _assumed(pod, models)
        if usage is not None:
            by_class[pod.priority_class].append(usage)
    for priority in KoordPriorityClass:
        found[class_model(priority)] = _total(by_class[priority])
    if node is not None:
        pods_total = _total(measured.values())
        found[NODE] = node
        found[SYSTEM] = Usage(
            max(node.cores - pods_total.cores, 0.0),
            max(node.memory_bytes - pods_total.memory_bytes, 0.0),
        )
    return found


def _assumed(pod: Pod, models: Models) -> Usage:
    amounts = models.peak(pod.uid) or request_of(pod)
    return Usage(amounts.milli_cores / 1000, amounts.memory_bytes)


def _usages(
    cache: MetricCache, cpu: AnyKind, memory: AnyKind, seconds: float
) -> Mapping[tuple[str, ...], Usage]:
    """High usage in the window that ends now, by series; those with both CPU and memory."""
    cores = cache.aggregate_all(cpu, seconds)
    sizes = cache.aggregate_all(memory, seconds)
    return {
        key: Usage(series.percentile(PERCENT), sizes[key].percentile(PERCENT))
        for key, series in cores.items()
        if key in sizes
    }


def _total(usages: Iterable[Usage]) -> Usage:
    cores = size = 0.0
    for usage in usages:
        cores += usage.cores
        size += usage.memory_bytes
    return Usage(cores, size)
