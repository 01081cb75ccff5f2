"""The table of kernel values against Koordinator's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.resource import Resource, Root, Support
from koordlet.host.resources import BY_NAME, RESOURCES

A, P, K, R = Support.ALWAYS, Support.PER_GROUP, Support.KUBEPODS, Support.ROOT

# v1 hierarchy and file with its support, v2 file with its support. None: not known there.
ROWS = [
    ("cpu/cpu.stat", A, "cpu.stat", A),
    ("cpu/cpu.shares", A, "cpu.weight", A),
    ("cpu/cpu.cfs_quota_us", A, "cpu.max", A),
    ("cpu/cpu.cfs_period_us", A, "cpu.max", A),
    ("cpu/cpu.cfs_burst_us", P, "cpu.max.burst", K),
    ("cpu/cpu.bvt_warp_ns", P, "cpu.bvt_warp_ns", P),
    ("cpu/cpu.idle", K, "cpu.idle", K),
    ("cpu/tasks", A, "cgroup.threads", A),
    ("cpu/cgroup.procs", A, "cgroup.procs", A),
    ("cpuset/cpuset.cpus", A, "cpuset.cpus", A),
    ("cpuset/cpuset.cpus", A, "cpuset.cpus.effective", A),
    ("cpuacct/cpuacct.stat", A, "cpu.stat", A),
    ("cpuacct/cpuacct.usage", A, "cpu.stat", A),
    ("cpuacct/cpu.pressure", K, "cpu.pressure", K),
    ("cpuacct/memory.pressure", K, "memory.pressure", K),
    ("cpuacct/io.pressure", K, "io.pressure", K),
    ("memory/memory.limit_in_bytes", A, "memory.max", A),
    ("memory/memory.usage_in_bytes", A, "memory.current", A),
    ("memory/memory.stat", A, "memory.stat", A),
    ("memory/memory.numa_stat", A, "memory.numa_stat", A),
    ("memory/memory.min", K, "memory.min", A),
    ("memory/memory.low", K, "memory.low", A),
    ("memory/memory.high", K, "memory.high", A),
    ("memory/memory.wmark_ratio", K, "memory.wmark_ratio", P),
    ("memory/memory.wmark_scale_factor", K, "memory.wmark_scale_factor", P),
    ("memory/memory.wmark_min_adj", K, "memory.wmark_min_adj", P),
    ("memory/memory.priority", K, "memory.priority", P),
    ("memory/memory.use_priority_oom", K, "memory.use_priority_oom", P),
    ("memory/memory.oom.group", K, "memory.oom.group", P),
    ("memory/memory.idle_page_stats", K, None, None),
    (None, None, "memory.pagecache_limit.enable", P),
    (None, None, "memory.pagecache_limit.size", P),
    (None, None, "memory.pagecache_limit.sync", P),
    ("blkio/blkio.throttle.read_iops_device", K, None, None),
    ("blkio/blkio.throttle.read_bps_device", K, None, None),
    ("blkio/blkio.throttle.write_iops_device", K, None, None),
    ("blkio/blkio.throttle.write_bps_device", K, None, None),
    ("blkio/blkio.cost.weight", P, None, None),
    (None, None, "io.weight", P),
    ("blkio/blkio.bfq.weight_device", P, "io.bfq.weight", P),
    ("blkio/blkio.cost.qos", R, "io.cost.qos", R),
    ("blkio/blkio.cost.model", R, "io.cost.model", R),
    ("net_cls/net_cls.classid", K, None, None),
]
HOST_FILES = [
    (Root.PROC, "sys/vm/min_free_kbytes"),
    (Root.PROC, "sys/vm/watermark_scale_factor"),
    (Root.SYS, "kernel/mm/memcg_reaper/reap_background"),
    (Root.SYS, "kernel/mm/pagecache_limit/enabled"),
    (Root.SYS, "kernel/mm/kidled/scan_period_in_seconds"),
    (Root.SYS, "kernel/mm/kidled/use_hierarchy"),
    (Root.SYS, "kernel/debug/sched_features"),
    (Root.PROC, "sys/kernel/sched_group_identity_enabled"),
    (Root.PROC, "sys/kernel/sched_idle_saver_wmark"),
    (Root.PROC, "{}/oom_score_adj"),
    (Root.PROC, "stat"),
    (Root.PROC, "meminfo"),
    (Root.SYS, "bus/node/devices/node{}/meminfo"),
    (Root.PROC, "{}/net/dev"),
    (Root.PROC, "pressure/cpu"),
]


def row_of(resource: Resource[object]) -> tuple[object, ...]:
    v1, v2 = resource.files.get(1), resource.files.get(2)
    return (
        f"{v1.controller}/{v1.name}" if v1 else None,
        v1.support if v1 else None,
        v2.name if v2 else None,
        v2.support if v2 else None,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0] or row[2])
def test_every_cgroup_file_of_koordinator_has_a_row(row):
    """What Koordinator reads or writes in cgroups, this daemon knows under the same rule."""
    assert row in map(row_of, RESOURCES)


@pytest.mark.parametrize(("root", "name"), HOST_FILES)
def test_every_host_file_has_a_row(root, name):
    """Files outside of the cgroup tree are the same on all versions."""
    files = [resource.files for resource in RESOURCES if resource.files.get(1)]

    assert any(f[1].root is root and f[1].name == name and f[1] is f.get(2) for f in files)


def test_names_are_unique_and_have_units():
    """A name in a log or error leads to one row."""
    names = [resource.name for resource in RESOURCES]

    assert len(set(names)) == len(names)
    assert all(resource.unit for resource in RESOURCES)


def test_files_that_pin_or_lie_are_not_held():
    """A held net/dev keeps a namespace alive; a held v1 id list repeats itself."""
    opened_each_time = {r.name for r in RESOURCES if not all(f.hold for f in r.files.values())}

    of_processes = {"net_dev", "oom_score_adj", "process_start"}
    of_groups = {f"resctrl_{name}" for name in ("l3", "mb", "cbm_mask", "min_cbm_bits")}
    of_network = {"default_interface", "default_interface_6", "interface_speed"}
    assert opened_each_time == {
        "tasks", "cgroup_procs", *of_processes, *of_groups, *of_network,
    }  # fmt: skip


RESTORABLE = [
    ("cpu_shares", 1, ["2", "1024"], ["1", "1024\n", "1024 5", "max", "", "\u0661", "1_0"]),
    ("cpu_shares", 2, ["100"], ["0", "x"]),
    ("cpu_quota", 2, ["max", "50000"], ["max 100000", "5\n5"]),
    ("cpuset_cpus_wanted", 1, ["0-3,5", ""], ["0-3\n", "a", "0-99999999"]),
    ("memory_high", 2, ["max", "4096"], ["max\n", "-5 x"]),
    ("min_free_kbytes", 1, ["3000", "67584"], ["-1", "a"]),
    ("watermark_scale_factor", 1, ["1", "10"], ["0", "5000"]),
    ("sched_feature_WA_BIAS", 1, ["WA_BIAS", "NO_WA_BIAS"], ["WA_IDLE", "1"]),
    ("cpu_usage", 1, [], ["5"]),
]


@pytest.mark.parametrize(("name", "version", "may", "may_not"), RESTORABLE)
def test_only_what_the_kernel_may_have_shown_is_restored(name, version, may, may_not):
    """A journal says what to write; what no kernel shows did not come from one."""
    file = BY_NAME[name].files[version]

    assert [text for text in may if not file.may_restore(text)] == []
    assert [text for text in may_not if file.may_restore(text)] == []


@given(st.text(), st.sampled_from(sorted(BY_NAME)), st.sampled_from([1, 2]))
def test_whatever_an_original_is_it_is_judged(text, name, version):
    file = BY_NAME[name].files.get(version)
    if file is not None and file.may_restore(text):
        assert file.text is not None
        assert text.isascii()
        assert "\n" not in text or file.text.by_line
