"""The rules of a node agent that plugins may use: CPU pools, batch resources, topology, usage."""

from koordlet.rules.batch_resources import BatchResources, BatchShare, batch_resources
from koordlet.rules.node_topology import CpuPool, NodeTopology, shared_cpus
from koordlet.rules.node_usage import (
    UsageSplit,
    is_best_effort,
    is_best_effort_app,
    node_reserved,
    split_usage,
)

__all__ = [
    "BatchResources",
    "BatchShare",
    "CpuPool",
    "NodeTopology",
    "UsageSplit",
    "batch_resources",
    "is_best_effort",
    "is_best_effort_app",
    "node_reserved",
    "shared_cpus",
    "split_usage",
]
