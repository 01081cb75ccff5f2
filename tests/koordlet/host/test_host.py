"""Reading the resource table from a host."""

import os

import pytest

from koord.api.qos import KubeQoS
from koordlet.host import resources as r
from koordlet.host.cgroups.cgroupfiles import CpuThrottle, CpuTime
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.files import Descriptors
from koordlet.host.host import RECHECK_SECONDS, Host
from koordlet.plugin.testing.host import FakeHost

UID = "9dba1d9e-67ba-4db6-8a73-fb3ea297c363"


@pytest.fixture(params=[1, 2])
def fake(request, tmp_path):
    """A machine of each version."""
    return FakeHost(tmp_path, request.param)


@pytest.fixture
def host(fake):
    return Host(fake.paths, Descriptors(budget=0))


def test_one_name_for_both_versions(fake, host):
    """The same resource has the same value in the same unit, whatever the file is called."""
    pod = fake.add_pod(UID)
    before = host.read(r.CPU_USAGE, pod.group.path)
    pod.group.use_cpu(0.5)
    pod.group.throttle(periods=10, throttled=3, seconds=0.2)
    pod.group.use_memory(4096 * 100, page_cache=4096 * 7, limit=2**30)
    pod.group.set_processes(42, 43)
    group = pod.group.path

    assert host.read(r.CPU_USAGE, group) - before == 500_000_000
    assert host.read(r.CPU_THROTTLE, group) == CpuThrottle(10, 3, 200_000_000)
    assert host.read(r.MEMORY_STAT, group).usage == 4096 * 100
    assert host.read(r.MEMORY_STAT, group).usage_with_page_cache == 4096 * 107
    assert host.read(r.MEMORY_USAGE, group) == 4096 * 107
    assert host.read(r.MEMORY_LIMIT, group) == 2**30
    assert host.read(r.MEMORY_NUMA, group) == {0: 4096 * 100}
    assert host.read(r.CPU_QUOTA, group) == -1
    assert host.read(r.CPU_PERIOD, group) == 100_000
    assert host.read(r.CPUSET_CPUS, group) == {0, 1, 2, 3}
    assert host.read(r.CGROUP_PROCS, group) == (42, 43)
    assert host.read(r.CPU_IDLE, group) == 0
    assert host.read(r.CPU_BURST, group) == 0


def test_the_files_of_the_node(fake, host):
    """Files outside of the cgroup tree are found below the proc and sys roots."""
    assert host.read(r.PROC_STAT_TICKS) > 0
    assert set(host.read(r.PROC_STAT_PER_CPU)) == set(range(fake.cpus))
    assert host.read(r.MEMINFO).total == 16 * 2**30
    assert host.read(r.NUMA_MEMINFO, "0").total > 0
    assert host.path(r.NET_DEV, "4711") == f"{fake.paths.proc}/4711/net/dev"


@pytest.mark.parametrize(("version", "file"), [(1, "cpu/{}/cpu.shares"), (2, "{}/cpu.weight")])
def test_paths(tmp_path, version, file):
    """Paths are those of the kubelet below the cgroup root; the root group has its own."""
    fake = FakeHost(tmp_path, version, driver=Driver.SYSTEMD)
    host = Host(fake.paths)
    pod = host.layout.pod_dir(KubeQoS.BURSTABLE, UID)
    group = host.layout.container_dir(pod, "containerd://ab")
    expected = (
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
        f"{UID.replace('-', '_')}.slice/cri-containerd-ab.scope"
    )

    assert group == expected
    assert host.path(r.CPU_SHARES, group) == f"{fake.paths.cgroup}/{file.format(expected)}"
    assert host.path(r.CPU_SHARES) == f"{fake.paths.cgroup}/{file.format('.')}".replace("/./", "/")
    assert host.version(r.CPU_SHARES) == version


def test_a_file_of_the_other_version_only_is_unsupported(tmp_path):
    """The error says what would provide it."""
    v1, v2 = (Host(FakeHost(tmp_path / str(v), v).paths) for v in (1, 2))

    with pytest.raises(Unsupported, match="needs an Anolis kernel"):
        v1.read(r.MEMORY_PAGECACHE_LIMIT_SIZE)
    with pytest.raises(Unsupported, match=r"cgroup v2, which has none; needs cgroup v1"):
        v2.path(r.BLKIO_READ_BPS)
    assert not v1.supports(r.MEMORY_PAGECACHE_LIMIT_SIZE)
    assert not v2.supports(r.BLKIO_READ_BPS)


def test_missing_files_of_groups_and_of_the_host(fake, host):
    """A group that ended has vanished; all else that is missing is not supported."""
    with pytest.raises(Vanished):
        host.read(r.CPU_USAGE, "kubepods/gone")
    with pytest.raises(Vanished):
        host.read(r.NET_DEV, "99999")
    with pytest.raises(Unsupported, match="needs an Anolis"):
        host.read(r.CPU_BVT, fake.layout.root)
    with pytest.raises(Unsupported, match="kidled"):
        host.read(r.KIDLED_PERIOD)


@pytest.mark.parametrize("data", [b"", b"\0\xff\x01", b"usage_usec ", b"7" * 5000])
def test_malformed_text_names_the_file(fake, host, data):
    """The error names path, value and unit; the next read is a fresh one."""
    path = host.path(r.CPU_USAGE, "")
    good = host.bind(r.CPU_USAGE).text()
    with open(path, "wb") as file:
        file.write(data)

    with pytest.raises(KernelFileError, match=r"wanted cpu_usage \(ns since") as caught:
        host.read(r.CPU_USAGE)
    assert caught.value.path == path
    with open(path, "wb") as file:
        file.write(good)
    assert host.read(r.CPU_USAGE) > 0


def test_reading_and_parsing_are_separate(fake, host):
    """On v2 usage and throttling are in one file: it need be read but once per tick."""
    text = host.bind(r.CPU_THROTTLE).text()

    assert host.bind(r.CPU_THROTTLE).parse(text) == host.read(r.CPU_THROTTLE)
    if fake.version == 2:
        assert host.path(r.CPU_USAGE) == host.path(r.CPU_THROTTLE)
        assert host.bind(r.CPU_USAGE).parse(text) == host.read(r.CPU_USAGE)
        assert host.read(r.CPU_TIME) == CpuTime(host.read(r.CPU_USAGE), 0)


def test_a_bound_file_parses_a_text_once(host, fake):
    """A value that did not change is the same object; an unusable text is refused each time."""
    file = host.bind(r.MEMORY_STAT, fake.layout.root)
    first = file.read()

    assert file.read() is first
    with open(file.path, "rb+") as kernel:
        text = kernel.read()
        for _ in range(2):
            kernel.seek(0)
            kernel.write(b"x" * len(text))
            kernel.flush()
            with pytest.raises(KernelFileError, match="wanted memory_stat"):
                file.read()
        kernel.seek(0)
        kernel.write(text)
    assert file.read() == first


def test_a_bound_file_is_read_again_after_its_group_was_made_anew(fake):
    """Whatever became of the descriptor that it was read over."""
    host = Host(fake.paths)
    pod = fake.add_pod(UID)
    file, same = (host.bind(r.CPU_USAGE, pod.group.path) for _ in range(2))
    assert file.read() == same.read()
    assert host.descriptors.stats().held == 1

    host.forget(pod.group.path)
    assert host.descriptors.stats().held == 0
    pod.remove()
    with pytest.raises(Vanished):
        file.read()
    fake.add_pod(UID)
    assert same.read() == file.read() == host.read(r.CPU_USAGE, pod.group.path)
    host.descriptors.close()


def test_what_a_missing_file_means(fake, host):
    """One place decides: the kernel lacks it, and what would help, or its group has ended."""
    pod = fake.add_pod(UID)
    file = host.bind(r.CPU_BVT, pod.group.path)

    with pytest.raises(Unsupported, match="needs an Anolis"):
        file.read()
    pod.remove()
    with pytest.raises(Vanished):
        file.read()


def test_a_file_that_all_groups_lack_is_not_even_tried(fake, monkeypatch):
    """Opening it for hundreds of groups each tick would be dear."""
    host = Host(fake.paths)
    os.remove(host.path(r.CPU_IDLE, fake.layout.root))
    pod = fake.add_pod(UID)
    file = host.bind(r.CPU_IDLE, pod.group.path, if_supported=True)

    with pytest.raises(Unsupported, match=r"needs Linux 5\.15"):
        file.read()
    assert host.descriptors.stats().opens == 0
    assert host.read(r.CPU_IDLE, pod.group.path) == 0
    host.descriptors.close()


def test_held_files_of_an_ended_group_are_closed(fake):
    """Everything below the group goes, in all hierarchies; the others stay."""
    host = Host(fake.paths)
    pod = fake.add_pod(UID)
    container = next(iter(pod.containers.values()))
    for group in (pod.group.path, container.path, fake.layout.root):
        host.read(r.CPU_USAGE, group)
        host.read(r.MEMORY_STAT, group)

    host.forget(pod.group.path)

    assert host.descriptors.stats().held == 2
    host.descriptors.close()


def test_ids_are_read_afresh(fake):
    """A held v1 cgroup.procs would repeat its first response."""
    host = Host(fake.paths)
    host.read(r.CGROUP_PROCS)

    assert host.descriptors.stats().held == 0


class TestSupport:
    """Which groups have a file."""

    def test_always(self, host):
        """What every kernel has is not looked for."""
        assert host.supports(r.CPU_USAGE, "gone")

    def test_per_group(self, fake, host):
        """Looked for in the group itself, on every use."""
        group = fake.layout.root
        assert not host.supports(r.CPU_BVT, group)
        fake.group(group).write(f"{'cpu/' if fake.version == 1 else ''}cpu.bvt_warp_ns", "0\n")
        assert host.supports(r.CPU_BVT, group)
        assert not host.supports(r.CPU_BVT, "")

    def test_kubepods(self, fake):
        """Looked for in the kubepods group; a "no" is forgotten after a while, a "yes" is kept."""
        now = 0.0
        host = Host(fake.paths, monotonic=lambda: now)
        path = host.path(r.CPU_IDLE, host.layout.root)
        os.rename(path, path + "-")
        assert not host.supports(r.CPU_IDLE)
        os.rename(path + "-", path)
        assert not host.supports(r.CPU_IDLE)
        now = RECHECK_SECONDS
        assert host.supports(r.CPU_IDLE)
        os.unlink(path)
        assert host.supports(r.CPU_IDLE)

    def test_kubepods_before_there_are_pods(self, fake):
        """Without a kubepods group the group in question is asked."""
        fake.remove(fake.layout.root)
        host = Host(fake.paths)
        fake.group("system")

        assert host.supports(r.CPU_IDLE, "system")

    def test_root(self, tmp_path):
        """Rules for whole devices lie in the root group."""
        fake = FakeHost(tmp_path)
        fake.root.write("blkio/blkio.cost.qos", "")
        host = Host(fake.paths)

        assert host.supports(r.BLKIO_COST_QOS)
        assert not host.supports(r.BLKIO_COST_MODEL)

    def test_host_files(self, host):
        """Looked for where they are, whatever the cgroup version."""
        assert host.supports(r.MEMINFO)
        assert not host.supports(r.KIDLED_PERIOD)


class TestPressure:
    """Pressure files are where the kernel's flavour puts them."""

    def test_v1_of_mainline_has_none(self, tmp_path):
        """Only with a unified hierarchy, or on Anolis kernels."""
        host = Host(FakeHost(tmp_path, 1).paths)

        assert not host.supports(r.CPU_PRESSURE)
        with pytest.raises(Unsupported, match="CONFIG_PSI"):
            host.read(r.CPU_PRESSURE, host.layout.root)

    def test_v1_of_anolis_has_them_in_cpuacct(self, tmp_path):
        """Even if a unified hierarchy is mounted too."""
        fake = FakeHost(tmp_path, 1, psi=True)
        fake.write("cgroup/unified/cgroup.controllers", "\n")
        host = Host(fake.paths)

        assert host.supports(r.CPU_PRESSURE)
        assert host.path(r.CPU_PRESSURE) == f"{fake.paths.cgroup}/cpuacct/cpu.pressure"

    def test_hybrid_has_them_in_the_unified_hierarchy(self, tmp_path):
        """There every group has them, though all controllers are on v1."""
        fake = FakeHost(tmp_path, 1)
        fake.write("cgroup/unified/cgroup.controllers", "\n")
        fake.write(
            "cgroup/unified/kubepods/cpu.pressure",
            "some avg10=2.00 avg60=0.00 avg300=0.00 total=9\n",
        )
        host = Host(fake.paths)

        assert host.supports(r.CPU_PRESSURE)
        assert host.read(r.CPU_PRESSURE, "kubepods").some.avg10 == 2.0
        assert host.version(r.CPU_USAGE) == 1

    def test_a_pod_that_is_not_in_the_unified_hierarchy_has_not_ended(self, tmp_path):
        """Some runtimes join only the v1 hierarchies."""
        fake = FakeHost(tmp_path, 1)
        fake.write("cgroup/unified/cgroup.controllers", "\n")
        host = Host(fake.paths)

        with pytest.raises(Unsupported):
            host.read(r.CPU_PRESSURE, "kubepods")
        with pytest.raises(Vanished):
            host.read(r.CPU_PRESSURE, "kubepods/gone")


class TestLayout:
    """Where the kubelet keeps its pods."""

    @pytest.mark.parametrize(
        ("driver", "root"),
        [
            (Driver.SYSTEMD, "kubepods.slice"),
            (Driver.CGROUPFS, "kubepods"),
            (Driver.SYSTEMD, "kubelet.slice/kubelet-kubepods.slice"),
            (Driver.CGROUPFS, "kubelet/kubepods"),
            (Driver.CGROUPFS, "docker/0123/kubelet/kubepods"),
        ],
    )
    @pytest.mark.parametrize("version", [1, 2])
    def test_it_is_found(self, tmp_path, version, driver, root):
        """Both drivers, also nested as kind nests them."""
        fake = FakeHost(tmp_path, version, driver=driver, kube_root=root)

        assert Host(fake.paths).layout == Layout(driver, root)

    def test_systemd_wins_over_a_remainder(self, fake):
        """After a change of driver the old directory often stays behind."""
        fake.group("kubepods.slice")
        host = Host(fake.paths)

        assert host.layout.driver is Driver.SYSTEMD
        assert len(host.layouts) == 2

    def test_without_pods_the_kubelet_is_asked(self, fake):
        """And without a kubelet systemd is assumed, as Koordinator does."""
        fake.remove(fake.layout.root)
        assert Host(fake.paths).layout == Layout.default(Driver.SYSTEMD)
        fake.write("proc/7/comm", "kubelet\n")
        fake.write("proc/7/cmdline", b"kubelet\0--v=2\0")
        user = os.geteuid()
        fake.write("proc/7/status", f"Name:\tkubelet\nUid:\t{user}\t{user}\t{user}\t{user}\n")
        assert Host(fake.paths).layout == Layout.default(Driver.CGROUPFS)

    def test_detection_can_be_repeated(self, fake):
        """A kubelet may be started long after this daemon."""
        fake.remove(fake.layout.root)
        host = Host(fake.paths)
        fake.group("kubelet/kubepods")
        host.detect()

        assert host.layout.root == "kubelet/kubepods"

    def test_no_cgroup_file_system_at_all(self, tmp_path):
        """The daemon starts all the same, and every read says what is missing."""
        fake = FakeHost(tmp_path)
        os.rename(fake.paths.cgroup, tmp_path / "elsewhere")
        host = Host(fake.paths)

        with pytest.raises(KernelFileError):
            host.read(r.CPU_USAGE, "kubepods")


class TestFlavour:
    """Anolis kernels are recognized by files that only they have."""

    def test_mainline(self, host):
        assert not host.is_anolis()

    def test_by_group_identity(self, fake, host):
        """In the root group."""
        fake.root.write(f"{'cpu/' if fake.version == 1 else ''}cpu.bvt_warp_ns", "0\n")
        assert host.is_anolis()

    def test_by_memory_watermarks(self, fake, host):
        """In any group below the root, which itself lacks the file."""
        fake.group("any").write(
            f"{'memory/' if fake.version == 1 else ''}memory.wmark_ratio", "0\n"
        )
        assert host.is_anolis()
