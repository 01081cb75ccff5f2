"""Metrics that plugins add to their daemon's."""

import pytest
from prometheus_client import CollectorRegistry, Counter

from koord.component.metrics import OwnMetrics
from koord_descheduler.framework.evictor import FrameworkMetrics as DeschedulerMetrics
from koord_scheduler.framework.calls import FrameworkMetrics as SchedulerMetrics


class Mine:
    """As a third party's plugin has them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.done = Counter("mine_done_total", "What my plugin did.", registry=registry)


@pytest.mark.parametrize("framework", [OwnMetrics, SchedulerMetrics, DeschedulerMetrics])
def test_metrics_of_a_plugin_are_made_once(framework: type[OwnMetrics]) -> None:
    """Two profiles share them; they are in the registry that /metrics shows."""
    registry = CollectorRegistry()
    metrics = framework(registry)
    for _ in range(2):
        metrics.own(Mine).done.inc()

    assert registry.get_sample_value("mine_done_total") == 2
    with pytest.raises(ValueError, match="Duplicated"):
        Mine(registry)
