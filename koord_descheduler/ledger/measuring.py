"""Relief that was measured, from two NodeMetrics of a node. Pure.

    footprint = usage of the node - system and host applications - neighbours
    relief    = footprint before - footprint after

Neighbours are the pods of other workloads, and those pods of the same workload that are evicted as
well. What they, the system and host applications do meanwhile is neither failure nor success of the
eviction. What stays in the footprint is the evicted pod, the pods of its workload that remain on
the node and take over its load, and usage that the report has in no sum. A sum that one of the
reports lacks is left out of both, so that without podsMetric the plain drop of the node's usage
remains.
"""

import math
from collections.abc import Callable

from koord.cluster.decoding import UsageReport
from koord.cluster.usage import Usage
from koord_descheduler.ledger.entries import Baseline

SHARE = 0.5  # of the predicted relief that has to be measured
LEAST = 0.01  # of what the node has; less may be noise


def baseline(report: UsageReport, pod: str, is_neighbour: Callable[[str], bool]) -> Baseline | None:
    """What of a report is compared; None: it does not have the usage of the node.

    pod is the evicted one, by namespace/name, as is_neighbour gets the others.
    """
    if report.update_time is None or not _is_sane(report.usage):
        return None
    own, cores, memory = None, 0.0, 0.0
    for metric in report.pods:
        key = f"{metric.namespace}/{metric.name}"
        if not _is_sane(metric.usage):
            continue
        if key == pod:
            own = metric.usage
        elif is_neighbour(key):
            cores += metric.usage.cores
            memory += metric.usage.memory_bytes
    assert report.usage is not None  # noqa: S101 - it is sane
    return Baseline(
        time=report.update_time,
        node=report.usage,
        system=_system(report),
        neighbours=Usage(cores, memory) if report.pods else None,
        pod=own,
    )


def measured_relief(before: Baseline, after: Baseline) -> Usage:
    """What the node lost, in cores and bytes; negative: it has more to do than before."""
    had_system = before.system is not None and after.system is not None
    had_neighbours = before.neighbours is not None and after.neighbours is not None
    one = _footprint(before, system=had_system, neighbours=had_neighbours)
    other = _footprint(after, system=had_system, neighbours=had_neighbours)
    return Usage(one.cores - other.cores, one.memory_bytes - other.memory_bytes)


def is_relieved(predicted: Usage, measured: Usage, room: Usage) -> bool | None:
    """Whether at least half of what was predicted was measured, of each resource that counts.

    room is what the node has. A resource counts when at least 1 % of that was predicted; None: none
    does.
    """
    counted = [
        found >= wanted * SHARE
        for wanted, found, most in (
            (predicted.cores, measured.cores, room.cores),
            (predicted.memory_bytes, measured.memory_bytes, room.memory_bytes),
        )
        if wanted > 0 and wanted >= most * LEAST
    ]
    return all(counted) if counted else None


def _system(report: UsageReport) -> Usage | None:
    """What runs beside the pods; None: the report does not have it."""
    system, host = report.system_usage, report.host_usage
    if system is None or not _is_sane(system):
        return None
    if host is None or not _is_sane(host):
        return system
    return Usage(system.cores + host.cores, system.memory_bytes + host.memory_bytes)


def _footprint(found: Baseline, *, system: bool, neighbours: bool) -> Usage:
    cores, memory = found.node.cores, found.node.memory_bytes
    for part, counts in ((found.system, system), (found.neighbours, neighbours)):
        if part is not None and counts:
            cores -= part.cores
            memory -= part.memory_bytes
    return Usage(cores, memory)


def _is_sane(usage: Usage | None) -> bool:
    """Whether a usage can be one."""
    return usage is not None and all(
        math.isfinite(value) and value >= 0 for value in (usage.cores, usage.memory_bytes)
    )
