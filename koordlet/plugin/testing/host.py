"""A host on a temporary directory: the kernel files that the agent reads, scripted by a test."""

from dataclasses import dataclass
from pathlib import Path

from koord.api.qos import KubeQoS
from koordlet.executor.kernel.media import MakeMedium
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.objects import ObjectReader
from koordlet.host.resource import Root
from koordlet.plugin.testing import kernelfiles
from koordlet.plugin.testing.cgroup import FakeGroup
from koordlet.plugin.testing.tree import PSI_RESOURCES, FakeTree


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
        self.objects: dict[Root, ObjectReader] = {}  # what reads objects, in place of the usual
        self.media: dict[Root, MakeMedium] = {}  # what sets them
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
