"""Durations of reconciling the cgroups of pods, under Koordinator's name."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from koordlet.executor.claims.claim import Claim, ClaimOutcome, ClaimState
from koordlet.executor.claims.target import Level
from koordlet.host.resource import Resource

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram

    from koordlet.plugin.metrics import PluginMetrics

AHEAD = "koordlet_runtime_hook_invoked_duration_milliseconds"
NAME = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds"
BUCKETS = tuple(0.01 * 4**power for power in range(8))  # milliseconds
_LEVELS = {
    Level.QOS: "kubeqos",
    Level.POD: "pod",
    Level.CONTAINER: "container",
    Level.PROCESS: "container",
}


def ahead_times(registry: "CollectorRegistry") -> "Histogram":
    """Return the durations of decisions on pods that are not there yet; a registry has one."""
    from prometheus_client import Histogram

    return Histogram(
        AHEAD,
        "Time a plugin took to decide on a pod that the container runtime asked about.",
        ("node", "hook", "stage", "status"),
        registry=registry,
        buckets=BUCKETS,
    )


class ReconcileTimes:
    """Times of the calls that brought claims into force, of all reconciling plugins together.

    A call counts once for each level and resource among its claims.
    """

    def __init__(self, metrics: "PluginMetrics") -> None:
        self._times = metrics.shared_histogram(
            NAME,
            "Time to bring the claims of a pod or class into force, when they have changed.",
            BUCKETS,
            ("node", "level", "resource_type", "status"),
        )

    def observe(
        self,
        node: str,
        claims: Iterable[Claim],
        outcomes: Iterable[ClaimOutcome],
        *,
        seconds: float,
        sandbox: str = "",
    ) -> None:
        """Count a call. sandbox: the cgroup that is not counted as a container's."""
        seen = set()
        for claim, outcome in zip(claims, outcomes, strict=True):
            target_level = claim.target.level
            level = _LEVELS.get(target_level, target_level.value)
            if sandbox and claim.target.place == sandbox:
                level = "sandbox"
            resource = _file(claim.resource)
            failed = outcome.state is ClaimState.FAILED
            seen.add((node, level, resource, "failed" if failed else "succeeded"))
        for labels in seen:
            self._times.labels(*labels).observe(seconds * 1000)


def _file(resource: Resource[Any]) -> str:
    """The file of cgroup v1, by which Koordinator names resources; of v2 where v1 has none.

    The resource's own name where it is no file.
    """
    name = resource.files[min(resource.files)].name.rpartition("/")[2]
    return resource.name if "{}" in name or not name else name
