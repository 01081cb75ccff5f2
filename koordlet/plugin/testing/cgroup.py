"""One cgroup of a fake host: the files that the agent reads, scripted by a test."""

from koordlet.host.cgroups.cpuvalues import QUOTA_PERIOD_US
from koordlet.plugin.testing import kernelfiles
from koordlet.plugin.testing.tree import PSI_RESOURCES, V1_CONTROLLERS, FakeTree


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
