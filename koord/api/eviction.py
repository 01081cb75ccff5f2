"""Outcomes of an eviction, and the API server's response to one."""

from dataclasses import dataclass
from enum import StrEnum


class EvictionOutcome(StrEnum):
    """The outcome of an eviction."""

    EVICTED = "evicted"  # the API server accepted it: the pod ends within its grace period
    WOULD_EVICT = "would_evict"  # dry-run: the API server would have been asked
    UNDER_WAY = "under_way"  # this pod's eviction was asked for at most two minutes ago
    GONE = "gone"  # the pod had ended, or another has its name by now
    REFUSED = "refused"  # a PodDisruptionBudget does not allow it now
    RATE_LIMITED = "rate_limited"  # the API server is busy
    OVER_BUDGET = "over_budget"  # this node has evicted enough in the past hour
    NOT_ALLOWED = "not_allowed"  # RBAC or an admission policy forbids it, or the pod is static
    FAILED = "failed"  # anything else; the pod may have been evicted all the same
    KILLED = "killed"  # its processes were killed (--evict-fallback=kill)
    IGNORED = "ignored"  # the pod still runs after its grace period, and is not killed
    NO_VICTIM = "no_victim"  # no request: none of the pods may be evicted
    NO_PRESSURE = "no_pressure"  # no request: usage alone is not reason enough
    NO_DATA = "no_data"  # no request: figures are missing or too old
    NOT_CONFIGURED = "not_configured"  # no request: the NodeSLO lacks what the feature needs


@dataclass(frozen=True, slots=True)
class EvictionResponse:
    """The API server's response to an eviction.

    retry_after is how many seconds it asked to wait, None when it asked for nothing. busy: not
    only this pod's eviction has to wait. certain False: the pod may have been evicted all the same.
    """

    outcome: EvictionOutcome
    message: str = ""
    retry_after: float | None = None
    busy: bool = False
    certain: bool = True
