"""CgroupReconcile on fake hosts: what it writes, at which level, and what it restores."""

import mmap
from dataclasses import replace

import pytest

from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container
from koord.api.qos import KubeQoS
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet_plugins.cgroup_reconcile import ANNOTATION, CgroupReconcile

MI, GI = 2**20, 2**30
ANOLIS = {
    "memory.wmark_ratio": "0",
    "memory.wmark_scale_factor": "50",
    "memory.wmark_min_adj": "0",
    "memory.priority": "0",
    "memory.use_priority_oom": "0",
}
PAGE_CACHE = {f"memory.pagecache_limit.{name}": "0" for name in ("enable", "size", "sync")}
pytestmark = pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="examples of 4096-byte pages")


class Bed:
    """A node of 64 GiB with a Burstable pod of two containers, 1.5 GiB together."""

    def __init__(self, tmp_path, version=2, *, annotation=None, files=(), **more):
        self.host = FakeHost(tmp_path, version=version)
        self.groups = {qos: self.host.group(self.host.layout.qos_dir(qos)) for qos in KubeQoS}
        cgroups = self.host.add_pod("web", containers=("web-a", "web-b"))
        self.groups |= {"pod": cgroups.group, **cgroups.containers}
        for name, text in dict(files).items():
            for group in self.groups.values():
                group.write(f"memory/{name}" if version == 1 else name, f"{text}\n")
        self.before = self.everything()
        self.harness = PluginHarness(
            CgroupReconcile(), pods=[self.pod(annotation)], host=self.host, **more
        )
        self.harness.states.set_node(Node("n1", allocatable={"memory": "64Gi"}))

    def pod(self, annotation=None, first="1Gi"):
        return make_pod(
            "web",
            annotations={} if annotation is None else {ANNOTATION: annotation},
            containers=(
                Container("a", {"memory": first}, {"memory": "2Gi"}),
                Container("b", {"memory": "512Mi"}, {"memory": "1Gi"}),
            ),
        )

    def strategy(self, **memory):
        strategy = {"lsClass": {"memoryQOS": {"enable": True, **memory}}}
        self.harness.set_node_slo(merge_nodeslo({"spec": {"resourceQOSStrategy": strategy}})[0])

    def read(self, group, *files):
        prefix = "memory/" if self.host.version == 1 else ""
        return tuple(self.groups[group].read(f"{prefix}memory.{file}") for file in files)

    def claimed(self, group):
        """What is claimed of min, low and high; the kernel keeps whole pages of it."""
        values = {
            claim["resource"].removeprefix("memory_"): claim["claims"][0]["value"]
            for claim in self.harness.claims()
            if claim["target"] == self.groups[group].path
        }
        return {name: values[name] for name in ("min", "low", "high") if name in values}

    def everything(self):
        root = self.host.paths.cgroup
        return {file: file.read_bytes() for file in root.rglob("memory.*")}


async def test_values_of_all_levels(tmp_path):
    """A class gets what its pods get together, all pods what the classes get."""
    bed = Bed(tmp_path)
    bed.strategy(minLimitPercent=50, lowLimitPercent=80, throttlingPercent=80)
    async with bed.harness as harness:
        await harness.rounds(1)
        assert bed.claimed("web-a") == {"min": 536870912, "low": 858993459, "high": 1932734464}
        assert bed.claimed("web-b") == {"min": 268435456, "low": 429496729, "high": 966365184}
        together = {"min": 805306368, "low": 1288490188}
        for group in ("pod", KubeQoS.BURSTABLE, KubeQoS.GUARANTEED):
            assert bed.claimed(group) == together
        assert bed.read("web-a", "min", "high") == ("536870912", "1932734464")
        assert bed.read("pod", "min", "high") == ("805306368", "max")
        assert bed.read(KubeQoS.BEST_EFFORT, "min", "low") == ("0", "0")

    assert bed.everything() == bed.before


async def test_switched_off_everything_is_as_before(tmp_path):
    """Within one round, also what the kubelet has set."""
    bed = Bed(tmp_path)
    bed.groups["web-a"].write("memory.oom.group", "1\n")
    bed.groups["web-a"].write("memory.high", "1999998976\n")
    before = bed.everything()
    bed.strategy(minLimitPercent=50, throttlingPercent=80)
    async with bed.harness as harness:
        await harness.rounds(1)
        assert bed.read("web-a", "oom.group") == ("0",)
        bed.strategy(enable=False)
        await harness.rounds(1)
        assert bed.everything() == before
        assert harness.claims() == []


async def test_a_class_that_is_off_leaves_files_alone(tmp_path):
    """Koordinator's writes memory.oom.group=0 over what the kubelet has set."""
    bed = Bed(tmp_path)
    bed.groups["web-a"].write("memory.oom.group", "1\n")
    bed.harness.set_node_slo(merge_nodeslo({"spec": {}})[0])
    async with bed.harness as harness:
        await harness.rounds(3)
        assert bed.read("web-a", "oom.group") == ("1",)
        assert harness.claims() == []


async def test_a_pods_own_settings_where_its_class_is_off(tmp_path):
    """What it says itself, and nothing else."""
    bed = Bed(tmp_path, annotation='{"lowLimitPercent":50}')
    bed.harness.set_node_slo(merge_nodeslo({"spec": {}})[0])
    async with bed.harness as harness:
        await harness.rounds(1)
        assert bed.read("web-a", "min", "low", "high") == ("0", str(512 * MI), "max")
        assert bed.read(KubeQoS.BURSTABLE, "low") == (str(768 * MI),)
        assert {claim["resource"] for claim in harness.claims()} == {"memory_low"}

        harness.set_pods(bed.pod())
        await harness.rounds(1)
        assert bed.everything() == bed.before


async def test_changes_of_a_pod_reach_all_levels(tmp_path):
    """A container that is resized, and a pod that ends."""
    bed = Bed(tmp_path)
    bed.strategy(minLimitPercent=100)
    async with bed.harness as harness:
        await harness.rounds(1)
        harness.set_pods(bed.pod(first="2Gi"))
        await harness.rounds(1)
        assert bed.read("web-a", "min") == (str(2 * GI),)
        assert bed.read(KubeQoS.BURSTABLE, "min") == (str(2 * GI + 512 * MI),)
        pod = bed.pod()
        harness.set_pods(replace(pod, pod=replace(pod.pod, phase="Succeeded")))
        await harness.rounds(1)
        assert bed.read(KubeQoS.BURSTABLE, "min") == ("0",)


async def test_an_annotation_that_cannot_be_used(tmp_path):
    """The node's settings hold, or the pod's last good ones; it is reported once."""
    bed = Bed(tmp_path, annotation='{"minLimitPercent":-1}')
    bed.strategy(minLimitPercent=100)
    async with bed.harness as harness:
        await harness.rounds(3)
        assert bed.read("web-a", "min") == (str(GI),)
        harness.set_pods(bed.pod('{"minLimitPercent":50}'))
        await harness.rounds(2)
        harness.set_pods(bed.pod('{"minLimitPercent":"all"}'))
        await harness.rounds(2)
        assert bed.read("web-a", "min") == (str(512 * MI),)
        events = [event.event for event in harness.log.events]
        assert events.count("setting.rejected") == 2


@pytest.mark.parametrize("version", [1, 2])
async def test_anolis_files(tmp_path, version):
    """Watermarks and OOM priorities, on both versions; classes have only the latter."""
    bed = Bed(tmp_path, version, files={**ANOLIS, "memory.oom.group": "0"})
    bed.strategy(priority=3, priorityEnable=1, oomKillGroup=1, wmarkRatio=90)
    async with bed.harness as harness:
        await harness.rounds(1)
        of_all = ("priority", "use_priority_oom", "oom.group")
        wmarks = ("wmark_ratio", "wmark_scale_factor", "wmark_min_adj")
        for group in ("pod", "web-a", "web-b"):
            assert bed.read(group, *of_all) == ("3", "1", "1")
            assert bed.read(group, *wmarks) == ("90", "20", "-25")
        assert bed.read(KubeQoS.BURSTABLE, *of_all, *wmarks) == ("3", "1", "1", "0", "50", "0")
        assert bed.read(KubeQoS.BEST_EFFORT, *of_all) == ("0", "0", "0")
    assert bed.everything() == bed.before


async def test_page_cache_limits(tmp_path):
    """Of pods only; Koordinator's leaves them behind when the class is switched off."""
    bed = Bed(tmp_path, files=PAGE_CACHE)
    bed.strategy(pageCacheLimitPercent=50, pageCacheReclaimSync=True)
    files = [f"pagecache_limit.{name}" for name in ("enable", "size", "sync")]
    async with bed.harness as harness:
        await harness.rounds(1)
        assert bed.read("pod", *files) == ("1", str(3 * GI // 2), "1")
        assert bed.read("web-a", *files) == ("0", "0", "0")
        bed.strategy(enable=False)
        await harness.rounds(1)
        assert bed.everything() == bed.before


async def test_a_kernel_without_these_files(tmp_path):
    """Mainline cgroup v1 has none of them: nothing is claimed, and it is said once."""
    bed = Bed(tmp_path, 1)
    bed.strategy(minLimitPercent=50)
    async with bed.harness as harness:
        await harness.rounds(70)
        assert harness.claims() == []
        [event] = harness.log.events
        assert (event.event, event.facts["found"]) == ("memory_qos.files_found", [])


@pytest.mark.parametrize("missing", ["slo", "node"])
async def test_without_input_nothing_changes(tmp_path, missing):
    """Not knowing is no reason to take anything back."""
    bed = Bed(tmp_path)
    bed.strategy(minLimitPercent=50)
    async with bed.harness as harness:
        await harness.rounds(1)
        if missing == "slo":
            harness.set_node_slo(None)
        else:
            harness.states.set_node(Node("n1"))
        await harness.rounds(3)
        assert bed.read("web-a", "min") == (str(512 * MI),)


async def test_a_steady_state_writes_nothing(tmp_path):
    """Rounds in which nothing changed leave the kernel in peace."""
    bed = Bed(tmp_path)
    bed.strategy(minLimitPercent=50)

    def written():
        return {file: file.stat().st_mtime_ns for file in bed.everything()}

    async with bed.harness as harness:
        await harness.rounds(1)
        changes, before = len(harness.changes), written()
        await harness.rounds(30)
        assert (len(harness.changes), written()) == (changes, before)


async def test_dry_run(tmp_path):
    """The same decisions, and not a single write."""
    bed = Bed(tmp_path, dry_run=True)
    bed.strategy(minLimitPercent=50)
    async with bed.harness as harness:
        await harness.rounds(1)
        wanted = [
            (c["level"], c["wanted"]) for c in harness.claims() if c["resource"] == "memory_min"
        ]
        together, containers = 805_306_368, (268_435_456, 536_870_912)
        assert sorted(wanted) == [
            *(("container", value) for value in containers),
            ("pod", together),
            *(("qos", together) for _ in range(2)),
        ]
        assert bed.everything() == bed.before
