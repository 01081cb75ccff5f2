"""The kit for testing plugins; needs no daemon and no Kubernetes."""

from koord.controlplane.testing.cluster import FakeCluster
from koord.controlplane.testing.objects import (
    make_budget,
    make_node,
    make_pod,
    make_report,
    make_workload,
)
from koord.controlplane.testing.server import ScriptedServer
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.plugin.testing.evictor import Evicted, RecordingEvictor
from koord_descheduler.plugin.testing.harness import PluginHarness, ProfileHarness
from koord_descheduler.plugin.testing.services import fake_services

__all__ = [
    "Evicted",
    "FakeCluster",
    "PluginHarness",
    "ProfileHarness",
    "RecordingEvictor",
    "ScriptedServer",
    "SimulatedClock",
    "fake_services",
    "make_budget",
    "make_node",
    "make_pod",
    "make_report",
    "make_workload",
]
