"""The kit for testing plugins; needs no daemon and no Kubernetes."""

from koord.controlplane.testing import (
    FakeCluster,
    ScriptedServer,
    make_budget,
    make_node,
    make_pod,
    make_report,
    make_workload,
)
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.plugin.testing.harness import (
    Evicted,
    PluginHarness,
    ProfileHarness,
    RecordingEvictor,
    fake_services,
)

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
