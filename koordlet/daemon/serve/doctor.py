"""All that `koordletctl doctor` shows: what the host has, and what the API server lets us do."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from koordlet.doctor.finding import Finding
from koordlet.doctor.support import Claimable, findings
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths

if TYPE_CHECKING:
    from koord.kube.ownnode import OwnNodeCheck

_FIX = (
    "apply deploy/admission.yaml on Kubernetes 1.30 or newer; this agent's ClusterRole has to have "
    "the verb write-own-node-only for nodemetrics, as in deploy/rbac.yaml"
)


class Doctor:
    """Looks anew each time.

    claimable: what plugins of third parties may claim. check_own_node asks the API server; None:
    there is none.
    """

    def __init__(
        self,
        paths: HostPaths,
        run_dir: Path,
        claimable: Callable[[], Sequence[Claimable]],
        check_own_node: Callable[[], Awaitable["OwnNodeCheck"]] | None,
    ) -> None:
        self._paths = paths
        self._run_dir = run_dir
        self._claimable = claimable
        self._check_own_node = check_own_node

    async def look(self) -> Sequence[Mapping[str, object]]:
        """Return the findings. The kernel is looked at in a worker thread."""
        claimable = self._claimable()
        found = await asyncio.to_thread(
            lambda: findings(Host(self._paths), self._run_dir, claimable)
        )
        if self._check_own_node is not None:
            found.append(_own_node(await self._check_own_node()))
        return [asdict(finding) for finding in found]


def _own_node(check: "OwnNodeCheck") -> Finding:
    fix = _FIX if check.holds is False else ""
    return Finding("cluster", "own node's objects only", check.holds, (), check.detail, fix)
