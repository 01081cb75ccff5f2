"""The fake host's files have the shape of real ones and move only when a test moves them."""

from pathlib import Path

import pytest

from koord.api.qos import KubeQoS
from koordlet.host.cgroups.layout import Driver
from koordlet.plugin.testing.host import FakeHost


@pytest.fixture(params=[1, 2])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, request.param)


def text(host: FakeHost, path: str) -> str:
    return (host.paths.cgroup.parent / path).read_text()


def test_a_container_that_works_counts_nanoseconds_or_microseconds(tmp_path: Path):
    """Used CPU shows in the file and unit of each cgroup version."""
    for version, file, before, after in (
        (1, "cgroup/cpuacct/kubepods/burstable/podu1/c1/cpuacct.usage", "1000000000", "1500000000"),
        (
            2,
            "cgroup/kubepods/burstable/podu1/c1/cpu.stat",
            "usage_usec 1000000",
            "usage_usec 1500000",
        ),
    ):
        host = FakeHost(tmp_path / str(version), version)
        container = host.add_pod("u1").containers["c1"]
        assert before in text(host, file)
        container.use_cpu(0.5)
        assert after in text(host, file)


def test_systemd_names_and_nested_roots(tmp_path: Path):
    """Pods lie where the driver and the kubelet's cgroup root put them."""
    host = FakeHost(
        tmp_path, 2, driver=Driver.SYSTEMD, kube_root="kubelet.slice/kubelet-kubepods.slice"
    )
    pod = host.add_pod("a-b", KubeQoS.BEST_EFFORT)
    assert pod.group.path == (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        "kubelet-kubepods-besteffort-poda_b.slice"
    )
    assert (host.paths.cgroup / pod.group.path / "cri-containerd-c1.scope" / "cpu.stat").exists()


def test_a_removed_pod_is_gone_from_every_hierarchy(host: FakeHost):
    """No controller keeps a directory of a pod that ended."""
    pod = host.add_pod("u1")
    assert list(host.paths.cgroup.rglob("podu1"))
    pod.remove()
    assert not list(host.paths.cgroup.rglob("podu1"))


def test_the_machine_counts_what_it_used(host: FakeHost):
    """CPU, memory, pressure and network of the node are where the kernel shows them."""
    host.use_cpu(4.0, system=2.0, idle=8.0)
    assert text(host, "proc/stat").splitlines()[1].split()[:5] == [
        "cpu0",
        "3082",
        "0",
        "2890",
        "110724",
    ]
    host.use_memory(2**30, page_cache=2**20)
    assert f"MemAvailable:   {15 * 2**20} kB" in text(host, "proc/meminfo")
    host.set_pressure("io", 12.5, 3.0)
    assert text(host, "proc/pressure/io").startswith("some avg10=12.50 avg60=12.50 ")
    host.use_network("eth0", 5000, 1000)
    host.use_network("eth0", 5000, 1000)
    assert "eth0: 10000 10 0 0 0 0 0 0 2000 2 " in text(host, "proc/net/dev")


def test_only_v2_groups_have_pressure_files_unless_asked(tmp_path: Path):
    """Mainline kernels keep cgroup pressure on v2; some v1 kernels have it too."""

    def pressure_files(version: int, psi: bool | None) -> bool:
        host = FakeHost(tmp_path / f"{version}{psi}", version, psi=psi)
        return bool(list(host.paths.cgroup.rglob("memory.pressure")))

    assert [pressure_files(1, None), pressure_files(2, None), pressure_files(1, True)] == [
        False,
        True,
        True,
    ]


def test_throttling_memory_and_processes_of_a_group(host: FakeHost):
    """A group's other numbers appear in its files too."""
    group = host.add_pod("u1").group
    group.throttle(10, 4, 0.25)
    group.use_memory(8 * 2**20, page_cache=2**20, limit=2**24)
    group.set_processes(7, 9)
    group.set_pressure("cpu", 5.0, None)
    v1 = host.version == 1
    base = "cgroup/{}/" + group.path if v1 else "cgroup/" + group.path
    assert "nr_throttled 4" in text(host, base.format("cpu") + "/cpu.stat")
    limit = "memory.limit_in_bytes" if v1 else "memory.max"
    assert text(host, base.format("memory") + "/" + limit) == f"{2**24}\n"
    assert "N0=2048" in text(host, base.format("memory") + "/memory.numa_stat") or not v1
    assert text(host, base.format("cpu") + "/cgroup.procs") == "7\n9\n"
    assert "full" not in text(host, base.format("cpuacct") + "/cpu.pressure")
