"""An audit log in a directory of its own, on simulated time."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from koord.util.stop import Stop
from koordlet.executor.audit.files import AuditEvent, AuditReader, LogBudget
from koordlet.executor.audit.log import AuditLog, AuditWriter
from koordlet.plugin.testing import SimulatedClock
from tests.support.kube.inline_executor import InlineExecutor


class LogBench:
    """An audit log and its surroundings."""

    def __init__(self, directory):
        self.clock = SimulatedClock()
        self.directory = directory
        self.registry = CollectorRegistry()
        self.enabled = True
        self.stop = Stop(self.clock)
        self.log = self.make()

    def make(self, **options):
        options = {"verbose": 3, "megabytes": 16} | options
        budget = LogBudget.of(options.pop("megabytes"))
        writer = AuditWriter(self.directory, budget, self.clock)
        registry = self.registry = CollectorRegistry()
        return AuditLog(writer, self.clock, registry, enabled=lambda: self.enabled, **options)

    def record(self, message, **more):
        self.log.record(AuditEvent(reason="test", message=message, **more))

    def messages(self, most=10_000):
        """What a reader finds, newest first."""
        reader = AuditReader(self.directory)
        found = [event["message"] for event in reader.events(most)]
        reader.close()
        return found

    def count(self, outcome):
        return self.registry.get_sample_value("koordlet_audit_events_total", {"outcome": outcome})


@pytest.fixture
async def bench(tmp_path):
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    return LogBench(tmp_path / "audit")
