"""How long a container runtime waits for the agent before it makes a container: NRI, 150 pods.

The runtime's side is the reference's own, in Go; times are its. Every CPU is busy with work of the
lowest priority, as best-effort pods have it beside the agent.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row
from benchmarks.tree import NotHereError
from tests.support.programs import NRI_RUNTIME
from tests.support.real_runtime.nri_node import Node, in_force, many_pods
from tests.support.real_runtime.nri_runtime import container

PODS = 150
_BURN = "while True: pass"


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the time of CreateContainer and of Synchronize."""
    if shutil.which("go") is None:
        raise NotHereError("needs go")
    NRI_RUNTIME.build()
    burn = [sys.executable, "-c", _BURN]
    burners = [subprocess.Popen(burn) for _ in range(os.cpu_count() or 1)]
    for burner in burners:
        os.setpriority(os.PRIO_PROCESS, burner.pid, 19)
    try:
        with tempfile.TemporaryDirectory(prefix="nri") as directory:
            node = Node(Path(directory), NRI_RUNTIME.binary)
            synchronized, times = asyncio.run(_measure(node, 50 if smoke else 1000))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    yield Row("NRI: CreateContainer, median", statistics.median(times), "ms")
    yield Row("NRI: CreateContainer, 99th percentile", statistics.quantiles(times, n=100)[98], "ms")
    yield Row(f"NRI: Synchronize of {PODS} pods", synchronized, "ms")


async def _measure(node: Node, containers: int) -> tuple[float, list[float]]:
    """Milliseconds of one Synchronize, and of so many CreateContainer, each adjusted."""
    sandboxes, running = many_pods(node, PODS)
    times = []
    async with node.runtime() as runtime:
        await runtime.start(sandboxes, running)
        async with node.daemon():
            synchronized = await runtime.next("synchronized")
            await in_force(node, PODS)
            for number in range(containers):
                pod = number % PODS
                made = await runtime.ask(
                    "create", pod=sandboxes[pod], container=container(f"p{pod}", f"new{number}")
                )
                if made["error"] or not made["reply"]["adjust"]["linux"]["resources"].get("memory"):
                    raise AssertionError(f"wanted an adjusted container, found {made}")
                times.append(made["micros"] / 1000)
    return synchronized["micros"] / 1000, times
