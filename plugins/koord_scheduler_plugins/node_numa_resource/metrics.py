"""Metrics of NodeNUMAResource."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class NUMAMetrics:
    """What was given to pods, and what was refused."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.allocations = Counter(
            "scheduler_numa_allocations",
            "Pods for which CPUs or amounts of NUMA nodes were chosen, and those that got none.",
            ["result"],
            registry=registry,
        )
        self.admissions = Counter(
            "scheduler_numa_admissions",
            "Nodes on which NUMA nodes were chosen for a pod, and nodes on which none would do.",
            ["policy", "result"],
            registry=registry,
        )
        self.bound_cpus = Gauge(
            "scheduler_numa_bound_cpus", "CPUs that pods have of their own.", registry=registry
        )
        self.without_topology = Gauge(
            "scheduler_numa_nodes_without_topology",
            "Nodes of which no CPU is known: pods with CPUs of their own cannot be placed there.",
            registry=registry,
        )

    def show(self, bound: Callable[[], float], without: Callable[[], float]) -> None:
        """Have the gauges computed when they are asked for."""
        self.bound_cpus.set_function(bound)
        self.without_topology.set_function(without)
