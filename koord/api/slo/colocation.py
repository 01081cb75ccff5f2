"""ColocationStrategy: how best-effort resources are computed, and how nodes are measured for that.

Source: Koordinator, apis/configuration and pkg/util/sloconfig.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.decoding.jsonrules import Json, JsonObject, ListOf, parse_json
from koord.api.decoding.jsonvalues import DURATION, NOT_NEGATIVE, PERCENT, POSITIVE, Limit, one_of
from koord.api.decoding.wire import shape_of, wire
from koord.api.nodemetric import MemoryPolicy
from koord.api.nodes.node import Node
from koord.util.errors import InvalidObject

STRATEGY_ANNOTATION = "node.koordinator.sh/colocation-strategy"
RATIO_LABELS: Mapping[str, str] = {  # label of a node -> the percentage that it sets
    "node.koordinator.sh/cpu-reclaim-ratio": "cpuReclaimThresholdPercent",
    "node.koordinator.sh/memory-reclaim-ratio": "memoryReclaimThresholdPercent",
    "node.koordinator.sh/mid-static-cpu-reserved-ratio": "midStaticCPUReservedPercent",
    "node.koordinator.sh/mid-static-memory-reserved-ratio": "midStaticMemoryReservedPercent",
}
_ANNOTATION_PLACE = f"annotation {STRATEGY_ANNOTATION}"
_DECIMAL = re.compile(r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LARGEST_RATIO = 1e9  # beyond it nothing is meant


def _all_positive(durations: object) -> bool:
    return isinstance(durations, list) and all(
        isinstance(one, str) and one != DURATION.zero and not one.startswith("-")
        for one in durations
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricAggregatePolicy:
    """metricAggregatePolicy: the windows of the percentiles, in seconds."""

    durations: tuple[float, ...] = wire(
        "durations",
        (300.0, 600.0, 1800.0),
        shape=ListOf(DURATION),
        limit=Limit("durations above 0", _all_positive),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationStrategy:
    """The strategy of a node, effective. The metric fields become the spec of its NodeMetric.

    Its extensions are for programs outside of Koordinator and not read.
    """

    enable: bool = wire("enable", False)
    metric_aggregate_duration_seconds: int = wire(
        "metricAggregateDurationSeconds", 300, limit=POSITIVE
    )
    metric_report_interval_seconds: int = wire("metricReportIntervalSeconds", 60, limit=POSITIVE)
    metric_aggregate_policy: MetricAggregatePolicy = wire(
        "metricAggregatePolicy", factory=MetricAggregatePolicy
    )
    metric_memory_collect_policy: str = wire(
        "metricMemoryCollectPolicy",
        MemoryPolicy.WITHOUT_PAGE_CACHE.value,
        limit=one_of(MemoryPolicy),
    )
    # percent of the node's capacity that all pods together may use
    cpu_reclaim_threshold_percent: int = wire("cpuReclaimThresholdPercent", 60, limit=NOT_NEGATIVE)
    cpu_calculate_policy: str = wire("cpuCalculatePolicy", "usage")
    memory_reclaim_threshold_percent: int = wire(
        "memoryReclaimThresholdPercent", 65, limit=NOT_NEGATIVE
    )
    memory_calculate_policy: str = wire("memoryCalculatePolicy", "usage")
    # caps in percent of the node's capacity; None: no cap
    batch_cpu_threshold_percent: int | None = wire("batchCPUThresholdPercent", limit=NOT_NEGATIVE)
    batch_memory_threshold_percent: int | None = wire(
        "batchMemoryThresholdPercent", limit=NOT_NEGATIVE
    )
    degrade_time_minutes: int = wire("degradeTimeMinutes", 15, limit=POSITIVE)
    update_time_threshold_seconds: int = wire("updateTimeThresholdSeconds", 300, limit=POSITIVE)
    resource_diff_threshold: float = wire("resourceDiffThreshold", 0.1, limit=POSITIVE)
    mid_reclaim_mode: str = wire("midReclaimMode", "")
    mid_cpu_threshold_percent: int = wire("midCPUThresholdPercent", 100, limit=PERCENT)
    mid_memory_threshold_percent: int = wire("midMemoryThresholdPercent", 100, limit=PERCENT)
    mid_unallocated_percent: int = wire("midUnallocatedPercent", 0, limit=PERCENT)
    mid_static_cpu_reserved_percent: int = wire(
        "midStaticCPUReservedPercent", 0, limit=NOT_NEGATIVE
    )
    mid_static_memory_reserved_percent: int = wire(
        "midStaticMemoryReservedPercent", 0, limit=NOT_NEGATIVE
    )


COLOCATION = shape_of(ColocationStrategy)


def colocation_of_node(
    strategy: JsonObject, node: Node
) -> tuple[ColocationStrategy, tuple[InvalidObject, ...]]:
    """Return the strategy of the configuration with what annotation and labels of the node say.

    strategy is canonical JSON. What is wrong with the annotation or a label is noted, and it does
    not count. When a value that the annotation sets is forbidden, the node has no strategy: the
    defaults, disabled.
    """
    problems: list[InvalidObject] = []
    try:
        strategy = _with_annotation(strategy, node.annotations)
    except InvalidObject as err:
        problems.append(err)
    strategy = COLOCATION.overlay(strategy, _ratio_percents(node.labels, problems))
    try:
        COLOCATION.check(strategy, _ANNOTATION_PLACE)
    except InvalidObject as err:
        return ColocationStrategy(), (*problems, err)
    return COLOCATION.load(strategy), tuple(problems)


def _with_annotation(strategy: JsonObject, annotations: Mapping[str, str]) -> JsonObject:
    text = annotations.get(STRATEGY_ANNOTATION)
    if text is None:
        return strategy
    found = parse_json(text, _ANNOTATION_PLACE)
    if found is None:  # null changes nothing
        return strategy
    new = COLOCATION.read(found, _ANNOTATION_PLACE, fold_case=True)
    return COLOCATION.overlay(strategy, new)


def _ratio_percents(labels: Mapping[str, str], problems: list[InvalidObject]) -> Json:
    percents: Json = {}
    for label, key in RATIO_LABELS.items():
        if label in labels:
            try:
                percents[key] = ratio_percent(labels[label], f"label {label}")
            except InvalidObject as err:
                problems.append(err)
    return percents


def ratio_percent(text: str, where: str) -> int:
    """Return the percentage of a ratio, cut as Koordinator does: "0.57" is 56, its float below.

    Raises:
        InvalidObject: it is no decimal number, or negative.
    """
    ratio = float(text) if _DECIMAL.fullmatch(text) else -1
    if not 0 <= ratio <= _LARGEST_RATIO:
        raise InvalidObject(where, wanted="a ratio of 0 or more, like 0.6", found=text)
    return int(ratio * 100)
