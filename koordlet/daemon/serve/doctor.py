"""All that `koordletctl doctor` shows: what the host has, and what the API server lets us do."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from koordlet.doctor.finding import Finding
from koordlet.doctor.support import Claimable, findings
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths

if TYPE_CHECKING:
    from koord.kube.ownnode import AdmissionCheck

_FIX = (
    "apply deploy/admission.yaml on Kubernetes 1.30 or newer; this agent's ClusterRole has to have "
    "the verb write-own-node-only for nodemetrics, as in deploy/rbac.yaml"
)


class ClusterChecks(Protocol):
    """Tries what the API server refuses; koordlet.daemon.cluster.cluster.Cluster."""

    @property
    def check_own_node(self) -> Callable[[], Awaitable["AdmissionCheck"]]: ...

    @property
    def check_pod_allocations(self) -> Callable[[], Awaitable["AdmissionCheck"]]: ...


class Doctor:
    """Looks anew each time.

    claimable: what plugins of third parties may claim. cluster asks the API server; None: there is
    none.
    """

    def __init__(
        self,
        paths: HostPaths,
        run_dir: Path,
        claimable: Callable[[], Sequence[Claimable]],
        cluster: "ClusterChecks | None",
    ) -> None:
        self._paths = paths
        self._run_dir = run_dir
        self._claimable = claimable
        self._cluster = cluster

    async def look(self) -> Sequence[Mapping[str, object]]:
        """Return the findings. The kernel is looked at in a worker thread."""
        claimable = self._claimable()
        found = await asyncio.to_thread(
            lambda: findings(Host(self._paths), self._run_dir, claimable)
        )
        if self._cluster is not None:
            # Both at once: koordletctl waits no longer than one of them may take, and a little.
            own_node, allocations = await asyncio.gather(
                self._cluster.check_own_node(), self._cluster.check_pod_allocations()
            )
            found += (_own_node(own_node), _allocations(allocations))
        return [asdict(finding) for finding in found]


def _own_node(check: "AdmissionCheck") -> Finding:
    fix = _FIX if check.holds is False else ""
    return Finding("cluster", "own node's objects only", check.holds, (), check.detail, fix)


def _allocations(check: "AdmissionCheck") -> Finding:
    fix = "add the component pod-allocations of deploy" if check.holds is False else ""
    name = "schedulers alone give pods CPUs and devices"
    return Finding("cluster", name, check.holds, (), check.detail, fix)
