"""The QoS settings of a NodeSLO by class, effective: defaults filled in.

The defaults in this module are the values that switch a block off ("none"); those that apply to an
enabled block of a class are in nodeslo_defaults. None is a value that is not set.

Source: Koordinator, apis/slo/v1alpha1 and pkg/util/sloconfig.
"""

from dataclasses import dataclass
from enum import StrEnum

from koord.api.decoding.jsonvalues import NOT_NEGATIVE, PERCENT, at_least, between, words
from koord.api.decoding.wire import wire


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
        "cpuPolicy", CPUPolicy.GROUP_IDENTITY, shape=words(CPUPolicy, otherwise=None)
    )
    network: NetQoSPolicy | None = wire(
        "netQOSPolicy", NetQoSPolicy.TC, shape=words(NetQoSPolicy, otherwise=None)
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
    type: BlockType | None = wire("type", shape=words(BlockType, otherwise=None))
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
