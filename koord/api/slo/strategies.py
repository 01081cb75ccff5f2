"""The node-wide strategies of a NodeSLO, effective: defaults filled in.

None is a value that is not set; what that means stands beside the field. The limits are those of
the CRD, so that configuration from a file or a ConfigMap is held to what the API server demands;
where it has none, what the agent could not make sense of.

Source: Koordinator, apis/slo/v1alpha1 and pkg/util/sloconfig.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from koord.api.decoding.jsonvalues import (
    INT32,
    NOT_NEGATIVE,
    PERCENT,
    POSITIVE,
    at_least,
    between,
    words,
)
from koord.api.decoding.wire import wire
from koord.api.quantity import Quantity


class CPUSuppressPolicy(StrEnum):
    """The policy that keeps best-effort pods below their share of the CPU."""

    CPUSET = "cpuset"
    CFS_QUOTA = "cfsQuota"
    CPU_IDLE = "cpuIdle"  # not Koordinator's, whose agent takes it as cpuset


class CPUEvictPolicy(StrEnum):
    """The base of the satisfaction of best-effort pods."""

    BY_REAL_LIMIT = "evictByRealLimit"
    BY_ALLOCATABLE = "evictByAllocatable"


class CPUBurstPolicy(StrEnum):
    """The ways to burst that are used, of two."""

    NONE = "none"
    CPU_BURST_ONLY = "cpuBurstOnly"
    CFS_QUOTA_BURST_ONLY = "cfsQuotaBurstOnly"
    AUTO = "auto"  # both


_SWITCH = between(0, 1)
_SUPPRESS = words(CPUSuppressPolicy, otherwise=CPUSuppressPolicy.CPUSET)
_EVICT = words(CPUEvictPolicy, otherwise=CPUEvictPolicy.BY_REAL_LIMIT)
_BURST = words(CPUBurstPolicy, otherwise=CPUBurstPolicy.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceThreshold:
    """resourceUsedThresholdWithBE: from which load on best-effort pods give way. In percent.

    "Allocatable" thresholds compare requests with the node's allocatable and may exceed 100.
    """

    enable: bool = wire("enable", False)
    cpu_suppress_threshold_percent: int = wire("cpuSuppressThresholdPercent", 65, limit=PERCENT)
    # share of the node's CPU that best-effort pods always keep; None: no such floor
    cpu_suppress_min_percent: int | None = wire("cpuSuppressMinPercent", limit=PERCENT)
    cpu_suppress_policy: CPUSuppressPolicy = wire(
        "cpuSuppressPolicy", CPUSuppressPolicy.CPUSET, shape=_SUPPRESS
    )
    memory_evict_threshold_percent: int = wire("memoryEvictThresholdPercent", 70, limit=PERCENT)
    # None: 2 below the threshold
    memory_evict_lower_percent: int | None = wire("memoryEvictLowerPercent", limit=PERCENT)
    # None for one of the next two: no eviction by allocatable memory
    memory_allocatable_evict_threshold_percent: int | None = wire(
        "memoryAllocatableEvictThresholdPercent", limit=NOT_NEGATIVE
    )
    memory_allocatable_evict_lower_percent: int | None = wire(
        "memoryAllocatableEvictLowerPercent", limit=NOT_NEGATIVE
    )
    # None for one of the next two: no eviction by satisfaction
    cpu_evict_be_satisfaction_upper_percent: int | None = wire("cpuEvictBESatisfactionUpperPercent")
    cpu_evict_be_satisfaction_lower_percent: int | None = wire("cpuEvictBESatisfactionLowerPercent")
    # None: 90
    cpu_evict_be_usage_threshold_percent: int | None = wire("cpuEvictBEUsageThresholdPercent")
    # seconds; None or shorter than the collect interval: that interval
    cpu_evict_time_window_seconds: int | None = wire("cpuEvictTimeWindowSeconds")
    # None: no eviction by the node's CPU usage
    cpu_evict_threshold_percent: int | None = wire("cpuEvictThresholdPercent", limit=PERCENT)
    # None: 2 below the threshold
    cpu_evict_lower_percent: int | None = wire("cpuEvictLowerPercent", limit=PERCENT)
    # None for one of the next two: no eviction by allocatable CPU
    cpu_allocatable_evict_threshold_percent: int | None = wire(
        "cpuAllocatableEvictThresholdPercent", limit=NOT_NEGATIVE
    )
    cpu_allocatable_evict_lower_percent: int | None = wire(
        "cpuAllocatableEvictLowerPercent", limit=NOT_NEGATIVE
    )
    cpu_evict_policy: CPUEvictPolicy = wire(
        "cpuEvictPolicy", CPUEvictPolicy.BY_REAL_LIMIT, shape=_EVICT
    )
    # pods with a higher priority are spared; None: all are
    evict_enabled_priority_threshold: int | None = wire(
        "evictEnabledPriorityThreshold", shape=INT32
    )
    allocatable_evict_priority_threshold: int | None = wire(
        "allocatableEvictPriorityThreshold", shape=INT32
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUBurst:
    """cpuBurstStrategy: how far containers may use more CPU than their limit for a while."""

    policy: CPUBurstPolicy = wire("policy", CPUBurstPolicy.NONE, shape=_BURST)
    # burst budget in percent of the limit
    cpu_burst_percent: int = wire("cpuBurstPercent", 1000, limit=between(0, 10000))
    # highest quota in percent of the limit
    cfs_quota_burst_percent: int = wire("cfsQuotaBurstPercent", 300, limit=NOT_NEGATIVE)
    # seconds a container may stay above its limit; -1: for ever
    cfs_quota_burst_period_seconds: int = wire("cfsQuotaBurstPeriodSeconds", -1, limit=at_least(-1))
    # usage of the shared pool, in percent, from which on quotas do not grow
    share_pool_threshold_percent: int = wire("sharePoolThresholdPercent", 50, limit=PERCENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStrategy:
    """systemStrategy: kernel settings of the node. None: left as the node has it."""

    # min_free_kbytes in 1/10000 of the node's memory
    min_free_kbytes_factor: int | None = wire("minFreeKbytesFactor", limit=POSITIVE)
    # 1/10000 of memory
    watermark_scale_factor: int | None = wire("watermarkScaleFactor", limit=between(1, 400))
    memcg_reap_background: int | None = wire("memcgReapBackGround", limit=_SWITCH)
    sched_group_identity_enabled: int | None = wire("schedGroupIdentityEnabled", limit=_SWITCH)
    sched_idle_saver_wmark: int | None = wire("schedIdleSaverWmark")  # nanoseconds
    sched_features: Mapping[str, bool] = wire("schedFeatures", factory=dict)
    page_cache_limit_enabled: int | None = wire("pageCacheLimitEnabled", limit=_SWITCH)
    # bits per second; 0: unknown. Koordinator always writes it, which overlays what was there.
    total_network_bandwidth: Quantity = wire("totalNetworkBandwidth", Quantity(0), always=True)
