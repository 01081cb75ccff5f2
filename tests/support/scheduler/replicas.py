"""Whole schedulers in the test's own loop: a scripted API server, simulated time, few plugins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from koord.component.http.exposition import Exposition
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.daemon.run import FAMILIES, run_daemon
from koord_scheduler.daemon.settings import Settings, load_settings
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.profile import PluginRegistry
from koord_scheduler_plugins.default_binding import DefaultBinder
from tests.support.clusters import pod
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.replicas import DaemonReplica
from tests.support.scheduler.framework import FirstCome, FreeCpu

LEASE = "koordinator-system/koord-scheduler"
NODES, PODS = "/api/v1/nodes", "/api/v1/pods"

HEAD = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
"""
SIMPLE = HEAD + "profiles: [{schedulerName: koord-scheduler}]\n"
ALONE = SIMPLE + "leaderElection: {leaderElect: false}\n"
KOORDINATORS_FLAGS = (
    "--logtostderr=true",
    "--authentication-skip-lookup=true",
    "--v=4",
    "--feature-gates=",
    "--enable-network-topology-manager=true",
)
"""Arguments of Koordinator's shipped Deployment, but for port and file."""


class Fit(FreeCpu):
    """Needs free cpu."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""


class Sort(FirstCome):
    """The oldest first."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""


class Broken(FreeCpu):
    """Cannot be made."""

    def __init__(self, args: Any, handle: Handle) -> None:
        raise ValueError("it is broken")


class Replica(DaemonReplica):
    """One scheduler."""

    def __init__(
        self, directory: Path, server: ApiServer, clock: SimulatedClock, config: str, *argv: str
    ) -> None:
        super().__init__(directory, clock, Exposition(FAMILIES, clock=clock))
        self.config.write_text(config)
        self.access.write_text(kubeconfig(server.url))
        flags = [f"--config={self.config}", f"--port={self.port}", "--secure-port=0", *argv]
        self.settings: Settings = load_settings(
            flags, {"KUBECONFIG": str(self.access)}, discover=small_registry
        )
        self.run(run_daemon(self.settings, self.exposition, clock, stop=self.stop))


def small_registry(registry: PluginRegistry) -> list[str]:
    """Register what a profile needs at least."""
    registry.register("PrioritySort", Sort)
    registry.register("NodeResourcesFit", Fit)
    registry.register("DefaultBinder", DefaultBinder)
    registry.register("Mine", Fit)
    registry.register("Broken", Broken)
    return []


def pending(name: str, cpu: str = "1", scheduler: str = "koord-scheduler") -> dict[str, Any]:
    """A pod that waits for a scheduler."""
    made = pod(name, requests={"cpu": cpu}, schedulerName=scheduler)
    return {**made, "status": {"phase": "Pending"}}


def placed(server: ApiServer) -> dict[str, str]:
    """The nodes of all pods that are bound, by the pods' names."""
    return {
        one["metadata"]["name"]: one["spec"]["nodeName"]
        for one in server.objects.all(PODS)
        if one["spec"].get("nodeName")
    }


Start = Callable[..., Replica]
