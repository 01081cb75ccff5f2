"""The kit for testing plugins; needs no daemon, no Kubernetes and no root."""

from koordlet.plugin.testing.cgroup import FakeGroup
from koordlet.plugin.testing.clock import SimulatedClock
from koordlet.plugin.testing.evictions import AskedEviction, PodEvent, ScriptedEvictions
from koordlet.plugin.testing.harness import Cost, PluginHarness
from koordlet.plugin.testing.host import FakeHost, FakePod
from koordlet.plugin.testing.logs import CapturedLog, LogEvent
from koordlet.plugin.testing.metrics import ScriptedMetrics
from koordlet.plugin.testing.states import make_pod
from koordlet.plugin.testing.timing import cpu_seconds

__all__ = [
    "AskedEviction",
    "CapturedLog",
    "Cost",
    "FakeGroup",
    "FakeHost",
    "FakePod",
    "LogEvent",
    "PluginHarness",
    "PodEvent",
    "ScriptedEvictions",
    "ScriptedMetrics",
    "SimulatedClock",
    "cpu_seconds",
    "make_pod",
]
