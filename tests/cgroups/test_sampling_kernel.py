"""Every collector's figures beside what real processes did.

The figures must not depend on the cgroup version.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koord.api.machine import NODE_CPU_INFO, NodeCpuInfo
from koord.api.nodeslo import CgroupBase, HostApplication, NodeSLO
from koordlet.collectors.node_info import NODE_LOCAL_STORAGE, NODE_NUMA_INFO
from koordlet.host import resources as r
from koordlet.metriccache import kinds as k

from .conftest import MIB, VERSION, Tree, burn, touch
from .sampling import Node, Span

POD = "kubepods/burstable/pod1"
CONTAINER = f"{POD}/c1"
BEST_EFFORT = "kubepods/besteffort"
LEAVE_NETWORK = "import ctypes; assert ctypes.CDLL(None).unshare(0x40000000) == 0"  # CLONE_NEWNET


@pytest.fixture
def node(tree: Tree) -> Iterator[Node]:
    for path in ("kubepods/burstable", BEST_EFFORT):
        tree.make(path)
    node = Node(tree)
    yield node
    node.close()


def test_cpu_of_a_busy_container(tree: Tree, node: Node) -> None:
    """Container, pod and class have what the process used, to 5 percent; the others nothing."""
    process = tree.make(CONTAINER).run()
    span = Span(node, process, CONTAINER, POD, "kubepods/burstable")
    span.end(burn(0.4))

    assert node.value(k.CONTAINER_CPU_USAGE, "c1") == span.cores(CONTAINER)
    assert node.value(k.POD_CPU_USAGE, "1") == span.cores(POD)
    assert node.value(k.QOS_CPU_USAGE, "burstable") == span.cores("kubepods/burstable")
    assert node.value(k.QOS_CPU_USAGE, "guaranteed") == pytest.approx(0, abs=0.02)
    assert node.value(k.QOS_CPU_USAGE, "besteffort") == 0
    whole, system = node.value(k.NODE_CPU_USAGE), node.value(k.SYS_CPU_USAGE)
    assert whole >= node.value(k.POD_CPU_USAGE, "1") * 0.8  # /proc/stat counts in ticks
    assert system == pytest.approx(max(whole - node.value(k.POD_CPU_USAGE, "1"), 0), abs=0.02)
    numa_nodes = [info.id for info in node.published[NODE_NUMA_INFO]]  # type: ignore[attr-defined]
    by_numa_node = [node.value(k.NODE_NUMA_CPU_USAGE, str(numa)) for numa in numa_nodes]
    assert sum(by_numa_node) == pytest.approx(whole, rel=0.1, abs=0.05)


def test_memory_of_a_container(tree: Tree, node: Node, disk: Path) -> None:
    """Anonymous memory and files in memory count always; the page cache on its own."""
    process = tree.make(f"{BEST_EFFORT}/pod2/c2").run(touch(64 * MIB))
    node.tick()
    node.tick()  # memory comes with CPU, which needs two readings

    for kind, key in (
        (k.POD_MEMORY_USAGE, "2"),
        (k.CONTAINER_MEMORY_USAGE, "c2"),
        (k.QOS_MEMORY_USAGE, "besteffort"),
    ):
        assert 63 * MIB < node.value(kind, key) < 84 * MIB  # the kernel counts in batches
    assert node.value(k.QOS_MEMORY_USAGE, "burstable") == 0
    assert node.value(k.NODE_MEMORY_USAGE) > node.value(k.POD_MEMORY_USAGE, "2")

    before = node.value(k.POD_MEMORY_USAGE, "2")
    process.do(f"with open({str(disk / 'file')!r}, 'wb') as f: f.write(bytes({16 * MIB}))")

    def cache() -> float:
        with_cache = node.value(k.POD_MEMORY_USAGE_WITH_PAGE_CACHE, "2")
        return with_cache - node.value(k.POD_MEMORY_USAGE, "2")

    node.tick_until(lambda: cache() > 15 * MIB)
    assert 15 * MIB < cache() < 24 * MIB
    assert node.value(k.POD_MEMORY_USAGE, "2") == pytest.approx(before, abs=4 * MIB)

    process.do(f"shared = os.memfd_create('emptyDir'); os.write(shared, bytes({16 * MIB}))")
    node.tick_until(lambda: node.value(k.POD_MEMORY_USAGE, "2") > before + 12 * MIB)
    assert node.value(k.POD_MEMORY_USAGE, "2") == pytest.approx(before + 16 * MIB, abs=4 * MIB)


def test_throttling_and_pressure_of_a_container(tree: Tree, node: Node) -> None:
    """The one with a quota waits, which is pressure; its pod has a quota that it does not reach."""
    container = tree.make(CONTAINER)
    tree.make(f"{POD}/c3")
    tree.make(POD).write(r.CPU_QUOTA, "90000" if VERSION == 1 else "90000 100000")
    container.write(r.CPU_QUOTA, "20000" if VERSION == 1 else "20000 100000")
    process = container.run()
    process.do(burn(0.02))  # groups that never had a period are read in turns
    node.tick()
    process.do(burn(0.15))
    node.tick()

    assert 0 < node.value(k.CONTAINER_CPU_THROTTLED, "c1") <= 1
    assert node.value(k.CONTAINER_CPU_THROTTLED, "c3") == 0
    assert node.value(k.POD_CPU_THROTTLED, "1") == 0
    if not node.reader.host.supports(r.CPU_PRESSURE, POD):
        assert VERSION == 1
        return
    waited = node.reader.get(r.CPU_PRESSURE, CONTAINER)
    assert waited is not None
    assert waited.full_supported
    assert min(waited.some.total_us, waited.full.total_us) > 50_000
    for resource in ("cpu", "mem", "io"):
        for degree in ("some", "full"):
            for kind, key in (
                (k.NODE_PSI, ()),
                *((k.QOS_PSI, (name,)) for name in ("kubepods", "burstable", "besteffort")),
                (k.POD_PSI, ("1",)),
                (k.CONTAINER_PSI, ("1", "c1")),
            ):
                assert 0 <= node.value(kind, *key, resource, "10", degree) <= 100
    assert node.value(k.POD_PSI_CPU_FULL_SUPPORTED, "1") == 1
    assert node.value(k.CONTAINER_PSI_CPU_FULL_SUPPORTED, "1", "c1") == 1


def test_what_best_effort_pods_may_use(tree: Tree, node: Node) -> None:
    """The effective cpuset of their class limits them, or its quota; usage is what they use."""
    best_effort = tree.make(BEST_EFFORT)
    best_effort.write(r.CPUSET_CPUS_WANTED, "0")
    container = tree.make(f"{BEST_EFFORT}/pod2/c2")
    span = Span(node, container.run(), BEST_EFFORT)

    assert node.reader.get(r.CPUSET_CPUS, container.path) == {0}
    assert node.value(k.NODE_BE, "cpu", "real-limit") == 1000
    assert node.value(k.NODE_BE, "cpu", "request") == 0

    best_effort.write(r.CPU_QUOTA, "50000" if VERSION == 1 else "50000 100000")
    span.end(burn(0.3))
    assert node.value(k.NODE_BE, "cpu", "real-limit") == 500
    assert node.value(k.NODE_BE, "cpu", "usage") / 1000 == span.cores(BEST_EFFORT)


def test_host_applications(tree: Tree, node: Node) -> None:
    """Named by the NodeSLO, in their default group or in the one it gives; not system usage."""
    at_path = HostApplication("db", base=CgroupBase.CGROUP_ROOT, relative_path="system/db")
    default = HostApplication("nginx", qos="LS")
    node.slo = NodeSLO({}, (at_path, default))
    tree.make("host-latency-sensitive/nginx")
    process = tree.make("system/db").run(touch(16 * MIB))
    span = Span(node, process, "system/db").end(burn(0.3))

    used = node.value(k.HOST_APP_CPU_USAGE, "db")
    assert used == span.cores("system/db")
    assert 15 * MIB < node.value(k.HOST_APP_MEMORY_USAGE, "db") < 36 * MIB
    with_cache = node.value(k.HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE, "db")
    assert with_cache >= node.value(k.HOST_APP_MEMORY_USAGE, "db") * 0.98
    assert node.value(k.HOST_APP_CPU_USAGE, "nginx") == 0
    rest = max(node.value(k.NODE_CPU_USAGE) - used, 0)
    assert node.value(k.SYS_CPU_USAGE) == pytest.approx(rest, abs=0.05)


def test_traffic_of_a_pod(tree: Tree, node: Node, veth: Callable[[int], tuple[str, str]]) -> None:
    """What a pod sends over its own interface, and the node's end of it receives."""
    leave_network = (
        "import ctypes; assert ctypes.CDLL(None).unshare(0x40000000) == 0"  # CLONE_NEWNET
    )
    process = tree.make(CONTAINER).run(leave_network)
    node_end, address = veth(process.pid)
    tree.make(f"{BEST_EFFORT}/pod2/c2").run()  # on the node's network: no traffic of its own
    times = [time.monotonic()]
    for action in (node.tick, lambda: process.do(send(50_000, address)), node.tick):
        before = metric(node, "koordlet_pod_network_transmit_bytes_total")
        action()
        times.append(time.monotonic())

    sent = metric(node, "koordlet_pod_network_transmit_bytes_total") - before
    assert 50_000 <= sent < 56_000  # neighbour discovery goes on beside it
    rate = node.value(k.POD_NETWORK_TRANSMIT, "1")
    assert sent / (times[3] - times[0]) <= rate <= sent / (times[2] - times[1])
    assert node.has(k.POD_NETWORK_RECEIVE, "1")
    assert not node.has(k.POD_NETWORK_TRANSMIT, "2")
    assert node.value(k.NODE_NETWORK_RECEIVE, node_end) > 0
    assert node.has(k.NODE_NETWORK_TRANSMIT, "lo")


def test_facts_of_the_node(node: Node) -> None:
    """CPUs, NUMA nodes and disks are known to plugins after the first tick."""
    node.tick()

    info = node.published[NODE_CPU_INFO]
    assert isinstance(info, NodeCpuInfo)
    assert len(info.topology.cpus) == len(os.sched_getaffinity(1))
    assert node.published[NODE_NUMA_INFO]
    assert NODE_LOCAL_STORAGE in node.published
    names = {f.name for collector in node.collectors for f in collector.families()}
    assert "koordlet_node_network_tcp_retransmitted_segments" in names
    assert "koordlet_node_network_softnet_dropped" in names


@pytest.mark.parametrize(
    ("qos_dir", "pod", "container"),
    [
        (
            "kubepods.slice/kubepods-burstable.slice",
            "kubepods-burstable-pod9dba1d9e_67ba.slice",
            "cri-containerd-0123.scope",
        ),
        (
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice",
            "kubelet-kubepods-burstable-pod9dba1d9e_67ba.slice",
            "crio-0123.scope",
        ),
        ("docker/0f1e2d/kubelet/kubepods/burstable", "pod9dba1d9e-67ba", "0123"),
    ],
    ids=["systemd", "kind with systemd", "kind with cgroupfs"],
)
def test_pods_wherever_a_kubelet_puts_them(
    tree: Tree, qos_dir: str, pod: str, container: str
) -> None:
    """Discovery finds them, and the figures of pod, container and class follow."""
    group = tree.make(f"{qos_dir}/{pod}/{container}")
    node = Node(tree)
    span = Span(node, group.run(), qos_dir, f"{qos_dir}/{pod}", group.path)
    span.end(burn(0.3))

    [found] = node.pods
    assert (found.uid, found.cgroup) == ("9dba1d9e-67ba", f"{qos_dir}/{pod}")
    container_id = found.containers[0].container_id
    assert node.value(k.CONTAINER_CPU_USAGE, container_id) == span.cores(group.path)
    assert node.value(k.POD_CPU_USAGE, found.uid) == span.cores(found.cgroup)
    assert node.value(k.QOS_CPU_USAGE, "burstable") == span.cores(qos_dir)
    node.close()


def test_a_container_that_ends_between_two_ticks(tree: Tree, node: Node) -> None:
    """Its held files vanish under us; the others are sampled as before, nothing is left open."""
    node.tick()
    held = node.reader.host.descriptors.stats().held
    ended = tree.make(f"{POD}/c3")
    tree.make(CONTAINER)
    node.tick()
    ended.remove()
    node.tick(discover=False)

    assert node.has(k.CONTAINER_CPU_USAGE, "c1")
    assert not node.has(k.CONTAINER_CPU_USAGE, "c3")
    tree.remove(POD)
    for _ in range(4):
        node.tick()
    assert node.pods == ()
    assert node.reader.host.descriptors.stats().held == held


def test_reads_of_a_tick(tree: Tree, node: Node) -> None:
    """Each file is read once, over a held descriptor, and their number grows with the pods only."""
    node.tick()
    reads = []
    for pods in (6, 12):
        for number in range(pods):
            qos_dir = ("kubepods", "kubepods/burstable", BEST_EFFORT)[number % 3]
            for container in ("a", "b"):
                tree.make(f"{qos_dir}/pod{number}/{number}{container}")
        for _ in range(4):
            node.tick({k.Cadence.USAGE})
        assert len(node.pods) == pods
        before = node.reader.host.descriptors.stats()
        for _ in range(5):  # memory.numa_stat of every pod is read once in so many
            node.tick({k.Cadence.USAGE})
        after = node.reader.host.descriptors.stats()
        assert after.opens == before.opens
        reads.append((after.reads - before.reads) / 5)

    per_pod = (reads[1] - reads[0]) / 6
    of_node = reads[0] - 6 * per_pod
    groups = 3  # the pod and two containers
    # On v2 usage and throttling share cpu.stat; on v1 throttling is read once in five, as these
    # groups have no CPU limit.
    files = 2 if VERSION == 2 else 2 + 1 / 5
    cpusets = 2 / 3  # of containers, in every third pod: the best-effort ones
    assert per_pod == pytest.approx(groups * files + cpusets + 1 / 5)
    assert of_node < 25  # the node, NUMA nodes and QoS classes


def send(size: int, address: str) -> str:
    """Code that sends datagrams until eth0 has sent so many bytes: the link may come up late."""
    return f"""
import socket
def sent():
    for line in open("/proc/self/net/dev"):
        if line.split()[0] == "eth0:": return int(line.split()[9])
end = time.monotonic() + 60
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    while sent() < {size} and time.monotonic() < end: s.sendto(bytes(1000), ({address!r}, 9))
"""


def metric(node: Node, name: str) -> float:
    """The sum of a metric's samples; 0 without any."""
    return sum(
        sample.value
        for collector in node.collectors
        for family in collector.families()
        for sample in family.samples
        if sample.name == name
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A directory whose files are kept in the page cache, which those of a tmpfs are not."""
    image, directory = tmp_path / "image", tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mke2fs", "-q", image, "64M"], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, directory], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs a loop device: {mounted.stderr.decode().strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.fixture
def veth() -> Iterator[Callable[[int], tuple[str, str]]]:
    """Connects the network namespace of a process with the node's.

    Returns the node's interface, and an address that the process finds behind it. The node has no
    address on it, so nothing of its own traffic changes its way.
    """
    name = f"kt{os.getpid()}"

    def connect(pid: int) -> tuple[str, str]:
        inside = ["nsenter", "-t", str(pid), "-n", "ip"]
        link = ["ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", str(pid)]
        made = subprocess.run(link, capture_output=True)
        if made.returncode:
            pytest.skip(f"needs veth interfaces: {made.stderr.decode().strip()}")
        for command in (
            ["ip", "link", "set", name, "up"],
            [*inside, "address", "add", "192.0.2.2/24", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up"],
            [*inside, "neigh", "add", "192.0.2.1", "lladdr", "02:00:00:00:00:01", "dev", "eth0"],
        ):
            subprocess.run(command, check=True)
        return name, "192.0.2.1"

    yield connect
    subprocess.run(["ip", "link", "delete", name], capture_output=True)
