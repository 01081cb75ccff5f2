"""Helpers of plugins whose claims follow from pods: rounds over pods, their settings, their CPU."""

from koordlet.executor.claims.combine import scaled_quota
from koordlet.host.cgroups.cpuvalues import milli_to_quota, milli_to_shares
from koordlet.plugin.pods.noderatio import NodeRatio
from koordlet.plugin.pods.perpod import PerPod
from koordlet.plugin.pods.processes import Process, ProcessLists, by_pid
from koordlet.plugin.pods.reconcile import (
    PodRoundsPlugin,
    ReconcilingPlugin,
    containers_of,
    host_applications,
    pods_of,
    strategy_interval,
)
from koordlet.plugin.pods.settings import PodSettings
from koordlet.plugin.rejections import Rejections

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
