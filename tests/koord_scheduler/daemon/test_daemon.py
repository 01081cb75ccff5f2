"""The whole process against a scripted API server, on simulated time."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from koord.component.leaderelection import LeaseLost
from koord.controlplane.daemon import FinishedWithoutElection
from koord.util.errors import KoordError
from koord_scheduler.daemon.run import FOLLOWED
from koord_scheduler.extenderserver import NotServable
from tests.support.clusters import node
from tests.support.http_site import ScriptedSite
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import hang, refuse
from tests.support.kube.replicas import LEASES, free_port, holder
from tests.support.scheduler.replicas import (
    ALONE,
    HEAD,
    KOORDINATORS_FLAGS,
    NODES,
    PODS,
    SIMPLE,
    Replica,
    Start,
    pending,
    placed,
)

PassTime = Callable[..., Any]


async def test_pods_are_scheduled_once_everything_is_watched(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """With the flags of Koordinator's Deployment; those without effect are named."""
    for number in range(5):
        server.objects.create(PODS, pending(f"web-{number}"))
    server.objects.create(PODS, pending("elsewhere", scheduler="default-scheduler"))
    with capture_logs() as logs:
        replica = start(SIMPLE, *KOORDINATORS_FLAGS)
        await pass_time(lambda: any(log["event"] == "scheduler.ready" for log in logs), step=0.2)
        watching = server.watching
        await pass_time(lambda: len(placed(server)) == 5, step=0.2)

    events = [log["event"] for log in logs]
    assert watching == len(FOLLOWED) + 1  # with network topologies
    started = logs[events.index("daemon.started")]
    assert started["logger"] == "koord_scheduler.daemon"
    assert events.index("daemon.started") < events.index("scheduler.ready")
    [ready] = [log for log in logs if log["event"] == "scheduler.ready"]
    assert (ready["nodes"], ready["pods"]) == (2, 6)
    assert "elsewhere" not in placed(server)
    assert set(placed(server).values()) == {"n1", "n2"}
    [idle] = [log["flags"] for log in logs if log["event"] == "flags.without_effect"]
    assert idle == ["authentication-skip-lookup", "logtostderr"]
    [listening] = [log["address"] for log in logs if log["event"] == "server.listening"]
    assert listening == f"127.0.0.1:{replica.port}"
    scheduled = replica.metric(
        "scheduler_schedule_attempts_total", result="scheduled", profile="koord-scheduler"
    )
    assert scheduled == 5
    assert holder(server)
    made = [one.json["reason"] for one in server.asked("create", "/api/v1/namespaces/default/ev")]
    assert made.count("Scheduled") <= 5


@pytest.mark.parametrize("status", [404, 403])
async def test_network_topologies_need_not_be_there(
    start: Start, server: ApiServer, pass_time: PassTime, status: int
) -> None:
    """Koordinator's Deployment asks for them; a cluster without the CRD must have a scheduler."""
    path = "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies"
    server.script(*[refuse(status)] * 1000, path=path)
    server.objects.create(PODS, pending("web"))
    replica = start(SIMPLE, "--enable-network-topology-manager")
    await pass_time(lambda: "web" in placed(server), step=0.2)
    assert (await replica.get("/readyz"))[0] == 200


async def test_endpoints(leading: Replica) -> None:
    """Health and metrics for all; the configuration only for who may see it."""
    for path in ("/healthz/leaderElection", "/healthz/ping", "/livez", "/readyz"):
        assert (await leading.get(path))[:2] == (200, "ok"), path
    status, text = await leading.get("/healthz")
    assert status == 200
    assert "plugins: not built: SchedulingGates" in text
    status, text = await leading.get("/configz")
    assert status == 200
    assert '"schedulerName": "koord-scheduler"' in text
    assert (await leading.get("/configz", {"Host": "evil.example"}))[0] != 200
    status, text = await leading.get("/metrics")
    assert 'scheduler_schedule_attempts_total{profile="koord-scheduler",result="scheduled"}' in text
    assert 'leader_election_master_status{name="koord-scheduler"} 1.0' in text
    assert (await leading.get("/debug/pprof/"))[0] == 404


async def test_what_cycles_log_is_changed_at_run_time(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """By clients on this machine, and no web page."""
    server.objects.create(NODES, node("small", allocatable={"cpu": "0", "pods": "1"}))
    with capture_logs() as logs:
        replica = start(SIMPLE, "-f")
        await pass_time(lambda: any(log["event"] == "scheduler.ready" for log in logs), step=0.2)
        assert await replica.put("/debug/flags/s", "1") == (
            200,
            "successfully set debug-scores to 1\n",
        )
        for path, text in (("s", "-1"), ("s", "many"), ("f", "maybe"), ("d", "2"), ("db", "")):
            status, found = await replica.put(f"/debug/flags/{path}", text)
            assert (status, "wanted" in found) == (400, True), found
        assert (await replica.put("/debug/flags/s", "2", {"Host": "evil.example"}))[0] == 403
        assert (await replica.put("/debug/flags/x", "1"))[0] == 404
        server.objects.create(PODS, pending("first"))
        await pass_time(lambda: "first" in placed(server))
        assert (await replica.put("/debug/flags/f", "false"))[0] == 200
        server.objects.create(PODS, pending("second"))
        await pass_time(lambda: "second" in placed(server))

    tables = [log["table"] for log in logs if log["event"] == "scores.table"]
    assert [text.count("\n") for text in tables] == [2, 2]
    [rejected] = [log for log in logs if log["event"] == "nodes.rejected"]
    assert (rejected["pod"], rejected["plugin"]) == ("default/first", "NodeResourcesFit")
    assert rejected["first"] == ["small"]


async def test_without_ports_nothing_listens(start: Start, server: ApiServer, pass_time) -> None:
    """--port=0 and --secure-port=0."""
    with capture_logs() as logs:
        start(SIMPLE, "--port=0")
        await pass_time(lambda: any(log["event"] == "scheduler.ready" for log in logs), step=0.2)

    assert not [log for log in logs if log["event"] == "server.listening"]


async def test_nothing_is_scheduled_before_all_is_known(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """A list of pods that does not come: no lease, no readiness, no binding."""
    server.objects.create(PODS, pending("first"))
    server.script(*[refuse(500)] * 100, path=PODS)
    replica = start()
    await pass_time(lambda: bool(server.asked("list", NODES)))
    await pass_time(lambda: len(server.asked("list", PODS)) >= 3)
    assert await replica.get("/readyz") == (
        503,
        "unhealthy\nunhealthy: cluster: not listed yet: pod\n",
    )
    assert not server.asked("create", "/apis/coordination.k8s.io")
    server.unscript()
    await pass_time(lambda: "first" in placed(server))

    assert (await replica.get("/readyz"))[0] == 200


async def test_an_api_server_that_is_away_at_the_start(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """Is waited for."""
    await server.stop()
    replica = start()
    await asyncio.sleep(0)
    for _ in range(3):
        await pass_time(lambda: True)
    server.objects.create(PODS, pending("first"))
    await server.start()
    await pass_time(lambda: "first" in placed(server))

    assert (await replica.get("/readyz"))[0] == 200


async def test_of_two_replicas_one_schedules(
    leading: Replica, start: Start, server: ApiServer, clock, pass_time: PassTime
) -> None:
    """The other one is ready all the time, and goes on within a retry period after a stop."""
    with capture_logs() as logs:
        other, first = start(), holder(server)
        await pass_time(lambda: any(log["event"] == "scheduler.ready" for log in logs), step=0.2)
        assert (await other.get("/readyz"))[0] == 200
        server.objects.create(PODS, pending("second"))
        await pass_time(lambda: "second" in placed(server))
    assert other.metric("scheduler_pending_pods", queue="active") == 0
    assert not other.metric(
        "scheduler_schedule_attempts_total", result="scheduled", profile="koord-scheduler"
    )

    leading.stop.set()
    await pass_time(leading.task.done, step=0.5)
    assert leading.task.exception() is None
    stopped = clock.monotonic()
    server.objects.create(PODS, pending("third"))
    await pass_time(lambda: "third" in placed(server), step=0.5)

    assert clock.monotonic() - stopped <= 6
    assert holder(server) not in ("", first)


async def test_a_leader_whose_watch_lags_catches_up_first(
    leading: Replica, start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """It knows what the one before it has bound, before it binds anything itself."""
    with capture_logs() as logs:
        start()
        await pass_time(lambda: any(log["event"] == "scheduler.ready" for log in logs), step=0.2)
        server.silent = True
        for name in ("n1", "n2"):
            full = pending(f"bound-{name}", cpu="4")
            server.objects.create(PODS, {**full, "spec": full["spec"] | {"nodeName": name}})
        server.objects.create(PODS, pending("second"))
        leading.stop.set()
        await pass_time(lambda: any(log["event"] == "kind.relisted" for log in logs), step=0.2)
        failed = "/api/v1/namespaces/default/pods/second/status"
        await pass_time(lambda: bool(server.asked("patch", failed)), step=0.2)
    assert "second" not in placed(server)


async def test_a_lost_lease_ends_the_process_and_its_bindings(
    leading: Replica, server: ApiServer, pass_time: PassTime
) -> None:
    """A binding that hangs is given up, and none is begun any more."""
    server.script(*[hang] * 100, path="/api/v1/namespaces/default/pods")
    server.objects.create(PODS, pending("second"))
    await pass_time(lambda: bool(server.asked("create", "/api/v1/namespaces/default/pods/second")))
    server.script(*[refuse(500)] * 1000, path=LEASES)
    server.script(*[refuse(500)] * 1000, path="/apis/coordination.k8s.io")
    await pass_time(leading.task.done)

    with pytest.raises(LeaseLost, match="lost lease koordinator-system/koord-scheduler"):
        leading.task.result()
    asked = len(server.asked("create", "/api/v1/namespaces/default/pods"))
    server.objects.create(PODS, pending("third"))
    await pass_time(lambda: True)
    assert len(server.asked("create", "/api/v1/namespaces/default/pods")) == asked
    assert placed(server).keys() == {"first"}


async def test_at_the_end_the_lease_is_released_when_no_binding_is_on_its_way(
    leading: Replica, server: ApiServer, clock, pass_time: PassTime
) -> None:
    """One that hangs has two seconds, and nothing is sent after the release."""
    path = "/api/v1/namespaces/default/pods/second"
    server.script(hang, path=path)
    server.objects.create(PODS, pending("second"))
    await pass_time(lambda: bool(server.asked("create", path)))
    stopped = clock.monotonic()
    leading.stop.set()
    await pass_time(lambda: clock.monotonic() >= stopped + 1, step=0.1)
    assert holder(server)
    server.objects.create(PODS, pending("third"))
    await pass_time(lambda: holder(server) == "", step=0.1)
    assert 2 <= clock.monotonic() - stopped < 4
    await pass_time(leading.task.done, step=0.1)
    assert leading.task.exception() is None
    assert placed(server).keys() == {"first"}
    assert server.asked("create", "/api/v1/namespaces/default/pods/third") == []


async def test_without_leader_election(start: Start, server: ApiServer, pass_time) -> None:
    """Its end is an error, as Koordinator's."""
    server.objects.create(PODS, pending("first"))
    replica = start(ALONE)
    await pass_time(lambda: "first" in placed(server))
    assert "leaderElection" not in await replica.healthz()
    replica.stop.set()
    await pass_time(replica.task.done)

    with pytest.raises(FinishedWithoutElection, match="finished without leader elect"):
        replica.task.result()


async def test_two_profiles_in_one_process(start: Start, server: ApiServer, pass_time) -> None:
    """Each has the pods that ask for it; a pod's events are its profile's."""
    start(HEAD + "profiles: [{schedulerName: a}, {schedulerName: b}]\n")
    for name in ("a", "b", "c"):
        server.objects.create(PODS, pending(name, scheduler=name))
    await pass_time(lambda: len(placed(server)) == 2)
    events = "/api/v1/namespaces/default/events"
    await pass_time(lambda: len(server.asked("create", events)) >= 2)

    assert placed(server).keys() == {"a", "b"}
    found = [one.json for one in server.asked("create", events)]
    assert {
        one["involvedObject"]["name"]: one["source"]["component"]
        for one in found
        if one["reason"] == "Scheduled"
    } == {"a": "a", "b": "b"}


async def test_plugins_that_cannot_be_made_end_the_start(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """Before anything is listed; all are named."""
    broken = "plugins: {filter: {enabled: [{name: Broken}]}}"
    text = f"profiles: [{{schedulerName: a, {broken}}}, {{schedulerName: b, {broken}}}]\n"
    replica = start(HEAD + text)
    await pass_time(replica.task.done)

    with pytest.raises(KoordError) as caught:
        replica.task.result()
    assert str(caught.value).count("it is broken") == 2
    assert not server.asked("list", PODS)
    assert not server.asked("create", "/apis/coordination.k8s.io")


async def test_extenders_are_asked(
    start: Start, server: ApiServer, pass_time: PassTime, site: ScriptedSite
) -> None:
    """With the pod as the API server has it, and nodes that are followed for that."""

    async def answer(request: Any) -> Any:
        asked = json.loads(await request.read())
        assert asked["Pod"]["metadata"]["name"] == "first"
        named = {one["metadata"]["name"]: one for one in asked["Nodes"]["items"]}
        assert set(named) == {"n1", "n2"}
        return {"Nodes": {"items": [named["n2"]]}}

    site.answer = answer
    server.objects.create(PODS, pending("first"))
    start(SIMPLE + f"extenders: [{{urlPrefix: '{site.url}', filterVerb: f}}]\n")
    await pass_time(lambda: placed(server) == {"first": "n2"}, step=0.2)

    assert site.requests[0].path == "/f"


async def test_plugins_are_served_to_a_kube_scheduler(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """Once the cluster is known, on loopback; nothing is scheduled, and no lease is wanted."""
    server.objects.create(PODS, pending("first"))
    port = free_port()
    config = HEAD + (
        "profiles: [{schedulerName: koord-scheduler, plugins: {filter: {enabled: [{name: Mine}]}}}]"
    )
    with capture_logs() as logs:
        start(config, f"--extender=:{port}")
        await pass_time(lambda: any(log["event"] == "extender.serving" for log in logs), step=0.2)
    [began] = [log for log in logs if log["event"] == "daemon.started"]
    assert began["leader_elect"] is False
    [serving] = [log for log in logs if log["event"] == "extender.serving"]
    assert (serving["address"], serving["verbs"]) == (f"127.0.0.1:{port}", ("filter",))
    asked = {"Pod": pending("first"), "NodeNames": ["n1", "elsewhere"]}
    url = f"http://127.0.0.1:{port}/filter"
    async with aiohttp.ClientSession() as session, session.post(url, json=asked) as answer:
        assert (await answer.json())["NodeNames"] == ["n1", "elsewhere"]
    assert not placed(server)
    assert not server.asked("create", LEASES)


async def test_a_profile_without_own_plugins_is_not_served(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """Before anything is listed."""
    replica = start(SIMPLE, "--extender=:8888")
    await pass_time(replica.task.done)

    with pytest.raises(NotServable, match="wanted a plugin to serve"):
        replica.task.result()
    assert not server.asked("list", PODS)


async def test_a_stop_before_the_cluster_is_known(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """Ends without an error, and without a lease."""
    server.script(*[refuse(500)] * 100, path=PODS)
    replica = start()
    await pass_time(lambda: bool(server.asked("list", PODS)))
    replica.stop.set()
    await pass_time(replica.task.done)

    assert replica.task.exception() is None
    assert holder(server) == ""
