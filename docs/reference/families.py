"""Every Prometheus family that the daemon can export, with what an operator wants to know of it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from prometheus_client import Metric

from koordlet import collectors
from koordlet.collectors.engine.collector import FamilySpec
from koordlet.prediction import prediction
from koordlet.reporter.loop import NodeMetricReporter
from koordlet.server.app import INTERNAL_FAMILIES, UPSTREAM_COUNTERS
from reference.fakedaemon import FamilyExposition

# Koordinator's families that are for users; the others are INTERNAL_FAMILIES.
KOORDINATORS_EXTERNAL = frozenset(
    f"koordlet_{name}"
    for name in (
        "node_resource_allocatable",
        "node_priority_resource_reclaimable",
        "node_resource_priority_reclaimable_status",
        "container_resource_requests",
        "container_resource_limits",
        "container_cpi",
        "container_psi",
        "pod_psi",
        "resctrl_llc_occupancy",
        "resctrl_memory_bandwidth",
    )
)
KOORDINATORS_HISTOGRAMS = frozenset(
    f"koordlet_{name}"
    for name in (
        "resource_update_duration_milliseconds",
        "kubelet_request_duration_seconds",
        "runtime_hook_invoked_duration_milliseconds",
        "runtime_hook_reconciler_invoked_duration_milliseconds",
    )
)
KOORDINATORS = INTERNAL_FAMILIES | KOORDINATORS_EXTERNAL | KOORDINATORS_HISTOGRAMS

_REPORT_GATES = {NodeMetricReporter.name: ("NodeMetricPromMetrics",)}
_COLLECTORS = f"{collectors.__name__}."
_UNITS_BY_NAME = {  # where neither the name nor a row says it
    "koordlet_start_time": "Unix seconds",
    "koordlet_build_info": "1",
    "koordlet_plugin_state": "0 or 1",
    "koordlet_node_metric_node_usage": "cores, bytes",
    "koordlet_node_metric_system_usage": "cores, bytes",
    "koordlet_node_metric_numa_node_usage": "cores, bytes",
    "koordlet_node_metric_numa_system_usage": "cores, bytes",
    "process_start_time_seconds": "Unix seconds",
    "python_info": "1",
}
_UNITS_BY_END = {  # longest end first
    "_bytes_per_second": "bytes per second",
    "_cores": "cores",
    "_bytes": "bytes",
    "_bytes_total": "bytes",
    "_milliseconds": "milliseconds",
    "_seconds": "seconds",
    "_seconds_total": "seconds",
    "_ratio": "0 to 1",
    "_memory": "bytes",  # node_sockstat_FRAG_memory
    "Octets": "bytes",
    "_mem": "pages",
    "_us": "us",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the metrics reference."""

    name: str  # as in the text format, without _bucket, _sum and _count
    type: str
    labels: tuple[str, ...]
    text: str
    registry: str  # internal or external
    gates: tuple[str, ...]  # any of them must be on; empty: always there

    @property
    def unit(self) -> str:
        """Return the unit of a value; a plain number of things when the name says nothing else."""
        if unit := _declared_units().get(self.name) or _UNITS_BY_NAME.get(self.name):
            return unit
        ends = (unit for end, unit in _UNITS_BY_END.items() if self.name.endswith(end))
        return next(ends, "count")


@cache
def _declared_units() -> dict[str, str]:
    """The units of the rows of collectors, and of what is made of the same rows."""
    modules = [import_module(each.name) for each in iter_modules(collectors.__path__, _COLLECTORS)]
    rows = (row for module in (*modules, prediction) for row in vars(module).values())
    return {row.name: row.unit for row in rows if isinstance(row, FamilySpec) and row.unit}


def all_families(exposition: FamilyExposition) -> list[Family]:
    """The families of the exposition, sorted by name."""
    return sorted(_families(exposition), key=lambda family: family.name.lower())


def _families(exposition: FamilyExposition) -> Iterator[Family]:
    for source, metric in exposition.seen.values():
        gates = _REPORT_GATES.get(source.name) or getattr(source, "gates", ())
        registry = "internal" if metric.name in INTERNAL_FAMILIES else "external"
        yield _family(metric, metric._labelnames, registry, gates)
    registries = {"internal": exposition.internal, "external": exposition.external}
    for name, registry in registries.items():
        for collector in registry._collectors:
            for metric in collector.collect():
                # What is made by hand knows its labels itself, even without samples.
                holder = metric if hasattr(metric, "_labelnames") else collector
                yield _family(metric, holder._labelnames, name, ())


def _family(metric: Metric, labels: Iterable[str], registry: str, gates: tuple[str, ...]) -> Family:
    name, kind = metric.name, metric.type
    if name in UPSTREAM_COUNTERS:
        kind = "counter"
    elif kind == "counter":
        name += "_total"
    return Family(name, kind, tuple(labels), metric.documentation, registry, gates)
