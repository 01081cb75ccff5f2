"""Rows of the resource table by the gates that use them. A gate is named as in --feature-gates."""

from dataclasses import dataclass
from typing import Any

from koordlet.host import resources as table
from koordlet.host.resource import Resource

CLAIMED = ("plugins that claim it",)  # no shipped one does

CONTROLLERS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    "memory": (),
    "cpuset": ("BECPUSuppress", "CPUSetAllocator"),
    "blkio": ("BlkIOReconcile",),
    "net_cls": CLAIMED,
    "net_prio": ("TCNetworkQoS",),
    "perf_event": ("CPICollector",),
}


@dataclass(frozen=True, slots=True)
class Need:
    """Kernel values that belong together. needed_by is empty for what every run measures."""

    area: str
    name: str
    rows: tuple[Resource[Any], ...]
    needed_by: tuple[str, ...] = ()
    one_is_enough: bool = False  # the rows stand for each other, for example on v1 and v2


NEEDS = (
    Need(
        "node",
        "cpu and memory",
        (table.PROC_STAT_TICKS, table.PROC_STAT_PER_CPU, table.MEMINFO),
    ),
    Need("node", "memory by NUMA node", (table.NUMA_MEMINFO,)),
    Need(
        "node",
        "pressure",
        (table.NODE_CPU_PRESSURE, table.NODE_MEMORY_PRESSURE, table.NODE_IO_PRESSURE),
        ("PSICollector",),
    ),
    Need(
        "node",
        "reclaim settings",
        (table.MIN_FREE_KBYTES, table.WATERMARK_SCALE_FACTOR),
        ("SystemConfig",),
    ),
    Need(
        "node",
        "settings of Anolis kernels",
        (table.MEMCG_REAPER, table.PAGECACHE_LIMIT, table.SCHED_IDLE_SAVER_WMARK),
        ("SystemConfig",),
    ),
    Need("node", "scheduler features", (table.SCHED_FEATURES,), ("SystemConfig",)),
    Need("cgroup", "cpu usage", (table.CPU_USAGE, table.CPU_TIME)),
    Need("cgroup", "exact cpu usage of the node", (table.ROOT_CPU_USAGE,), ("BECPUSuppress",)),
    Need("cgroup", "cpu throttling", (table.CPU_THROTTLE,)),
    Need(
        "cgroup",
        "cpu quota",
        (table.CPU_QUOTA, table.CPU_PERIOD),
        ("BECPUSuppress", "CPUBurst", "BatchResource", "CPUNormalization"),
    ),
    Need("cgroup", "cpu shares", (table.CPU_SHARES,), ("BatchResource",)),
    Need("cgroup", "cpu burst", (table.CPU_BURST,), ("CPUBurst",)),
    Need(
        "cgroup",
        "group identity",
        (table.CPU_BVT, table.SCHED_GROUP_IDENTITY, table.SCHED_CORE),
        ("GroupIdentity",),
    ),
    Need("cgroup", "cpu idle class", (table.CPU_IDLE,), ("BECPUSuppress", "CoreSched")),
    Need(
        "cgroup",
        "cpuset",
        (table.CPUSET_CPUS, table.CPUSET_CPUS_WANTED),
        ("BECPUSuppress", "CPUSetAllocator"),
    ),
    Need("cgroup", "memory usage", (table.MEMORY_STAT, table.MEMORY_USAGE)),
    Need("cgroup", "memory by NUMA node", (table.MEMORY_NUMA,)),
    Need("cgroup", "memory limit", (table.MEMORY_LIMIT,), ("BatchResource",)),
    Need(
        "cgroup",
        "memory protection",
        (table.MEMORY_MIN, table.MEMORY_LOW, table.MEMORY_HIGH),
        ("CgroupReconcile",),
    ),
    Need(
        "cgroup",
        "memory watermarks",
        (table.MEMORY_WMARK_RATIO, table.MEMORY_WMARK_SCALE_FACTOR, table.MEMORY_WMARK_MIN_ADJ),
        ("CgroupReconcile",),
    ),
    Need(
        "cgroup",
        "memory priority",
        (table.MEMORY_PRIORITY, table.MEMORY_USE_PRIORITY_OOM),
        ("CgroupReconcile",),
    ),
    Need("cgroup", "killing a whole group", (table.MEMORY_OOM_GROUP,), ("CgroupReconcile",)),
    Need(
        "cgroup",
        "page cache limit",
        (
            table.MEMORY_PAGECACHE_LIMIT_ENABLE,
            table.MEMORY_PAGECACHE_LIMIT_SIZE,
            table.MEMORY_PAGECACHE_LIMIT_SYNC,
        ),
        ("CgroupReconcile",),
    ),
    Need(
        "cgroup",
        "cold pages by kidled",
        (table.MEMORY_IDLE_PAGES, table.KIDLED_PERIOD, table.KIDLED_USE_HIERARCHY),
        ("ColdPageCollector",),
    ),
    Need(
        "cgroup",
        "pressure",
        (table.CPU_PRESSURE, table.MEMORY_PRESSURE, table.IO_PRESSURE),
        ("PSICollector",),
    ),
    Need(
        "cgroup",
        "block device throttling",
        (
            table.BLKIO_READ_IOPS,
            table.BLKIO_READ_BPS,
            table.BLKIO_WRITE_IOPS,
            table.BLKIO_WRITE_BPS,
            table.IO_MAX,
        ),
        ("BlkIOReconcile",),
        one_is_enough=True,
    ),
    Need("cgroup", "block device latency targets", (table.IO_LATENCY,), ("BlkIOReconcile",)),
    Need("cgroup", "block device weight", (table.BLKIO_WEIGHT,), CLAIMED),
    Need("cgroup", "block device weight by cost", (table.IO_WEIGHT,), CLAIMED),
    Need("cgroup", "block device weight by budget", (table.IO_BFQ_WEIGHT,), CLAIMED),
    Need(
        "cgroup",
        "weight by block device",
        (table.BLKIO_COST_WEIGHT, table.IO_DEVICE_WEIGHT, table.BFQ_DEVICE_WEIGHT),
        ("BlkIOReconcile",),
        one_is_enough=True,
    ),
    Need(
        "cgroup",
        "block device cost",
        (table.BLKIO_COST_QOS, table.BLKIO_COST_MODEL),
        ("BlkIOReconcile",),
    ),
    Need(
        "network",
        "pods in the node's network",
        (table.NET_PRIORITY, table.SOCKET_GROUP),
        ("TCNetworkQoS",),
        one_is_enough=True,
    ),
    Need("cgroup", "network class", (table.NET_CLASS_ID,), CLAIMED),
    Need(
        "cgroup",
        "processes",
        (table.CGROUP_PROCS, table.TASKS),
        ("PodNetworkCollector", "CoreSched", "Resctrl", "OOMScoreAdj"),
    ),
    Need(
        "resctrl",
        "control groups",
        (table.RESCTRL_GROUP, table.RESCTRL_TASKS),
        ("RdtResctrl", "Resctrl"),
    ),
    Need("process", "core scheduling cookies", (table.CORE_SCHED_COOKIE,), ("CoreSched",)),
    Need(
        "resctrl",
        "ways of L3 caches",
        (table.RESCTRL_L3, table.RESCTRL_CBM_MASK, table.RESCTRL_MIN_CBM_BITS),
        ("RdtResctrl", "Resctrl"),
    ),
    Need("resctrl", "memory bandwidth", (table.RESCTRL_MB,), ("RdtResctrl", "Resctrl")),
    Need("process", "oom score", (table.OOM_SCORE_ADJ, table.PROCESS_START), ("OOMScoreAdj",)),
    Need(
        "network",
        "traffic classes",
        (table.TRAFFIC_CLASSES, table.PROCESS_INTERFACE),
        ("TCNetworkQoS",),
    ),
    Need(
        "network",
        "default route",
        (table.DEFAULT_INTERFACE, table.DEFAULT_INTERFACE_6),
        ("TCNetworkQoS",),
        one_is_enough=True,
    ),
    Need("network", "files of terway-qos", (table.TERWAY_FILE,), ("TerwayQoS",)),
    Need("network", "speed of the link", (table.INTERFACE_SPEED,), ("TCNetworkQoS",)),
    Need("network", "traffic of a namespace", (table.NET_DEV,), ("PodNetworkCollector",)),
    Need(
        "network",
        "protocols",
        (table.NETSTAT, table.SNMP, table.SOCKSTAT, table.SOFTNET),
        ("NodeNetworkCollector",),
    ),
    Need("network", "IPv6 protocols", (table.SNMP6, table.SOCKSTAT6), ("NodeNetworkCollector",)),
    Need(
        "network",
        "connection tracking",
        (table.CONNTRACK_COUNT, table.CONNTRACK_MAX),
        ("NodeNetworkCollector",),
    ),
)
