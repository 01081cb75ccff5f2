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
from koord_scheduler.plugin.testing.agreement import assert_forms_agree, disagreements
from koord_scheduler.plugin.testing.costs import costs
from koord_scheduler.plugin.testing.harness import (
    Decided,
    PluginHarness,
    ProfileHarness,
    RecordingBinder,
    Scheduled,
    fake_cluster,
)
from koord_scheduler.plugin.testing.services import fake_services

__all__ = [
    "Decided",
    "FakeCluster",
    "PluginHarness",
    "ProfileHarness",
    "RecordingBinder",
    "Scheduled",
    "ScriptedServer",
    "SimulatedClock",
    "assert_forms_agree",
    "costs",
    "disagreements",
    "fake_cluster",
    "fake_services",
    "make_budget",
    "make_node",
    "make_pod",
    "make_report",
    "make_workload",
]
