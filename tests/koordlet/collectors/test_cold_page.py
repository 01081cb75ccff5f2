"""Cold memory: kidled's figures, idle page tracking without it, and kernels with neither."""

import os
from array import array

import pytest

from koord.api.nodeslo import CgroupBase, HostApplication, NodeSLO
from koordlet.host.idle_pages import PAGES_PER_STEP
from koordlet.metriccache import kinds

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB, GIB = 2**20, 2**30
KINDS = "csei dsei cfei dfei csui dsui cfui dfui csea dsea cfea dfea csua dsua cfua dfua slab"


def idle_page_stats(cold: int) -> str:
    """A file of kidled with so many cold bytes, among others that are not."""
    head = (
        "# version: 1.0\n# page_scans: 24\n# slab_scans: 0\n# scan_period_in_seconds: 5\n"
        "# use_hierarchy: 1\n# buckets: 1,2,5,15,30,60,120,240\n" + "#\n" * 8
    )
    rows = {"cfei": f"9 9 9 9 9 {cold - 3} 2 1", "csei": "9 9 9 9 9 9 9 9"}
    none = " ".join("0" * 8)
    return head + "".join(f"{kind} {rows.get(kind, none)}\n" for kind in KINDS.split())


@pytest.fixture
def node(machine):
    """One pod with 300 MiB of page cache beside 100 MiB, and an application outside of pods."""
    machine.gates.add("ColdPageCollector")
    machine.host.use_memory(GIB, page_cache=GIB)
    pod = machine.run_pod("u1")
    for group in (pod.group, pod.containers["c-u1"]):
        group.use_memory(100 * MIB, page_cache=300 * MIB)
    app = HostApplication("app", "koord-prod", "LS", CgroupBase.CGROUP_ROOT, "host-ls", "app")
    machine.slo = NodeSLO(host_applications=(app,))
    machine.pod, machine.app = pod, machine.host.group("host-ls/app")
    machine.app.use_memory(10 * MIB, page_cache=20 * MIB)
    return machine


def put(machine, group, cold):
    group.write("memory/memory.idle_page_stats", idle_page_stats(cold))


def hot(machine):
    container = "containerd://c-u1"
    return [
        machine.value(kinds.NODE_MEMORY_WITH_HOT_PAGE_USAGE),
        machine.value(kinds.POD_MEMORY_WITH_HOT_PAGE_USAGE, "u1"),
        machine.value(kinds.CONTAINER_MEMORY_WITH_HOT_PAGE_USAGE, container),
        machine.value(kinds.HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE, "app"),
    ]


def test_kidled_says_what_is_cold(node):
    """Usage with hot pages is that with page cache less it, never below zero."""
    if node.host.version != 1:
        pytest.skip("kidled has no file on cgroup v2")
    root, kubepods = node.host.group(""), node.host.group(node.host.layout.root)
    for group, cold in (
        (root, 600 * MIB),
        (kubepods, 200 * MIB),
        (node.pod.group, 200 * MIB),
        (node.pod.containers["c-u1"], 500 * MIB),
        (node.app, 5 * MIB),
    ):
        put(node, group, cold)
    node.tick(5)

    assert node.value(kinds.NODE_MEMORY_COLD_PAGE_SIZE) == 600 * MIB
    assert node.value(kinds.POD_MEMORY_COLD_PAGE_SIZE, "u1") == 200 * MIB
    assert node.value(kinds.CONTAINER_MEMORY_COLD_PAGE_SIZE, "containerd://c-u1") == 500 * MIB
    assert node.value(kinds.HOST_APP_MEMORY_COLD_PAGE_SIZE, "app") == 5 * MIB
    assert hot(node) == [2 * GIB - 600 * MIB, 200 * MIB, 0, 25 * MIB]
    assert node.metric("koordlet_node_memory_cold_page_bytes", node="n1") == 600 * MIB


def test_without_the_gate_nothing_is_read(node):
    if node.host.version == 1:
        put(node, node.host.group(""), 5)
        put(node, node.host.group(node.host.layout.root), 5)
    node.gates.clear()
    node.tick(5)
    assert hot(node) == [None] * 4
    assert node.metric("koordlet_node_memory_cold_page_bytes") is None


def test_a_kernel_with_neither_has_no_samples(node):
    """So that the report falls back to usage without page cache."""
    node.tick(5)
    assert hot(node) == [None] * 4
    outcome = node.own_metric(
        "koordlet_collector_rounds_total", collector="cold_page", outcome="unsupported"
    )
    assert outcome == 1


def idle_tracking(node, owners):
    """Lay out the kernel's files: for each inode so many inactive pages of files."""
    paths = node.host.paths
    bitmap = paths.sys / "kernel/mm/page_idle/bitmap"
    bitmap.parent.mkdir(parents=True)
    bitmap.write_bytes(bytes(PAGES_PER_STEP // 8))
    by_frame = [inode for inode, pages in owners.items() for _ in range(pages)]
    rest = PAGES_PER_STEP - len(by_frame)
    (paths.proc / "kpagecgroup").write_bytes(array("Q", by_frame + [0] * rest).tobytes())
    (paths.proc / "kpageflags").write_bytes(
        array("Q", [1 << 5] * len(by_frame) + [0] * rest).tobytes()
    )


def test_idle_page_tracking_where_there_is_no_kidled(node):
    """After two passes; a pod that is new since has nothing cold, and is not left out."""
    top = node.host.paths.cgroup / ("memory" if node.host.version == 1 else ".")
    groups = [node.pod.group, node.pod.containers["c-u1"], node.app]
    inodes = [(top / group.path).stat().st_ino for group in groups]
    idle_tracking(node, dict(zip(inodes, (3, 100, 50), strict=True)))
    node.tick(5)
    assert hot(node) == [None] * 4

    node.tick(300)
    assert hot(node) == [
        2 * GIB - 153 * PAGE,
        400 * MIB - 103 * PAGE,
        400 * MIB - 100 * PAGE,
        30 * MIB - 50 * PAGE,
    ]
    node.run_pod("u2").group.use_memory(MIB, page_cache=MIB)
    node.tick(5)
    assert node.value(kinds.POD_MEMORY_COLD_PAGE_SIZE, "u2") == 0
    assert node.value(kinds.POD_MEMORY_WITH_HOT_PAGE_USAGE, "u2") == 2 * MIB
