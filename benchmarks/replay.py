"""Replay: the time to play a second of a full node, and the size of its record."""

import asyncio
import gzip
import random
import time
from collections.abc import Iterator, Sequence

from benchmarks.table import Row
from koord.api.node import Node
from koord.api.pod import Container
from koord.api.qos import KubeQoS
from koord.util.clock import Stamp
from koord.util.simulatedclock import SimulatedClock
from koordlet.cli.ctl.replay import prepare_plugins
from koordlet.metriccache.kinds import (
    CONTAINER_CPU_THROTTLED,
    CONTAINER_CPU_USAGE,
    CONTAINER_MEMORY_USAGE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    SYS_CPU_USAGE,
    Sample,
)
from koordlet.plugin.testing import make_pod
from koordlet.replay.player import Player
from koordlet.replay.record_format import LineKind, SampleWriter, encode, read_line, write_line
from koordlet.statesinformer.podmeta import PodMeta

PODS, CONTAINERS = 150, 2
GATES = ["BECPUSuppress", "CPUBurst", "CgroupReconcile", "MemoryEvict", "PressureWatch"]
FACTS = {"driver": "cgroupfs", "root": "kubepods", "gates": GATES}


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the time that a second of 150 pods takes, and the size of its lines."""
    seconds = 60 if smoke else 600
    lines = list(_record(seconds))
    size = sum(map(len, lines))
    packed = len(gzip.compress(b"".join(lines)))
    began = time.perf_counter()
    asyncio.run(_play(lines))
    took = time.perf_counter() - began
    name = f"replay of a second, {PODS} pods"
    yield Row(name, took / seconds * 1000, "ms", 5.0, 1000.0 * seconds, "ms of real time")
    yield Row(
        f"record of a second, {PODS} pods",
        packed / seconds,
        "bytes",
        None,
        size / seconds,
        "bytes uncompressed",
    )


def _record(seconds: int) -> Iterator[bytes]:
    """The lines of a node whose every pod and container is busy, each second anew."""
    qos = (KubeQoS.BURSTABLE, KubeQoS.BEST_EFFORT)
    containers = tuple(Container(f"c{number}") for number in range(CONTAINERS))
    pods = [make_pod(f"p{n}", qos=qos[n % 2], containers=containers) for n in range(PODS)]
    node = Node("n1", capacity={"cpu": "64", "memory": "256Gi"})
    yield write_line(LineKind.STATE, "node", encode(node))
    yield write_line(LineKind.STATE, "pods", encode(pods))
    threshold = {"enable": True, "cpuSuppressPolicy": "cfsQuota"}
    yield write_line(LineKind.STATE, "node_slo", {"resourceUsedThresholdWithBE": threshold})
    writer, dice = SampleWriter(), random.Random(1)
    for second in range(seconds):
        at = Stamp(1_700_000_000.0 + second, 1000.0 + second)
        yield from writer.lines(at, 500.0 + second, list(_samples(pods, dice)))
        yield from _looks(500.0 + second, dice)


def _looks(at: float, dice: random.Random) -> Iterator[bytes]:
    """The kernel values that BECPUSuppress reads in a second."""
    for look in range(10):
        for resource, group in (
            ("cpu_usage", "kubepods/besteffort"),
            ("cpu_usage", "kubepods"),
            ("root_cpu_usage", ""),
        ):
            nanoseconds = int((at + look / 10) * 1e9 * (20 + dice.random()))
            yield write_line(LineKind.READ, at + look / 10, resource, group, nanoseconds)


def _samples(pods: Sequence[PodMeta], dice: random.Random) -> Iterator[Sample]:
    used = 40 + 20 * dice.random()
    yield Sample(NODE_CPU_USAGE, used)
    yield Sample(SYS_CPU_USAGE, 2.0)
    yield Sample(NODE_MEMORY_USAGE, 2.0**37)
    for pod in pods:
        yield Sample(POD_CPU_USAGE, used / PODS, (pod.uid,))
        yield Sample(POD_MEMORY_USAGE, 2.0**29, (pod.uid,))
        for container in pod.containers:
            key = (container.container_id,)
            yield Sample(CONTAINER_CPU_USAGE, used / PODS / CONTAINERS, key)
            yield Sample(CONTAINER_MEMORY_USAGE, 2.0**28 * dice.random(), key)
            yield Sample(CONTAINER_CPU_THROTTLED, dice.random(), key)


async def _play(lines: list[bytes]) -> None:
    clock = SimulatedClock()
    plugins = prepare_plugins(FACTS, clock)
    player = Player(FACTS, [], clock=clock, plugins=plugins)
    played = await player.play(read_line(line, "benchmark") for line in lines)
    if played.problems:
        raise RuntimeError(played.problems)
