"""A node as plugins see it, with what is beside it, and what they say that it is to have."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from koord.api.annotations import annotation_fields
from koord.api.fields import Fields
from koord.api.node import Node
from koord.api.pod import amount
from koord.api.quantity import Quantity
from koord.api.slocontroller import (
    COLOCATION,
    CPU_BASIC_INFO,
    ColocationStrategy,
    CpuRatiosConfig,
    SLOConfig,
    colocation_of_node,
    load_config,
    load_cpu_ratios,
)
from koord.cluster.facts import ClusterNode, ClusterPod, ReportedPods
from koord.cluster.kinds import UsageReport
from koord.kube.transport import Object
from koord.util.errors import InvalidObject

T = TypeVar("T")
_NONE: Mapping[str, Any] = MappingProxyType({})
MAX_ZONES = 64  # of a node
MAX_ZONE_RESOURCES = 64
MAX_DEVICES = 256  # of a node
MAX_DERIVED = 32  # results that are kept of the pods of a node, and of the node without its report
NO_PODS = ReportedPods(())


@dataclass(frozen=True, slots=True)
class Zone:
    """A NUMA zone: its allocatable, and the names and texts of its resources as they are stored."""

    name: str
    milli_cores: int
    memory_bytes: int
    names: tuple[str, ...]  # of its resources, in their order
    texts: tuple[tuple[str, str, str], ...]  # capacity, allocatable and available of each


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The CPU model of a node."""

    model: str
    hyper_threading: bool = False
    turbo: bool = False


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """A NodeResourceTopology."""

    uid: str
    version: str
    zones: tuple[Zone, ...] = ()  # empty: none has CPU or memory
    cpu: CpuModel | None = None  # None: not said


def read_topology(item: Object) -> NodeTopology:
    """Return what is kept of a NodeResourceTopology.

    Raises:
        InvalidObject: it is malformed, or has more zones or resources than any machine.
    """
    root = Fields(item, "NodeResourceTopology")
    meta = root.nested("metadata")
    items = root.objects("zones")
    zones = tuple(map(_zone, _bounded(items, MAX_ZONES, "zones")))
    decides = any(zone.milli_cores or zone.memory_bytes for zone in zones)
    return NodeTopology(
        meta.text("uid"),
        meta.text("resourceVersion"),
        zones if decides else (),
        _cpu_model(meta.texts("annotations").get(CPU_BASIC_INFO)),
    )


def _zone(fields: Fields) -> Zone:
    resources = _bounded(fields.objects("resources"), MAX_ZONE_RESOURCES, "resources")
    names = tuple([one.text("name") for one in resources])
    texts = tuple(
        [
            (_text(one, "capacity"), _text(one, "allocatable"), _text(one, "available"))
            for one in resources
        ]
    )
    allocatable = {name: each[1] for name, each in zip(names, texts, strict=True)}
    cpu = amount("cpu", allocatable.get("cpu") or "0")
    memory = amount("memory", allocatable.get("memory") or "0")
    return Zone(fields.text("name"), max(cpu, 0), max(memory, 0), names, texts)


def _text(fields: Fields, key: str) -> str:
    found = fields.quantity(key)
    return "0" if found is None else str(found)


def _cpu_model(text: str | None) -> CpuModel | None:
    if text is None:
        return None
    try:
        found = annotation_fields(text, CPU_BASIC_INFO)
        return CpuModel(
            found.text("cpuModel"),
            bool(found.boolean("hyperThreadEnabled")),
            bool(found.boolean("turboEnabled")),
        )
    except InvalidObject:
        return None


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """One device. Amounts by name of the resource, in whole units."""

    type: str  # "gpu", "rdma", "fpga", "xpu"
    is_healthy: bool
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """A Device object: all devices of one node."""

    devices: tuple[NodeDevice, ...]
    labels: Mapping[str, str]


def read_devices(item: Object) -> NodeDevices:
    """Return what is kept of a Device object.

    Raises:
        InvalidObject: it is malformed, or has more devices than any machine.
    """
    root = Fields(item, "Device")
    items = _bounded(root.nested("spec").objects("devices"), MAX_DEVICES, "devices")
    return NodeDevices(tuple(map(_device, items)), root.nested("metadata").texts("labels"))


def _device(fields: Fields) -> NodeDevice:
    amounts = {name: amount(name, text) for name, text in fields.quantities("resources").items()}
    healthy = fields.get("health") is not None and bool(fields.boolean("health"))
    return NodeDevice(fields.text("type"), healthy, amounts)


def _bounded(items: Iterable[Fields], most: int, what: str) -> list[Fields]:
    found = list(items)
    if len(found) > most:
        raise InvalidObject(what, wanted=f"at most {most}", found=f"{len(found)}")
    return found


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The whole ConfigMap, the last good value of each key."""

    slo: SLOConfig = field(default_factory=SLOConfig)
    ratios: CpuRatiosConfig = field(default_factory=CpuRatiosConfig)


def load_cluster_config(
    data: Mapping[str, object] | None, previous: ClusterConfig
) -> tuple[ClusterConfig, tuple[InvalidObject, ...]]:
    """Return what the data of the ConfigMap says, None: there is none; and what is wrong with it.

    A key that is rejected keeps what it is in previous.
    """
    slo, problems = load_config(data, previous.slo)
    ratios, others = load_cpu_ratios(data, previous.ratios)
    return ClusterConfig(slo, ratios), (*problems, *others)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """All that is known of one node.

    strategy is the effective one; it is enabled only where the cluster's is, too. now and the times
    of reports are Unix seconds.
    """

    node: ClusterNode
    strategy: ColocationStrategy
    now: float
    config: ClusterConfig = field(default_factory=ClusterConfig)
    report: UsageReport | None = None  # None: there is no NodeMetric
    seen: float | None = None  # when this report was first seen, for clocks that are ahead
    pods: tuple[ClusterPod, ...] = ()  # finished ones too
    topology: NodeTopology | None = None  # None: there is no NodeResourceTopology
    devices: NodeDevices | None = None  # None: there is no Device
    derived: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results of of_pods and of_named_pods, kept until a pod of the node changes."""
    unreported: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results of without_report, kept until anything else than the report changes."""

    def at(self, now: float, report: UsageReport | None, seen: float | None) -> "NodeFacts":
        """Return the same node at another time, with another report; all else must be the same."""
        return NodeFacts(
            node=self.node,
            strategy=self.strategy,
            now=now,
            config=self.config,
            report=report,
            seen=seen,
            pods=self.pods,
            topology=self.topology,
            devices=self.devices,
            derived=self.derived,
            unreported=self.unreported,
        )

    def of_pods(self, work: Callable[[tuple[ClusterPod, ...]], T]) -> T:
        """Return what a function makes of the pods; it is called once until one of them changes.

        work depends on nothing else. What it returns must be small, and not be changed.
        """
        if work not in self.derived:
            if len(self.derived) >= MAX_DERIVED:  # a new function for each call
                self.derived.clear()
            self.derived[work] = work(self.pods)
        found: T = self.derived[work]
        return found

    def of_named_pods(self, work: Callable[[tuple[ClusterPod, ...], ReportedPods], T]) -> T:
        """Return what a function makes of the pods, and of which pods the report names.

        It is called once until one of them changes. work depends on nothing else: not on how much
        the pods use. What it returns must be small, and not be changed.
        """
        named = self.report.pod_columns() if self.report else NO_PODS
        who, kept = named.who(), self.derived.get(work)
        if kept is None or kept[0] != who:
            if len(self.derived) >= MAX_DERIVED:
                self.derived.clear()
            kept = self.derived[work] = who, work(self.pods, named)
        found: T = kept[1]
        return found

    def without_report(self, key: object, work: "Callable[[NodeFacts], T]") -> T:
        """Return what work makes of the node, without its report and the time.

        It is called once until anything else changes; key stands for it, such as a function that is
        there once. What it returns must be small, and not be changed.
        """
        if key not in self.unreported:
            if len(self.unreported) >= MAX_DERIVED:  # a new key for each call
                self.unreported.clear()
            self.unreported[key] = work(self)
        found: T = self.unreported[key]
        return found

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.labels

    def annotation(self, key: str) -> str | None:
        """An annotation that the plugin's class declares with reads; None: the node has none."""
        return next((text for name, text in self.node.annotations if name == key), None)

    @property
    def has_capacity(self) -> bool:
        """Whether the node says how much CPU and memory it has."""
        return len(self.node.capacity) == 2

    @property
    def stale(self) -> str:
        """Why the report does not count; "": it does.

        Source: Koordinator, noderesource isDegradeNeeded. A time in the future counts from when the
        report was seen.
        """
        if self.report is None:
            return "there is no NodeMetric"
        age, limit = self._age, self._age_limit
        if age is None:
            return "the NodeMetric has no status yet"
        if age > limit:
            return f"the NodeMetric is {age:.0f} s old, of at most {limit} s"
        return ""

    @property
    def fresh_for(self) -> float | None:
        """Seconds for which the report will count; None: it does not already."""
        age = self._age
        return None if age is None or age > self._age_limit else self._age_limit - age

    @property
    def _age(self) -> float | None:
        at = self.report.update_time if self.report else None
        if at is None:
            return None
        return self.now - (at if self.seen is None else min(at, self.seen))

    @property
    def _age_limit(self) -> int:
        return self.strategy.degrade_time_minutes * 60


def effective_strategy(
    config: ClusterConfig, node: ClusterNode
) -> tuple[ColocationStrategy, tuple[InvalidObject, ...]]:
    """Return the colocation strategy of a node, and what is wrong with its labels and annotation.

    Source: Koordinator, GetNodeColocationStrategy.
    """
    facts = Node(node.name, labels=node.labels, annotations=dict(node.annotations))
    return colocation_of_node(config.slo.colocation, facts)


def is_colocation_enabled(config: ClusterConfig, strategy: ColocationStrategy) -> bool:
    """Whether a node offers resources: both the cluster and the node must say so."""
    return strategy.enable and config.slo.colocation.load_cluster(COLOCATION).enable


def gather_facts(
    node: ClusterNode,
    config: ClusterConfig,
    *,
    now: float,
    report: UsageReport | None = None,
    seen: float | None = None,
    pods: tuple[ClusterPod, ...] = (),
    topology: NodeTopology | None = None,
    devices: NodeDevices | None = None,
    derived: dict[object, Any] | None = None,
) -> tuple[NodeFacts, tuple[InvalidObject, ...]]:
    """Return a node with the strategy in force there, and what is wrong with its own settings.

    derived: that of the last facts with these very pods; None: there is none.
    """
    strategy, problems = effective_strategy(config, node)
    if not is_colocation_enabled(config, strategy):
        strategy = replace(strategy, enable=False)
    facts = NodeFacts(
        node=node,
        strategy=strategy,
        now=now,
        config=config,
        report=report,
        seen=seen,
        pods=pods,
        topology=topology,
        devices=devices,
        derived={} if derived is None else derived,
    )
    return facts, problems


@dataclass(frozen=True, slots=True)
class Term:
    """One line of how an amount came about: what it is, and how much it adds."""

    name: str
    amount: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Offered:
    """The wanted amount of one resource of a node, in whole units; None: it is to have none.

    What is measured does not fall to nothing by one report. A factor is applied after that, and
    rounded up. given is what others than Kubernetes have of it; None: they can have none.
    """

    amount: int | None
    terms: tuple[Term, ...] = ()
    reason: str = ""  # why there is none
    is_measured: bool = False
    factor: float = 1.0
    given: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Calculation:
    """The result of a plugin for one node. Resources that it does not name stay as they are."""

    resources: Mapping[str, Offered] = field(default_factory=lambda: _NONE)
    annotations: Mapping[str, str | None] = field(default_factory=lambda: _NONE)
    """None: the annotation goes. Only keys that the plugin's class declares with reads."""
    labels: Mapping[str, str] = field(default_factory=lambda: _NONE)
    zones: Mapping[str, Mapping[str, Quantity | None]] = field(default_factory=lambda: _NONE)
    """Amounts by zone of the NodeResourceTopology and resource; None: the resource goes."""
    problems: tuple[str, ...] = ()


NOTHING = Calculation()
