"""The whole process against a scripted API server, on simulated time."""

import json
from datetime import UTC, datetime

import pytest

from koord.kube.client import NODE_METRICS, NODE_SLOS, NODE_TOPOLOGIES
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import refuse
from tests.support.kube.replicas import LEASES, holder
from tests.support.manager import node, pod, pod_usage, quantities, report, topology, usage

NODES, PODS, CONFIG_MAPS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/configmaps"
METRICS, SLOS = NODE_METRICS.collection(), NODE_SLOS.collection()
TOPOLOGIES = NODE_TOPOLOGIES.collection()
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
RECLAIM = {"cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65}


def config_map(**colocation: object) -> dict[str, object]:
    return {
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {"colocation-config": json.dumps({"enable": True, **RECLAIM, **colocation})},
    }


def metric(clock: SimulatedClock, used: int = 33, name: str = "n1") -> dict[str, object]:
    found = report(
        node=usage(used + 7, "55G"), system=usage(7, "12G"), pods=[pod_usage("a", used, "33G")]
    )
    found["metadata"] = {"name": name}
    at = datetime.fromtimestamp(clock.wall(), UTC)
    found["status"]["updateTime"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


@pytest.fixture(autouse=True)
def cluster(server: ApiServer, clock: SimulatedClock) -> None:
    """Node n1 with a pod, its NodeMetric and the configuration."""
    server.objects.create(NODES, node(quantities(cpu=100, memory="120G")))
    server.objects.create(PODS, pod("a", quantities(cpu=40, memory="40G"), qos="LS"))
    server.objects.create(METRICS, metric(clock))
    server.objects.create(CONFIG_MAPS, config_map())


def stored(server: ApiServer, name: str = "n1") -> dict:
    return server.objects.get(NODES, name)


def batch(server: ApiServer) -> str | None:
    return stored(server)["status"]["allocatable"].get(BATCH_CPU)


def patches(server: ApiServer) -> list:
    return [one for one in server.asked("patch") if one.path == f"{NODES}/n1/status"]


async def test_a_node_gets_what_its_report_leaves_by_one_patch(start, server, let_pass, pass_time):
    server.objects.create(TOPOLOGIES, topology((100, "120G")))
    replica = start()

    await pass_time(lambda: batch(server) == "25k", step=0.25)
    await let_pass(30)

    found = stored(server)
    assert found["status"]["capacity"][BATCH_CPU] == "25k"
    assert (
        found["status"]["allocatable"][BATCH_MEMORY] == "33G"
        or int(found["status"]["allocatable"][BATCH_MEMORY]) == 33 * 10**9
    )
    assert found["status"]["allocatable"]["cpu"] == "100"
    assert found["metadata"]["annotations"]["node.koordinator.sh/cpu-normalization-ratio"] == "1.00"
    assert (
        BATCH_CPU
        in found["metadata"]["annotations"]["node.koordinator.sh/originExtendedAllocatable"]
    )
    zone = server.objects.get(TOPOLOGIES, "n1")["zones"][0]["resources"]
    assert [one["name"] for one in zone] == ["cpu", BATCH_CPU, BATCH_MEMORY, "memory"]
    assert len(patches(server)) == 1
    assert replica.metric(
        "slo_controller_node_extended_resource_allocatable_internal",
        node="n1", resource=BATCH_CPU, unit="core",
    ) == 25  # fmt: skip
    _, exposed = await replica.get("/metrics")
    [line] = [one for one in exposed.splitlines() if "reconcileSuccess" in one]
    assert line.startswith("slo_controller_node_resource_reconcile_count{")
    assert line.endswith(" 1.0")


async def test_a_new_report_is_followed_and_a_small_change_is_not_written(
    start, server, clock, let_pass, pass_time
):
    start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    await let_pass(60)
    server.objects.replace(METRICS, metric(clock, used=34))
    for _ in range(8):
        await clock.advance(0.5)
    assert batch(server) == "25k"
    server.objects.replace(METRICS, metric(clock, used=20))
    await pass_time(lambda: batch(server) == "38k", step=0.25)

    assert len(patches(server)) == 2


async def test_one_bad_report_does_not_take_all(start, server, clock, let_pass, pass_time):
    start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    await let_pass(60)
    server.objects.replace(METRICS, metric(clock, used=90))
    await pass_time(lambda: batch(server) == "17500", step=0.25)
    await let_pass(60)
    server.objects.replace(METRICS, metric(clock, used=90))
    await pass_time(lambda: batch(server) == "0", step=0.25)


async def test_pods_that_hold_more_than_is_offered_are_named(
    start, server, clock, let_pass, pass_time
):
    server.objects.create(PODS, pod("be", {BATCH_CPU: "20000"}, qos="BE"))
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    await let_pass(60)
    server.objects.replace(METRICS, metric(clock, used=58))
    await pass_time(lambda: bool(server.asked("create", "/api/v1/namespaces/default/events")))

    [event] = server.asked("create", "/api/v1/namespaces/default/events")
    assert event.json["reason"] == "LessThanHeld"
    assert "default/be" in event.json["message"]
    counts = [replica.metric("slo_controller_nodes", state=one) for one in ("enabled", "short")]
    assert counts == [1, 1]


async def test_an_old_report_removes_what_was_offered(start, server, clock, let_pass, pass_time):
    began, replica = clock.monotonic(), start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    for second in (300, 600, 895):
        await let_pass(began + second - clock.monotonic())
        assert batch(server) is not None
    await pass_time(lambda: batch(server) is None)

    assert clock.monotonic() - began > 900
    assert replica.metric("slo_controller_nodes", state="stale") == 1


async def test_a_broken_configuration_leaves_the_last_good_one(
    start, server, clock, let_pass, pass_time
):
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    broken = config_map()
    broken["data"]["colocation-config"] = "{"
    server.objects.replace(CONFIG_MAPS, broken)
    await let_pass(60)
    server.objects.replace(METRICS, metric(clock, used=20))
    await pass_time(lambda: batch(server) == "38k", step=0.25)

    health = await replica.healthz()
    assert health["slo config"]["status"] == "degraded"
    assert replica.metric("slo_controller_config_map_rejections_total") == 1


async def test_specs_of_node_metric_and_node_slo_are_kept(start, server, clock, pass_time):
    start()
    await pass_time(lambda: bool(server.objects.all(SLOS)), step=0.25)
    await pass_time(lambda: "spec" in server.objects.get(METRICS, "n1"), step=0.25)

    spec = server.objects.get(METRICS, "n1")["spec"]["metricCollectPolicy"]
    assert spec["reportIntervalSeconds"] == 60
    slo = server.objects.get(SLOS, "n1")
    assert slo["metadata"]["ownerReferences"][0]["uid"] == "uid-n1"
    changed = config_map(metricReportIntervalSeconds=90)
    server.objects.replace(CONFIG_MAPS, changed)
    await pass_time(
        lambda: (
            server.objects.get(METRICS, "n1")["spec"]["metricCollectPolicy"][
                "reportIntervalSeconds"
            ]
            == 90
        )
    )


async def test_objects_of_a_node_that_is_gone_are_deleted(start, server, clock, pass_time):
    server.objects.create(METRICS, metric(clock, name="gone"))
    start()

    await pass_time(
        lambda: [one["metadata"]["name"] for one in server.objects.all(METRICS)] == ["n1"]
    )

    assert clock.monotonic() > 60


async def test_it_stands_by_while_koordinators_manager_holds_the_lease(
    start, server, clock, let_pass, pass_time
):
    renewed = datetime.fromtimestamp(clock.wall() + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    server.objects.create(
        LEASES,
        {
            "metadata": {"name": "koordinator-manager", "namespace": "koordinator-system"},
            "spec": {
                "holderIdentity": "koord-manager-7d_1",
                "leaseDurationSeconds": 15,
                "renewTime": renewed,
                "acquireTime": renewed,
            },
        },
    )
    replica = start()
    await pass_time(lambda: server.watching >= 7, step=0.25)
    await let_pass(12)

    assert batch(server) is None
    assert holder(server) == "koord-manager-7d_1"
    assert patches(server) == []
    assert (await replica.get("/healthz"))[0] == 200


async def test_explain_says_what_takes_off(start, server, clock, pass_time):
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    status, text = await replica.get("/explain?node=n1")

    found = json.loads(text)
    assert (status, found["kind"], found["leader"]) == (200, "Explanation", True)
    cpu = found["resources"][BATCH_CPU]
    assert (cpu["offered"], cpu["onNode"]) == ("25k", "25k")
    assert [one["amount"] for one in cpu["terms"]] == [100000, -35000, -7000, -33000]
    assert (await replica.get("/explain?node=n9"))[0] == 404
    assert (await replica.get("/explain"))[0] == 400


async def test_a_refused_patch_is_tried_again_and_said(start, server, clock, pass_time):
    server.script(refuse(500), method="PATCH", path=f"{NODES}/n1/status")
    replica = start()
    await pass_time(lambda: bool(patches(server)), step=0.25)
    await clock.advance(0.5)

    await pass_time(lambda: len(patches(server)) == 1, step=0.1)
    health = await replica.healthz()
    assert health["noderesource"]["status"] == "degraded"
    await pass_time(lambda: batch(server) == "25k", step=1)
    assert (await replica.healthz())["noderesource"]["status"] == "ok"


async def test_s5_a_node_that_is_gone_when_it_is_written_is_no_error(start, server, pass_time):
    server.script(refuse(404, "NotFound"), method="PATCH", path=f"{NODES}/n1/status")
    replica = start()
    await pass_time(lambda: bool(patches(server)), step=0.25)

    await pass_time(lambda: batch(server) == "25k")  # by the next change of its NodeMetric

    assert (await replica.healthz())["noderesource"]["status"] == "ok"
    labels = {"status": "failed", "reason": "updateNodeStatus"}
    assert replica.metric("slo_controller_node_resource_reconcile_count", **labels) is None


async def test_dry_run_writes_nothing(start, server, let_pass, pass_time):
    start("apiVersion: manager/v1alpha1\nkind: ManagerConfiguration\ndryRun: true\n")
    await pass_time(lambda: bool(holder(server)), step=0.25)
    await let_pass(10)

    assert patches(server) == []
    assert server.objects.all(SLOS) == []


async def test_the_file_is_followed_and_a_broken_one_changes_nothing(
    start, server, clock, pass_time
):
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)
    text = replica.config.read_text()

    replica.config.write_text(text + "maxDecreasePercent: 0\n")
    name = "slo_controller_config_readings_total"
    await pass_time(lambda: (replica.metric(name, outcome="refused") or 0) >= 1)
    health = await replica.healthz()
    assert health["config"]["status"] == "degraded"
    assert "maxDecreasePercent" in health["config"]["reason"]
    applied = replica.metric(name, outcome="applied") or 0

    replica.config.write_text(text + "maxDecreasePercent: 100\ndryRun: true\n")
    await pass_time(lambda: (replica.metric(name, outcome="applied") or 0) > applied)
    assert (await replica.healthz())["config"]["status"] == "ok"
    server.objects.replace(METRICS, metric(clock, used=90))
    await pass_time(lambda: batch(server) == "0", step=0.25)  # at once, and dry-run waits
