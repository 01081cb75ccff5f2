"""What the NodeMetric of a node and its pods come to; kept while neither of them changes.

CPU is in milli-cores, memory in bytes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from koord.api.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord_descheduler.plugin import ClusterPod, LabelSet, Usage, UsageReport, View

_CPU = frozenset({"cpu", BATCH_CPU, MID_CPU})
_MEMORY = frozenset({"memory", BATCH_MEMORY, MID_MEMORY})


class Amount(NamedTuple):
    """An amount of CPU and memory."""

    cpu: int = 0
    memory: int = 0


def amount_of(usage: Usage | None) -> Amount:
    """A usage in whole units; nothing where there is none."""
    return Amount() if usage is None else Amount(round(usage.cores * 1000), int(usage.memory_bytes))


def requested_by(pod: ClusterPod) -> Amount:
    """What a pod asks for, of whichever tier: an estimate of what it will use."""
    requests = pod.spec.requests
    return Amount(
        sum(amount for name, amount in requests if name in _CPU),
        sum(amount for name, amount in requests if name in _MEMORY),
    )


class Sums(NamedTuple):
    """Sums over the entries of a NodeMetric, and over the pods of its node that have not ended."""

    reported_cpu: int = 0  # all entries
    reported_memory: int = 0
    gone_cpu: int = 0  # entries of pods that are not there any more
    gone_memory: int = 0
    leaving_cpu: int = 0  # entries of pods that are being deleted
    leaving_memory: int = 0
    fresh_cpu: int = 0  # requests of pods that have no entry yet
    fresh_memory: int = 0
    prod_cpu: int = 0  # entries of prod pods
    prod_memory: int = 0
    prod_leaving_cpu: int = 0
    prod_leaving_memory: int = 0
    prod_fresh_cpu: int = 0
    prod_fresh_memory: int = 0
    pods: int = 0
    prod_pods: int = 0
    leaving_pods: int = 0
    prod_leaving_pods: int = 0


ProdFlags = dict[tuple[LabelSet, int | None, str], bool]
"""Whether pods are prod, by labels, priority and QoS class."""
IsProd = Callable[[ClusterPod], bool]
"""Whether a pod is of the priority class prod."""
PodAmounts = Mapping[tuple[str, str], Amount]
"""Usage of pods by namespace and name."""


def pod_amounts(report: UsageReport) -> PodAmounts:
    """The entries of a NodeMetric."""
    return {(one.namespace, one.name): amount_of(one.usage) for one in report.pods}


def sums_of(
    report: UsageReport,
    pods: Iterable[ClusterPod],
    is_prod: IsProd,
    flags: ProdFlags,
) -> Sums:
    """Add up one node. Of two entries of one pod the last one counts.

    flags is filled in: it spares most pods the question is_prod.
    """
    left = {(one.namespace, one.name): one.usage for one in report.pods}
    reported = _total(left.values())
    prod_cores = prod_memory = 0.0
    count = prod_count = 0
    unsteady: list[tuple[ClusterPod, Usage | None]] = []
    for pod in pods:
        if pod.phase in _FINISHED:
            continue
        usage = left.pop((pod.label_set.namespace, pod.name), None)
        count += 1
        if usage is None or pod.deleting:
            unsteady.append((pod, usage))
        key = pod.label_set, pod.priority, pod.qos
        of_prod = flags.get(key)
        if of_prod is None:
            of_prod = is_prod(pod)
            if pod.qos:  # else it depends on more than the key
                flags[key] = of_prod
        if of_prod:
            prod_count += 1
            if usage is not None:
                prod_cores += usage.cores
                prod_memory += usage.memory_bytes
    sums = Sums(
        *reported,
        *_total(left.values()),
        prod_cpu=round(prod_cores * 1000),
        prod_memory=round(prod_memory),
        pods=count,
        prod_pods=prod_count,
    )
    return _with_unsteady(sums, unsteady, is_prod) if unsteady else sums


_FINISHED = frozenset({"Succeeded", "Failed"})


def _with_unsteady(
    sums: Sums, pods: Iterable[tuple[ClusterPod, Usage | None]], is_prod: IsProd
) -> Sums:
    """The sums with pods that are being deleted, or have no entry."""
    more = Counter[str]()
    for pod, usage in pods:
        sort = "leaving" if pod.deleting else "fresh"
        amount = amount_of(usage) if pod.deleting else requested_by(pod)
        for prefix in ("", "prod_") if is_prod(pod) else ("",):
            more[f"{prefix}{sort}_cpu"] += amount.cpu
            more[f"{prefix}{sort}_memory"] += amount.memory
            more[f"{prefix}leaving_pods"] += pod.deleting
    return sums._replace(**more)


def _total(usages: Iterable[Usage]) -> Amount:
    cores = memory = 0.0
    for one in usages:
        cores += one.cores
        memory += one.memory_bytes
    return Amount(round(cores * 1000), round(memory))


class _Known(NamedTuple):
    report: UsageReport
    pods: tuple[ClusterPod, ...]
    sums: Sums


Book = Mapping[str, _Known]
"""What was added up for nodes, by name, and from what."""


def add_up(
    book: Book,
    names: Sequence[str],
    rows: Sequence[int],
    reports: Sequence[UsageReport],
    view: View,
    is_prod: IsProd,
) -> Book:
    """Return the book of these nodes; only those whose NodeMetric or pods have changed cost."""
    found: dict[str, _Known] = {}
    flags: ProdFlags = {}
    for name, row, report in zip(names, rows, reports, strict=True):
        pods = view.pods(row)
        known = book.get(name)
        if known is None or known.report is not report or known.pods is not pods:
            known = _Known(report, pods, sums_of(report, pods, is_prod, flags))
        found[name] = known
    return found
