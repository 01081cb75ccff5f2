"""A host on a temporary directory: kernel files and cgroups, scripted by a test."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from koord.api.qos import KubeQoS
from koordlet.host.cgroups.cgroupfiles import QUOTA_PERIOD_US
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.object_writers import MakeWriter
from koordlet.host.objects import ObjectReader
from koordlet.host.paths import HostPaths
from koordlet.host.resource import ObjectKind
from koordlet.plugin.testing import kernelfiles

PSI_RESOURCES = ("cpu", "memory", "io")
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")


class FakeTree:
    """Files as a host with that cgroup version, number of CPUs and kind of kernel has them."""

    def __init__(self, root: Path, version: int, *, cpus: int, psi: bool) -> None:
        self.paths = HostPaths.below(root)
        self._root = str(self.paths.cgroup.parent)
        self.version = version
        self.cpus = cpus
        self.psi = psi

    def write(self, path: str, text: str | bytes) -> Path:
        """Write any file, for example "proc/vmstat" or "cgroup/cpu/kubepods/cpu.shares"."""
        name = f"{self._root}/{path}"
        data = text.encode() if isinstance(text, str) else text
        try:
            _write(name, data)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(name), exist_ok=True)
            _write(name, data)
        return Path(name)

    def read(self, path: str) -> str:
        """Return the text of a file, named as with write, without the end of line."""
        return (self.paths.cgroup.parent / path).read_text().rstrip("\n")

    def remove(self, path: str) -> None:
        """End a cgroup and all below it, in every hierarchy."""
        for directory in self._directories(path):
            shutil.rmtree(directory, ignore_errors=True)

    def _directories(self, path: str) -> list[Path]:
        """The directories with the files of a cgroup: one per v1 hierarchy."""
        if self.version == 2:
            return [self.paths.cgroup / path]
        return [self.paths.cgroup / controller / path for controller in V1_CONTROLLERS]


def _write(name: str, data: bytes) -> None:
    """Path.write_bytes takes four times as long, and a host has hundreds of files."""
    with open(name, "wb", buffering=0) as file:
        file.write(data)


class FakeGroup:
    """A cgroup, in all hierarchies of v1 or the one of v2."""

    def __init__(self, host: FakeTree, path: str) -> None:
        self.path = path
        self._host = host
        self._usage_ns = 1_000_000_000
        self._throttle = (0, 0, 0)  # periods, throttled periods, nanoseconds
        self._memory = (0, 0, -1)
        self._write_all()

    def write(self, file: str, text: str | bytes) -> None:
        """Write a file of this group; on v1 its controller comes first: "memory/memory.limit"."""
        controller, _, name = file.rpartition("/")
        path = f"{self.path}/{name}" if self.path else name
        self._host.write(f"cgroup/{controller}/{path}" if controller else f"cgroup/{path}", text)

    def read(self, file: str) -> str:
        """Return the text of a file of this group, named as with write, without the end of line."""
        controller, _, name = file.rpartition("/")
        path = f"{self.path}/{name}" if self.path else name
        return self._host.read(f"cgroup/{controller}/{path}" if controller else f"cgroup/{path}")

    def use_cpu(self, seconds: float) -> None:
        """Add CPU seconds to the group's counter."""
        self._usage_ns += round(seconds * 1e9)
        self._write_cpu()

    def throttle(self, periods: int, throttled: int, seconds: float = 0.0) -> None:
        """Add enforcement periods, how many of them were throttled, and the seconds lost."""
        old = self._throttle
        new = (periods, throttled, round(seconds * 1e9))
        self._throttle = (old[0] + new[0], old[1] + new[1], old[2] + new[2])
        self._write_cpu()

    def use_memory(self, anonymous: int, *, page_cache: int = 0, limit: int = -1) -> None:
        """Set what the group uses, and its limit (-1: none), in bytes."""
        self._memory = (anonymous, page_cache, limit)
        self._write_memory()

    def set_pressure(self, resource: str, some: float, full: float | None = 0.0) -> None:
        """Set the group's PSI averages in percent; full None: a kernel without that line."""
        text = kernelfiles.pressure(some, full, int(some * 1e5), int((full or 0.0) * 1e5))
        self.write(self._file("cpuacct", f"{resource}.pressure"), text)

    def set_processes(self, *pids: int) -> None:
        """Set the processes of the group."""
        text = "".join(f"{pid}\n" for pid in pids)
        for controller in V1_CONTROLLERS if self._host.version == 1 else ("",):
            self.write(self._file(controller, "cgroup.procs"), text)

    def remove(self) -> None:
        """End the group and all below it."""
        self._host.remove(self.path)

    def _file(self, controller: str, name: str) -> str:
        return f"{controller}/{name}" if self._host.version == 1 else name

    def _write_all(self) -> None:
        self.set_processes()
        self._write_cpu()
        self._write_memory()
        if self._host.psi:
            for resource in PSI_RESOURCES:
                self.set_pressure(resource, 0.0)
        cpus = f"0-{self._host.cpus - 1}\n"
        if self._host.version == 1:
            self.write("cpuset/cpuset.cpus", cpus)
            self.write("blkio/blkio.bfq.weight", "100\n")
            for name in ("read_bps", "read_iops", "write_bps", "write_iops"):
                self.write(f"blkio/blkio.throttle.{name}_device", "")
            for name, text in (
                ("shares", "1024"),
                ("cfs_quota_us", "-1"),
                ("idle", "0"),
                ("cfs_period_us", str(QUOTA_PERIOD_US)),
                ("cfs_burst_us", "0"),
            ):
                self.write(f"cpu/cpu.{name}", f"{text}\n")
            return
        self.write("cgroup.controllers", "cpuset cpu io memory pids\n")
        self.write("cpuset.cpus", "\n")
        self.write("io.max", "")
        self.write("io.weight", "default 100\n")
        self.write("cpuset.cpus.effective", cpus)
        for name, text in (
            ("weight", "100"),
            ("max", f"max {QUOTA_PERIOD_US}"),
            ("max.burst", "0"),
            ("idle", "0"),
        ):
            self.write(f"cpu.{name}", f"{text}\n")

    def _write_cpu(self) -> None:
        periods, throttled, nanoseconds = self._throttle
        text = kernelfiles.V1_CPU_STAT if self._host.version == 1 else kernelfiles.V2_CPU_STAT
        self.write(
            self._file("cpu", "cpu.stat"),
            text.format(
                usage=self._usage_ns // 1000,
                periods=periods,
                throttled=throttled,
                throttled_ns=nanoseconds,
                throttled_us=nanoseconds // 1000,
            ),
        )
        if self._host.version == 1:
            self.write("cpuacct/cpuacct.usage", f"{self._usage_ns}\n")

    def _write_memory(self) -> None:
        anon, file, limit = self._memory
        if self._host.version == 1:
            limit = kernelfiles.UNLIMITED_V1 if limit < 0 else limit
            stat = kernelfiles.V1_MEMORY_STAT
            self.write("memory/memory.limit_in_bytes", f"{limit}\n")
            self.write("memory/memory.usage_in_bytes", f"{anon + file}\n")
            self.write("memory/memory.numa_stat", _v1_numa_stat(anon, file))
        else:
            stat = kernelfiles.V2_MEMORY_STAT
            self.write("memory.max", "max\n" if limit < 0 else f"{limit}\n")
            self.write("memory.current", f"{anon + file}\n")
            self.write("memory.numa_stat", _v2_numa_stat(anon, file))
            for name, text in (("min", "0"), ("low", "0"), ("high", "max"), ("oom.group", "0")):
                self.write(f"memory.{name}", f"{text}\n")
        self.write(
            self._file("memory", "memory.stat"), stat.format(anon=anon, file=file, limit=limit)
        )


def _v1_numa_stat(anon: int, file: int) -> str:
    pages = {"total": anon + file, "file": file, "anon": anon, "unevictable": 0}
    return "".join(
        f"{prefix}{name}={size // kernelfiles.PAGE} N0={size // kernelfiles.PAGE}\n"
        for prefix in ("", "hierarchical_")
        for name, size in pages.items()
    )


def _v2_numa_stat(anon: int, file: int) -> str:
    sizes = {
        "anon": anon,
        "file": file,
        "inactive_anon": anon,
        "active_anon": 0,
        "inactive_file": file,
        "active_file": 0,
        "unevictable": 0,
    }
    return "".join(f"{name} N0={size}\n" for name, size in sizes.items())


@dataclass(frozen=True, slots=True)
class FakePod:
    """The cgroups of one pod on a fake host."""

    uid: str
    qos: KubeQoS
    group: FakeGroup
    containers: dict[str, FakeGroup]
    sandbox: FakeGroup

    def remove(self) -> None:
        """End the pod."""
        self.group.remove()


class FakeHost(FakeTree):
    """A Linux host with kubepods cgroups, laid out below one directory.

    Counters start at plausible values and move only when the test moves them: time that passes is
    `idle`, work is `use_cpu`. Groups hold what their own files say: using CPU in a container does
    not charge its pod, as most tests need the two apart.
    """

    def __init__(
        self,
        root: Path,
        version: int = 1,
        *,
        driver: Driver = Driver.CGROUPFS,
        kube_root: str = "",
        cpus: int = 4,
        memory: int = 16 * 2**30,
        psi: bool | None = None,
    ) -> None:
        """Create the tree. memory is in bytes; kube_root is the kubepods cgroup when it is nested.

        psi: whether cgroups have pressure files; by default as mainline kernels do, on v2 only.
        """
        super().__init__(root, version, cpus=cpus, psi=version == 2 if psi is None else psi)
        default = Layout.default(driver)
        self.layout = Layout(driver, kube_root) if kube_root else default
        self._memory = (memory, 0, 0)
        self._ticks = [[2982.0, 2840.0, 110524.0] for _ in range(cpus)]  # user, system, idle
        self._devices: dict[str, tuple[int, int]] = {}
        self._write_machine()
        self.root = self.group("")
        self.objects: dict[ObjectKind, ObjectReader] = {}  # in place of the default
        self.object_writers: dict[ObjectKind, MakeWriter] = {}  # what sets them
        self._qos_groups = {qos: self.group(self.layout.qos_dir(qos)) for qos in KubeQoS}

    def group(self, path: str) -> FakeGroup:
        """A new cgroup with all its files."""
        return FakeGroup(self, path)

    def qos_group(self, qos: KubeQoS) -> FakeGroup:
        """The cgroup of a Kubernetes QoS class."""
        return self._qos_groups[qos]

    def add_pod(
        self, uid: str, qos: KubeQoS = KubeQoS.BURSTABLE, containers: tuple[str, ...] = ("c1",)
    ) -> FakePod:
        """A running pod: its cgroup, one per container (id containerd://<name>) and a sandbox."""
        pod = self.group(self.layout.pod_dir(qos, uid))
        names = (*containers, f"sandbox-{uid}")
        groups = {
            name: self.group(self.layout.container_dir(pod.path, f"containerd://{name}"))
            for name in names
        }
        return FakePod(
            uid, qos, pod, {name: groups[name] for name in containers}, groups[names[-1]]
        )

    def use_cpu(self, seconds: float, *, system: float = 0.0, idle: float = 0.0) -> None:
        """Let the whole machine work, in CPU seconds spread over all CPUs."""
        for ticks in self._ticks:
            for index, spent in enumerate((seconds, system, idle)):
                ticks[index] += spent * kernelfiles.HZ / self.cpus
        self._write_stat()

    def use_memory(self, used: int, *, page_cache: int = 0) -> None:
        """Set what is in use, in bytes: memory that is not available, and page cache that is."""
        self._memory = (self._memory[0], used, page_cache)
        self._write_memory()

    def set_pressure(self, resource: str, some: float, full: float = 0.0) -> None:
        """Set the node's PSI averages in percent; the totals grow by ten seconds' worth."""
        text = kernelfiles.pressure(some, full, int(some * 1e5), int(full * 1e5))
        self.write(f"proc/pressure/{resource}", text)

    def use_network(self, device: str, received: int, sent: int) -> None:
        """Let an interface receive and send that many more bytes, in packets of 1000 bytes."""
        before = self._devices.get(device, (0, 0))
        self._devices[device] = (before[0] + received, before[1] + sent)
        rows = (
            f"{name:>6}: {rx} {rx // 1000} 0 0 0 0 0 0 {tx} {tx // 1000} 0 0 0 0 0 0\n"
            for name, (rx, tx) in self._devices.items()
        )
        text = kernelfiles.NET_DEV + "".join(rows)
        self.write("proc/net/dev", text)
        self.write("proc/1/net/dev", text)

    def _write_machine(self) -> None:
        self.write("proc/sys/kernel/random/boot_id", "da8d657c-8fa2-46c4-9aeb-64c0a40defa8\n")
        self.write("proc/1/mountinfo", "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n")
        for resource in PSI_RESOURCES:
            self.set_pressure(resource, 0.0)
        self.write("sys/devices/system/cpu/smt/active", "0\n")
        self.write("sys/devices/system/cpu/online", f"0-{self.cpus - 1}\n")
        self.write("sys/devices/system/node/has_generic_initiator", "\n")
        self.write("sys/bus/node/devices/node0/cpulist", f"0-{self.cpus - 1}\n")
        self.write(
            "proc/cpuinfo",
            "".join(kernelfiles.CPUINFO.format(cpu=n, cpus=self.cpus) for n in range(self.cpus)),
        )
        for cpu in range(self.cpus):
            self._write_cpu(cpu)
        self.use_network("eth0", 0, 0)
        self._write_stat()
        self._write_memory()

    def _write_cpu(self, cpu: int) -> None:
        base = f"sys/devices/system/cpu/cpu{cpu}"
        self.write(f"{base}/topology/core_id", f"{cpu}\n")
        self.write(f"{base}/topology/physical_package_id", "0\n")
        self.write(f"{base}/topology/thread_siblings_list", f"{cpu}\n")
        for index, (level, kind) in enumerate(((1, "Data"), (1, "Instruction"), (2, "Unified"))):
            self._write_cache(f"{base}/cache/index{index}", level, kind, cpu, f"{cpu}")
        self._write_cache(f"{base}/cache/index3", 3, "Unified", 0, f"0-{self.cpus - 1}")
        (self.paths.sys / f"devices/system/cpu/cpu{cpu}/node0").mkdir(exist_ok=True)

    def _write_cache(self, base: str, level: int, kind: str, id: int, shared: str) -> None:
        for name, value in (
            ("level", level),
            ("type", kind),
            ("id", id),
            ("shared_cpu_list", shared),
        ):
            self.write(f"{base}/{name}", f"{value}\n")

    def _write_stat(self) -> None:
        def line(name: str, user: float, system: float, idle: float) -> str:
            return f"{name} {int(user)} 0 {int(system)} {int(idle)} 18 0 30 17 0 0\n"

        total = [sum(column) for column in zip(*self._ticks, strict=True)]
        lines = [line("cpu ", *total), *(line(f"cpu{n}", *t) for n, t in enumerate(self._ticks))]
        rest = "ctxt 918385\nbtime 1795252152\nprocesses 54650\nprocs_running 3\nprocs_blocked 0\n"
        self.write("proc/stat", "".join(lines) + rest)

    def _write_memory(self) -> None:
        total, used, cache = (value // 1024 for value in self._memory)
        numbers = {
            "total": total,
            "available": total - used,
            "free": total - used - cache,
            "used": used + cache,
            "file": cache,
        }
        self.write("proc/meminfo", kernelfiles.MEMINFO.format(**numbers))
        self.write(
            "sys/bus/node/devices/node0/meminfo",
            kernelfiles.NUMA_MEMINFO.format(node=0, **numbers),
        )
