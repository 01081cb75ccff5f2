"""Usage as NodeMetrics report it, in the form that decisions keep.

koord.api.nodemetric has the same for who writes reports; of these a cluster has 10^5.
"""

from msgspec import Struct


class Usage(Struct, frozen=True, gc=False):
    """CPU and memory in use, and whatever else is counted."""

    cores: float
    memory_bytes: float
    others: tuple[tuple[str, int], ...] = ()  # further resources by name; whole units


class AggregatedUsage(Struct, frozen=True, gc=False):
    """Usage over one window by aggregation. All are None while the window is cold."""

    duration: float  # seconds
    avg: Usage | None = None
    p50: Usage | None = None
    p90: Usage | None = None
    p95: Usage | None = None
    p99: Usage | None = None


class PodMetric(Struct, frozen=True, gc=False):
    """Usage of one pod, its priority class and its QoS class; "": no class."""

    name: str
    namespace: str
    usage: Usage
    priority: str = ""
    qos: str = ""
