"""The table of kernel values that koordlet knows. A new kernel file is one row.

Names and support rules are Koordinator's; the files are the kernel's (admin-guide/cgroup-v1 and
cgroup-v2, accounting/psi, filesystems/proc).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from koord.api.machine import parse_cpulist_file
from koordlet.host import cpu_scheduler, procfiles, terway_files
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
from koordlet.host.cgroups.keyed_files import UINT32_MAX, UINT64_MAX, DeviceNumbers
from koordlet.host.idle_pages import parse_idle_pages
from koordlet.host.net import netfiles
from koordlet.host.net.tc import objects
from koordlet.host.net.tc import tree as traffic
from koordlet.host.procfiles import Pressure, parse_pressure
from koordlet.host.resctrl import groups as resctrl_groups
from koordlet.host.resctrl import schemata
from koordlet.host.resctrl import tasks as resctrl_tasks
from koordlet.host.resource import (
    File,
    Resource,
    Root,
    Support,
    Text,
    Validator,
    in_range,
    text_for,
)

T = TypeVar("T")

ANOLIS = "an Anolis or Alibaba Cloud kernel"
ANOLIS_CACHE = "an Anolis kernel from 5.10.134-14"
ANOLIS_V1 = "cgroup v2, or an Anolis or Alibaba Cloud kernel"
BANDWIDTH = "CONFIG_CFS_BANDWIDTH"
BFQ = "the I/O scheduler bfq (CONFIG_IOSCHED_BFQ, the module bfq)"
BLKIO = "cgroup v1 with CONFIG_BLK_DEV_THROTTLING"
IO_CONTROLLER = "cgroup v2 with the io controller"
KIDLED = "an Anolis kernel with kidled (CONFIG_KIDLED)"
PSI = "CONFIG_PSI, and psi=1 on the kernel command line where it is off by default"
PSI_GROUP = f"cgroup v2 (or a hybrid or Anolis v1 host) with {PSI}"

_KUBEPODS, _PER_GROUP, _ROOT = Support.KUBEPODS, Support.PER_GROUP, Support.ROOT
_ANY = in_range(0)
_SWITCH = in_range(0, 1)


def _in(
    controller: str,
    name: str,
    parse: Callable[[bytes], T],
    support: Support = Support.ALWAYS,
    may: Validator | None = None,
    hold: bool = True,
    text: Text[T] | None = None,
    others: tuple[str, ...] = (),
    initial: str = "",
    copied: bool = False,
    follower: str = "",
) -> File[T]:
    """A file of every group; controller "" on v2: every group has it, whatever is enabled.

    It is written when text says how, or may says what and its parser leaves only one way.
    """
    text = text or (text_for(parse) if may else None)
    return File(
        name,
        parse,
        controller=controller,
        support=support,
        text=text,
        validate=may,
        others=others,
        hold=hold,
        initial=initial,
        copied=copied,
        follower=follower,
    )


def _group(
    name: str, unit: str, v1: File[T] | None, v2: File[T] | None, needs: str = ""
) -> Resource[T]:
    files = {version: file for version, file in ((1, v1), (2, v2)) if file is not None}
    return Resource(name, unit, files, needs=needs)


# --- CPU ---

CPU_USAGE = _group(
    "cpu_usage",
    "ns since the group was made",
    _in("cpuacct", "cpuacct.usage", cg.parse_number),
    _in("", "cpu.stat", cg.parse_v2_cpu_usage),
)
ROOT_CPU_USAGE = _group(
    "root_cpu_usage",
    "ns since boot, of the whole machine",
    _in("cpuacct", "cpuacct.usage", cg.parse_number, Support.ROOT),
    None,
    "cgroup v1; that of v2 counts in clock ticks",
)
CPU_TIME = _group(
    "cpu_time",
    "ns in user and system mode since the group was made",
    _in("cpuacct", "cpuacct.stat", cg.parse_v1_cpu_time),
    _in("", "cpu.stat", cg.parse_v2_cpu_time),
)
CPU_THROTTLE = _group(
    "cpu_throttle",
    "periods, and ns of waiting",
    _in("cpu", "cpu.stat", cg.parse_v1_cpu_throttle),
    _in("cpu", "cpu.stat", cg.parse_v2_cpu_throttle),
    BANDWIDTH,
)
CPU_SHARES = _group(
    "cpu_shares",
    "shares, 1024 for a core; on v2 made from the weight",
    _in(
        "cpu",
        "cpu.shares",
        cg.parse_number,
        may=in_range(MIN_SHARES, MAX_SHARES),
        initial="1024",
    ),
    _in(
        "cpu",
        "cpu.weight",
        cg.parse_cpu_weight,
        may=in_range(MIN_WEIGHT, MAX_WEIGHT),
        initial="100",
    ),
)
CPU_QUOTA = _group(
    "cpu_quota",
    "us per period, -1 for no limit",
    _in("cpu", "cpu.cfs_quota_us", cg.parse_number, text=forms.NUMBER),
    _in("cpu", "cpu.max", cg.parse_cpu_max_quota, text=forms.CPU_MAX_QUOTA),
    BANDWIDTH,
)
CPU_PERIOD = _group(
    "cpu_period",
    "us",
    _in("cpu", "cpu.cfs_period_us", cg.parse_number),
    _in("cpu", "cpu.max", cg.parse_cpu_max_period),
    BANDWIDTH,
)
CPU_BURST = _group(
    "cpu_burst",
    "us of unused quota that a period may use up",
    _in("cpu", "cpu.cfs_burst_us", cg.parse_number, _PER_GROUP, in_range(0, 100_000_000)),
    _in("cpu", "cpu.max.burst", cg.parse_number, _KUBEPODS, _ANY),
    f"{BANDWIDTH} and Linux 5.14",
)
CPU_BVT = _group(
    "cpu_bvt",
    "group identity, from 2 (latency sensitive) to -1 (best effort)",
    _in("cpu", "cpu.bvt_warp_ns", cg.parse_number, _PER_GROUP, in_range(-1, 2)),
    _in("cpu", "cpu.bvt_warp_ns", cg.parse_number, _PER_GROUP, in_range(-1, 2)),
    ANOLIS,
)
CPU_IDLE = _group(
    "cpu_idle",
    "1: runs only when nothing else is runnable",
    _in("cpu", "cpu.idle", cg.parse_number, _KUBEPODS, _SWITCH),
    _in("cpu", "cpu.idle", cg.parse_number, _KUBEPODS, _SWITCH),
    "Linux 5.15",
)
CPUSET_CPUS = _group(
    "cpuset_cpus",
    "CPU numbers that the group may use; read only, see cpuset_cpus_wanted",
    _in("cpuset", "cpuset.cpus", parse_cpulist_file),
    _in("cpuset", "cpuset.cpus.effective", parse_cpulist_file),
)
CPUSET_CPUS_WANTED = _group(
    "cpuset_cpus_wanted",
    "CPU numbers that were asked for; on v2 empty for those of the parent",
    _in("cpuset", "cpuset.cpus", parse_cpulist_file, may=forms.cpu_list, copied=True),
    _in("cpuset", "cpuset.cpus", parse_cpulist_file, may=forms.cpu_list),
)

# --- Members ---

# While a v1 file of ids is held and read every second, the kernel repeats its first answer.
TASKS = _group(
    "tasks",
    "thread ids",
    _in("cpu", "tasks", cg.parse_ids, may=_ANY, hold=False),
    _in("", "cgroup.threads", cg.parse_ids, may=_ANY, hold=False),
)
CGROUP_PROCS = _group(
    "cgroup_procs",
    "process ids",
    _in("cpu", "cgroup.procs", cg.parse_ids, may=_ANY, hold=False),
    _in("", "cgroup.procs", cg.parse_ids, may=_ANY, hold=False),
)


# --- Pressure ---


def _pressure(kind: str) -> Resource[Pressure]:
    file = f"{kind}.pressure"
    return _group(
        f"{kind}_pressure",
        "percent of time, and us since the group was made",
        _in("cpuacct", file, parse_pressure, _KUBEPODS),
        _in("", file, parse_pressure, _KUBEPODS),
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
    return _group(
        name.replace(".", "_"),
        unit,
        _in("memory", name, cg.parse_number_or_max, v1, may, text=text),
        _in("memory", name, cg.parse_number_or_max, v2, may, text=text),
        needs,
    )


def _cache_limit(name: str, unit: str, may: Validator) -> Resource[int]:
    file = _in("memory", f"memory.pagecache_limit.{name}", cg.parse_number, _PER_GROUP, may)
    return _group(f"memory_pagecache_limit_{name}", unit, None, file, ANOLIS_CACHE)


MEMORY_USAGE = _group(
    "memory_usage",
    "bytes, with kernel memory and page cache",
    _in("memory", "memory.usage_in_bytes", cg.parse_number),
    _in("memory", "memory.current", cg.parse_number),
)
MEMORY_STAT = _group(
    "memory_stat",
    "bytes by use",
    _in("memory", "memory.stat", cg.parse_v1_memory_stat),
    _in("memory", "memory.stat", cg.parse_v2_memory_stat),
)
MEMORY_NUMA = _group(
    "memory_numa",
    "bytes by NUMA node, without page cache",
    _in("memory", "memory.numa_stat", parse_v1_numa_stat),
    _in("memory", "memory.numa_stat", parse_v2_numa_stat),
    "CONFIG_NUMA; on cgroup v2 Linux 5.10",
)
MEMORY_LIMIT = _group(
    "memory_limit",
    "bytes, -1 for no limit",
    _in(
        "memory",
        "memory.limit_in_bytes",
        cg.parse_v1_memory_limit,
        text=forms.V1_MEMORY_LIMIT,
        follower="memory.memsw.limit_in_bytes",
    ),
    _in("memory", "memory.max", cg.parse_number_or_max, text=forms.BYTES_OR_MAX),
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
MEMORY_IDLE_PAGES = _group(
    "memory_idle_pages",
    "bytes by kind of page and idle time",
    _in("memory", "memory.idle_page_stats", parse_idle_pages, _KUBEPODS),
    None,
    KIDLED,
)
MEMORY_PAGECACHE_LIMIT_ENABLE = _cache_limit("enable", "0 or 1", _SWITCH)
MEMORY_PAGECACHE_LIMIT_SIZE = _cache_limit("size", "bytes", _ANY)
MEMORY_PAGECACHE_LIMIT_SYNC = _cache_limit("sync", "1: reclaim while allocating", _SWITCH)


# --- Block devices and network class ---

_BY_DEVICE = "by device; one that is not named has none"


def _throttle(name: str, unit: str, high: int) -> Resource[DeviceNumbers]:
    """A limit of cgroup v1 by device."""
    file = _in(
        "blkio",
        f"blkio.throttle.{name}_device",
        keyed_files.parse_device_numbers,
        _KUBEPODS,
        keyed_files.numbers_up_to(high),
        text=keyed_files.number_text(),
    )
    return _group(f"blkio_throttle_{name}_device", f"{unit} {_BY_DEVICE}", file, None, BLKIO)


BLKIO_READ_IOPS = _throttle("read_iops", "operations per second", UINT32_MAX)
BLKIO_READ_BPS = _throttle("read_bps", "bytes per second", UINT64_MAX)
BLKIO_WRITE_IOPS = _throttle("write_iops", "operations per second", UINT32_MAX)
BLKIO_WRITE_BPS = _throttle("write_bps", "bytes per second", UINT64_MAX)
BLKIO_WEIGHT = _group(
    "blkio_weight",
    "1 to 1000, 10 at least with the scheduler cfq",
    _in(
        "blkio",
        "blkio.bfq.weight",
        cg.parse_number,
        _PER_GROUP,
        in_range(1, 1000),
        others=("blkio.weight",),
    ),
    None,
    f"cgroup v1 with {BFQ}, or Linux before 5.0 with cfq",
)


def _io(
    name: str, unit: str, names: keyed_files.DeviceLimits, needs: str
) -> Resource[keyed_files.DeviceSettings]:
    """Settings of cgroup v2 by device."""
    file = _in("io", name, names.parse, _PER_GROUP, names.validate, text=names.text())
    return _group(name.replace(".", "_"), f"{unit} {_BY_DEVICE}", None, file, needs)


IO_MAX = _io(
    "io.max",
    "rbps and wbps in bytes, riops and wiops in operations per second,",
    keyed_files.DeviceLimits(
        {"rbps": UINT64_MAX, "wbps": UINT64_MAX, "riops": UINT32_MAX, "wiops": UINT32_MAX}
    ),
    f"{IO_CONTROLLER} and CONFIG_BLK_DEV_THROTTLING",
)
IO_LATENCY = _io(
    "io.latency",
    "target in us",
    keyed_files.DeviceLimits({"target": 10**12}),
    f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOLATENCY",
)


def _io_weight(name: str, high: int, needs: str) -> Resource[int]:
    """The weight of a group of cgroup v2; those that it has for devices stay as they are."""
    file = _in(
        "io",
        name,
        keyed_files.parse_default_weight,
        _PER_GROUP,
        in_range(1, high),
        text=keyed_files.weight_text(),
    )
    return _group(name.replace(".", "_"), f"1 to {high}, 100 by default", None, file, needs)


IO_WEIGHT = _io_weight("io.weight", 10_000, f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOCOST")
IO_BFQ_WEIGHT = _io_weight("io.bfq.weight", 1000, f"{IO_CONTROLLER} and {BFQ}")


def _weights(
    name: str, v1: File[DeviceNumbers] | None, v2: File[DeviceNumbers] | None, needs: str, unit: str
) -> Resource[DeviceNumbers]:
    """The weights of a group for single devices; its own stays as it is."""
    return _group(name, f"{unit} by device; one that is not named has the group's", v1, v2, needs)


def _weight_file(
    controller: str, name: str, weights: keyed_files.DeviceWeights
) -> File[DeviceNumbers]:
    return _in(controller, name, weights.parse, _PER_GROUP, weights.validate, text=weights.text())


_BFQ_WEIGHTS = keyed_files.DeviceWeights(1, 1000)
BLKIO_COST_WEIGHT = _weights(
    "blkio_cost_weight",
    _weight_file("blkio", "blkio.cost.weight", keyed_files.DeviceWeights(1, 100, unset="100")),
    None,
    ANOLIS,
    "1 to 100",
)
IO_DEVICE_WEIGHT = _weights(
    "io_device_weight",
    None,
    _weight_file("io", "io.weight", keyed_files.DeviceWeights(1, 10_000)),
    f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOCOST",
    "1 to 10000",
)
BFQ_DEVICE_WEIGHT = _weights(
    "bfq_device_weight",
    _weight_file("blkio", "blkio.bfq.weight_device", _BFQ_WEIGHTS),
    _weight_file("io", "io.bfq.weight", _BFQ_WEIGHTS),
    BFQ,
    "1 to 1000",
)


def _cost(
    name: str, unit: str, words: keyed_files.IoCostSettings
) -> Resource[keyed_files.DeviceParameters]:
    """A file of the root group, on v1 of Anolis kernels."""
    v1, v2 = (
        _in(
            controller,
            f"{controller}.cost.{name}",
            words.parse,
            _ROOT,
            words.validate,
            text=words.text(),
        )
        for controller in ("blkio", "io")
    )
    needs = f"{IO_CONTROLLER} and CONFIG_BLK_CGROUP_IOCOST; on cgroup v1 {ANOLIS}"
    return _group(f"blkio_cost_{name}", f"{unit} by device", v1, v2, needs)


BLKIO_COST_QOS = _cost(
    "qos",
    "latency targets",
    keyed_files.IoCostSettings(("enable", "ctrl", "rpct", "rlat", "wpct", "wlat"), "enable=0"),
)
BLKIO_COST_MODEL = _cost(
    "model",
    "costs",
    keyed_files.IoCostSettings(
        ("ctrl", "rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"), "ctrl=auto"
    ),
)
NET_CLASS_ID = _group(
    "net_class_id",
    "class of outgoing packets",
    _in("net_cls", "net_cls.classid", cg.parse_number, _KUBEPODS, forms.class_id),
    None,
    "cgroup v1 with CONFIG_CGROUP_NET_CLASSID",
)

NET_PRIORITY = _group(
    "net_priority",
    "priority of outgoing packets by network interface; one that is not named has 0",
    _in(
        "net_prio",
        "net_prio.ifpriomap",
        keyed_files.parse_priorities,
        _KUBEPODS,
        keyed_files.is_priorities,
        text=keyed_files.PRIORITIES,
        copied=True,
    ),
    None,
    "cgroup v1 with CONFIG_CGROUP_NET_PRIO",
)

# --- The host as a whole ---


def _host(
    name: str,
    unit: str,
    path: str,
    parse: Callable[[bytes], T],
    root: Root = Root.PROC,
    *,
    support: Support = Support.PER_GROUP,
    may: Validator | None = None,
    shows: Validator | None = None,
    text: Text[T] | None = None,
    needs: str = "",
    hold: bool = True,
) -> Resource[T]:
    """A file outside the cgroup tree, the same whatever the cgroup version; written as with _in."""
    text = text or (text_for(parse) if may else None)
    file = File(path, parse, root, support=support, text=text, validate=may, shows=shows, hold=hold)
    return Resource(name, unit, {1: file, 2: file}, needs=needs)


PROC_STAT_TICKS = _host("proc_stat_ticks", "ticks", "stat", procfiles.parse_cpu_ticks)
PROC_STAT_PER_CPU = _host(
    "proc_stat_per_cpu", "ticks by CPU", "stat", procfiles.parse_per_cpu_ticks
)
MEMINFO = _host("meminfo", "bytes", "meminfo", procfiles.parse_meminfo)
NUMA_MEMINFO = _host(
    "numa_meminfo",
    "bytes of one NUMA node",
    "bus/node/devices/node{}/meminfo",
    procfiles.parse_numa_meminfo,
    Root.SYS,
    needs="CONFIG_NUMA",
)
NODE_CPU_PRESSURE = _host(
    "node_cpu_pressure", "percent, us", "pressure/cpu", parse_pressure, needs=PSI
)
NODE_MEMORY_PRESSURE = _host(
    "node_memory_pressure", "percent, us", "pressure/memory", parse_pressure, needs=PSI
)
NODE_IO_PRESSURE = _host(
    "node_io_pressure", "percent, us", "pressure/io", parse_pressure, needs=PSI
)

# A held /proc/<pid>/net file would keep the network namespace of an ended pod alive.
NET_DEV = _host(
    "net_dev",
    "counters by interface, in the network namespace of a process",
    "{}/net/dev",
    netfiles.parse_net_dev,
    hold=False,
)
# Init's network namespace is that of the host; ours may be a pod's.
NETSTAT = _host("netstat", "by protocol", "1/net/netstat", netfiles.parse_netstat)
SNMP = _host("snmp", "by protocol", "1/net/snmp", netfiles.parse_netstat)
SNMP6 = _host("snmp6", "by protocol", "1/net/snmp6", netfiles.parse_snmp6)
SOCKSTAT = _host("sockstat", "by protocol", "1/net/sockstat", netfiles.parse_sockstat)
SOCKSTAT6 = _host("sockstat6", "by protocol", "1/net/sockstat6", netfiles.parse_sockstat)
SOFTNET = _host("softnet", "by CPU", "net/softnet_stat", netfiles.parse_softnet)
CONNTRACK_COUNT = _host(
    "conntrack_count",
    "connections",
    "sys/net/netfilter/nf_conntrack_count",
    procfiles.parse_int,
    needs="the module nf_conntrack",
)
CONNTRACK_MAX = _host(
    "conntrack_max",
    "connections",
    "sys/net/netfilter/nf_conntrack_max",
    procfiles.parse_int,
    needs="the module nf_conntrack",
)

MIN_FREE_KBYTES = _host(
    "min_free_kbytes",
    "KiB",
    "sys/vm/min_free_kbytes",
    cg.parse_number,
    may=in_range(10_240, 10_485_760),
    shows=_ANY,  # of a small machine it is less
)
WATERMARK_SCALE_FACTOR = _host(
    "watermark_scale_factor",
    "parts in 10000",
    "sys/vm/watermark_scale_factor",
    cg.parse_number,
    may=in_range(10, 400),
    shows=in_range(1, 3000),
)
MEMCG_REAPER = _host(
    "memcg_reaper",
    "0 or 1",
    "kernel/mm/memcg_reaper/reap_background",
    cg.parse_number,
    Root.SYS,
    may=_SWITCH,
    needs=ANOLIS,
)
PAGECACHE_LIMIT = _host(
    "pagecache_limit",
    "0 or 1",
    "kernel/mm/pagecache_limit/enabled",
    cg.parse_number,
    Root.SYS,
    may=_SWITCH,
    needs=ANOLIS_CACHE,
)
KIDLED_PERIOD = _host(
    "kidled_period",
    "s",
    "kernel/mm/kidled/scan_period_in_seconds",
    cg.parse_number,
    Root.SYS,
    may=_ANY,
    needs=KIDLED,
)
KIDLED_USE_HIERARCHY = _host(
    "kidled_use_hierarchy",
    "0 or 1",
    "kernel/mm/kidled/use_hierarchy",
    cg.parse_number,
    Root.SYS,
    may=_SWITCH,
    needs=KIDLED,
)
SCHED_FEATURES = _host(
    "sched_features",
    "names; NO_X for X switched off",
    "kernel/debug/sched_features",
    procfiles.parse_text,
    Root.SYS,
    needs="debugfs, and Linux before 5.13",
)
SCHED_FEATURE = {  # each by itself
    name: _host(
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
SCHED_GROUP_IDENTITY = _host(
    "sched_group_identity",
    "0 or 1",
    "sys/kernel/sched_group_identity_enabled",
    cg.parse_number,
    may=_SWITCH,
    needs=ANOLIS,
)
SCHED_CORE = _host(
    "sched_core",
    "0 or 1",
    "sys/kernel/sched_core",
    cg.parse_number,
    may=_SWITCH,
    needs=ANOLIS,
)
SCHED_IDLE_SAVER_WMARK = _host(
    "sched_idle_saver_wmark",
    "us",
    "sys/kernel/sched_idle_saver_wmark",
    cg.parse_number,
    may=_ANY,
    needs=ANOLIS,
)
PROCESS_START = _host(
    "process_start",
    "ticks since boot, of a process",
    "{}/stat",
    procfiles.parse_start_time,
    hold=False,
)
OOM_SCORE_ADJ = _host(
    "oom_score_adj",
    "-1000 (never killed) to 1000, of a process",
    "{}/oom_score_adj",
    cg.parse_number,
    may=in_range(-1000, 1000),
    hold=False,
)
CORE_SCHED_COOKIE = _host(
    "core_sched_cookie",
    "core scheduling cookie of a process, 0 for none, -1 for a new one",
    "{} (core scheduling cookie)",
    cpu_scheduler.parse_cookie,
    Root.COOKIE,
    shows=cpu_scheduler.is_cookie,
    text=cpu_scheduler.COOKIE_TEXT,
    needs=cpu_scheduler.CORE_SCHED_NEEDS,
)


# --- Cache and memory bandwidth ---


def _schemata(resource: str, unit: str) -> Resource[str]:
    """One line of a control group's schemata."""
    return _host(
        f"resctrl_{resource.lower()}",
        unit,
        "{}/schemata",
        partial(schemata.parse_line, resource),
        Root.RESCTRL,
        may=partial(schemata.is_positive, resource),
        text=schemata.schemata_text(resource),
        needs=resctrl_groups.RESCTRL_NEEDS,
        hold=False,
    )


def _cache_info(name: str, unit: str, parse: Callable[[bytes], int]) -> Resource[int]:
    """A fact about the L3 caches."""
    path = f"info/L3/{name}"
    return _host(
        f"resctrl_{name}",
        unit,
        path,
        parse,
        Root.RESCTRL,
        needs=resctrl_groups.RESCTRL_NEEDS,
        hold=False,
    )


RESCTRL_CBM_MASK = _cache_info("cbm_mask", "ways of an L3 cache, as a mask", schemata.parse_mask)
RESCTRL_MIN_CBM_BITS = _cache_info("min_cbm_bits", "fewest ways of a group", cg.parse_number)
RESCTRL_GROUP = _host(
    "resctrl_group",
    "present or absent",
    "",
    resctrl_groups.parse_presence,
    Root.RESCTRL_GROUP,
    text=resctrl_groups.PRESENCE_TEXT,
    needs=resctrl_groups.RESCTRL_NEEDS,
)
RESCTRL_L3 = _schemata("L3", "ways of each L3 cache, as a mask in hexadecimal")
RESCTRL_MB = _schemata("MB", "memory bandwidth by L3 cache: percent, on AMD eighths of GB/s")
RESCTRL_TASKS = _host(
    "resctrl_tasks",
    "control group that a process is in; / for the default one",
    "{}/cpu_resctrl_groups",
    resctrl_tasks.parse_membership,
    Root.RESCTRL_TASKS,
    text=resctrl_tasks.MEMBERSHIP_TEXT,
    needs=resctrl_tasks.MEMBERSHIP_NEEDS,
)

# --- Network ---

DEFAULT_INTERFACE = _host(
    "default_interface",
    "interface of the node's IPv4 default route; empty: none",
    "1/net/route",
    netfiles.parse_default_interface,
    hold=False,
)
DEFAULT_INTERFACE_6 = _host(
    "default_interface_6",
    "interface of the node's IPv6 default route; empty: none",
    "1/net/ipv6_route",
    netfiles.parse_default_interface_6,
    hold=False,
)
INTERFACE_SPEED = _host(
    "interface_speed",
    "Mbit/s of a network interface, -1 where its driver does not know it",
    "class/net/{}/speed",
    cg.parse_number,
    Root.SYS,
    needs="an interface that is up",
    hold=False,
)
PROCESS_INTERFACE = _host(
    "process_interface",
    "the node's end of a process's virtual interface (veth); empty: none",
    "{} (end of its interface)",
    netfiles.parse_interface,
    Root.INTERFACE,
    needs=traffic.NODE_NETWORK,
)
SOCKET_GROUP = _host(
    "socket_group",
    "level and number of a cgroup of v2 by which packets of the node's own sockets are told",
    "{} (cgroup of sockets)",
    objects.parse_socket_cgroup,
    Root.SOCKET_GROUP,
    needs=objects.CGROUP_MAP_NEEDS,
)
TRAFFIC_CLASSES = _host(
    "traffic_classes",
    "classes at the root of an interface in bytes/s, and the addresses whose packets they take",
    "{} (traffic classes)",
    traffic.parse_traffic,
    Root.TRAFFIC,
    may=traffic.is_tree,
    shows=traffic.is_kernel_state,
    text=traffic.TRAFFIC,
    needs=traffic.NEEDS,
)
TERWAY_FILE = _host(
    "terway_file",
    "text of a file of the agent terway-qos: rates in bytes/s, or pods",
    "{} (file of terway-qos)",
    terway_files.parse_terway_file,
    Root.TERWAY,
    may=terway_files.is_terway_content,
    shows=terway_files.may_have_been_found,
    text=terway_files.CONTENT_TEXT,
    needs=terway_files.TERWAY_NEEDS,
)

RESOURCES: tuple[Resource[Any], ...] = tuple(
    row for row in list(globals().values()) if isinstance(row, Resource)
)
BY_NAME: Mapping[str, Resource[Any]] = {  # what journals and records call them
    row.name: row for row in (*RESOURCES, *SCHED_FEATURE.values())
}
