"""The rules of a node agent that plugins may use: CPU pools, batch resources, topology, usage."""

from koordlet.rules.batchresources import BatchResources, BatchShare, batch_resources
from koordlet.rules.cpupools import CpuPool, shared_cpus
from koordlet.rules.nodetopology import NodeTopology
from koordlet.rules.nodeusage import (
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
