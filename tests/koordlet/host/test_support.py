"""The doctor's findings on this machine and on hosts built in a directory."""

import os
import resource
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.doctor import privileges
from koordlet.doctor.privileges import (
    CAPABILITIES,
    missing_capabilities,
    missing_privileges,
    parse_effective_capabilities,
)
from koordlet.doctor.probes import Finding, core_scheduling_problem, probe_host
from koordlet.doctor.support import CLAIMED_BY_PLUGINS, CONTROLLERS, NEEDS, Claimable, findings
from koordlet.features import GATES
from koordlet.host.host import Host
from koordlet.host.kernelfile import IntegerForm, IntegerOrMaxForm, KernelFile
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Resource
from koordlet.host.resources import (
    BLKIO_WEIGHT,
    IO_LATENCY,
    IO_MAX,
    MEMCG_REAPER,
    MIN_FREE_KBYTES,
    NUMA_MEMINFO,
    RESOURCES,
)
from koordlet.plugin.testing import FakeHost

ALL = "000001ffffffffff"


def write(path: Path, text: str = "x\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def look(root: Path, **options: Path) -> dict[str, Finding]:
    found = findings(Host(HostPaths.below(root)), **options)
    return {f"{finding.area} {finding.name}": finding for finding in found}


def test_every_row_of_the_table_is_looked_at_once():
    """A new row must be put where its users will find it."""
    counts = Counter(row.name for need in NEEDS for row in need.rows)

    assert counts == Counter(row.name for row in RESOURCES)


def test_gates_are_named_as_users_know_them():
    """Each name is one that --feature-gates takes."""
    named = list(CONTROLLERS.values())
    named += [need.needed_by for need in NEEDS]
    named += [capability.needed_by for capability in CAPABILITIES]
    named += [finding.needed_by for finding in findings(Host(HostPaths.for_mode("hostMode")))]
    named = [gates for gates in named if gates != CLAIMED_BY_PLUGINS]

    assert {gate for gates in named for gate in gates} <= GATES.keys()


def test_this_machine():
    """Names are unique; what is missing has a fix, what is there has none."""
    found = findings(Host(HostPaths.for_mode("hostMode")))

    assert max(Counter((finding.area, finding.name) for finding in found).values()) == 1
    assert all(bool(finding.fix) != finding.supported for finding in found)
    assert all(finding.detail for finding in found if not finding.supported)
    assert {finding.name for finding in found if finding.supported} >= {"cpu and memory"}


def test_an_empty_host_lacks_everything_but_raises_nothing(tmp_path):
    """Wrong root directories are findings too."""
    found = look(tmp_path, run_dir=tmp_path / "none")
    always_there = {"daemon open files", "cpu core scheduling", "cgroup pods"}

    assert not [name for name, finding in found.items() if finding.supported
                and name not in always_there]  # fmt: skip
    assert "--cgroup-root-dir" in found["cgroup hierarchies"].fix
    assert found["cgroup cpu usage"].detail == "missing: cpu_usage, cpu_time"
    assert "--proc-root-dir" in found["node cpu and memory"].fix


@pytest.fixture
def v2_host(tmp_path):
    """A unified hierarchy with a pod cgroup; some files are missing, one is a directory."""
    cgroup = tmp_path / "cgroup"
    write(cgroup / "cgroup.controllers", "cpuset cpu memory\n")
    for name in ("cpu.stat", "cpu.max", "cpu.weight", "memory.min", "memory.low"):
        write(cgroup / "kubepods.slice" / name)
    (cgroup / "kubepods.slice/memory.high").mkdir()
    return tmp_path


def test_files_of_a_group_are_looked_for_in_a_group_of_pods(v2_host):
    """The root group lacks most files on v2."""
    found = look(v2_host)

    assert found["cgroup cpu usage"].supported
    assert found["cgroup cpu quota"].supported
    assert not found["cgroup cpu burst"].supported
    assert "Linux 5.14" in found["cgroup cpu burst"].fix
    assert found["cgroup cpu burst"].needed_by == ("CPUBurst",)


def test_a_file_that_cannot_be_read_says_why(v2_host):
    """Only the one that is wrong is named, with the kernel's reason."""
    finding = look(v2_host)["cgroup memory protection"]

    assert finding.detail == "Is a directory: memory_high"
    assert "root directory" in finding.fix


def test_controllers_and_driver(v2_host):
    """What is on, on which version, and what only the other version has."""
    found = look(v2_host)

    assert found["cgroup hierarchies"].detail.startswith("v2")
    assert found["cgroup controller memory"].detail == "v2"
    assert found["cgroup controller blkio"].fix == "cgroup v1"
    assert found["cgroup controller perf_event"].supported
    assert "systemd" in found["cgroup pods"].detail


def test_without_pods_any_group_will_do(v2_host):
    """A plain host has system.slice or the like."""
    (v2_host / "cgroup/kubepods.slice").rename(v2_host / "cgroup/system.slice")
    found = look(v2_host)

    assert found["cgroup cpu usage"].supported
    assert "none here, expected at kubepods.slice" in found["cgroup pods"].detail


@pytest.mark.parametrize(
    ("flags", "mounted", "supported", "fix"),
    [
        ("fpu cat_l3 mba", True, True, ""),
        ("fpu cat_l3 mba", False, False, "mount -t resctrl"),
        ("fpu cat_l3", True, True, ""),
        ("fpu", True, False, "a CPU with one of cat_l3, mba"),
    ],
)
def test_cache_allocation_needs_cpu_and_mount(tmp_path, flags, mounted, supported, fix):
    """First the CPU, then the mount."""
    write(tmp_path / "proc/cpuinfo", f"flags : {flags}\n")
    if mounted:
        write(tmp_path / "sys/fs/resctrl/schemata", "L3:0=f\n")

    finding = look(tmp_path)["cpu cache and bandwidth allocation"]

    assert finding.supported is supported
    assert finding.fix.startswith(fix)


def test_namespaces(tmp_path):
    """A container of its own gets a hint what to share."""
    for path in ("self/ns/pid", "self/cgroup", "1/cgroup", "self/net/dev", "1/net/dev"):
        write(tmp_path / "proc" / path)
    found = look(tmp_path)

    assert found["process host pids"].fix == "hostPID: true"
    assert "hostNetwork or hostPID" in found["network interfaces"].fix


def test_the_socket_of_the_container_runtime(tmp_path):
    """Without one containers get their settings after their start; it has to be root's."""
    roots = HostPaths.below(tmp_path)
    [without] = [each for each in probe_host(roots) if each.area == "container"]
    path = roots.var_run / "nri" / "nri.sock"
    path.parent.mkdir(parents=True)
    path.touch()
    [file] = [each for each in probe_host(roots) if each.area == "container"]
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        [there] = [each for each in probe_host(roots) if each.area == "container"]

    assert (without.supported, file.supported, there.supported) == (False, False, True)
    assert "component nri" in without.fix
    assert "no socket" in file.detail


def test_run_directory(tmp_path):
    """Writable or not; left out when it is not asked for."""
    assert look(tmp_path, run_dir=tmp_path)["daemon run directory"].supported
    assert not look(tmp_path, run_dir=tmp_path / "none")["daemon run directory"].supported
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    found = look(tmp_path, run_dir=tmp_path / "open")["daemon run directory"]
    assert (found.supported, "mode 1777" in found.detail) == (False, True)
    assert "daemon run directory" not in look(tmp_path)


def test_open_files(tmp_path, monkeypatch):
    """The hard limit counts, because the daemon raises the soft one itself."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert "LimitNOFILE=" in look(tmp_path)["daemon open files"].fix

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert look(tmp_path)["daemon open files"].supported


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (ALL, []),
        ("0", [capability.name for capability in CAPABILITIES]),
        ("000001fffeffffff", ["CAP_SYS_RESOURCE"]),
    ],
)
def test_missing_capabilities(tmp_path, held, missing):
    """From the effective set; the summary has one line each."""
    write(tmp_path / "self/status", f"Name:\tx\nCapPrm:\t{ALL}\nCapEff:\t{held}\n")

    assert [capability.name for capability in missing_capabilities(tmp_path)] == missing
    assert [line.partition(":")[0] for line in missing_privileges(tmp_path)] == missing


def test_an_unreadable_set_counts_as_empty(tmp_path):
    """Nothing is claimed that is not known."""
    assert len(missing_capabilities(tmp_path)) == len(CAPABILITIES)


@pytest.mark.parametrize("data", [b"", b"CapEff:\n", b"CapEff:\txyz\n", b"CapPrm:\t00\n"])
def test_no_capability_set(data):
    """Missing line or no number."""
    with pytest.raises(ValueError, match=r"wanted|invalid"):
        parse_effective_capabilities(data)


@given(st.integers(0, 2**41 - 1))
def test_any_capability_set_is_read(held):
    """All bits, as the kernel prints them."""
    assert parse_effective_capabilities(b"CapEff:\t%016x\nCapBnd:\t0\n" % held) == held


def test_capability_numbers_are_the_kernels():
    """Ascending and distinct, as in linux/capability.h."""
    numbers = {capability.name: capability.bit for capability in privileges.CAPABILITIES}

    assert numbers == {
        "CAP_DAC_OVERRIDE": 1,
        "CAP_KILL": 5,
        "CAP_NET_ADMIN": 12,
        "CAP_SYS_PTRACE": 19,
        "CAP_SYS_ADMIN": 21,
        "CAP_SYS_RESOURCE": 24,
        "CAP_PERFMON": 38,
    }


def test_core_scheduling_gives_a_reason_or_none():
    """Whatever this kernel is, asking does no harm."""
    reason = core_scheduling_problem(HostPaths.for_mode("hostMode"))

    assert reason == "" or reason.startswith("the kernel answers")


def test_what_plugins_from_elsewhere_claim_is_looked_at(tmp_path):
    """Whether this host has it, whether it may be written, and what would help."""
    host = FakeHost(tmp_path, 2)
    sysctl = host.write("proc/sys/vm/min_free_kbytes", "67584\n")
    rows = (IO_MAX, IO_LATENCY, BLKIO_WEIGHT, MIN_FREE_KBYTES)
    claims = [Claimable("SlowDisk", ("SlowDisk",), row) for row in (*rows, IO_MAX)]

    def look() -> dict[str, Finding]:
        found = findings(Host(host.paths), claimable=claims)
        return {f.name: f for f in found if f.area == "plugin"}

    found = look()
    assert len(found) == len(rows)
    assert found["SlowDisk claims io_max"].supported
    assert found["SlowDisk claims io_max"].needed_by == ("SlowDisk",)
    latency, weight = (found[f"SlowDisk claims {name}"] for name in ("io_latency", "blkio_weight"))
    assert (latency.supported, "CONFIG_BLK_CGROUP_IOLATENCY" in latency.fix) == (False, True)
    assert (weight.supported, "cgroup v1" in weight.fix) == (False, True)
    assert found["SlowDisk claims min_free_kbytes"].supported
    if os.geteuid():
        sysctl.chmod(0o400)
        assert "cannot be written" in look()["SlowDisk claims min_free_kbytes"].detail


def test_a_file_system_that_is_read_only_is_a_missing_privilege(tmp_path, monkeypatch):
    """Root may be able to write everything but that."""
    host = FakeHost(tmp_path, 2)
    monkeypatch.setattr("koordlet.doctor.support.os.access", lambda *_, **__: False)

    found = findings(Host(host.paths), claimable=[Claimable("X", ("X",), IO_MAX)])

    [finding] = [each for each in found if each.area == "plugin"]
    assert (finding.supported, "mounted writable" in finding.fix) == (False, True)


def looked_at(host: FakeHost, *rows: Resource[Any]) -> dict[str, Finding]:
    """The findings about claims of a plugin P, by row."""
    found = findings(Host(host.paths), claimable=[Claimable("P", ("P",), row) for row in rows])
    return {f.name.removeprefix("P claims "): f for f in found if f.area == "plugin"}


def test_a_claim_on_a_file_of_sysfs_is_looked_at_where_it_is(tmp_path):
    """Only some rows of /sys are by NUMA node."""
    host = FakeHost(tmp_path, 2)
    host.write("sys/kernel/mm/memcg_reaper/reap_background", "0\n")
    host.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1 kB\n")

    found = looked_at(host, MEMCG_REAPER, NUMA_MEMINFO)

    assert found["memcg_reaper"].supported
    assert found["memcg_reaper"].detail.endswith("sys/kernel/mm/memcg_reaper/reap_background")
    assert "node0/meminfo" in found["numa_meminfo"].detail


@pytest.mark.parametrize("version", [1, 2])
def test_kernel_files_of_a_plugin_s_own_are_looked_at(tmp_path, version):
    """In a group of pods, or where the sysctl is; what they show has to fit what is declared."""
    host = FakeHost(tmp_path, version)
    host.add_pod("p1")
    hierarchy = "cgroup/cpu" if version == 1 else "cgroup"
    group = Host(host.paths).layout.root
    host.write(f"{hierarchy}/{group}/cpu.temper", "max\n")
    host.write("proc/sys/vm/swappiness", "60\n")
    temper = KernelFile("cpu.temper", "tasks", IntegerOrMaxForm(1, 100))
    narrow = KernelFile("cpu.temper", "tasks", IntegerForm(1, 100))
    swappiness = KernelFile("/proc/sys/vm/swappiness", "percent", IntegerForm(0, 100))

    found = looked_at(host, temper, swappiness)
    assert all(finding.supported for finding in found.values())
    assert found["cpu.temper"].detail.endswith(f"{hierarchy}/{group}/cpu.temper")
    assert found["/proc/sys/vm/swappiness"].detail.endswith("proc/sys/vm/swappiness")

    [unfit] = looked_at(host, narrow).values()
    assert (unfit.supported, "'max" in unfit.detail) == (False, True)


def test_what_would_provide_a_file_of_a_plugin_s_own(tmp_path):
    """As the plugin says, or the cgroup version that has such files; never the root flags."""
    rows = (
        KernelFile("cpu.temper", "x", IntegerForm(0, 1), needs="a patched kernel"),
        KernelFile("cpu.humour", "x", IntegerForm(0, 1)),
        KernelFile("blkio.temper", "x", IntegerForm(0, 1)),
    )
    found = looked_at(FakeHost(tmp_path, 2), *rows)

    assert [finding.supported for finding in found.values()] == [False] * 3
    assert [finding.fix for finding in found.values()] == [
        "a patched kernel",
        "a kernel with cpu.humour",
        "cgroup v1 with blkio.temper",
    ]


@pytest.mark.parametrize(("version", "found"), [(1, False), (2, True)])
def test_pods_in_the_nodes_network_are_told_on_one_version_or_the_other(tmp_path, version, found):
    """By net_prio, which this v1 host has not, or by cgroups of v2."""
    host = FakeHost(tmp_path, version)
    network = "net:[1]"
    for process in ("1", "self"):
        path = host.paths.proc / process / "ns"
        path.mkdir(parents=True, exist_ok=True)
        (path / "net").symlink_to(network)
    seen = {each.name: each for each in findings(Host(host.paths))}
    assert seen["pods in the node's network"].supported is found
