"""When a node is looked at again though nothing has happened."""

import json

import pytest
from prometheus_client import CollectorRegistry

from koord.cluster import kinds
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import NO_FIELDS
from koord.util.simulatedclock import SimulatedClock
from koord_manager.cluster import METRIC, ManagerCluster
from koord_manager.controllers.noderesource import NodeResources
from koord_manager.controllers.worker import NodeResourceMetrics
from tests.support.manager import NOW, calculator, config, node, quantities, report, usage


class Bench:
    """Node n1 of which nothing is written."""

    def __init__(self, age=0.0, **strategy):
        self.clock = SimulatedClock(wall=NOW)
        self.cluster = ManagerCluster()
        self.cluster.now = self.clock.wall
        self.put(kinds.NODE, node(quantities(cpu=10, memory="10G")))
        self.report(age)
        found = config(colocation_config={"enable": True, **strategy})
        self.resources = NodeResources(
            self.cluster,
            None,
            calculator("BatchResource"),
            lambda: found,
            None,
            self.clock,
            NodeResourceMetrics(CollectorRegistry()),
            lambda event: None,
            dry_run=True,
        )
        add = self.resources.queue.add_after
        self.cluster.listen(lambda name, change, delay: add(name, delay))

    def put(self, kind, manifest):
        item = Decoder(NO_FIELDS).object(kind, json.dumps(manifest).encode())
        self.cluster.put(kind, item)

    def report(self, age=0.0):
        age = None if age is None else age - (self.clock.wall() - NOW)
        self.put(METRIC, report(node=usage(3, "3G"), system=usage(1, "1G"), age=age))

    async def looks(self, seconds):
        """Seconds after which the node is looked at."""
        queue, found = self.resources.queue, []
        for second in range(seconds):
            if queue.get() is not None:
                found.append(second)
                await self.resources.reconcile("n1")
                queue.done("n1")
            await self.clock.advance(1)
        return found


@pytest.mark.parametrize(
    ("age", "strategy", "second"),
    [
        (0, {}, 180),
        (700, {}, 180),
        (850, {}, 51),  # old after 900 s
        (899, {}, 2),
        (901, {}, 180),
        (None, {}, 180),
        (0, {"degradeTimeMinutes": 1}, 61),
        (-3600, {"degradeTimeMinutes": 1}, 61),  # from the future: from when it was seen
    ],
)
async def test_a_node_is_looked_at_when_its_report_grows_old(age, strategy, second):
    bench = Bench(age, **strategy)
    bench.resources.queue.add("n1")

    assert (await bench.looks(200))[:2] == [0, second]


async def test_reports_once_a_minute_leave_no_look_between_them():
    bench = Bench()
    for _ in range(6):
        bench.report()
        assert await bench.looks(62) == [0]
