"""A Node made from this host, its name, CPUs and memory, where no other source describes it."""

import asyncio
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from koord.api.nodes.node import Node
from koord.util.clock import Clock
from koord.util.health import PartHealth
from koord.util.stop import Stop
from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file
from koordlet.host.proc.procfiles import parse_meminfo, parse_per_cpu_ticks
from koordlet.statesinformer.condition import Condition
from koordlet.statesinformer.informer import StatesInformer

T = TypeVar("T")

INTERVAL = 60.0  # seconds between two looks: CPUs and memory can be plugged in

_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class HostNode:
    """Publishes a Node made from /proc, with the labels that every kubelet sets.

    A resource that cannot be read is absent from its capacity. All capacity is allocatable.
    """

    name = "node"

    def __init__(self, node_name: str, proc: Path, informer: StatesInformer, clock: Clock) -> None:
        self._node_name = node_name
        self._proc = proc
        self._informer = informer
        self._condition = Condition(self.name, clock, silence=3 * INTERVAL)
        self._problems: list[str] = []

    async def run(self, stop: Stop) -> None:
        """Look at the host until stop."""
        self._condition.begin()
        async for _ in stop.every(INTERVAL):
            self._informer.set_node(await asyncio.to_thread(self._look))
            self._condition.finish(tuple(self._problems))

    def health(self) -> PartHealth:
        """Degraded while CPUs or memory cannot be read."""
        return self._condition.health()

    def _look(self) -> Node:
        self._problems = []
        capacity: dict[str, str] = {}
        cpus = self._read("stat", parse_per_cpu_ticks)
        if cpus is not None:
            capacity["cpu"] = str(len(cpus))
        memory = self._read("meminfo", parse_meminfo)
        if memory is not None:
            capacity["memory"] = f"{memory.total // 1024}Ki"
        return Node(self._node_name, self._labels(), {}, capacity, capacity)

    def _labels(self) -> dict[str, str]:
        machine = platform.machine()
        return {
            "kubernetes.io/arch": _GO_ARCHITECTURES.get(machine, machine),
            "kubernetes.io/hostname": self._node_name,
            "kubernetes.io/os": "linux",
        }

    def _read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse_file(self._proc / name, parse)
        except KernelFileError as err:
            self._problems.append(str(err))
            return None
