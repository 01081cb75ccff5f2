"""slo-controller-config: the ConfigMap that sets the strategies of all nodes.

Each of its keys holds one JSON text: a strategy for the cluster, and entries for nodes that a label
selector picks. Keys are independent: a bad one keeps its last good value.

Source: Koordinator, pkg/slo-controller and pkg/util/sloconfig.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from koord.api.decoding.jsonrules import JsonObject, Struct, member, parse_json
from koord.api.labelselector import SELECTOR, LabelSelector, parse_selector
from koord.api.slo.colocation import COLOCATION, ColocationStrategy
from koord.api.slo.defaults import CPU_BURST, RESOURCE_QOS, SYSTEM, THRESHOLD
from koord.api.slo.hostapplications import HOST_APPLICATIONS
from koord.api.slo.strategies import CPUBurst, ResourceThreshold, SystemStrategy
from koord.util.errors import InvalidObject

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

    def for_labels(self, labels: Mapping[str, str]) -> JsonObject:
        """Return the strategy of the first entry that matches, else that of the cluster."""
        matching = (one.strategy for one in self.entries if one.selector.matches(labels))
        return next(matching, self.cluster)


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of the ConfigMap. cluster_field None: the cluster's strategy is the whole object."""

    name: str
    shape: Struct[Any]
    default: JsonObject
    cluster_field: str | None = "clusterStrategy"
    entries_field: str = "nodeStrategies"
    inherits: bool = True  # entries begin with the cluster's strategy

    def unset(self) -> StrategyConfig:
        return StrategyConfig(self.default)


_COLOCATION = _Key(
    "colocation-config",
    COLOCATION,
    COLOCATION.dump(ColocationStrategy()),
    cluster_field=None,
    entries_field="nodeConfigs",
)
_THRESHOLD = _Key("resource-threshold-config", THRESHOLD, THRESHOLD.dump(ResourceThreshold()))
_RESOURCE_QOS = _Key("resource-qos-config", RESOURCE_QOS, {})  # agents know what a class needs
_CPU_BURST = _Key("cpu-burst-config", CPU_BURST, CPU_BURST.dump(CPUBurst()))
_SYSTEM = _Key("system-config", SYSTEM, SYSTEM.dump(SystemStrategy()))
_HOST_APPLICATIONS = _Key(
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
    # False while there is no ConfigMap, or its colocation key is refused: like Koordinator's, a
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
    strategy, and one with a selector that Kubernetes would refuse is left out.
    """
    if data is None:
        return _NOTHING_SET, ()
    problems: list[InvalidObject] = []
    refused: set[str] = set()

    def load(key: _Key, last: StrategyConfig) -> StrategyConfig:
        try:
            return _load_key(key, data.get(key.name), problems)
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


def _load_key(key: _Key, text: object, problems: list[InvalidObject]) -> StrategyConfig:
    """Return what the text of a key says. Entries that it does without are added to problems."""
    if text is None or text == "":
        return key.unset()
    where = f"{CONFIG_MAP}.{key.name}"
    root = _object(parse_json(text, where), where)
    cluster = _cluster_strategy(key, root, where)
    loaded = [
        (place, _selector(entry, place), key.shape.read(entry, place, fold_case=True))
        for place, entry in _entries(key, root, where)
    ]  # all of them, before any counts: a wrong type refuses the key
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


def _cluster_strategy(key: _Key, root: JsonObject, where: str) -> JsonObject:
    found: object = root
    if key.cluster_field is not None:
        where = f"{where}.{key.cluster_field}"
        found = member(root, key.cluster_field, fold_case=True)
        if found is None:
            return key.default
    cluster = key.shape.overlay(key.default, key.shape.read(found, where, fold_case=True))
    key.shape.check(cluster, where)
    return cluster


def _node_strategy(key: _Key, cluster: JsonObject, fields: JsonObject, where: str) -> JsonObject:
    strategy = key.shape.overlay(cluster, fields) if key.inherits else fields
    key.shape.check(strategy, where)
    return strategy


def _entries(key: _Key, root: JsonObject, where: str) -> Iterator[tuple[str, JsonObject]]:
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
