"""Metrics of gangs, with Koordinator's names.

Source: Koordinator, pkg/scheduler/metrics.
"""

from collections.abc import Callable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Gauge, Histogram

_BUCKETS = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)  # seconds


class Ending(StrEnum):
    """Why a gang group is not being placed any more; the first two are Koordinator's words."""

    PLACED = "gang is already succeed"
    EXHAUSTED = "all pending pods is already been attempted"
    NO_PLAN = "not all members have a node"
    FAILED = "a member cannot be placed as planned"
    UNDONE = "a member has given up its node"
    DISPLACED = "another gang group is placed"


class GangMetrics:
    """Metrics of the gangs of all profiles of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting: dict[str, Callable[[], int]] = {}  # by profile
        Gauge(
            "scheduler_waiting_gang_group_number",
            "Number of gang groups of which members wait for the others, on their nodes.",
            registry=registry,
        ).set_function(self._count_waiting)
        self.rounds = Histogram(
            "scheduler_gang_schedule_cycle_duration_seconds",
            "Duration of placing a gang group, from its plan to its end, by the reason of the end "
            "and the number of its members: 0, 1-100, 101-200 and so on, 1000+.",
            ["reason", "job_size"],
            buckets=_BUCKETS,
            registry=registry,
        )

    def count_waiting_by(self, profile: str, count: Callable[[], int]) -> None:
        """Have the gang groups of a profile that wait counted by a function from now on."""
        self._waiting[profile] = count

    def _count_waiting(self) -> int:
        return sum(count() for count in tuple(self._waiting.values()))


def job_size(members: int) -> str:
    """Return the range of a number of members, as Koordinator labels it."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    first = (members - 1) // 100 * 100
    return f"{first + 1}-{first + 100}"
