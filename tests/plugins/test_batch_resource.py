"""BatchResource: CPU shares, CPU quota and memory limit of best-effort pods."""

import json

import pytest

from koord.api.node import Node
from koord.api.nodeslo import NodeSLO
from koord.api.pod import Container
from koord.api.qos import QOS_LABEL, KubeQoS
from koord.api.qosstrategy import CPUSuppressPolicy, ResourceThreshold
from koordlet.plugin import PodMeta, resources
from koordlet.plugin.pods.settings import NORMALIZATION_RATIO
from koordlet.plugin.testing import FakeHost, FakePod, PluginHarness, make_pod
from koordlet_plugins.batch_resource import BatchResource, BatchRule, batch_claims, has_own_quota

GIB = 2**30
PLAIN = BatchRule()
QUOTA, MEMORY = resources.CPU_QUOTA, resources.MEMORY_LIMIT


def container(
    name: str, request: int | None = None, limit: int | None = None, memory: str = ""
) -> Container:
    """A container with batch resources: milli-CPU, and a quantity of bytes."""
    cpu = "kubernetes.io/batch-cpu"
    limits = {} if limit is None else {cpu: str(limit)}
    if memory:
        limits["kubernetes.io/batch-memory"] = memory
    return Container(name, {} if request is None else {cpu: str(request)}, limits)


def be_pod(*containers: Container, **more: object) -> PodMeta:
    return make_pod(
        "job",
        qos=KubeQoS.BEST_EFFORT,
        labels={QOS_LABEL: "BE"},
        containers=containers,
        **more,  # type: ignore[arg-type]
    )


def claimed(meta: PodMeta, rule: BatchRule = PLAIN) -> dict[str, tuple[int, ...]]:
    """Shares, quota and memory limit, of the pod as "" and of its containers by name."""
    pod_settings = BatchResource().pod_settings(meta.pod)
    names = {one.cgroup: one.name for one in meta.containers}
    found: dict[str, tuple[int, ...]] = {}
    for claim in batch_claims(meta, pod_settings, rule) if pod_settings else ():
        name = names.get(claim.target.place, "")
        found[name] = (*found.get(name, ()), claim.value)
    return found


@pytest.mark.parametrize(
    ("containers", "rule", "pod"),
    [
        ([container("a", 500, 500, "2Gi")], BatchRule(), (512, 50_000, 2 * GIB)),
        (
            [container("a", 500, 500, "2Gi"), container("b", None, 1000, "2Gi")],
            BatchRule(),
            (512, 150_000, 4 * GIB),
        ),
        ([container("a", 500, 500, "2Gi"), container("b", 500)], BatchRule(), (1024, -1, -1)),
        ([container("a", 500, 500, "2Gi")], BatchRule(ratio=1.2), (512, 41_667, 2 * GIB)),
        ([container("a", 500, 500, "2Gi")], BatchRule(quota=False), (512, -1, 2 * GIB)),
        ([container("a", 1000, 1000, "1Gi")], BatchRule(ratio=1.2), (1024, 83_334, GIB)),
        ([container("a", 1000, 1000, "1Gi")], BatchRule(ratio=1.0), (1024, 100_000, GIB)),
        ([container("a", 1000, 2000, "2Gi")], BatchRule(), (1024, 200_000, 2 * GIB)),
        ([container("a", 10, 10, "1Gi")], BatchRule(ratio=1.5), (10, 1000, GIB)),
    ],
)
def test_values_of_a_pod(
    containers: list[Container], rule: BatchRule, pod: tuple[int, int, int]
) -> None:
    """Requests become shares, limits a quota and a memory limit; the ratio lowers the quota."""
    assert claimed(be_pod(*containers), rule)[""] == pod


def test_values_of_a_container() -> None:
    """What a container has no limit for is unlimited, and very small requests count."""
    assert claimed(be_pod(container("a", 5)))["a"] == (5, -1, -1)


def test_a_container_without_batch_resources_lifts_the_pods_limits() -> None:
    """It may use what it likes, so its pod cannot be held to what the others may."""
    found = claimed(be_pod(container("a", 500, 500, "1Gi"), Container("b")))

    assert found == {"": (512, -1, -1), "a": (512, 50_000, GIB)}


def test_init_containers_and_sidecars_count_as_with_kubernetes() -> None:
    """Init containers run before the others, beside the sidecars that were started before."""
    sidecar = Container("s", limits={"kubernetes.io/batch-cpu": "200"}, restart_policy="Always")
    start = Container("i", limits={"kubernetes.io/batch-cpu": "900"})
    pod = be_pod(container("a", 500, 500), init_containers=(sidecar, start))

    assert claimed(pod)[""][1] == 110_000


def test_a_pod_of_another_class_is_left_alone() -> None:
    """Whatever it asks for: only the label makes a pod best effort."""
    assert not claimed(make_pod("web", containers=(container("a", 500, 500),)))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (
            {"containers": {"a": {"requests": {"kubernetes.io/batch-cpu": "500"}}}},
            {"": (512, -1, -1), "a": (512, -1, -1)},
        ),
        ({"Containers": {"a": {"LIMITS": {"kubernetes.io/batch-cpu": 500}}}}, None),
        ({"containers": {}}, {}),
        ({}, {}),
    ],
)
def test_the_annotation_counts_where_containers_ask_for_nothing(
    annotation: object, expected: dict[str, tuple[int, ...]] | None
) -> None:
    """Keys are read as Go does; an empty map is as good as none, not a limit of zero."""
    key = "node.koordinator.sh/extended-resource-spec"
    pod = be_pod(Container("a"), annotations={key: json.dumps(annotation)})

    found = claimed(pod)

    assert found == ({"": (2, 50_000, -1), "a": (2, 50_000, -1)} if expected is None else expected)


@pytest.mark.parametrize(
    ("enable", "policy", "own"),
    [
        (True, CPUSuppressPolicy.CFS_QUOTA, False),
        (True, CPUSuppressPolicy.CPUSET, True),
        (False, CPUSuppressPolicy.CFS_QUOTA, True),
    ],
)
def test_pods_have_no_quota_while_their_class_has(
    enable: bool, policy: CPUSuppressPolicy, own: bool
) -> None:
    """That is while CPU suppress works by quota."""
    threshold = ResourceThreshold(enable=enable, cpu_suppress_policy=policy)

    assert has_own_quota(NodeSLO(threshold=threshold)) is own
    assert has_own_quota(None)


def job(host: FakeHost) -> tuple[PodMeta, FakePod]:
    """A pod of one container with a core and a GiB, and its cgroups."""
    groups = host.add_pod("job", KubeQoS.BEST_EFFORT, ("job-main",))
    return be_pod(container("main", 1000, 1000, "1Gi")), groups


async def test_limits_land_and_go(host, value) -> None:
    """Pod and container get their values; when the plugin ends they are as before."""
    pod, groups = job(host)
    shares = value(resources.CPU_SHARES, groups.group)
    harness = PluginHarness(BatchResource(), pods=[pod], host=host)

    async with harness:
        await harness.rounds(1)
        for group in (groups.group, groups.containers["job-main"]):
            assert [value(row, group) for row in (QUOTA, MEMORY)] == [100_000, GIB]
        assert value(QUOTA, groups.sandbox) == -1

    for group in (groups.group, groups.containers["job-main"]):
        assert [value(row, group) for row in (QUOTA, MEMORY)] == [-1, -1]
        assert value(resources.CPU_SHARES, group) == shares


async def test_a_change_of_the_nodes_settings_is_seen_at_once(host, value) -> None:
    """The ratio and the suppress policy come from outside and take effect before the next round."""
    pod, groups = job(host)
    harness = PluginHarness(BatchResource(), pods=[pod], host=host)

    async with harness:
        harness.states.set_node(Node("test-node", annotations={NORMALIZATION_RATIO: "1.20"}))
        await harness.advance(0.1)
        assert value(QUOTA, groups.group) == 83_334
        harness.set_node_slo(
            NodeSLO(
                threshold=ResourceThreshold(
                    enable=True, cpu_suppress_policy=CPUSuppressPolicy.CFS_QUOTA
                )
            )
        )
        await harness.advance(0.1)
        assert value(QUOTA, groups.group) == -1


async def test_a_bad_annotation_is_reported_once_and_the_last_good_one_stays(host, value) -> None:
    """In the log, in a counter and as an event on the pod; a good one ends it."""
    key = "node.koordinator.sh/extended-resource-spec"
    groups = host.add_pod("job", KubeQoS.BEST_EFFORT, ("job-main",))

    def pod(text: str) -> PodMeta:
        return be_pod(Container("main"), annotations={key: text})

    good = '{"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": "%d"}}}}'
    harness = PluginHarness(BatchResource(), pods=[pod(good % 1000)], host=host)
    async with harness:
        harness.set_pods(pod('{"containers": 7}'))
        await harness.rounds(3)
        assert value(QUOTA, groups.group) == 100_000
        [event] = harness.evictions.events
        assert (event.pod, event.reason) == ("default/job", "SettingRejected")
        assert key in event.message
        assert len(harness.log.named("setting.rejected")) == 1
        assert harness.metric("rejected_total", object="pod") == 1
        harness.set_pods(pod(good % 2000))
        await harness.rounds(1)
        assert value(QUOTA, groups.group) == 200_000
        assert len(harness.log.named("setting.accepted")) == 1
