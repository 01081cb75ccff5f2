"""Settings of pods on a real kernel: what processes in them really get, and that it goes again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.api.annotations import RESOURCE_STATUS
from koord.api.node import Node
from koord.api.pod import Container
from koord.api.qos import QOS_LABEL, KubeQoS
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.plugin import Claim, ClaimScope, Level, PodMeta, Target, resources
from koordlet.plugin.kernel import Part
from koordlet.plugin.pods.settings import NORMALIZATION_RATIO
from koordlet.plugin.testing import PluginHarness, make_pod
from koordlet_plugins.batch_resource import BatchResource
from koordlet_plugins.cpu_normalization import CpuLimits, CPUNormalization
from koordlet_plugins.cpuset_allocator import CPUSetAllocator
from koordlet_plugins.oom_score_adj import SCORE, OOMScoreAdj

QUOTA, SHARES, MEMORY = resources.CPU_QUOTA, resources.CPU_SHARES, resources.MEMORY_LIMIT
GIB = 2**30


class Pod:
    """The cgroups of a pod of one container, with a process in it."""

    def __init__(self, tree, meta: PodMeta) -> None:
        [container] = meta.containers
        self.groups = (meta.cgroup, container.cgroup)
        self.process = tree.make(container.cgroup).run()
        self._tree = tree

    def values(self, resource) -> list[int]:
        """Of the pod and of the container."""
        host = Host(self._tree.paths, Descriptors(0))
        return [host.read(resource, group) for group in self.groups]

    def affinity(self) -> set[int]:
        """The CPUs that the process may run on."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("Cpus_allowed_list")]
        return set(_numbers(line.split()[1]))

    def oom_score(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/oom_score_adj").read_text())


def _numbers(text: str) -> Iterator[int]:
    for run in text.split(","):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


async def test_batch_resources_land_and_go(tree):
    """A quota may grow and shrink: parent and child go in the order that the kernel takes."""
    cpu, memory = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"

    def job(milli: str) -> PodMeta:
        main = Container("main", {cpu: "500"}, {cpu: milli, memory: "1Gi"})
        return make_pod(
            "job", qos=KubeQoS.BEST_EFFORT, labels={QOS_LABEL: "BE"}, containers=(main,)
        )

    pod = Pod(tree, job("500"))
    before = [pod.values(row) for row in (SHARES, QUOTA, MEMORY)]
    harness = PluginHarness(BatchResource(), pods=[job("500")], host=tree)
    async with harness:
        await harness.rounds(1)
        for milli, quota in (("500", 50_000), ("2000", 200_000), ("100", 10_000)):
            harness.set_pods(job(milli))
            await harness.rounds(1)
            assert pod.values(QUOTA) == [quota, quota]
        assert pod.values(MEMORY) == [GIB, GIB]
        assert pod.values(SHARES) != before[0]
    assert [pod.values(row) for row in (SHARES, QUOTA, MEMORY)] == before


async def test_a_pinned_process_runs_on_its_cpus_alone(tree):
    """And on its original CPUs when no plugin pins it any more."""
    annotation = {RESOURCE_STATUS: '{"cpuset": "0"}'}
    asked = (Container("main", requests={"cpu": "1"}),)
    meta = make_pod("web", labels={QOS_LABEL: "LSR"}, annotations=annotation, containers=asked)
    pod = Pod(tree, meta)
    before = pod.affinity()
    if before == {0}:
        pytest.skip("needs two CPUs")
    async with PluginHarness(CPUSetAllocator(), pods=[meta], host=tree) as harness:
        await harness.rounds(1)
        assert pod.affinity() == {0}
    assert pod.affinity() == before


async def test_the_oom_score_of_a_process_is_set_and_restored(tree):
    """The one it had."""
    meta = make_pod("web", annotations={SCORE: "500"})
    pod = Pod(tree, meta)
    before = pod.oom_score()
    async with PluginHarness(OOMScoreAdj(), pods=[meta], host=tree) as harness:
        await harness.rounds(1)
        assert pod.oom_score() == 500
    assert pod.oom_score() == before


class Bursting(CPUNormalization):
    """Lends containers 30 ms beside, as a burst does."""

    may_claim = (
        *CPUNormalization.may_claim,
        *(ClaimScope(QUOTA, level, part=Part.EXTRA) for level in (Level.POD, Level.CONTAINER)),
    )

    def claims(self, meta: PodMeta, wants: CpuLimits, rule: float) -> Iterator[Claim]:
        yield from super().claims(meta, wants, rule)
        for target in (Target.of_pod(meta), Target.of_container(meta, meta.containers[0])):
            yield Claim(
                target=target,
                resource=QUOTA,
                part=Part.EXTRA,
                value=30_000,
                original=200_000,
                reason="throttled",
            )


async def test_a_burst_comes_on_top_of_the_normalized_quota(tree):
    """Neither undoes the other, and what stays in the end is the quota of the limit."""
    main = Container("main", limits={"cpu": "2"})
    meta = make_pod("web", labels={QOS_LABEL: "LS"}, containers=(main,))
    pod = Pod(tree, meta)
    harness = PluginHarness(Bursting(), gates=(), pods=[meta], host=tree)
    async with harness:
        harness.states.set_node(Node("n", annotations={NORMALIZATION_RATIO: "1.25"}))
        await harness.rounds(1)
        assert pod.values(QUOTA) == [190_000, 190_000]
        harness.states.set_node(Node("n"))
        await harness.rounds(1)
        assert pod.values(QUOTA) == [200_000, 200_000]
