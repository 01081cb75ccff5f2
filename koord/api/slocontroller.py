"""slo-controller-config: the ConfigMap that sets the strategies of all nodes.

Thresholds, resource QoS, CPU burst, system, host applications and colocation.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from koord.api.gojson import (
    DURATION,
    NOT_NEGATIVE,
    PERCENT,
    POSITIVE,
    Json,
    JsonObject,
    Limit,
    ListOf,
    Struct,
    member,
    one_of,
    parse_json,
    shape_of,
    wire,
)
from koord.api.labelselector import SELECTOR, LabelSelector, parse_selector
from koord.api.node import Node
from koord.api.nodemetric import MemoryPolicy
from koord.api.nodeslo import CPU_BURST, RESOURCE_QOS, SYSTEM, THRESHOLD, parse_host_applications
from koord.api.qosstrategy import CPUBurst, ResourceThreshold, SystemStrategy
from koord.util.errors import InvalidObject


@dataclass(frozen=True, slots=True)
class CgroupPath:
    """cgroupPath: where the application's cgroup is."""

    base: str = wire("base", "")
    parent_dir: str = wire("parentDir", "")
    relative_path: str = wire("relativePath", "")


@dataclass(frozen=True, slots=True)
class HostApplicationStrategy:
    """strategy: an object that has no fields yet."""


@dataclass(frozen=True, slots=True)
class HostApplicationSpec:
    """One application, as it is written."""

    name: str = wire("name", "")
    priority: str = wire("priority", "")
    qos: str = wire("qos", "")
    cgroup_path: CgroupPath | None = wire("cgroupPath")
    strategy: HostApplicationStrategy | None = wire("strategy")


class _Applications(ListOf):
    """A list that each node will be able to use."""

    def check(self, value: object, where: str) -> None:
        parse_host_applications(value, where)


@dataclass(frozen=True, slots=True)
class HostApplications:
    """The applications of the nodes that one entry of the configuration is for."""

    applications: tuple[HostApplicationSpec, ...] = wire(
        "applications", (), shape=_Applications(shape_of(HostApplicationSpec))
    )


HOST_APPLICATIONS = shape_of(HostApplications)

STRATEGY_ANNOTATION = "node.koordinator.sh/colocation-strategy"
RATIO_LABELS: Mapping[str, str] = {  # label of a node -> the percentage that it sets
    "node.koordinator.sh/cpu-reclaim-ratio": "cpuReclaimThresholdPercent",
    "node.koordinator.sh/memory-reclaim-ratio": "memoryReclaimThresholdPercent",
    "node.koordinator.sh/mid-static-cpu-reserved-ratio": "midStaticCPUReservedPercent",
    "node.koordinator.sh/mid-static-memory-reserved-ratio": "midStaticMemoryReservedPercent",
}
_ANNOTATION_PLACE = f"annotation {STRATEGY_ANNOTATION}"
_DECIMAL = re.compile(r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LARGEST_RATIO = 1e9  # a larger one is a mistake


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
    config: "StrategyConfig", node: Node
) -> tuple[ColocationStrategy, tuple[InvalidObject, ...]]:
    """Return the strategy of the configuration with what annotation and labels of the node say.

    What is wrong with the annotation or a label is noted, and it does not count. When a value that
    the annotation sets is forbidden, the node has no strategy: the defaults, disabled.
    """
    if STRATEGY_ANNOTATION not in node.annotations and RATIO_LABELS.keys().isdisjoint(node.labels):
        return config.load(COLOCATION, node.labels), ()
    strategy = config.for_labels(node.labels)
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


T = TypeVar("T")
CONFIG_MAP = "slo-controller-config"
CONFIG_NAMESPACE = "koordinator-system"


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A strategy, as canonical JSON, for the nodes that the selector matches."""

    selector: LabelSelector
    strategy: JsonObject


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """The value of one key: strategies as canonical JSON, merged with what they inherit."""

    cluster: JsonObject
    entries: tuple[NodeEntry, ...] = ()
    _loaded: dict[tuple[Struct[Any], int], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Loaded strategies, by shape and id of the JSON, which lives as long."""

    def for_labels(self, labels: Mapping[str, str]) -> JsonObject:
        """Return the strategy of the first entry that matches, else that of the cluster."""
        matching = (one.strategy for one in self.entries if one.selector.matches(labels))
        return next(matching, self.cluster)

    def load(self, shape: Struct[T], labels: Mapping[str, str]) -> T:
        """Return the strategy for labels as an object: one for all nodes of an entry."""
        return self._load(shape, self.for_labels(labels))

    def load_cluster(self, shape: Struct[T]) -> T:
        """Return the cluster's strategy as an object."""
        return self._load(shape, self.cluster)

    def _load(self, shape: Struct[T], strategy: JsonObject) -> T:
        key = (shape, id(strategy))
        if key not in self._loaded:
            self._loaded[key] = shape.load(strategy)
        found: T = self._loaded[key]
        return found


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of the ConfigMap. cluster_field None: the cluster's strategy is the whole object."""

    name: str
    shape: Struct[Any]
    default: JsonObject
    cluster_field: str | None = "clusterStrategy"
    entries_field: str = "nodeStrategies"
    inherits: bool = True  # entries begin with the cluster's strategy

    def unset(self) -> StrategyConfig:
        return StrategyConfig(self.default)


_COLOCATION = ConfigKey(
    "colocation-config",
    COLOCATION,
    COLOCATION.dump(ColocationStrategy()),
    cluster_field=None,
    entries_field="nodeConfigs",
)
_THRESHOLD = ConfigKey("resource-threshold-config", THRESHOLD, THRESHOLD.dump(ResourceThreshold()))
_RESOURCE_QOS = ConfigKey("resource-qos-config", RESOURCE_QOS, {})  # agents know what a class needs
_CPU_BURST = ConfigKey("cpu-burst-config", CPU_BURST, CPU_BURST.dump(CPUBurst()))
_SYSTEM = ConfigKey("system-config", SYSTEM, SYSTEM.dump(SystemStrategy()))
_HOST_APPLICATIONS = ConfigKey(
    "host-application-config",
    HOST_APPLICATIONS,
    {},
    cluster_field=None,
    entries_field="nodeConfigs",
    inherits=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SLOConfig:
    """The whole ConfigMap, the last good value of each key. The empty one is all defaults."""

    colocation: StrategyConfig = field(default_factory=_COLOCATION.unset)
    threshold: StrategyConfig = field(default_factory=_THRESHOLD.unset)
    resource_qos: StrategyConfig = field(default_factory=_RESOURCE_QOS.unset)
    cpu_burst: StrategyConfig = field(default_factory=_CPU_BURST.unset)
    system: StrategyConfig = field(default_factory=_SYSTEM.unset)
    host_applications: StrategyConfig = field(default_factory=_HOST_APPLICATIONS.unset)
    # False while there is no ConfigMap, or its colocation key is rejected: like Koordinator's, a
    # NodeMetric that exists is then left as it is.
    colocation_known: bool = False


_NOTHING_SET = SLOConfig()


def load_config(
    data: Mapping[str, object] | None, previous: SLOConfig = _NOTHING_SET
) -> tuple[SLOConfig, tuple[InvalidObject, ...]]:
    """Return the configuration in the data of the ConfigMap, and what was wrong with it.

    None: there is no ConfigMap, which is all defaults. A missing or empty key is its default. A key
    that is no JSON, has a wrong type anywhere, or a forbidden value for the cluster, keeps what it
    is in previous. Of the entries for nodes, one with a forbidden value gets the cluster's
    strategy, and one with a selector that Kubernetes would reject is left out.
    """
    if data is None:
        return _NOTHING_SET, ()
    problems: list[InvalidObject] = []
    refused: set[str] = set()

    def load(key: ConfigKey, last: StrategyConfig) -> StrategyConfig:
        try:
            return load_key(key, data.get(key.name), problems)
        except InvalidObject as err:
            problems.append(err)
            refused.add(key.name)
            return last

    config = SLOConfig(
        colocation=load(_COLOCATION, previous.colocation),
        threshold=load(_THRESHOLD, previous.threshold),
        resource_qos=load(_RESOURCE_QOS, previous.resource_qos),
        cpu_burst=load(_CPU_BURST, previous.cpu_burst),
        system=load(_SYSTEM, previous.system),
        host_applications=load(_HOST_APPLICATIONS, previous.host_applications),
        colocation_known=_COLOCATION.name not in refused,
    )
    return config, tuple(problems)


def load_key(key: ConfigKey, text: object, problems: list[InvalidObject]) -> StrategyConfig:
    """Return what the text of a key says. Entries that it does without are added to problems.

    Raises:
        InvalidObject: the key as a whole is rejected; see load_config.
    """
    if text is None or text == "":
        return key.unset()
    where = f"{CONFIG_MAP}.{key.name}"
    root = _object(parse_json(text, where), where)
    cluster = _cluster_strategy(key, root, where)
    loaded = [
        (place, _selector(entry, place), key.shape.read(entry, place, fold_case=True))
        for place, entry in _entries(key, root, where)
    ]  # all of them, before any counts: a wrong type rejects the key
    entries: list[NodeEntry] = []
    for place, selector, fields in loaded:
        try:
            strategy = _node_strategy(key, cluster, fields, place)
        except InvalidObject as err:
            problems.append(err)
            strategy = cluster
        try:
            if selector is not None:
                parsed = parse_selector(selector, f"{place}.nodeSelector")
                entries.append(NodeEntry(parsed, strategy))
        except InvalidObject as err:
            problems.append(err)
    return StrategyConfig(cluster, tuple(entries))


def _cluster_strategy(key: ConfigKey, root: JsonObject, where: str) -> JsonObject:
    found: object = root
    if key.cluster_field is not None:
        where = f"{where}.{key.cluster_field}"
        found = member(root, key.cluster_field, fold_case=True)
        if found is None:
            return key.default
    cluster = key.shape.overlay(key.default, key.shape.read(found, where, fold_case=True))
    key.shape.check(cluster, where)
    return cluster


def _node_strategy(
    key: ConfigKey, cluster: JsonObject, fields: JsonObject, where: str
) -> JsonObject:
    strategy = key.shape.overlay(cluster, fields) if key.inherits else fields
    key.shape.check(strategy, where)
    return strategy


def _entries(key: ConfigKey, root: JsonObject, where: str) -> Iterator[tuple[str, JsonObject]]:
    place = f"{where}.{key.entries_field}"
    found = member(root, key.entries_field, fold_case=True)
    if not isinstance(found, list | None):
        raise InvalidObject(place, wanted="a list", found=found)
    for index, entry in enumerate(found or ()):
        yield f"{place}[{index}]", _object(entry, f"{place}[{index}]")


def _selector(entry: JsonObject, where: str) -> JsonObject | None:
    """Return the canonical selector; None: there is none, so the entry is for no node."""
    found = member(entry, "nodeSelector", fold_case=True)
    return None if found is None else SELECTOR.read(found, f"{where}.nodeSelector", fold_case=True)


def _object(value: object, where: str) -> JsonObject:
    """Return the object; like Go, null is one without fields."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidObject(where, wanted="an object", found=value)
    return value


CPU_NORMALIZATION = "node.koordinator.sh/cpu-normalization-ratio"  # annotation of a Node
CPU_NORMALIZATION_ENABLED = "node.koordinator.sh/cpu-normalization-enabled"  # label of a Node
RESOURCE_AMPLIFICATION = "node.koordinator.sh/resource-amplification-ratio"  # annotation of a Node
CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"  # annotation of a NodeResourceTopology
LOWEST_RATIO, HIGHEST_RATIO = 1.0, 5.0  # of a normalization


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRatios:
    """The ratios of one CPU model; None: that of the whole strategy."""

    base: float | None = wire("baseRatio")
    hyper_threading: float | None = wire("hyperThreadEnabledRatio")
    turbo: float | None = wire("turboEnabledRatio")
    both: float | None = wire("hyperThreadTurboEnabledRatio")

    def ratio(self, *, hyper_threading: bool, turbo: bool) -> float | None:
        """Return the ratio of a machine of this model."""
        if hyper_threading:
            return self.both if turbo else self.hyper_threading
        return self.turbo if turbo else self.base


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuNormalization:
    """cpu-normalization-config: how much more a core of each model does than that of the base."""

    enable: bool = wire("enable", False)
    default_ratio: float | None = wire("defaultRatio")
    models: Mapping[str, ModelRatios] = wire("ratioModel", factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceAmplification:
    """resource-amplification-config: factors of allocatable, by resource."""

    enable: bool = wire("enable", False)
    ratios: Mapping[str, float] = wire("resourceAmplificationRatio", factory=dict)


NORMALIZATION = shape_of(CpuNormalization)
AMPLIFICATION = shape_of(ResourceAmplification)
_NORMALIZATION = ConfigKey(
    "cpu-normalization-config",
    NORMALIZATION,
    NORMALIZATION.dump(CpuNormalization()),
    cluster_field=None,
    entries_field="nodeConfigs",
)
_AMPLIFICATION = ConfigKey(
    "resource-amplification-config",
    AMPLIFICATION,
    AMPLIFICATION.dump(ResourceAmplification()),
    cluster_field=None,
    entries_field="nodeConfigs",
)


@dataclass(frozen=True, slots=True)
class CpuRatiosConfig:
    """Both keys of the ConfigMap, the last good value of each. The empty one is all defaults."""

    normalization: StrategyConfig = field(default_factory=_NORMALIZATION.unset)
    amplification: StrategyConfig = field(default_factory=_AMPLIFICATION.unset)


def load_cpu_ratios(
    data: Mapping[str, object] | None, previous: CpuRatiosConfig
) -> tuple[CpuRatiosConfig, tuple[InvalidObject, ...]]:
    """Return the ratios in the data of the ConfigMap, and what was wrong with them.

    As load_config of koord.api.slocontroller does: None is no ConfigMap, and a key that is rejected
    keeps what it is in previous.
    """
    if data is None:
        return CpuRatiosConfig(), ()
    problems: list[InvalidObject] = []

    def load(key: ConfigKey, last: StrategyConfig) -> StrategyConfig:
        try:
            return load_key(key, data.get(key.name), problems)
        except InvalidObject as err:
            problems.append(err)
            return last

    config = CpuRatiosConfig(
        load(_NORMALIZATION, previous.normalization), load(_AMPLIFICATION, previous.amplification)
    )
    return config, tuple(problems)
