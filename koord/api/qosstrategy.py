"""QoS strategies of a NodeSLO: per QoS class and for the whole node, with defaults applied."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from koord.api.gojson import (
    INT32,
    NOT_NEGATIVE,
    PERCENT,
    POSITIVE,
    at_least,
    between,
    enum_text,
    wire,
)
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject


class CPUPolicy(StrEnum):
    """The mechanism that enforces CPU QoS."""

    GROUP_IDENTITY = "groupIdentity"
    CORE_SCHED = "coreSched"


class NetQoSPolicy(StrEnum):
    """The mechanism that enforces network QoS."""

    TC = "tc"
    TERWAY = "terway-qos"


class BlockType(StrEnum):
    """The meaning of a block device's name."""

    DEVICE = "device"  # a device file such as /dev/sdb
    VOLUME_GROUP = "volumegroup"  # an LVM volume group
    POD_VOLUME = "podvolume"  # a persistent volume claim or a pod's inline volume


@dataclass(frozen=True, slots=True, kw_only=True)
class QoSPolicies:
    """policies: None is a word this version does not know; then none of them is enforced."""

    cpu: CPUPolicy | None = wire(
        "cpuPolicy", CPUPolicy.GROUP_IDENTITY, shape=enum_text(CPUPolicy, otherwise=None)
    )
    network: NetQoSPolicy | None = wire(
        "netQOSPolicy", NetQoSPolicy.TC, shape=enum_text(NetQoSPolicy, otherwise=None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUQoS:
    """cpuQOS. The group identity goes with that policy, the other two with core scheduling."""

    enable: bool = wire("enable", False)
    group_identity: int = wire("groupIdentity", 0, limit=between(-1, 2))
    sched_idle: int = wire("schedIdle", 0)  # 1: SCHED_IDLE
    core_expeller: bool = wire("coreExpeller", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryQoS:
    """memoryQOS: protection, throttling and reclaim of memory cgroups."""

    enable: bool = wire("enable", False)
    min_limit_percent: int = wire("minLimitPercent", 0, limit=NOT_NEGATIVE)  # of the request
    low_limit_percent: int = wire("lowLimitPercent", 0, limit=NOT_NEGATIVE)  # of the request
    throttling_percent: int = wire("throttlingPercent", 0, limit=NOT_NEGATIVE)  # of the limit
    wmark_ratio: int = wire("wmarkRatio", 0, limit=PERCENT)  # percent of the limit; 0: off
    wmark_scale_permill: int = wire("wmarkScalePermill", 50, limit=between(1, 1000))
    wmark_min_adj: int = wire("wmarkMinAdj", 0, limit=between(-25, 50))
    priority_enable: int = wire("priorityEnable", 0, limit=between(0, 1))
    priority: int = wire("priority", 0, limit=between(0, 12))
    oom_kill_group: int = wire("oomKillGroup", 0, limit=between(0, 1))
    page_cache_enable: bool | None = wire("pageCacheEnable")
    page_cache_limit_percent: int | None = wire("pageCacheLimitPercent", limit=PERCENT)
    page_cache_limit_size: int | None = wire("pageCacheLimitSize")  # bytes
    page_cache_reclaim_sync: bool | None = wire("pageCacheReclaimSync")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResctrlQoS:
    """resctrlQOS: the part of the L3 cache and of the memory bandwidth, in percent."""

    enable: bool = wire("enable", False)
    cat_range_start_percent: int = wire("catRangeStartPercent", 0, limit=PERCENT)
    cat_range_end_percent: int = wire("catRangeEndPercent", 100, limit=PERCENT)
    mba_percent: int = wire("mbaPercent", 100, limit=PERCENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class IOConfig:
    """ioCfg of one block device. None: not set, and no limit."""

    read_iops: int | None = wire("readIOPS", limit=NOT_NEGATIVE)  # 0: no limit
    write_iops: int | None = wire("writeIOPS", limit=NOT_NEGATIVE)
    read_bps: int | None = wire("readBPS", limit=NOT_NEGATIVE)  # bytes per second; 0: no limit
    write_bps: int | None = wire("writeBPS", limit=NOT_NEGATIVE)
    io_weight_percent: int | None = wire("ioWeightPercent", limit=between(1, 100))  # None: 100
    # the rest configures iocost on the root cgroup; latencies in microseconds
    read_latency: int | None = wire("readLatency")
    write_latency: int | None = wire("writeLatency")
    read_latency_percent: int | None = wire("readLatencyPercent", limit=PERCENT)  # None: 95
    write_latency_percent: int | None = wire("writeLatencyPercent", limit=PERCENT)
    enable_user_model: bool | None = wire("enableUserModel")
    model_read_bps: int | None = wire("modelReadBPS", limit=at_least(1))
    model_write_bps: int | None = wire("modelWriteBPS", limit=at_least(1))
    model_read_seq_iops: int | None = wire("modelReadSeqIOPS", limit=at_least(1))
    model_write_seq_iops: int | None = wire("modelWriteSeqIOPS", limit=at_least(1))
    model_read_rand_iops: int | None = wire("modelReadRandIOPS", limit=at_least(1))
    model_write_rand_iops: int | None = wire("modelWriteRandIOPS", limit=at_least(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block device and what to do with it. type None: unknown, nothing can be done."""

    name: str = wire("name", "")
    type: BlockType | None = wire("type", shape=enum_text(BlockType, otherwise=None))
    io: IOConfig = wire("ioCfg", factory=IOConfig, always=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlkIOQoS:
    """blkioQOS: limits by block device."""

    enable: bool = wire("enable", False)
    blocks: tuple[Block, ...] = wire("blocks", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkQoS:
    """networkQOS. A number is percent of the total bandwidth, a text a quantity of bits/s."""

    enable: bool = wire("enable", False)
    ingress_request: int | str = wire("ingressRequest", 0)
    ingress_limit: int | str = wire("ingressLimit", 0)
    egress_request: int | str = wire("egressRequest", 0)
    egress_limit: int | str = wire("egressLimit", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QoSClassStrategy:
    """All QoS settings of one class of pods, or of the root cgroup."""

    cpu: CPUQoS = wire("cpuQOS", factory=CPUQoS)
    memory: MemoryQoS = wire("memoryQOS", factory=MemoryQoS)
    blkio: BlkIOQoS = wire("blkioQOS", factory=BlkIOQoS)
    resctrl: ResctrlQoS = wire("resctrlQOS", factory=ResctrlQoS)
    network: NetworkQoS = wire("networkQOS", factory=NetworkQoS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQoS:
    """resourceQOSStrategy: settings by class. lsr is for LSE and LSR pods."""

    policies: QoSPolicies = wire("policies", factory=QoSPolicies)
    lsr: QoSClassStrategy = wire("lsrClass", factory=QoSClassStrategy)
    ls: QoSClassStrategy = wire("lsClass", factory=QoSClassStrategy)
    be: QoSClassStrategy = wire("beClass", factory=QoSClassStrategy)
    system: QoSClassStrategy = wire("systemClass", factory=QoSClassStrategy)
    cgroup_root: QoSClassStrategy = wire("cgroupRoot", factory=QoSClassStrategy)


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
_SUPPRESS = enum_text(CPUSuppressPolicy, otherwise=CPUSuppressPolicy.CPUSET)
_EVICT = enum_text(CPUEvictPolicy, otherwise=CPUEvictPolicy.BY_REAL_LIMIT)
_BURST = enum_text(CPUBurstPolicy, otherwise=CPUBurstPolicy.NONE)


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


ANNOTATION = "koordinator.sh/networkQOS"  # of a pod
MIN_RATE, MAX_RATE = 1000, 1 << 42  # bytes/s that the kernel is asked for
MAX_BITS = MAX_RATE * 8
_MAX_TEXT_LENGTH = 1024  # characters of an annotation

Problems = tuple[InvalidObject, ...]


@dataclass(frozen=True, slots=True)
class PodLimits:
    """The most a pod may receive and send, in bytes/s; 0: no limit of its own."""

    ingress: int = 0
    egress: int = 0


def pod_limits(
    annotations: Mapping[str, str], where: str = ANNOTATION, least: int = MIN_RATE
) -> PodLimits:
    """Return the limits in a pod's annotations, which may be written by anyone.

    where: what messages call the annotation. least: bytes/s, by default the least of the kernel.

    Raises:
        InvalidObject: the text is no object of quantities of bits/s, or one is negative, or less
            than least, or more than any link.
    """
    text = annotations.get(ANNOTATION)
    if text is None:
        return PodLimits()
    try:
        found = json.loads(text) if len(text) <= _MAX_TEXT_LENGTH else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        wanted = 'an object like {"ingressLimit": "10M", "egressLimit": "20M"}'
        raise InvalidObject(where, wanted=wanted, found=text)
    ingress, egress = (
        _pod_limit(found, key, where, least) for key in ("ingressLimit", "egressLimit")
    )
    return PodLimits(ingress, egress)


def _pod_limit(found: Mapping[str, object], key: str, annotation: str, least: int) -> int:
    value = found.get(key)
    if value is None:
        return 0
    where = f"{annotation}: {key}"
    try:
        bits = Quantity.parse(value).integer
    except ValueError:
        bits = -1
    if bits and not least * 8 <= bits <= MAX_BITS:
        wanted = f"0, or a quantity of bits/s from {least * 8} to {MAX_BITS}"
        raise InvalidObject(where, wanted=wanted, found=value)
    return bits // 8


def bytes_per_second(value: int | str, most: int, where: str, problems: list[InvalidObject]) -> int:
    """Return percent of the bandwidth, or a quantity of bits/s, in bytes/s; 0: not set."""
    if isinstance(value, int):
        if not isinstance(value, bool) and 0 <= value <= 100:
            return most * value // 100
        bits = -1
    else:
        try:
            bits = Quantity.parse_text(value).integer
        except ValueError:
            bits = -1
    if bits < 0:
        wanted = "percent from 0 to 100, or a quantity of bits/s"
        problems.append(InvalidObject(where, wanted=wanted, found=value))
        return 0
    if bits > most * 8:
        wanted = f"at most the bandwidth ({most * 8} bits/s)"
        problems.append(InvalidObject(where, wanted=wanted, found=value))
    return min(-(-bits // 8), most)  # not 0, which is no limit
