"""python -m benchmarks.demo: hot nodes, koord-descheduler, koord-scheduler, even nodes.

Eight nodes in memory; after an outage all pods run on two of them. koord-descheduler reads the
NodeMetrics and moves pods (LowNodeLoad, EvictDirectly), koord-scheduler places what the ReplicaSets
make anew (LoadAwareScheduling, NetworkTraffic). No Kubernetes, no root; Go builds the API server.

Exit status: 0 when no node is hot any more and no pod waits, 1 when that took too long.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

from benchmarks.bed.running import Bed
from benchmarks.demo.agents import Agents
from benchmarks.demo.configs import HIGH, LOW, descheduler_config, scheduler_config
from benchmarks.demo.screen import Screen
from benchmarks.demo.world import App, World
from benchmarks.tree import NotHereError
from koord.kube.client import ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.transport import Limits, Transport
from koord.util.clock import SystemClock
from koord.util.logs import LevelSpec, configure

NODES = tuple(f"worker-{number}" for number in range(1, 9))
CROWDED = 2  # nodes that all pods are on in the beginning
BUSY_LINK = {"worker-3": 105e6}  # of what is cool otherwise; bytes per second
QUIET = 2e6
APPS = (App("web", 8, 0.5, 0.9), App("api", 8, 0.4, 0.5), App("report", 6, 0.5, 0.3))
STEP = 0.5  # seconds
REPORT = 2.0  # seconds between NodeMetrics; 60 in a cluster
CALM = 8.0  # seconds without a hot node and without a pending pod, then it is done


async def demo(bed: Bed, seconds: float) -> bool:
    """Run it; return whether the cluster came to rest in that time."""
    config = ApiConfig(server=bed.url, source="demo", token="bed")
    clock = SystemClock()
    client = ApiClient(Transport(config, clock, limits=Limits(qps=0)), clock)
    traffic = {name: BUSY_LINK.get(name, QUIET) for name in NODES}
    world = World(client, NODES, {app.name: app for app in APPS}, traffic)
    agents = Agents(traffic)
    await agents.start()
    try:
        await world.make(CROWDED)
        bin_ = Path(sys.executable).parent
        for name, document in (
            ("koord-scheduler", scheduler_config(str(bed.kubeconfig))),
            ("koord-descheduler", descheduler_config(str(bed.kubeconfig))),
        ):
            bed.run_beside(
                name, [str(bin_ / name), "--config={config}", "--secure-port=0"], document
            )
        with Screen(world, LOW, HIGH) as screen:
            return await _watch(world, screen, bed, seconds)
    finally:
        await agents.close()
        await client.close()


async def _watch(world: World, screen: Screen, bed: Bed, seconds: float) -> bool:
    screen.say(f"after an outage all {len(world.pods)} pods are on {CROWDED} nodes")
    screen.table()
    end = time.monotonic() + seconds
    calm_since = None
    while time.monotonic() < end:
        for text in await world.step(REPORT):
            screen.say(text)
        bed.check_all()
        screen.draw()
        hot = [name for name in world.nodes if world.share(name) > HIGH]
        pending = any(not pod.running for pod in world.pods.values())
        now = time.monotonic()
        calm_since = None if hot or pending else calm_since or now
        if calm_since is not None and now - calm_since >= CALM:
            screen.say("no node is hot, and no pod waits")
            screen.table()
            return True
        await asyncio.sleep(STEP)
    screen.say(f"not at rest after {seconds:g} s")
    screen.table()
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=120, help="at most; default 120")
    parser.add_argument("--port", type=int, default=29100, help="of the API server")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    options = parser.parse_args()
    configure("console", LevelSpec("error"), "demo")
    try:
        with Bed(port=options.port, keep=options.keep) as bed:
            return 0 if asyncio.run(demo(bed, options.seconds)) else 1
    except NotHereError as err:
        print(err, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
