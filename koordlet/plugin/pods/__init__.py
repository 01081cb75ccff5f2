"""Helpers of plugins whose claims follow from pods: rounds over pods, their settings, their CPU."""

from koordlet.executor.claims.table import scaled_quota
from koordlet.host.cgroups.cgroupfiles import milli_to_quota, milli_to_shares
from koordlet.plugin.extensions import Rejections
from koordlet.plugin.pods.reconcile import (
    PodRoundsPlugin,
    ReconcilingPlugin,
    containers_of,
    host_applications,
    pods_of,
    strategy_interval,
)
from koordlet.plugin.pods.settings import (
    NodeRatio,
    PerPod,
    PodSettings,
    Process,
    ProcessLists,
    by_pid,
)

__all__ = [
    "NodeRatio",
    "PerPod",
    "PodRoundsPlugin",
    "PodSettings",
    "Process",
    "ProcessLists",
    "ReconcilingPlugin",
    "Rejections",
    "by_pid",
    "containers_of",
    "host_applications",
    "milli_to_quota",
    "milli_to_shares",
    "pods_of",
    "scaled_quota",
    "strategy_interval",
]
