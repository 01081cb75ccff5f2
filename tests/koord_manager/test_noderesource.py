"""When a node is looked at, and that what is kept from look to look is what a fresh one finds."""

import asyncio
import copy
import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koord.api.nodemetric import Amounts
from koord.cluster import kinds
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of, union
from koord.util.simulatedclock import SimulatedClock
from koord_manager.cluster import METRIC, ManagerCluster
from koord_manager.controllers.noderesource import NodeResources, insufficient_resources
from koord_manager.controllers.worker import NodeResourceMetrics
from koord_manager.framework.calculator import ORIGIN, Calculator, History
from koord_manager.framework.facts import NOTHING, gather_facts, read_devices, read_topology
from koord_manager.framework.interfaces import NodeResourcePlugin
from koord_manager_plugins.colocation import THIRD_PARTY, count_pods, counted_pods, sums_of_pods
from tests.support.manager import (
    NOW,
    PLUGINS,
    calculator,
    config,
    node,
    plugins,
    pod,
    pod_usage,
    quantities,
    report,
    topology,
    usage,
)


class Bench:
    """Node n1 of which nothing is written."""

    def __init__(self, age=0.0, *, names=("BatchResource",), **strategy):
        self.clock = SimulatedClock(wall=NOW)
        self.decoder = Decoder(union(map(reads_of, PLUGINS.values())))
        self.cluster = ManagerCluster(self.decoder.kept)
        self.cluster.now = self.clock.wall
        self.put(kinds.NODE, node(quantities(cpu=10, memory="10G")))
        self.report(age)
        self.config = config(colocation_config={"enable": True, **strategy})
        self.topologies, self.devices = {}, {}
        objects = SimpleNamespace(
            topologies=SimpleNamespace(objects=self.topologies),
            devices=SimpleNamespace(objects=self.devices),
        )
        self.resources = NodeResources(
            self.cluster,
            objects,
            calculator(*names),
            lambda: self.config,
            None,
            self.clock,
            NodeResourceMetrics(CollectorRegistry()),
            lambda event: None,
            dry_run=True,
        )
        self.cluster.listen(self.resources.changed)

    def put(self, kind, manifest):
        item = self.decoder.object(kind, json.dumps(manifest).encode())
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


BATCH = [f"kubernetes.io/batch-{name}" for name in ("cpu", "memory")]


@pytest.mark.parametrize(
    ("change", "looks"),
    [
        ({}, []),
        ({"example.com/other": "1"}, []),
        ({BATCH[0]: "1"}, [0]),
        ({BATCH[1]: None}, [0]),
        ({"cpu": "9"}, [0]),
    ],
    ids=["its own patch", "another's", "another amount", "an amount goes", "the kubelet's"],
)
async def test_a_node_is_not_looked_at_for_what_was_written_itself(change, looks):
    bench = Bench()
    bench.report()
    assert await bench.looks(5) == [0]
    _, result, _ = bench.resources.explain("n1")
    whole = quantities(cpu=10, memory="10G")
    offered = whole | {name: str(result.resources[name].amount) for name in BATCH} | change
    amounts = {name: one for name, one in offered.items() if one is not None}

    bench.put(kinds.NODE, node(whole, amounts, annotations=result.annotations))

    assert await bench.looks(5) == looks


PREFIX = "node.koordinator.sh/"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
CONFIGS = (
    {"colocation_config": {"enable": True}},
    {"colocation_config": {"enable": False}},
    {
        "colocation_config": {
            "enable": True,
            "midUnallocatedPercent": 50,
            "nodeConfigs": [
                {
                    "nodeSelector": {"matchLabels": {"pool": "a"}},
                    "cpuReclaimThresholdPercent": 90,
                    "memoryCalculatePolicy": "request",
                }
            ],
        },
        "cpu_normalization_config": {"enable": True, "defaultRatio": 1.2},
    },
)
ZONES = (None, topology((4, "4G"), (6, "6G")), topology((10, "10G")))
GPU = {"type": "gpu", "resources": {"koordinator.sh/gpu-core": "100"}}
RDMA = {"type": "rdma", "health": True}
DEVICES = (
    None,
    *(
        {"metadata": {"name": "n1"}, "spec": {"devices": [one]}}
        for one in (
            {**GPU, "health": True},
            {**GPU, "health": False},
            {"type": "rdma", "health": True},
        )
    ),
)
names = st.sampled_from("abc")
pods = st.fixed_dictionaries(
    {
        "name": names,
        "request": st.fixed_dictionaries(
            {},
            optional={
                "cpu": st.sampled_from(["1", "2500m"]),
                "memory": st.sampled_from(["1G", "3G"]),
                "kubernetes.io/batch-cpu": st.just("90000"),
                "kubernetes.io/mid-cpu": st.just("500"),
            },
        ),
        "qos": st.sampled_from(["", "LSE", "LS", "BE", "wrong"]),
        "priority": st.sampled_from([None, 3500, 5500, 7500, 9500]),
        "phase": st.sampled_from(["", "Pending", "Running", "Succeeded"]),
        "annotations": st.sampled_from(
            [
                {},
                {RESOURCE_STATUS: '{"numaNodeResources":[{"node":1}]}'},
                {RESOURCE_STATUS: '{"numaNodeResources":[{"node":-1},{"node":99}]}'},
                {RESOURCE_STATUS: "{"},
            ]
        ),
    }
)
nodes = st.fixed_dictionaries(
    {
        "labels": st.sampled_from([{}, {"pool": "a"}, {f"{PREFIX}cpu-reclaim-ratio": "0.8"}]),
        "annotations": st.sampled_from(
            [
                {},
                {f"{PREFIX}colocation-strategy": '{"memoryReclaimThresholdPercent":90}'},
                {f"{PREFIX}colocation-strategy": '{"degradeTimeMinutes":0}'},
                {f"{PREFIX}reservation": '{"resources":{"cpu":"2"}}'},
                {f"{PREFIX}cpu-normalization-ratio": "1.50"},
                {
                    THIRD_PARTY: '{"allocations":[{"priority":"koord-batch","resources":'
                    '{"kubernetes.io/batch-cpu":"700"}}]}'
                },
                {ORIGIN: '{"resources":{"kubernetes.io/batch-cpu":"900","other":"1"}}'},
                {ORIGIN: "[]"},
            ]
        ),
    }
)
usages = st.lists(
    st.tuples(names, st.sampled_from(["1", "3500m", "90"])), unique_by=lambda one: one[0]
)
events = st.one_of(
    st.tuples(st.just("pod"), pods, st.sampled_from(["n1", "n2"])),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("node"), nodes),
    st.tuples(st.just("config"), st.sampled_from(CONFIGS)),
    st.tuples(st.just("report"), usages),
    st.tuples(st.just("zones"), st.sampled_from(ZONES)),
    st.tuples(st.just("devices"), st.sampled_from(DEVICES)),
)


BESIDE = {
    "zones": lambda bench: (bench.topologies, read_topology),
    "devices": lambda bench: (bench.devices, read_devices),
}


async def happen(bench, kind, what, where=""):
    if kind == "pod":
        manifest = pod(**what)
        manifest["spec"]["nodeName"] = where
        bench.put(kinds.POD, manifest)
    elif kind == "remove":
        bench.cluster.remove(kinds.POD, f"default/{what}", f"uid-{what}")
    elif kind == "node":
        bench.put(kinds.NODE, node(quantities(cpu=10, memory="10G"), **what))
    elif kind == "config":
        bench.config = config(**what)
    elif kind in ("zones", "devices"):
        place, read = BESIDE[kind](bench)
        place.pop("n1", None)
        if what is not None:
            place["n1"] = read(what)
    else:
        await bench.clock.advance(60)
        at = NOW - bench.clock.wall()
        found = [pod_usage(name, cpu, "1G") for name, cpu in what]
        bench.put(METRIC, report(node=usage(3, "3G"), system=usage(1, "1G"), pods=found, age=at))


def plain_sums(node):
    """Requests, usage, and the higher of the two, pod by pod."""
    shares = [one[:6] for one in counted_pods(node)]
    sums = [sum(column) for column in zip(*shares, strict=True)] or [0] * 6
    return tuple(Amounts(*sums[at : at + 2]) for at in (0, 2, 4))


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=12))
def test_what_is_kept_of_a_node_is_what_a_fresh_look_finds(happened):
    """After any events: classes of pods, sums, the strategy, what plugins say, what is offered."""

    async def check():
        bench, last = Bench(names=PLUGINS), CONFIGS[0]
        made, plain, history = plugins(), calculator(*PLUGINS), History()
        for event in happened:
            await happen(bench, *event)
            last = event[1] if event[0] == "config" else last
            await bench.resources.reconcile("n1")
            kept, result, short = bench.resources.explain("n1")
            cluster = bench.cluster

            def fresh(last=last, cluster=cluster):
                found, _ = gather_facts(
                    cluster.snapshot.node("n1"),
                    config(**last),
                    now=bench.clock.wall(),
                    report=cluster.reports["n1"],
                    seen=cluster.seen["n1"][1],
                    pods=cluster.pods_of_node("n1"),
                    topology=bench.topologies.get("n1"),
                    devices=bench.devices.get("n1"),
                )
                return found

            assert kept == fresh()
            assert kept.of_pods(count_pods) == count_pods(fresh().pods)
            assert sums_of_pods(kept) == plain_sums(fresh())
            assert short == insufficient_resources(result, fresh())
            for plugin in made:
                assert plugin.calculate(kept, NOTHING) == plugin.calculate(fresh(), NOTHING)
            plain.calculate(fresh(), history)
            assert result == plain.calculate(fresh(), copy.deepcopy(history))

    asyncio.run(check())


@pytest.mark.parametrize(
    ("event", "is_called"),
    [
        (("report", [("a", "1")]), False),
        (("pod", {"name": "a", "request": {"cpu": "1"}}, "n1"), True),
        (("node", {"labels": {"pool": "a"}}), True),
        (("config", CONFIGS[2]), True),
        (("zones", ZONES[1]), True),
        (("devices", DEVICES[1]), True),
    ],
)
def test_a_plugin_without_a_need_for_reports_is_called_when_something_else_changes(
    event, is_called
):
    calls = []

    class Other(NodeResourcePlugin):
        name, reads_reports = "Other", False

        def calculate(self, node, earlier):
            calls.append(node.name)
            return NOTHING

    async def check():
        bench = Bench()
        bench.resources._calculator = Calculator([Other()], declared=(), max_decrease_percent=30)
        await bench.resources.reconcile("n1")
        await happen(bench, *event)
        await bench.resources.reconcile("n1")

    asyncio.run(check())
    assert calls == ["n1"] * (1 + is_called)


def test_what_is_made_of_pods_is_kept_until_a_pod_changes_and_no_longer():
    bench = Bench()
    bench.put(kinds.POD, pod("a", quantities(cpu=1)))
    asyncio.run(bench.resources.reconcile("n1"))
    calls = []

    def count(pods):
        calls.append(len(pods))
        return len(pods)

    for change in (
        lambda: None,
        bench.report,
        lambda: bench.put(kinds.POD, pod("b", quantities(cpu=1))),
        lambda: bench.put(kinds.POD, pod("b", quantities(cpu=1))),
        lambda: bench.cluster.remove(kinds.POD, "default/a", "uid-a"),
    ):
        change()
        bench.resources.facts("n1").of_pods(count)

    assert calls == [1, 2, 1]
