"""Durations of hooks, under Koordinator's name."""

from prometheus_client import CollectorRegistry, Histogram

NAME = "koordlet_runtime_hook_invoked_duration_milliseconds"
_BUCKETS = tuple(0.01 * 4**power for power in range(8))  # milliseconds


def invocation_times(registry: CollectorRegistry) -> Histogram:
    """Return the histogram; a registry has one."""
    return Histogram(
        NAME,
        "Time a plugin took to decide on a pod that the container runtime asked about.",
        ("node", "hook", "stage", "status"),
        registry=registry,
        buckets=_BUCKETS,
    )
