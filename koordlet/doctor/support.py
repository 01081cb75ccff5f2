"""Findings about this host: what is supported or missing, which gate needs it, what provides it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from koordlet.doctor.probes import Finding, probe_host, probe_run_dir
from koordlet.host import resources as table
from koordlet.host.cgroups.tree import V1_ONLY
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.files import read_file, read_head
from koordlet.host.host import Host
from koordlet.host.kernelfile import KernelFile
from koordlet.host.net.interfaces import node_namespace
from koordlet.host.objects import SOCKET_CGROUPS
from koordlet.host.processes import OWN_PROCESS
from koordlet.host.resource import ObjectKind, Resource, Root
from koordlet.host.resources import DEFAULT_INTERFACE, DEFAULT_INTERFACE_6, INTERFACE_SPEED
from koordlet.host.topology import numa_node_ids

CLAIMED_BY_PLUGINS = ("plugins that claim it",)  # no shipped one does

CONTROLLERS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    "memory": (),
    "cpuset": ("BECPUSuppress", "CPUSetAllocator"),
    "blkio": ("BlkIOReconcile",),
    "net_cls": CLAIMED_BY_PLUGINS,
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
    Need("cgroup", "block device weight", (table.BLKIO_WEIGHT,), CLAIMED_BY_PLUGINS),
    Need("cgroup", "block device weight by cost", (table.IO_WEIGHT,), CLAIMED_BY_PLUGINS),
    Need("cgroup", "block device weight by budget", (table.IO_BFQ_WEIGHT,), CLAIMED_BY_PLUGINS),
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
    Need("cgroup", "network class", (table.NET_CLASS_ID,), CLAIMED_BY_PLUGINS),
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

_MOUNT = "mount the host's cgroup file system, or give --cgroup-root-dir"
_WRITABLE = "run as root, with that file system mounted writable"
_ROOTS = "check --cgroup-root-dir, --proc-root-dir and --sys-root-dir"


class Claimable(NamedTuple):
    """A value that a plugin from elsewhere may claim."""

    plugin: str
    gates: tuple[str, ...]  # any of them enables the plugin
    row: Resource[Any]


def findings(
    host: Host, run_dir: Path | None = None, claimable: Iterable[Claimable] = ()
) -> list[Finding]:
    """Look at the host, reading a little of every kind of file. Takes some milliseconds.

    run_dir is the daemon's state directory; None leaves it out. claimable: what other plugins than
    the shipped ones may claim. May be called on any thread.
    """
    found = [_hierarchies(host), *_controllers(host), _pods(host)]
    found += [_row(host, need) for need in NEEDS]
    found += [_claimable(host, each) for each in dict.fromkeys(claimable)]
    found += probe_host(host.paths)
    return found + ([probe_run_dir(run_dir)] if run_dir else [])


def _hierarchies(host: Host) -> Finding:
    available = host.cgroups.controllers()
    detail = f"{host.cgroups.flavour} below {host.paths.cgroup}"
    return Finding(
        "cgroup", "hierarchies", bool(available), (), detail, "" if available else _MOUNT
    )


def _controllers(host: Host) -> Iterator[Finding]:
    for name, gates in CONTROLLERS.items():
        present = host.cgroups.has(name)
        needs = "cgroup v1" if name in V1_ONLY else f"a kernel with the {name} controller"
        detail = f"v{host.cgroups.version(name)}" if present else "not available"
        fix = "" if present else needs
        yield Finding("cgroup", f"controller {name}", present, gates, detail, fix)


def _pods(host: Host) -> Finding:
    """The kubepods cgroups; a host without any lacks nothing."""
    layout = host.layout
    present = any((root / layout.root).is_dir() for root in host.cgroups.hierarchies())
    where = f"found at {layout.root}" if present else f"none here, expected at {layout.root}"
    return Finding("cgroup", "pods", True, (), f"driver {layout.driver.value}, {where}", "")


def _row(host: Host, need: Need) -> Finding:
    problems: dict[str, list[str]] = {}  # what is wrong -> rows
    fixes: dict[str, None] = {}  # in their order, each once
    found = 0
    for row in need.rows:
        try:
            _probe_row(host, row)
            found += 1
        except (Unsupported, Vanished):
            problems.setdefault("missing", []).append(row.name)
            fixes[_provider(row)] = None
        except KernelFileError as err:
            problems.setdefault(err.found, []).append(row.name)
            fixes[err.hint] = None
    if need.one_is_enough and found:
        problems, fixes = {}, {}
    detail = "; ".join(f"{problem}: {', '.join(rows)}" for problem, rows in problems.items())
    return Finding(need.area, need.name, not problems, need.needed_by, detail, "; ".join(fixes))


def _claimable(host: Host, claim: Claimable) -> Finding:
    """Whether a value is there, and this process may write it."""
    row, name = claim.row, f"{claim.plugin} claims {claim.row.name}"
    try:
        if row.is_object:
            _probe_row(host, row)
            return Finding("plugin", name, True, claim.gates, f"like {_example_group(host, row)}")
        path = _example_group(host, row)
        if isinstance(row, KernelFile):  # what a plugin declares of it may be wrong
            host.bind(row).parse(read_file(Path(path)))
        else:
            read_head(Path(path), 1)
    except (Unsupported, Vanished):
        return Finding("plugin", name, False, claim.gates, "missing", _provider(row))
    except KernelFileError as err:
        return Finding("plugin", name, False, claim.gates, err.found, err.hint)
    if not os.access(path, os.W_OK, effective_ids=True):
        detail = f"{path} cannot be written by this process"
        return Finding("plugin", name, False, claim.gates, detail, _WRITABLE)
    return Finding("plugin", name, True, claim.gates, f"like {path}")


def _probe_row(host: Host, row: Resource[Any]) -> None:
    """See that a value of a row can be read. Raises KernelFileError."""
    root = host.file(row).root
    if isinstance(root, ObjectKind) and root.in_node_network:
        node_namespace(host.paths)  # to read it takes a helper process
        if root is SOCKET_CGROUPS and host.cgroups.unified is None:
            raise Unsupported.here(str(host.paths.cgroup), "no hierarchy of cgroup v2", row.needs)
    elif row.is_object:
        host.bind(row, OWN_PROCESS if "{}" in host.file(row).name else "").text()
    else:
        read_head(Path(_example_group(host, row)), 1)


def _example_group(host: Host, row: Resource[Any]) -> str:
    """Return one file of a row that ought to be there. Raises Unsupported."""
    file = host.file(row)
    if file.root is Root.CGROUP:
        pods = host.layout.root
        has_pods = any((root / pods).is_dir() for root in host.cgroups.hierarchies())
        # The root group lacks many of the files that groups have.
        return host.path(row, pods if has_pods else next(iter(host.groups_below(row, "")), ""))
    if "{}" not in file.name or file.root is Root.RESCTRL:
        return host.path(row)
    if row is INTERFACE_SPEED:
        return host.path(row, _interface(host))
    numa_node = str(next(iter(numa_node_ids(host.paths.sys)), 0))
    return host.path(row, numa_node if file.root is Root.SYS else OWN_PROCESS)


def _interface(host: Host) -> str:
    """The interface of the default route."""
    for row in (DEFAULT_INTERFACE, DEFAULT_INTERFACE_6):
        with suppress(KernelFileError):
            if name := host.read(row):
                return name
    return "lo"


def _provider(row: Resource[Any]) -> str:
    """Return what would provide the file of a row."""
    if row.needs or not isinstance(row, KernelFile):
        return row.needs or _ROOTS
    kernel = "a kernel" if len(row.files) > 1 else f"cgroup v{next(iter(row.files))}"
    return f"{kernel} with {row.name}"
