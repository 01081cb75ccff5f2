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
from koord_scheduler.plugin.testing.harness import (
    DecideResult,
    PluginHarness,
    ProfileHarness,
    RecordingBinder,
    ScheduleResult,
    fake_cluster,
    fake_services,
)
from koord_scheduler.plugin.testing.vectorforms import assert_forms_agree, costs, disagreements

__all__ = [
    "DecideResult",
    "FakeCluster",
    "PluginHarness",
    "ProfileHarness",
    "RecordingBinder",
    "ScheduleResult",
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
