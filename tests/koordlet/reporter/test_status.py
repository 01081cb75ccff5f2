"""The status for given samples: Koordinator's rules, and ours where they differ."""

import json

import pytest

from koord.api.nodemetric import AggregatedUsage, MemoryPolicy, NodeMetricSpec, Usage
from koord.api.nodeslo import HostApplication
from koord.api.qos import KubeQoS
from koord.util.clock import stamp
from koordlet.metriccache.kinds import (
    HOST_APP_CPU_USAGE,
    HOST_APP_MEMORY_USAGE,
    HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE,
    HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_MEMORY_USAGE_WITH_PAGE_CACHE,
    NODE_MEMORY_WITH_HOT_PAGE_USAGE,
    NODE_NUMA_CPU_USAGE,
    NODE_NUMA_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    POD_MEMORY_USAGE_WITH_PAGE_CACHE,
    POD_MEMORY_WITH_HOT_PAGE_USAGE,
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    SYS_NUMA_CPU_USAGE,
    SYS_NUMA_MEMORY_USAGE,
    Sample,
)
from koordlet.reporter.status import ReportInputs, Withheld, build_status, make_report

from .conftest import GIB, NODE, SYSTEM, make_pod

MIB = 1 << 20


@pytest.fixture
def build(cache, clock):
    """The status of the present moment."""

    def build(*, pods=(), host_applications=(), **spec):
        snapshot = ReportInputs(
            spec=NodeMetricSpec(**spec),
            pods=tuple(pods),
            host_applications=tuple(host_applications),
            now=clock.boottime(),
            oldest=2.0,
        )
        return build_status(cache, snapshot)

    return build


def pod_samples(name, cores, memory):
    key = (f"uid-{name}",)
    return Sample(POD_CPU_USAGE, cores, key), Sample(POD_MEMORY_USAGE, memory, key)


def test_update_time_is_that_of_the_older_series(measure, clock, build, cache):
    """Memory one second older than CPU dates the report; the time of reporting does not count."""
    measure(*NODE)
    measured = clock.wall()
    clock.tick(1)
    cache.append(stamp(clock), [NODE[0]])
    clock.tick(1)

    assert build().update_time == measured


@pytest.mark.parametrize("missing", [0, 1])
def test_without_node_cpu_or_memory_nothing_is_reported(measure, build, missing):
    """Both make nodeUsage, and a report without it would hide a dead collector."""
    measure(NODE[missing])

    with pytest.raises(Withheld, match="found none yet"):
        build()


@pytest.mark.parametrize(("age", "withheld"), [(0, False), (2, False), (2.5, True), (600, True)])
def test_old_samples_withhold_the_report(measure, clock, build, age, withheld):
    """Two collect intervals is the limit."""
    measure(*NODE, seconds=10)
    clock.tick(age)

    if withheld:
        with pytest.raises(Withheld, match="old; see which collector fails"):
            build()
    else:
        assert build().node_usage == Usage(3.0, 3 * GIB)


def test_a_step_of_the_wall_clock_withholds_nothing(measure, clock, build):
    """Age is judged by the time since boot; updateTime says what the clock said at the sample."""
    measure(*NODE)
    before = clock.wall()
    clock.step_wall(-3600)

    assert build().update_time == before


def test_suspend_makes_samples_old(measure, clock, build):
    """What was measured before the lid was closed is not the present usage."""
    measure(*NODE)
    clock.suspend(60)

    with pytest.raises(Withheld):
        build()


@pytest.mark.parametrize(
    ("cores", "memory", "resources"),
    [
        (3.0, 3221225472, {"cpu": "3", "memory": "3Gi"}),
        (0.0004, 800, {"cpu": "0", "memory": "800"}),
        (2.9996, 1073741825, {"cpu": "2999m", "memory": "1073741825"}),
        (1.523, 1610612736, {"cpu": "1523m", "memory": "1536Mi"}),
    ],
)
def test_quantities_are_cut_and_canonical(measure, build, cores, memory, resources):
    """The worked examples of Koordinator's conversion, through mean and encoding."""
    measure(Sample(NODE_CPU_USAGE, cores), Sample(NODE_MEMORY_USAGE, memory), seconds=9)

    assert build().to_json()["nodeMetric"]["nodeUsage"] == {"resources": resources}


def test_the_average_is_over_the_aggregate_duration(measure, build):
    """What is older than that does not count; the window ends now."""
    measure(Sample(NODE_CPU_USAGE, 9.0), NODE[1], seconds=100)
    measure(*NODE, seconds=62)

    assert build(aggregate_duration=60.0).node_usage.cores == pytest.approx(3.0)
    assert build(aggregate_duration=120.0).node_usage.cores > 3.5


@pytest.mark.parametrize(
    ("window", "span", "warm"),
    [
        (600, 299, False),
        (600, 300, True),
        (1800, 14 * 60, False),
        (1800, 899, False),
        (1800, 900, True),
        (300, 149, False),
        (600, 590, True),
    ],
)
def test_a_window_is_cold_until_half_of_it_is_measured(measure, build, window, span, warm):
    """Koordinator's worked examples: strictly less than half is cold."""
    measure(*NODE, *SYSTEM, seconds=span)

    status = build(durations=(float(window),))

    for (aggregated,), cores in (
        (status.aggregated_node_usages, 3.0),
        (status.aggregated_system_usages, 0.4),
    ):
        assert aggregated.duration == window
        assert (aggregated.avg is not None) is warm
        if warm:
            assert {aggregated.p50.cores, aggregated.p99.cores} == {cores}
        else:
            assert aggregated == AggregatedUsage(window)


def test_a_memory_series_that_began_late_keeps_the_window_cold(measure, build):
    """The span is judged per series: a p99 of memory from two samples would be a lie."""
    measure(NODE[0], seconds=200)
    measure(*NODE, seconds=1)

    assert build(durations=(300.0,)).aggregated_node_usages == (AggregatedUsage(300.0),)


def test_system_usage_is_judged_by_its_own_series(measure, build):
    """It begins later than node usage, so that its windows are warm later."""
    measure(*NODE, seconds=200)
    measure(*NODE, *SYSTEM, seconds=10)

    status = build(durations=(300.0,))

    assert status.aggregated_node_usages[0].avg is not None
    assert status.aggregated_system_usages == (AggregatedUsage(300.0),)
    assert status.system_usage.cores == pytest.approx(0.4)


def test_percentiles_follow_koordinators_ranks(cache, clock, build):
    """Of 1 to 300 at one per second: ranks 149, 269, 284 and 296, counted from 0."""
    for value in range(1, 301):
        clock.tick(1)
        cache.append(
            stamp(clock), [Sample(NODE_CPU_USAGE, value), Sample(NODE_MEMORY_USAGE, value * MIB)]
        )

    (aggregated,) = build(durations=(300.0,)).aggregated_node_usages

    figures = [aggregated.p50, aggregated.p90, aggregated.p95, aggregated.p99]
    assert [usage.cores for usage in figures] == [150, 270, 285, 297]
    assert [usage.memory_bytes / MIB for usage in figures] == [150, 270, 285, 297]


def test_numa_nodes_need_both_and_come_in_order_of_their_ids(measure, build):
    """Node 10 after node 2; node 1 lacks memory; the system's share may be unknown."""
    numa = [
        Sample(kind, value, (node,))
        for node, cores in (("10", 1.0), ("2", 2.0), ("1", 3.0))
        for kind, value in ((NODE_NUMA_CPU_USAGE, cores), (NODE_NUMA_MEMORY_USAGE, GIB))
        if (node, kind) != ("1", NODE_NUMA_MEMORY_USAGE)
    ]
    system = [
        Sample(SYS_NUMA_CPU_USAGE, 0.5, ("2",)),
        Sample(SYS_NUMA_MEMORY_USAGE, MIB, ("2",)),
    ]
    measure(*NODE, *numa, *system, seconds=2)

    assert build().to_json()["nodeMetric"]["numaUsages"] == [
        {
            "numaNodeID": 2,
            "nodeUsage": {"resources": {"cpu": "2", "memory": "1Gi"}},
            "systemUsage": {"resources": {"cpu": "500m", "memory": "1Mi"}},
        },
        {
            "numaNodeID": 10,
            "nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}},
            "systemUsage": {},
        },
    ]


def test_pods_come_sorted_with_class_and_mean(measure, build):
    """By namespace, then name; QoS and priority by label or their defaults."""
    pods = [
        make_pod("web-1"),
        make_pod("web-0", priority=9100),
        make_pod("etl", "batch", qos=KubeQoS.BEST_EFFORT),
        make_pod("cache", labels={"koordinator.sh/qosClass": "LSE"}, qos=KubeQoS.GUARANTEED),
    ]
    samples = [s for pod in pods for s in pod_samples(pod.pod.name, 1.5, 100 * MIB)]
    measure(*NODE, *samples, seconds=5)

    metrics = build(pods=pods).to_json()["podsMetric"]

    assert [(m["namespace"], m["name"], m["qos"], m["priority"]) for m in metrics] == [
        ("batch", "etl", "BE", "koord-batch"),
        ("default", "cache", "LSE", "koord-prod"),
        ("default", "web-0", "LS", "koord-prod"),
        ("default", "web-1", "LS", "koord-prod"),
    ]
    assert metrics[0]["podUsage"] == {"resources": {"cpu": "1500m", "memory": "100Mi"}}


def test_pods_without_both_figures_or_finished_are_left_out(measure, build):
    """Absent is not 0, and a pod that ended uses nothing, whatever the window still holds."""
    pods = [make_pod("no-memory"), make_pod("unknown"), make_pod("done", phase="Succeeded")]
    measure(*NODE, pod_samples("no-memory", 1, 1)[0], *pod_samples("done", 1, 1), seconds=5)

    status = build(pods=pods)

    assert status.pods == ()
    assert "podsMetric" not in status.to_json()


def test_host_applications_carry_what_the_slo_says(measure, build):
    """Sorted by name; priority and QoS are copied as they are."""
    applications = [
        HostApplication("nginx", priority="koord-prod", qos="LS"),
        HostApplication("agent"),
        HostApplication("absent"),
    ]
    samples = [
        Sample(kind, value, (name,))
        for name in ("nginx", "agent", "unasked")
        for kind, value in ((HOST_APP_CPU_USAGE, 0.7), (HOST_APP_MEMORY_USAGE, 512 * MIB))
    ]
    measure(*NODE, *samples, seconds=3)
    usage = {"resources": {"cpu": "700m", "memory": "512Mi"}}

    assert build(host_applications=applications).to_json()["hostApplicationMetric"] == [
        {"name": "agent", "usage": usage},
        {"name": "nginx", "usage": usage, "priority": "koord-prod", "qos": "LS"},
    ]


@pytest.mark.parametrize(
    ("policy", "collected", "mebibytes"),
    [
        (MemoryPolicy.WITHOUT_PAGE_CACHE, True, 100),
        (MemoryPolicy.WITH_PAGE_CACHE, True, 900),
        (MemoryPolicy.WITH_PAGE_CACHE, False, 100),
        (MemoryPolicy.WITH_HOT_PAGE_CACHE, True, 500),
        (MemoryPolicy.WITH_HOT_PAGE_CACHE, False, 100),
    ],
)
def test_the_memory_policy_chooses_the_series(measure, build, policy, collected, mebibytes):
    """Without page cache where what is asked for is not collected; system always without."""
    pod, app = ("uid-web-0",), ("nginx",)
    samples = [
        Sample(NODE_MEMORY_USAGE, 100 * MIB),
        Sample(POD_MEMORY_USAGE, 100 * MIB, pod),
        Sample(HOST_APP_MEMORY_USAGE, 100 * MIB, app),
        Sample(HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE, 900 * MIB, app),
        Sample(SYS_MEMORY_USAGE, 50 * MIB),
        Sample(NODE_CPU_USAGE, 1),
        Sample(SYS_CPU_USAGE, 1),
        Sample(POD_CPU_USAGE, 1, pod),
        Sample(HOST_APP_CPU_USAGE, 1, app),
    ]
    if collected:
        samples += [
            Sample(NODE_MEMORY_USAGE_WITH_PAGE_CACHE, 900 * MIB),
            Sample(POD_MEMORY_USAGE_WITH_PAGE_CACHE, 900 * MIB, pod),
            Sample(NODE_MEMORY_WITH_HOT_PAGE_USAGE, 500 * MIB),
            Sample(POD_MEMORY_WITH_HOT_PAGE_USAGE, 500 * MIB, pod),
            Sample(HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE, 500 * MIB, app),
        ]
    measure(*samples, seconds=3)

    status = build(
        pods=[make_pod()], host_applications=[HostApplication("nginx")], memory_policy=policy
    )

    assert status.node_usage.memory_bytes == mebibytes * MIB
    assert status.pods[0].usage.memory_bytes == mebibytes * MIB
    assert status.host_applications[0].usage.memory_bytes == mebibytes * MIB
    assert status.system_usage.memory_bytes == 50 * MIB


def test_the_whole_object_reads_as_koordinators(measure, build, clock):
    """Byte for byte, with everything a standalone node has; prediction is absent."""
    clock.step_wall(1784879823 - clock.wall())  # 2026-07-24T07:57:03Z
    usage = pod_samples("web-0", 1.523, 100 * MIB)
    numa = Sample(NODE_NUMA_CPU_USAGE, 1, ("0",)), Sample(NODE_NUMA_MEMORY_USAGE, GIB, ("0",))
    measure(*NODE, *SYSTEM, *usage, *numa, seconds=177)
    spec = NodeMetricSpec(durations=(300.0, 1800.0))
    status = build(pods=[make_pod()], durations=spec.durations)

    report = make_report("worker-07", spec, status)

    node = '{"resources":{"cpu":"3","memory":"3Gi"}}'
    system = '{"resources":{"cpu":"400m","memory":"512Mi"}}'

    def aggregated(usage):
        warm = ",".join(f'"{name}":{usage}' for name in ("avg", "p50", "p90", "p95", "p99"))
        cold = '"avg":{},"p50":{},"p90":{},"p95":{},"p99":{}'
        return (
            f'[{{"duration":"5m0s","usage":{{{warm}}}}},{{"duration":"30m0s","usage":{{{cold}}}}}]'
        )

    assert report.body.decode() == (
        '{"apiVersion":"slo.koordinator.sh/v1alpha1","kind":"NodeMetric",'
        '"metadata":{"name":"worker-07"},'
        '"spec":{"metricCollectPolicy":{"aggregateDurationSeconds":300,"reportIntervalSeconds":60,'
        '"nodeAggregatePolicy":{"durations":["5m0s","30m0s"]},'
        '"nodeMemoryCollectPolicy":"usageWithoutPageCache"}},'
        '"status":{"updateTime":"2026-07-24T08:00:00Z",'
        f'"nodeMetric":{{"nodeUsage":{node},"aggregatedNodeUsages":{aggregated(node)},'
        f'"systemUsage":{system},"aggregatedSystemUsages":{aggregated(system)},'
        '"numaUsages":[{"numaNodeID":0,"nodeUsage":{"resources":{"cpu":"1","memory":"1Gi"}},'
        '"systemUsage":{}}]},'
        '"podsMetric":[{"name":"web-0","namespace":"default","priority":"koord-prod","qos":"LS",'
        '"podUsage":{"resources":{"cpu":"1523m","memory":"100Mi"}}}],'
        '"prodReclaimableMetric":{"resource":{}}}}\n'
    )
    assert json.loads(report.body)["status"] == status.to_json()
