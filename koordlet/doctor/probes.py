"""Findings of `koordletctl doctor` that no row of the resource table answers."""

import importlib.util
import os
import resource as limits
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from koord.util.errors import UnsafeFile
from koord.util.ownedfiles import OwnedDirectory
from koordlet.doctor.privileges import CAPABILITIES, missing_capabilities
from koordlet.features import INJECTORS
from koordlet.host.errors import KernelFileError
from koordlet.host.files import DEFAULT_BUDGET, names_in
from koordlet.host.idle_pages import IDLE_BITMAP, IDLE_PAGE_TRACKING_NEEDS, PAGE_FILES
from koordlet.host.net.interfaces import NodeNetwork
from koordlet.host.objects import COOKIES, CORE_SCHED_COOKIE, make_reader
from koordlet.host.paths import HostPaths, check_socket
from koordlet.host.processes import INIT_PROCESS, OWN_PROCESS, sees_host_pids
from koordlet.host.storage import read_local_storage
from koordlet.host.topology import (
    CpuInfo,
    numa_node_ids,
    read_cpuinfo,
    read_huge_pages,
    read_topology,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this host. needed_by names gates; empty: every run measures with it.

    supported is None where it could not be found out.
    """

    area: str
    name: str
    supported: bool | None
    needed_by: tuple[str, ...] = ()
    detail: str = ""
    fix: str = ""  # what would provide it: kernel option, mount or capability; "" when supported


MODULES = {  # by what is lost without them
    "sch_htb": ("rates of traffic classes", "CONFIG_NET_SCH_HTB"),
    "cls_u32": ("traffic classes by a pod's address", "CONFIG_NET_CLS_U32"),
}
_LISTS = ("modules.dep", "modules.builtin")
_MAX_BYTES = 8 << 20  # of a list; Debian's has 0.6 MiB
_LIBRARY = Path("/lib/modules")


def probe_modules(sys: Path, library: Path = _LIBRARY) -> Iterator[Finding]:
    """Yield a finding for each module. A pod sees those that are loaded only, of others nothing."""
    directory = library / os.uname().release
    text = b"\n".join(filter(None, (_read_module_list(directory / name) for name in _LISTS)))
    for name, (adds, option) in MODULES.items():
        if (sys / "module" / name).is_dir():
            supported, detail = True, f"{adds}; loaded"
        elif not text:
            supported, detail = None, f"{adds}; not loaded, and {directory} is not to be seen"
        else:
            supported = f"/{name}.ko".encode() in text
            detail = f"{adds}; {'loaded with its first use' if supported else 'not there'}"
        fix = "" if supported else f"a kernel with {option}, and `modprobe {name}`"
        yield Finding("network", f"module {name}", supported, ("TCNetworkQoS",), detail, fix)


def _read_module_list(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return b""


_ALLOCATION = frozenset({"cat_l3", "mba"})
_MONITORING = frozenset({"cqm_mbm_total", "cqm_mbm_local", "cqm_occup_llc"})
NRI_SOCKET = "nri/nri.sock"  # below /var/run, where every runtime has it
_OTHER_FILES = 256  # descriptors beside those of kernel files: sockets, rings, logs


def probe_host(paths: HostPaths) -> Iterator[Finding]:
    """Yield findings about CPUs, caches, storage, namespaces, limits and privileges."""
    yield _topology(paths.sys)
    yield _numa(paths.sys)
    yield _huge_pages(paths.sys)
    yield from _resctrl(paths)
    yield _hardware_counters(paths.sys)
    yield _idle_pages(paths)
    yield _core_scheduling(paths)
    yield _storage(paths)
    yield _gpus(paths.sys)
    yield _rdma(paths.sys)
    yield _nri(paths.var_run / NRI_SOCKET)
    yield _host_pids(paths.proc)
    yield _network(paths.proc)
    yield from probe_modules(paths.sys)
    yield _open_files()
    yield from _capabilities(paths.proc)


def probe_run_dir(run_dir: Path) -> Finding:
    """Return whether state can be written; without it a restart forgets the windows."""
    writable = os.access(run_dir, os.W_OK | os.X_OK)
    detail = f"{run_dir} is {'writable' if writable else 'missing or not writable'}"
    fix = "create it, or give --run-dir"
    try:
        OwnedDirectory.open(run_dir, create=False).close()
    except UnsafeFile as err:
        writable, detail, fix = False, f"{err.filename}: {err.strerror}", err.hint
    except OSError as err:
        writable, detail = False, f"{run_dir}: {err.strerror}"
    return _finding("daemon", "run directory", detail, fix, ok=writable)


def _finding(area: str, name: str, detail: str, fix: str, *gates: str, ok: bool) -> Finding:
    return Finding(area, name, ok, gates, detail, "" if ok else fix)


def _topology(sys: Path) -> Finding:
    try:
        topology = read_topology(sys)
    except KernelFileError as err:
        detail, ok = str(err), False
    else:
        cores = len(topology.by(lambda cpu: cpu.core))
        sockets = len(topology.by(lambda cpu: cpu.socket))
        detail, ok = f"{len(topology.cpus)} CPUs, {cores} cores, {sockets} sockets", True
    return _finding("node", "cpu topology", detail, "mount /sys, or give --sys-root-dir", ok=ok)


def _numa(sys: Path) -> Finding:
    nodes = numa_node_ids(sys)
    detail = f"nodes {', '.join(map(str, nodes))}" if nodes else "none"
    return _finding("node", "NUMA nodes", detail, "CONFIG_NUMA", ok=bool(nodes))


def _huge_pages(sys: Path) -> Finding:
    sizes = sorted(read_huge_pages(sys / "kernel/mm/hugepages"))
    detail = ", ".join(f"{size} kB" for size in sizes) or "none"
    return _finding(
        "node", "huge pages", detail, "CONFIG_HUGETLBFS", "HugePageReport", ok=bool(sizes)
    )


def _resctrl(paths: HostPaths) -> Iterator[Finding]:
    """One of the CPU's features is enough; the rows of resctrl say which the kernel serves."""
    try:
        cpu = read_cpuinfo(paths.proc)
    except KernelFileError:
        cpu = CpuInfo()
    mounted = (paths.resctrl / "schemata").exists()
    for name, flags, gates in (
        ("cache and bandwidth allocation", _ALLOCATION, ("RdtResctrl", "Resctrl")),
        ("cache and bandwidth monitoring", _MONITORING, ("ResctrlCollector",)),
    ):
        capable = bool(flags & cpu.flags)
        detail = f"resctrl is {'mounted' if mounted else 'not mounted'}"
        if missing := ", ".join(sorted(flags - cpu.flags)):
            detail = f"{detail}; the CPU lacks {missing}"
        fix = f"mount -t resctrl resctrl {paths.resctrl} (CONFIG_X86_CPU_RESCTRL)"
        if not capable:
            fix = f"a CPU with one of {', '.join(sorted(flags))}"
        yield _finding("cpu", name, detail, fix, *gates, ok=capable and mounted)


def _hardware_counters(sys: Path) -> Finding:
    present = (sys / "bus/event_source/devices/cpu").exists()
    detail = "the kernel has a driver" if present else "no driver, as in most virtual machines"
    fix = "a machine whose hypervisor passes the performance counters on"
    return _finding("cpu", "hardware counters", detail, fix, "CPICollector", "Libpfm4", ok=present)


def _idle_pages(paths: HostPaths) -> Finding:
    bitmap = paths.sys / IDLE_BITMAP
    files = (bitmap, *(paths.proc / name for name in PAGE_FILES))
    lacking = [path for path in files if not path.exists()]
    if not lacking and not os.access(bitmap, os.W_OK):
        lacking = [bitmap]
    usable = not lacking
    detail = "for kernels without kidled" if usable else f"{lacking[0]} is missing or read only"
    return _finding(
        "node",
        "idle page tracking",
        detail,
        IDLE_PAGE_TRACKING_NEEDS,
        "ColdPageCollector",
        ok=usable,
    )


def _core_scheduling(paths: HostPaths) -> Finding:
    reason = core_scheduling_problem(paths)
    needs = CORE_SCHED_COOKIE.needs
    return _finding("cpu", "core scheduling", reason, needs, "CoreSched", ok=not reason)


def core_scheduling_problem(paths: HostPaths) -> str:
    """Return why core scheduling cannot be used; "" when it can.

    Asks for this thread's own cookie, which needs no privilege.
    """
    try:
        make_reader(COOKIES, paths).read(OWN_PROCESS)
    except KernelFileError as err:
        return f"the kernel answers {err.found!r}"
    return ""


def _storage(paths: HostPaths) -> Finding:
    storage = read_local_storage(paths.sys, paths.proc)
    detail = f"{len(storage.disk_number)} disks, {len(storage.mount_source)} mounts"
    ok = bool(storage.disk_number and storage.mount_source)
    return _finding("node", "local storage", detail, "hostPID: true", "BlkIOReconcile", ok=ok)


def _gpus(sys: Path) -> Finding:
    """Whether NVML can be asked; nothing of it is loaded."""
    driver = sys / "bus/pci/drivers/nvidia"
    cards = [name for name in names_in(driver) if ":" in name]
    package = importlib.util.find_spec("pynvml") is not None
    if not cards:
        detail, fix = "no GPU with NVIDIA's driver", "load the driver; other vendors' need files"
    elif not package:
        detail, fix = f"{len(cards)} GPUs, nvidia-ml-py is missing", "pip install koordlet[nvml]"
    else:
        detail, fix = f"{len(cards)} GPUs", ""
    return _finding("device", "GPUs", detail, fix, "Accelerators", ok=bool(cards) and package)


def _rdma(sys: Path) -> Finding:
    from koordlet.host.devices import read_rdma_interfaces  # the daemon imports this module

    try:
        found = [interface.name for interface in read_rdma_interfaces(sys)]
        detail = ", ".join(found) or "none"
    except KernelFileError as err:
        found, detail = [], str(err)
    fix = "a network card whose driver makes mlx<n>_<n> below /sys/class/infiniband"
    return _finding("device", "RDMA interfaces", detail, fix, "RDMADevices", ok=bool(found))


def _nri(socket: Path) -> Finding:
    fix = (
        "containerd 2 and CRI-O 1.26 have NRI on, containerd 1.7 with disable = false below "
        "[plugins.'io.containerd.nri.v1.nri']; in a cluster the component nri"
    )
    try:
        check_socket(socket)
        detail, ok = f"{socket}", True
    except FileNotFoundError:
        detail, ok = f"no socket {socket}", False
    except UnsafeFile as err:
        detail, ok, fix = f"{err.filename}: {err.strerror}", False, err.hint
    except OSError as err:
        detail, ok = f"{socket}: {err.strerror}", False
    return _finding("container", "settings before its start", detail, fix, *INJECTORS, ok=ok)


def _host_pids(proc: Path) -> Finding:
    shared = sees_host_pids(proc)
    detail = "pid 1 is the node's" if shared else "only this container's processes are seen"
    gates = ("PodNetworkCollector", "CoreSched", "OOMScoreAdj", "BlkIOReconcile")
    return _finding("process", "host pids", detail, "hostPID: true", *gates, ok=shared)


def _network(proc: Path) -> Finding:
    network = NodeNetwork(proc)
    try:
        count = len(network.read())
    except KernelFileError as err:
        return _finding(
            "network", "interfaces", err.found, err.hint, "NodeNetworkCollector", ok=False
        )
    finally:
        network.close()
    source = {INIT_PROCESS: "counters from net/dev of pid 1", OWN_PROCESS: "rtnetlink"}[
        network.process or INIT_PROCESS
    ]
    detail = f"{count} from {source}" if not network.problem else network.problem
    return _finding("network", "interfaces", detail, "", "NodeNetworkCollector", ok=True)


def _open_files() -> Finding:
    _, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    wanted = DEFAULT_BUDGET + _OTHER_FILES
    detail = f"hard limit {hard}, {wanted} wanted"
    fix = f"LimitNOFILE={wanted}; beyond it files are opened anew for each read"
    ok = hard == limits.RLIM_INFINITY or hard >= wanted
    return _finding("daemon", "open files", detail, fix, ok=ok)


def _capabilities(proc: Path) -> Iterator[Finding]:
    missing = missing_capabilities(proc)
    for capability in CAPABILITIES:
        fix = f"run as root, or add {capability.name}"
        gates, ok = capability.needed_by, capability not in missing
        yield _finding("privilege", capability.name, capability.adds, fix, *gates, ok=ok)
