"""The kit for testing plugins; needs no daemon, no Kubernetes and no root."""

from koordlet.plugin.testing.harness import Cost, PluginHarness, cpu_seconds
from koordlet.plugin.testing.host import FakeGroup, FakeHost, FakePod
from koordlet.plugin.testing.scripted import (
    CapturedLog,
    LogEvent,
    PodEvent,
    RequestedEviction,
    ScriptedEvictions,
    ScriptedMetrics,
    SimulatedClock,
    make_pod,
)

__all__ = [
    "CapturedLog",
    "Cost",
    "FakeGroup",
    "FakeHost",
    "FakePod",
    "LogEvent",
    "PluginHarness",
    "PodEvent",
    "RequestedEviction",
    "ScriptedEvictions",
    "ScriptedMetrics",
    "SimulatedClock",
    "cpu_seconds",
    "make_pod",
]
