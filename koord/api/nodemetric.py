"""NodeMetric: what the cluster asks to be measured, and the status that koordlet reports."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from koord.api.fields import Fields
from koord.api.gojson import Json
from koord.api.quantity import Quantity, cpu_text, memory_text
from koord.util import goformat
from koord.util.errors import InvalidObject


@dataclass(frozen=True, slots=True)
class Amounts:
    """An amount of CPU and one of memory; each operation is done on both."""

    milli_cores: int = 0
    memory_bytes: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.milli_cores + other.milli_cores, self.memory_bytes + other.memory_bytes
        )

    def less(self, other: Self) -> Self:
        """Return what is left without the other; 0 where that is more."""
        return type(self)(
            max(self.milli_cores - other.milli_cores, 0),
            max(self.memory_bytes - other.memory_bytes, 0),
        )

    def scaled(self, factor: float) -> Self:
        """Return the product, cut to whole units."""
        return type(self)(int(self.milli_cores * factor), int(self.memory_bytes * factor))

    def lower(self, other: Self) -> Self:
        """Return the lower CPU and the lower memory of the two."""
        return type(self)(
            min(self.milli_cores, other.milli_cores), min(self.memory_bytes, other.memory_bytes)
        )

    def higher(self, other: Self) -> Self:
        """Return the higher CPU and the higher memory of the two."""
        return type(self)(
            max(self.milli_cores, other.milli_cores), max(self.memory_bytes, other.memory_bytes)
        )

    def to_json(self) -> Json:
        """Return them as a ResourceMap of the NodeMetric."""
        cpu, memory = Quantity.of_milli(self.milli_cores), Quantity.of_bytes(self.memory_bytes)
        return {"resources": {"cpu": str(cpu), "memory": str(memory)}}


API_VERSION = "slo.koordinator.sh/v1alpha1"
MAX_WINDOW = 3600.0  # seconds; bounds what the metric cache has to keep
MIN_AGGREGATE_DURATION = 60.0  # seconds
MIN_REPORT_INTERVAL = 30.0  # seconds


class MemoryPolicy(StrEnum):
    """The memory that counts as used, for node, pods and host applications."""

    WITHOUT_PAGE_CACHE = "usageWithoutPageCache"
    WITH_HOT_PAGE_CACHE = "usageWithHotPageCache"
    WITH_PAGE_CACHE = "usageWithPageCache"


@dataclass(frozen=True, slots=True)
class NodeMetricSpec:
    """The effective spec: defaults filled in and limits applied. Times in seconds."""

    aggregate_duration: float = 300.0  # window of the plain averages
    report_interval: float = 60.0
    durations: tuple[float, ...] = (300.0, 600.0, 1800.0)  # windows of the percentiles
    memory_policy: MemoryPolicy = MemoryPolicy.WITHOUT_PAGE_CACHE


DEFAULT_SPEC = NodeMetricSpec()


def parse_spec(obj: object) -> NodeMetricSpec:
    """Return the effective spec of a NodeMetric object as JSON.

    What is absent, null or an empty list keeps its default. Averages need at least 60 s, reports
    come at most every 30 s, and no window is longer than an hour.

    Raises:
        InvalidObject: a field has the wrong type, or a window is not positive.
    """
    policy = Fields(obj, "nodeMetric").nested("spec").nested("metricCollectPolicy")
    aggregate = policy.integer("aggregateDurationSeconds")
    interval = policy.integer("reportIntervalSeconds")
    return NodeMetricSpec(
        aggregate_duration=_clamp(
            DEFAULT_SPEC.aggregate_duration if aggregate is None else aggregate,
            MIN_AGGREGATE_DURATION,
        ),
        report_interval=max(
            DEFAULT_SPEC.report_interval if interval is None else float(interval),
            MIN_REPORT_INTERVAL,
        ),
        durations=_windows(policy.nested("nodeAggregatePolicy")) or DEFAULT_SPEC.durations,
        memory_policy=_memory_policy(policy.text("nodeMemoryCollectPolicy")),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUsage:
    """The usage of one GPU. core: percent; memory and total: bytes."""

    uuid: str
    minor: int
    core: float
    memory: float
    total: float
    healthy: bool = False

    def to_json(self) -> Json:
        ratio = int(100 * self.memory / self.total) if self.total > 0 else 0
        return {
            "type": "gpu",
            "id": self.uuid,
            "minor": self.minor,
            "health": self.healthy,
            "resources": {
                "koordinator.sh/gpu-core": str(int(self.core)),
                "koordinator.sh/gpu-memory": memory_text(self.memory),
                "koordinator.sh/gpu-memory-ratio": str(ratio),
            },
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU and memory in use, and GPUs where there are any."""

    cores: float
    memory_bytes: float
    gpus: tuple[GpuUsage, ...] = ()

    def to_json(self) -> Json:
        cpu, memory = cpu_text(self.cores), memory_text(self.memory_bytes)
        devices = {"devices": [gpu.to_json() for gpu in self.gpus]} if self.gpus else {}
        return {"resources": {"cpu": cpu, "memory": memory}, **devices}


@dataclass(frozen=True, slots=True)
class AggregatedUsage:
    """Usage over one window by aggregation. All are None while the window is cold."""

    duration: float  # seconds
    avg: Usage | None = None
    p50: Usage | None = None
    p90: Usage | None = None
    p95: Usage | None = None
    p99: Usage | None = None

    def to_json(self) -> Json:
        return {
            "duration": goformat.format_duration(self.duration),
            "usage": {
                "avg": _usage(self.avg),
                "p50": _usage(self.p50),
                "p90": _usage(self.p90),
                "p95": _usage(self.p95),
                "p99": _usage(self.p99),
            },
        }


@dataclass(frozen=True, slots=True)
class NumaUsage:
    """Usage of one NUMA node."""

    numa_node_id: int
    node_usage: Usage
    system_usage: Usage | None = None

    def to_json(self) -> Json:
        return {
            "numaNodeID": self.numa_node_id,
            "nodeUsage": self.node_usage.to_json(),
            "systemUsage": _usage(self.system_usage),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _NamedUsage:
    """Usage of something that has a name, a priority class and a QoS class; "": no class."""

    name: str
    usage: Usage
    priority: str = ""
    qos: str = ""

    def _to_json(self, usage_field: str, **more: str) -> Json:
        classes = {"priority": self.priority, "qos": self.qos}
        present = {field: value for field, value in classes.items() if value}
        return {"name": self.name, **more, **present, usage_field: self.usage.to_json()}


@dataclass(frozen=True, kw_only=True, slots=True)
class PodMetric(_NamedUsage):
    """Usage of one pod."""

    namespace: str

    def to_json(self) -> Json:
        return self._to_json("podUsage", namespace=self.namespace)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostApplicationMetric(_NamedUsage):
    """Usage of one host application."""

    def to_json(self) -> Json:
        return self._to_json("usage")


@dataclass(frozen=True, slots=True)
class ProdPrediction:
    """The reclaimable requests of prod pods, and the predicted peak usage.

    The peak includes the system, a margin and the requests of pods without a prediction.
    """

    reclaimable: Amounts | None  # None: it is not known what the node has
    peak: Amounts


@dataclass(frozen=True, slots=True)
class NodeMetricStatus:
    """The status of a NodeMetric. Usages that could not be measured are None.

    Lists are written in this order; Koordinator's are sorted: NUMA nodes by id, pods by namespace
    then name, host applications by name.
    """

    update_time: float  # Unix seconds: when the data were measured
    node_usage: Usage | None = None
    aggregated_node_usages: tuple[AggregatedUsage, ...] = ()
    system_usage: Usage | None = None
    aggregated_system_usages: tuple[AggregatedUsage, ...] = ()
    numa_usages: tuple[NumaUsage, ...] = ()
    pods: tuple[PodMetric, ...] = ()
    host_applications: tuple[HostApplicationMetric, ...] = ()
    prod: ProdPrediction | None = None  # None: nothing can be predicted

    def to_json(self) -> Json:
        """Return the wire form: present objects may be {}, empty lists are left out."""
        status: Json = {
            "updateTime": time_text(self.update_time),
            "nodeMetric": {
                "nodeUsage": _usage(self.node_usage),
                **_list("aggregatedNodeUsages", self.aggregated_node_usages),
                "systemUsage": _usage(self.system_usage),
                **_list("aggregatedSystemUsages", self.aggregated_system_usages),
                **_list("numaUsages", self.numa_usages),
            },
            **_list("podsMetric", self.pods),
            **_list("hostApplicationMetric", self.host_applications),
            "prodReclaimableMetric": {
                "resource": _usage(self.prod.reclaimable if self.prod else None)
            },
        }
        if self.prod is not None:
            status["prodPeakMetric"] = {"resource": self.prod.peak.to_json()}
        return status


def spec_to_json(spec: NodeMetricSpec) -> Json:
    """Return the spec as a NodeMetric object holds it."""
    return {
        "metricCollectPolicy": {
            "aggregateDurationSeconds": int(spec.aggregate_duration),
            "reportIntervalSeconds": int(spec.report_interval),
            "nodeAggregatePolicy": {
                "durations": [goformat.format_duration(d) for d in spec.durations]
            },
            "nodeMemoryCollectPolicy": spec.memory_policy.value,
        }
    }


def node_metric(name: str, spec: NodeMetricSpec, status: NodeMetricStatus) -> Json:
    """Return the whole object, as it is written to a file in standalone mode."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeMetric",
        "metadata": {"name": name},
        "spec": spec_to_json(spec),
        "status": status.to_json(),
    }


def time_text(unix_seconds: float) -> str:
    """Return the time in RFC 3339, UTC, cut to whole seconds."""
    return datetime.fromtimestamp(int(unix_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _usage(usage: Usage | Amounts | None) -> Json:
    return usage.to_json() if usage is not None else {}


def _list(
    key: str,
    items: "tuple[AggregatedUsage | NumaUsage | PodMetric | HostApplicationMetric, ...]",
) -> Json:
    return {key: [item.to_json() for item in items]} if items else {}


def _windows(policy: Fields) -> tuple[float, ...]:
    """Return the windows in seconds, in order; those that the cap makes equal are one."""
    windows = policy.list_of("durations", _duration, 'a duration like "5m0s"')
    for window in windows:
        if window <= 0:
            wanted = "durations above 0"
            raise InvalidObject(policy.path("durations"), wanted=wanted, found=window)
    return tuple(dict.fromkeys(min(window, MAX_WINDOW) for window in windows))


def _duration(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - Fields.list_of adds path and wording
    return goformat.parse_duration(value)


def _clamp(seconds: float, shortest: float) -> float:
    return float(min(max(seconds, shortest), MAX_WINDOW))


def _memory_policy(text: str) -> MemoryPolicy:
    """Return the policy; like Koordinator, an unknown one counts as without page cache."""
    try:
        return MemoryPolicy(text)
    except ValueError:
        return MemoryPolicy.WITHOUT_PAGE_CACHE
