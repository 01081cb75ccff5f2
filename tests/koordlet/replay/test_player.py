"""Plugins meet a record as they would have met the node."""

import inspect

import pytest
from prometheus_client import CollectorRegistry

from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import KubeQoS
from koord.util.clock import Stamp
from koord.util.simulatedclock import SimulatedClock
from koordlet.metriccache import kinds
from koordlet.metriccache.kinds import Sample
from koordlet.plugin import ClaimScope, ExtensionPlugin, Level, Target, resources
from koordlet.plugin.base import PluginContext
from koordlet.plugin.kernel import ChoiceForm, ClaimState, IntegerForm, IntegerOrMaxForm, KernelFile
from koordlet.plugin.metrics import PluginMetrics
from koordlet.plugin.testing import CapturedLog, make_pod
from koordlet.replay.player import Player, as_json, compare
from koordlet.replay.record_format import LineKind, SampleWriter, encode, read_line, write_line

FACTS = {"driver": "cgroupfs", "root": "kubepods"}
BE = KubeQoS.BEST_EFFORT
GROUP = "kubepods/besteffort"
CPU, NETWORK = kinds.NODE_CPU_USAGE, kinds.NODE_NETWORK_RECEIVE
BUSY = [1.0] * 5 + [3.5] * 10 + [1.0] * 5  # cores of the node, second by second


def slo(threshold):
    """A NodeSLO as a spec."""
    return {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": threshold}}


class Squeeze(ExtensionPlugin):
    """Half a core for best-effort pods while the node of 4 cores uses more than the threshold."""

    may_claim = (ClaimScope(resources.CPU_QUOTA, Level.QOS),)

    def setup(self, client, metric_cache, states_informer):
        self.cache, self.states, self.seen = metric_cache, states_informer, []

    async def run(self, stop):
        target = Target.qos_class(self.kernel.layout, BE)
        async for _ in stop.every(1.0):
            used, limits = self.cache.last(kinds.NODE_CPU_USAGE), self.states.node_slo()
            if used is None or limits is None:
                continue
            self.seen.append(await self.kernel.read(resources.CPU_QUOTA, GROUP))
            if used / 4 * 100 > limits.threshold.cpu_suppress_threshold_percent:
                await self.claim(target, resources.CPU_QUOTA, 50000, reason="the node is busy")
            else:
                await self.withdraw(target, resources.CPU_QUOTA)


class Evict(ExtensionPlugin):
    """Ends the first pod it sees."""

    def setup(self, client, metric_cache, states_informer):
        self.cache, self.states, self.usage = metric_cache, states_informer, []

    async def run(self, stop):
        async for _ in stop.every(1.0):
            for pod in self.states.pods()[:1]:
                await self.evict(pod, reason="first")
            self.usage.append(self.cache.last_values(kinds.POD_CPU_USAGE))


class Watch(ExtensionPlugin):
    """Looks ten times a second."""

    def setup(self, client, metric_cache, states_informer):
        self.seen = []

    async def run(self, stop):
        reads = [(resources.CPU_USAGE, GROUP)]
        while not stop.is_set():
            await self.kernel.watch(reads, 0.1, self.notice, 1.0)

    def notice(self, readings):
        [reading] = readings
        if reading and reading.value not in [value for value, _ in self.seen]:
            self.seen.append((reading.value, self.clock.monotonic()))
        return False


class Ask(ExtensionPlugin):
    """Asks the same each second."""

    def __init__(self, question):
        self.question, self.answers = question, []

    def setup(self, client, metric_cache, states_informer):
        self.cache = metric_cache

    async def run(self, stop):
        async for _ in stop.every(1.0):
            answer = self.question()
            self.answers.append(await answer if inspect.isawaitable(answer) else answer)


class Broken(ExtensionPlugin):
    """Fails at once."""

    def setup(self, client, metric_cache, states_informer):
        """Needs nothing."""

    async def run(self, stop):
        raise RuntimeError("out of ideas")


def record(*, threshold=65):
    """The lines of a node that is busy for ten of twenty seconds."""
    pods = [make_pod("p1")]
    yield write_line(LineKind.STATE, "node", encode(Node("n1", capacity={"cpu": "4"})))
    yield write_line(LineKind.STATE, "pods", encode(pods))
    yield write_line(LineKind.STATE, "node_slo", slo(threshold))
    yield write_line(LineKind.READ, 500.0, "cpu_quota", GROUP, -1)
    writer = SampleWriter()
    for second, cores in enumerate(BUSY):
        samples = [
            Sample(kinds.NODE_CPU_USAGE, cores),
            Sample(kinds.POD_CPU_USAGE, 0.5, ("p1",)),
        ]
        at = Stamp(1_700_000_000.0 + second, 1000.0 + second)
        yield from writer.lines(at, 500.0 + second, samples)
    change = {"what": "set", "resource": "cpu_quota", "place": GROUP, "plugins": ["Squeeze"]}
    yield write_line(LineKind.CHANGE, 1006.0, {**change, "unit": "us", "old": -1, "new": 80000})
    yield write_line(
        LineKind.CHANGE, 1012.0, {**change, "what": "restored", "old": 80000, "new": -1}
    )


async def play(lines, *plugins, in_force=(), **options):
    """Play lines to plugins that are prepared as the command does."""
    clock = SimulatedClock()
    by_name = {type(plugin).__name__: plugin for plugin in plugins}
    for name, plugin in by_name.items():
        plugin.name = name
        plugin.bind(
            PluginContext(
                log=CapturedLog(),
                metrics=PluginMetrics(name, CollectorRegistry()),
                clock=clock,
                gate_is_on=lambda gate: True,
            )
        )
    player = Player(FACTS, in_force, clock=clock, plugins=by_name, **options)
    return await player.play(read_line(line, "test") for line in lines)


async def test_what_was_done_beside_what_would_be():
    """The plugin decides by the recorded samples and states, in the recorded time."""
    plugin = Squeeze()
    [row] = compare(await play(record(), plugin))

    assert (row.place, row.resource, row.plugins) == (GROUP, "cpu_quota", ("Squeeze",))
    assert (row.done.changes, row.done.seconds, row.done.mean) == (2, 6.0, 80000)
    assert (row.would.changes, row.would.lowest, row.would.highest) == (2, 50000, 50000)
    assert row.would.seconds == pytest.approx(10, abs=1.1)
    assert set(plugin.seen) == {-1, 50000}


async def test_what_was_in_force_before_counts_as_done():
    """From the beginning, without a change; a value that is what it was before does not."""

    def value(resource, now, state="in force"):
        claims = [{"plugin": "Squeeze", "reason": "busy", "inputs": {}}]
        return {
            "resource": resource,
            "unit": "us",
            "level": "qos",
            "target": GROUP,
            "pod": "",
            "value": now,
            "original": -1,
            "state": state,
            "claims": claims,
        }

    before = [value("cpu_quota", 2000), value("cpu_burst", -1), value("cpu_shares", 2, "failed")]
    [row] = compare(await play(record(), Squeeze(), in_force=before))

    assert row.resource == "cpu_quota"
    # Held at 2000 for six seconds, at 80000 for six, then restored.
    assert (row.done.changes, row.done.seconds, row.done.mean) == (2, 12.0, 41000)
    assert row.would.lowest == 50000


async def test_what_was_watched_is_seen_in_its_time():
    """A look is recorded after the watch, behind later samples."""
    plugin = Watch()
    looks = [
        write_line(LineKind.READ, 502.0 + look / 10, "cpu_usage", GROUP, look)
        for look in range(1, 10)
    ]
    lines = list(record())
    at = next(n for n, line in enumerate(lines) if b"503.0," in line)
    lines[at + 1 : at + 1] = looks
    await play(lines, plugin)

    assert [value for value, _ in plugin.seen] == list(range(1, 10))
    assert all(0 <= now - value / 10 - 502 < 0.11 for value, now in plugin.seen)


async def test_another_nodeslo():
    """The recorded one does not count."""
    other, _ = merge_nodeslo({"spec": slo(95)})
    played = await play(record(), Squeeze(), slo=other)

    assert played.would == []
    assert [row.would.changes for row in compare(played)] == [0]


async def test_an_evicted_pod_is_gone():
    """Its samples, too; and it is asked for once."""
    plugin = Evict()
    played = await play(record(), plugin)

    [decision] = as_json(played)["evictions"]["would"]
    assert (decision["pod"], decision["outcome"]) == ("default/p1", "evicted")
    assert plugin.usage[-1] == {}


async def test_a_plugin_that_fails_is_reported():
    """And the others go on."""
    played = await play(record(), Broken(), Squeeze())

    assert played.problems == ["plugin Broken: RuntimeError('out of ideas')"]
    assert len(played.would) == 2


async def test_lines_that_make_no_sense_are_reported_and_left_out():
    """A record of another version may have such."""
    lines = list(record())
    lines[3:3] = [
        write_line(LineKind.STATE, "pods", [{"pod": None}]),
        write_line(LineKind.TICK, 1),
        write_line(LineKind.READ, 500.0, "cpu_mood", GROUP, 7),
        write_line(LineKind.LOST, 12),
    ]
    played = await play(lines, Squeeze())

    assert len(played.would) == 2
    assert played.lost == 12
    assert [problem.split(":")[0] for problem in played.problems] == [
        "state at 1000 s",
        "tick at 1000 s",
    ]


PIDS = KernelFile("pids.max", "tasks", IntegerOrMaxForm(16, 4_194_304))
SWAPPINESS = KernelFile("/proc/sys/vm/swappiness", "percent", IntegerForm(0, 100))
MOOD = KernelFile("misc.mood", "a word", ChoiceForm(("calm", "wild")))


class OwnFiles(ExtensionPlugin):
    """Claims kernel files of its own from the fifth second on."""

    may_claim = (
        ClaimScope(PIDS, Level.QOS),
        ClaimScope(MOOD, Level.QOS),
        ClaimScope(SWAPPINESS, Level.NODE),
    )
    tasks = 512

    def setup(self, client, metric_cache, states_informer):
        self.seen, self.outcomes = [], []

    async def run(self, stop):
        group = Target.qos_class(self.kernel.layout, BE)
        wanted = ((group, PIDS, self.tasks), (group, MOOD, "calm"), (Target.node(), SWAPPINESS, 10))
        async for second in count(stop.every(1.0)):
            reads = [(resource, target.place) for target, resource, _ in wanted]
            readings = await self.kernel.read_many(reads)
            self.seen.append(tuple(reading and reading.value for reading in readings))
            if second >= 5:
                self.outcomes = [
                    await self.claim(target, resource, value, reason="why not")
                    for target, resource, value in wanted
                ]


async def count(items):
    """Number the items of an asynchronous iterator."""
    number = 0
    async for _ in items:
        yield number
        number += 1


def own_files_record():
    """A recorded OwnFiles had set all three before; its originals are in the changes."""
    yield from list(record())[:3]
    for name, group, value in (("pids.max", GROUP, -1), ("misc.mood", GROUP, "wild")):
        yield write_line(LineKind.READ, 500.0, name, group, value)
    yield write_line(LineKind.READ, 500.0, SWAPPINESS.name, "", 60)
    for name, level, place, old, new in (
        ("pids.max", "qos", GROUP, -1, 256),
        ("misc.mood", "qos", GROUP, "wild", "calm"),
        (SWAPPINESS.name, "node", "node", 60, 1),
    ):
        change = {"what": "set", "resource": name, "level": level, "place": place}
        yield write_line(
            LineKind.CHANGE, 1002.0, {**change, "plugins": ["P"], "old": old, "new": new}
        )
    for name, group, value in (("pids.max", GROUP, 256), (SWAPPINESS.name, "", 1)):
        yield write_line(LineKind.READ, 503.0, name, group, value)
    writer = SampleWriter()
    for second in range(10):
        at = Stamp(1_700_000_000.0 + second, 1000.0 + second)
        yield from writer.lines(at, 500.0 + second, [Sample(kinds.NODE_CPU_USAGE, 1.0)])


async def test_kernel_files_of_a_plugin_s_own():
    """They are read, claimed and compared as those of the table are, sysctls of the node too."""
    plugin = OwnFiles()
    played = await play(own_files_record(), plugin)

    assert played.problems == []
    assert set(plugin.seen[1:]) == {(-1, "wild", 60), (512, "calm", 10)}
    rows = {row.resource: row for row in compare(played)}
    assert rows.keys() == {"pids.max", "misc.mood", SWAPPINESS.name}
    assert (rows["pids.max"].place, rows["pids.max"].would.highest) == (GROUP, 512)
    assert (rows[SWAPPINESS.name].place, rows[SWAPPINESS.name].would.lowest) == ("node", 10)
    assert rows[SWAPPINESS.name].done.lowest == 1
    assert [row.would.changes for row in rows.values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("level", "target", "place"), [("node", "node", ""), ("process", "process 4711", "4711")]
)
async def test_a_value_of_node_or_process_in_force_before_is_not_seen(level, target, place):
    """What was there before the recorded daemon is, as with the values of cgroups."""
    value = {
        "resource": SWAPPINESS.name if level == "node" else "oom_score_adj",
        "unit": "x",
        "level": level,
        "target": target,
        "pod": "",
        "value": 10,
        "original": 60,
        "state": "in force",
        "claims": [{"plugin": "P", "reason": "r", "inputs": {}}],
    }
    row = SWAPPINESS if level == "node" else resources.OOM_SCORE_ADJ
    plugin = Ask(lambda: plugin.kernel.read(row, place))
    read = write_line(LineKind.READ, 500.0, row.name, place, 10)
    await play([*record(), read], plugin, in_force=[value])

    assert set(plugin.answers) == {60}


async def test_a_value_that_does_not_fit_its_file_fails():
    """As it does on a node, before the kernel is asked."""
    plugin = OwnFiles()
    plugin.tasks = 7
    played = await play(own_files_record(), plugin)

    assert plugin.outcomes[0].state is ClaimState.FAILED
    assert "pids.max: wanted" in plugin.outcomes[0].message
    assert plugin.seen[-1] == (-1, "calm", 10)
    assert [row.would.changes for row in compare(played) if row.resource == "pids.max"] == [0]


async def test_samples_count_as_long_as_with_the_daemon_s_default_intervals():
    """The network is looked at every five seconds, so its last value holds for ten."""
    plugin = Ask(lambda: (plugin.cache.last(NETWORK, "eth0"), plugin.cache.last(CPU)))
    writer = SampleWriter()
    samples = [Sample(CPU, 1.0), Sample(NETWORK, 7.0, ("eth0",))]
    lines = list(record())[:3]
    lines += writer.lines(Stamp(1_700_000_000.0, 1000.0), 500.0, samples)
    lines.append(write_line(LineKind.TICK, 1_700_000_012.0, 1012.0, 512.0, {}))
    await play(lines, plugin)

    assert (plugin.answers[9], plugin.answers[-1]) == ((7.0, None), (None, None))
