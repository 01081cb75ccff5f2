"""The way of a pod from the watch event to its Binding: the files in which functions run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.daemon.run import FAMILIES, run_daemon
from koord_scheduler.daemon.settings import load_settings
from tests.support.clusters import node
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.kube.replicas import DaemonReplica, replicas
from tests.support.scheduler.replicas import NODES, PODS, pending, placed
from tests.support.ways import POD, Way, shipped_config, walk


async def test_a_pod_passes_the_files_of_its_way(
    tmp_path: Path, server: ApiServer, clock: SimulatedClock, pass_time: Callable[..., Any]
) -> None:
    """With the shipped configuration, after other pods, and without time passing."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())

    def make(directory: Path, config: str, *argv: str) -> DaemonReplica:
        replica = DaemonReplica(directory, clock, Exposition(FAMILIES, clock=clock))
        replica.config.write_text(config)
        replica.access.write_text(kubeconfig(server.url))
        flags = [f"--config={replica.config}", f"--port={replica.port}", "--secure-port=0", *argv]
        settings = load_settings(flags, {"KUBECONFIG": str(replica.access)}, discover=discover)
        replica.run(run_daemon(settings, replica.exposition, clock, stop=replica.stop))
        return replica

    for name in ("n1", "n2"):
        server.objects.create(NODES, node(name))
    for number in range(3):
        server.objects.create(PODS, pending(f"before-{number}"))
    way = Way()
    config = shipped_config("scheduler", "koord-scheduler.config")
    async with replicas(make, tmp_path, clock, config) as start:
        start()
        await pass_time(lambda: len(placed(server)) == 3, step=0.2)
        way.end_with(server, "POST", "/api/v1/namespaces/default/pods/web/binding")
        await walk(way, clock, lambda: server.objects.create(PODS, pending("web")))

    way.check(POD)
