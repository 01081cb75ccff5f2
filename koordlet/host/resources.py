"""The table of kernel values that koordlet knows. A new kernel file is one row.

Names and support rules are Koordinator's; the files are the kernel's (admin-guide/cgroup-v1 and
cgroup-v2, accounting/psi, filesystems/proc).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from koord.api.machine import parse_cpulist_file
from koordlet.host import cpu_scheduler, objects, procfiles, resctrl
from koordlet.host import resource as forms
from koordlet.host.cgroups import cgroupfiles as cg
from koordlet.host.cgroups import keyed_files
from koordlet.host.cgroups.cgroupfiles import (
    MAX_SHARES,
    MAX_WEIGHT,
    MIN_SHARES,
    MIN_WEIGHT,
    parse_v1_numa_stat,
    parse_v2_numa_stat,
)
from koordlet.host.cgroups.keyed_files import (  # rows of this table
    BFQ_DEVICE_WEIGHT as BFQ_DEVICE_WEIGHT,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_COST_MODEL as BLKIO_COST_MODEL,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_COST_QOS as BLKIO_COST_QOS,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_COST_WEIGHT as BLKIO_COST_WEIGHT,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_READ_BPS as BLKIO_READ_BPS,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_READ_IOPS as BLKIO_READ_IOPS,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_WEIGHT as BLKIO_WEIGHT,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_WRITE_BPS as BLKIO_WRITE_BPS,
)
from koordlet.host.cgroups.keyed_files import (
    BLKIO_WRITE_IOPS as BLKIO_WRITE_IOPS,
)
from koordlet.host.cgroups.keyed_files import (
    IO_BFQ_WEIGHT as IO_BFQ_WEIGHT,
)
from koordlet.host.cgroups.keyed_files import (
    IO_DEVICE_WEIGHT as IO_DEVICE_WEIGHT,
)
from koordlet.host.cgroups.keyed_files import (
    IO_LATENCY as IO_LATENCY,
)
from koordlet.host.cgroups.keyed_files import (
    IO_MAX as IO_MAX,
)
from koordlet.host.cgroups.keyed_files import (
    IO_WEIGHT as IO_WEIGHT,
)
from koordlet.host.cgroups.keyed_files import (
    NET_CLASS_ID as NET_CLASS_ID,
)
from koordlet.host.cgroups.keyed_files import (
    NET_PRIORITY as NET_PRIORITY,
)
from koordlet.host.idle_pages import parse_idle_pages
from koordlet.host.net import netfiles
from koordlet.host.objects import (  # rows of this table
    CORE_SCHED_COOKIE as CORE_SCHED_COOKIE,
)
from koordlet.host.objects import (
    PROCESS_INTERFACE as PROCESS_INTERFACE,
)
from koordlet.host.objects import (
    RESCTRL_GROUP as RESCTRL_GROUP,
)
from koordlet.host.objects import (
    RESCTRL_TASKS as RESCTRL_TASKS,
)
from koordlet.host.objects import (
    SOCKET_GROUP as SOCKET_GROUP,
)
from koordlet.host.objects import (
    TERWAY_FILE as TERWAY_FILE,
)
from koordlet.host.objects import (
    TRAFFIC_CLASSES as TRAFFIC_CLASSES,
)
from koordlet.host.procfiles import Pressure, parse_pressure
from koordlet.host.resctrl import RESCTRL_NEEDS
from koordlet.host.resource import (
    ANOLIS,
    Resource,
    Root,
    Support,
    Validator,
    group_file,
    group_row,
    in_range,
    node_row,
    rows_of,
)

T = TypeVar("T")

ANOLIS_CACHE = "an Anolis kernel from 5.10.134-14"
ANOLIS_V1 = "cgroup v2, or an Anolis or Alibaba Cloud kernel"
BANDWIDTH = "CONFIG_CFS_BANDWIDTH"
KIDLED = "an Anolis kernel with kidled (CONFIG_KIDLED)"
PSI = "CONFIG_PSI, and psi=1 on the kernel command line where it is off by default"
PSI_GROUP = f"cgroup v2 (or a hybrid or Anolis v1 host) with {PSI}"

_KUBEPODS, _PER_GROUP, _ROOT = Support.KUBEPODS, Support.PER_GROUP, Support.ROOT
_ANY = in_range(0)
_SWITCH = in_range(0, 1)


# --- CPU ---

CPU_USAGE = group_row(
    "cpu_usage",
    "ns since the group was made",
    group_file("cpuacct", "cpuacct.usage", cg.parse_number),
    group_file("", "cpu.stat", cg.parse_v2_cpu_usage),
)
ROOT_CPU_USAGE = group_row(
    "root_cpu_usage",
    "ns since boot, of the whole machine",
    group_file("cpuacct", "cpuacct.usage", cg.parse_number, Support.ROOT),
    None,
    "cgroup v1; that of v2 counts in clock ticks",
)
CPU_TIME = group_row(
    "cpu_time",
    "ns in user and system mode since the group was made",
    group_file("cpuacct", "cpuacct.stat", cg.parse_v1_cpu_time),
    group_file("", "cpu.stat", cg.parse_v2_cpu_time),
)
CPU_THROTTLE = group_row(
    "cpu_throttle",
    "periods, and ns of waiting",
    group_file("cpu", "cpu.stat", cg.parse_v1_cpu_throttle),
    group_file("cpu", "cpu.stat", cg.parse_v2_cpu_throttle),
    BANDWIDTH,
)
CPU_SHARES = group_row(
    "cpu_shares",
    "shares, 1024 for a core; on v2 made from the weight",
    group_file(
        "cpu",
        "cpu.shares",
        cg.parse_number,
        may=in_range(MIN_SHARES, MAX_SHARES),
        initial="1024",
    ),
    group_file(
        "cpu",
        "cpu.weight",
        cg.parse_cpu_weight,
        may=in_range(MIN_WEIGHT, MAX_WEIGHT),
        initial="100",
    ),
)
CPU_QUOTA = group_row(
    "cpu_quota",
    "us per period, -1 for no limit",
    group_file("cpu", "cpu.cfs_quota_us", cg.parse_number, text=forms.NUMBER),
    group_file("cpu", "cpu.max", cg.parse_cpu_max_quota, text=forms.CPU_MAX_QUOTA),
    BANDWIDTH,
)
CPU_PERIOD = group_row(
    "cpu_period",
    "us",
    group_file("cpu", "cpu.cfs_period_us", cg.parse_number),
    group_file("cpu", "cpu.max", cg.parse_cpu_max_period),
    BANDWIDTH,
)
CPU_BURST = group_row(
    "cpu_burst",
    "us of unused quota that a period may use up",
    group_file("cpu", "cpu.cfs_burst_us", cg.parse_number, _PER_GROUP, in_range(0, 100_000_000)),
    group_file("cpu", "cpu.max.burst", cg.parse_number, _KUBEPODS, _ANY),
    f"{BANDWIDTH} and Linux 5.14",
)
CPU_BVT = group_row(
    "cpu_bvt",
    "group identity, from 2 (latency sensitive) to -1 (best effort)",
    group_file("cpu", "cpu.bvt_warp_ns", cg.parse_number, _PER_GROUP, in_range(-1, 2)),
    group_file("cpu", "cpu.bvt_warp_ns", cg.parse_number, _PER_GROUP, in_range(-1, 2)),
    ANOLIS,
)
CPU_IDLE = group_row(
    "cpu_idle",
    "1: runs only when nothing else is runnable",
    group_file("cpu", "cpu.idle", cg.parse_number, _KUBEPODS, _SWITCH),
    group_file("cpu", "cpu.idle", cg.parse_number, _KUBEPODS, _SWITCH),
    "Linux 5.15",
)
CPUSET_CPUS = group_row(
    "cpuset_cpus",
    "CPU numbers that the group may use; read only, see cpuset_cpus_wanted",
    group_file("cpuset", "cpuset.cpus", parse_cpulist_file),
    group_file("cpuset", "cpuset.cpus.effective", parse_cpulist_file),
)
CPUSET_CPUS_WANTED = group_row(
    "cpuset_cpus_wanted",
    "CPU numbers that were asked for; on v2 empty for those of the parent",
    group_file("cpuset", "cpuset.cpus", parse_cpulist_file, may=forms.cpu_list, copied=True),
    group_file("cpuset", "cpuset.cpus", parse_cpulist_file, may=forms.cpu_list),
)

# --- Members ---

# While a v1 file of ids is held and read every second, the kernel repeats its first response.
TASKS = group_row(
    "tasks",
    "thread ids",
    group_file("cpu", "tasks", cg.parse_ids, may=_ANY, hold=False),
    group_file("", "cgroup.threads", cg.parse_ids, may=_ANY, hold=False),
)
CGROUP_PROCS = group_row(
    "cgroup_procs",
    "process ids",
    group_file("cpu", "cgroup.procs", cg.parse_ids, may=_ANY, hold=False),
    group_file("", "cgroup.procs", cg.parse_ids, may=_ANY, hold=False),
)


# --- Pressure ---


def _pressure(kind: str) -> Resource[Pressure]:
    file = f"{kind}.pressure"
    return group_row(
        f"{kind}_pressure",
        "percent of time, and us since the group was made",
        group_file("cpuacct", file, parse_pressure, _KUBEPODS),
        group_file("", file, parse_pressure, _KUBEPODS),
        PSI_GROUP,
    )


CPU_PRESSURE = _pressure("cpu")
MEMORY_PRESSURE = _pressure("memory")
IO_PRESSURE = _pressure("io")


# --- Memory ---


def _memory(
    name: str, unit: str, v1: Support, v2: Support, may: Validator, needs: str
) -> Resource[int]:
    """A number, or "max" for bytes, in a file that is called the same on both versions."""
    text = forms.BYTES_OR_MAX if unit.startswith("bytes") else forms.NUMBER
    return group_row(
        name.replace(".", "_"),
        unit,
        group_file("memory", name, cg.parse_number_or_max, v1, may, text=text),
        group_file("memory", name, cg.parse_number_or_max, v2, may, text=text),
        needs,
    )


def _cache_limit(name: str, unit: str, may: Validator) -> Resource[int]:
    file = group_file("memory", f"memory.pagecache_limit.{name}", cg.parse_number, _PER_GROUP, may)
    return group_row(f"memory_pagecache_limit_{name}", unit, None, file, ANOLIS_CACHE)


MEMORY_USAGE = group_row(
    "memory_usage",
    "bytes, with kernel memory and page cache",
    group_file("memory", "memory.usage_in_bytes", cg.parse_number),
    group_file("memory", "memory.current", cg.parse_number),
)
MEMORY_STAT = group_row(
    "memory_stat",
    "bytes by use",
    group_file("memory", "memory.stat", cg.parse_v1_memory_stat),
    group_file("memory", "memory.stat", cg.parse_v2_memory_stat),
)
MEMORY_NUMA = group_row(
    "memory_numa",
    "bytes by NUMA node, without page cache",
    group_file("memory", "memory.numa_stat", parse_v1_numa_stat),
    group_file("memory", "memory.numa_stat", parse_v2_numa_stat),
    "CONFIG_NUMA; on cgroup v2 Linux 5.10",
)
MEMORY_LIMIT = group_row(
    "memory_limit",
    "bytes, -1 for no limit",
    group_file(
        "memory",
        "memory.limit_in_bytes",
        cg.parse_v1_memory_limit,
        text=forms.V1_MEMORY_LIMIT,
        follower="memory.memsw.limit_in_bytes",
    ),
    group_file("memory", "memory.max", cg.parse_number_or_max, text=forms.BYTES_OR_MAX),
)
MEMORY_MIN = _memory("memory.min", "bytes, -1 for all", _KUBEPODS, Support.ALWAYS, _ANY, ANOLIS_V1)
MEMORY_LOW = _memory("memory.low", "bytes, -1 for all", _KUBEPODS, Support.ALWAYS, _ANY, ANOLIS_V1)
MEMORY_HIGH = _memory(
    "memory.high", "bytes, -1 for no limit", _KUBEPODS, Support.ALWAYS, _ANY, ANOLIS_V1
)
MEMORY_WMARK_RATIO = _memory(
    "memory.wmark_ratio", "percent of the limit", _KUBEPODS, _PER_GROUP, in_range(0, 100), ANOLIS
)
MEMORY_WMARK_SCALE_FACTOR = _memory(
    "memory.wmark_scale_factor",
    "parts in 10000",
    _KUBEPODS,
    _PER_GROUP,
    in_range(1, 1000),
    ANOLIS,
)
MEMORY_WMARK_MIN_ADJ = _memory(
    "memory.wmark_min_adj",
    "percent of the global watermark",
    _KUBEPODS,
    _PER_GROUP,
    in_range(-25, 50),
    ANOLIS,
)
MEMORY_PRIORITY = _memory(
    "memory.priority", "0 (killed first) to 12", _KUBEPODS, _PER_GROUP, in_range(0, 12), ANOLIS
)
MEMORY_USE_PRIORITY_OOM = _memory(
    "memory.use_priority_oom", "0 or 1", _KUBEPODS, _PER_GROUP, _SWITCH, ANOLIS
)
MEMORY_OOM_GROUP = _memory(
    "memory.oom.group",
    "1: all tasks of the group are killed together",
    _KUBEPODS,
    _PER_GROUP,
    _SWITCH,
    "cgroup v2 with Linux 4.19, or an Anolis kernel",
)
MEMORY_IDLE_PAGES = group_row(
    "memory_idle_pages",
    "bytes by kind of page and idle time",
    group_file("memory", "memory.idle_page_stats", parse_idle_pages, _KUBEPODS),
    None,
    KIDLED,
)
MEMORY_PAGECACHE_LIMIT_ENABLE = _cache_limit("enable", "0 or 1", _SWITCH)
MEMORY_PAGECACHE_LIMIT_SIZE = _cache_limit("size", "bytes", _ANY)
MEMORY_PAGECACHE_LIMIT_SYNC = _cache_limit("sync", "1: reclaim while allocating", _SWITCH)


# --- The host as a whole ---


PROC_STAT_TICKS = node_row("proc_stat_ticks", "ticks", "stat", procfiles.parse_cpu_ticks)
PROC_STAT_PER_CPU = node_row(
    "proc_stat_per_cpu", "ticks by CPU", "stat", procfiles.parse_per_cpu_ticks
)
MEMINFO = node_row("meminfo", "bytes", "meminfo", procfiles.parse_meminfo)
NUMA_MEMINFO = node_row(
    "numa_meminfo",
    "bytes of one NUMA node",
    "bus/node/devices/node{}/meminfo",
    procfiles.parse_numa_meminfo,
    Root.SYS,
    needs="CONFIG_NUMA",
)
NODE_CPU_PRESSURE = node_row(
    "node_cpu_pressure", "percent, us", "pressure/cpu", parse_pressure, needs=PSI
)
NODE_MEMORY_PRESSURE = node_row(
    "node_memory_pressure", "percent, us", "pressure/memory", parse_pressure, needs=PSI
)
NODE_IO_PRESSURE = node_row(
    "node_io_pressure", "percent, us", "pressure/io", parse_pressure, needs=PSI
)

# A held /proc/<pid>/net file would keep the network namespace of an ended pod alive.
NET_DEV = node_row(
    "net_dev",
    "counters by interface, in the network namespace of a process",
    "{}/net/dev",
    netfiles.parse_net_dev,
    hold=False,
)
# Init's network namespace is that of the host; ours may be a pod's.
NETSTAT = node_row("netstat", "by protocol", "1/net/netstat", netfiles.parse_netstat)
SNMP = node_row("snmp", "by protocol", "1/net/snmp", netfiles.parse_netstat)
SNMP6 = node_row("snmp6", "by protocol", "1/net/snmp6", netfiles.parse_snmp6)
SOCKSTAT = node_row("sockstat", "by protocol", "1/net/sockstat", netfiles.parse_sockstat)
SOCKSTAT6 = node_row("sockstat6", "by protocol", "1/net/sockstat6", netfiles.parse_sockstat)
SOFTNET = node_row("softnet", "by CPU", "net/softnet_stat", netfiles.parse_softnet)
CONNTRACK_COUNT = node_row(
    "conntrack_count",
    "connections",
    "sys/net/netfilter/nf_conntrack_count",
    procfiles.parse_int,
    needs="the module nf_conntrack",
)
CONNTRACK_MAX = node_row(
    "conntrack_max",
    "connections",
    "sys/net/netfilter/nf_conntrack_max",
    procfiles.parse_int,
    needs="the module nf_conntrack",
)

MIN_FREE_KBYTES = node_row(
    "min_free_kbytes",
    "KiB",
    "sys/vm/min_free_kbytes",
    cg.parse_number,
    may=in_range(10_240, 10_485_760),
    shows=_ANY,  # of a small machine it is less
)
WATERMARK_SCALE_FACTOR = node_row(
    "watermark_scale_factor",
    "parts in 10000",
    "sys/vm/watermark_scale_factor",
    cg.parse_number,
    may=in_range(10, 400),
    shows=in_range(1, 3000),
)
MEMCG_REAPER = node_row(
    "memcg_reaper",
    "0 or 1",
    "kernel/mm/memcg_reaper/reap_background",
    cg.parse_number,
    Root.SYS,
    may=_SWITCH,
    needs=ANOLIS,
)
PAGECACHE_LIMIT = node_row(
    "pagecache_limit",
    "0 or 1",
    "kernel/mm/pagecache_limit/enabled",
    cg.parse_number,
    Root.SYS,
    may=_SWITCH,
    needs=ANOLIS_CACHE,
)
KIDLED_PERIOD = node_row(
    "kidled_period",
    "s",
    "kernel/mm/kidled/scan_period_in_seconds",
    cg.parse_number,
    Root.SYS,
    may=_ANY,
    needs=KIDLED,
)
KIDLED_USE_HIERARCHY = node_row(
    "kidled_use_hierarchy",
    "0 or 1",
    "kernel/mm/kidled/use_hierarchy",
    cg.parse_number,
    Root.SYS,
    may=_SWITCH,
    needs=KIDLED,
)
SCHED_FEATURES = node_row(
    "sched_features",
    "names; NO_X for X switched off",
    "kernel/debug/sched_features",
    procfiles.parse_text,
    Root.SYS,
    needs="debugfs, and Linux before 5.13",
)
SCHED_FEATURE = {  # each by itself
    name: node_row(
        f"sched_feature_{name}",
        "0 or 1",
        SCHED_FEATURES.files[1].name,
        cpu_scheduler.feature_parser(name),
        Root.SYS,
        text=cpu_scheduler.feature_text(name),
        needs=SCHED_FEATURES.needs,
    )
    for name in cpu_scheduler.SCHED_FEATURE_NAMES
}
SCHED_GROUP_IDENTITY = node_row(
    "sched_group_identity",
    "0 or 1",
    "sys/kernel/sched_group_identity_enabled",
    cg.parse_number,
    may=_SWITCH,
    needs=ANOLIS,
)
SCHED_CORE = node_row(
    "sched_core",
    "0 or 1",
    "sys/kernel/sched_core",
    cg.parse_number,
    may=_SWITCH,
    needs=ANOLIS,
)
SCHED_IDLE_SAVER_WMARK = node_row(
    "sched_idle_saver_wmark",
    "us",
    "sys/kernel/sched_idle_saver_wmark",
    cg.parse_number,
    may=_ANY,
    needs=ANOLIS,
)
PROCESS_START = node_row(
    "process_start",
    "ticks since boot, of a process",
    "{}/stat",
    procfiles.parse_start_time,
    hold=False,
)
OOM_SCORE_ADJ = node_row(
    "oom_score_adj",
    "-1000 (never killed) to 1000, of a process",
    "{}/oom_score_adj",
    cg.parse_number,
    may=in_range(-1000, 1000),
    hold=False,
)


# --- Cache and memory bandwidth ---


def _schemata(resource: str, unit: str) -> Resource[str]:
    """One line of a control group's resctrl."""
    return node_row(
        f"resctrl_{resource.lower()}",
        unit,
        "{}/schemata",
        partial(resctrl.parse_line, resource),
        Root.RESCTRL,
        may=partial(resctrl.is_positive, resource),
        text=resctrl.schemata_text(resource),
        needs=RESCTRL_NEEDS,
        hold=False,
    )


def _cache_info(name: str, unit: str, parse: Callable[[bytes], int]) -> Resource[int]:
    """A fact about the L3 caches."""
    path = f"info/L3/{name}"
    return node_row(
        f"resctrl_{name}",
        unit,
        path,
        parse,
        Root.RESCTRL,
        needs=RESCTRL_NEEDS,
        hold=False,
    )


RESCTRL_CBM_MASK = _cache_info("cbm_mask", "ways of an L3 cache, as a mask", resctrl.parse_mask)
RESCTRL_MIN_CBM_BITS = _cache_info("min_cbm_bits", "fewest ways of a group", cg.parse_number)
RESCTRL_L3 = _schemata("L3", "ways of each L3 cache, as a mask in hexadecimal")
RESCTRL_MB = _schemata("MB", "memory bandwidth by L3 cache: percent, on AMD eighths of GB/s")

# --- Network ---

DEFAULT_INTERFACE = node_row(
    "default_interface",
    "interface of the node's IPv4 default route; empty: none",
    "1/net/route",
    netfiles.parse_default_interface,
    hold=False,
)
DEFAULT_INTERFACE_6 = node_row(
    "default_interface_6",
    "interface of the node's IPv6 default route; empty: none",
    "1/net/ipv6_route",
    netfiles.parse_default_interface_6,
    hold=False,
)
INTERFACE_SPEED = node_row(
    "interface_speed",
    "Mbit/s of a network interface, -1 where its driver does not know it",
    "class/net/{}/speed",
    cg.parse_number,
    Root.SYS,
    needs="an interface that is up",
    hold=False,
)

_ELSEWHERE = (*rows_of(vars(keyed_files)), *rows_of(vars(objects)))
RESOURCES: tuple[Resource[Any], ...] = (
    *(row for row in rows_of(globals()) if row not in _ELSEWHERE),
    *_ELSEWHERE,
)
BY_NAME: Mapping[str, Resource[Any]] = {  # what journals and records call them
    row.name: row for row in (*RESOURCES, *SCHED_FEATURE.values())
}
