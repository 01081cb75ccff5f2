"""The whole process against a scripted API server, on simulated time."""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.component.leaderelection import LeaseLost
from koord.controlplane.daemon import FinishedWithoutElection
from koord.util.errors import KoordError
from koord_descheduler.plugin import EvictOptions, Relief
from tests.support.clusters import node, pod
from tests.support.descheduler.replicas import SHIPPED, Reader, Replica, Start
from tests.support.kube.apiserver import ApiServer, line, status_object
from tests.support.kube.faults import begin, refuse
from tests.support.kube.replicas import LEASES, holder

NODES, PODS, CONFIGS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/configmaps"
PassTime = Callable[..., Any]
ALONE = "leaderElection: {{leaderElect: false}}"
ELECTION = """\
leaderElection:
  resourceLock: leases
  resourceName: koord-descheduler
  resourceNamespace: koordinator-system
"""


def readings(replica: Replica, outcome: str = "applied") -> float | None:
    return replica.metric("descheduler_config_readings_total", outcome=outcome)


@pytest.fixture(autouse=True)
def nodes(server: ApiServer) -> None:
    """Three nodes."""
    for name in ("n1", "n2", "n3"):
        server.objects.create(NODES, node(name))


@pytest.fixture
async def leading(start: Start, pass_time: PassTime) -> Replica:
    """A replica that has run a cycle, and read its file once more."""
    replica = start()
    await pass_time(lambda: replica.rounds >= 1 and readings(replica) == 1, step=0.2)
    return replica


async def test_koordinators_configuration_starts(
    start: Start, server: ApiServer, clock, pass_time: PassTime
) -> None:
    """Each cycle has its two log lines; the address is served as asked for, and named."""
    server.objects.create(PODS, pod("a", "n1"))
    with capture_logs() as logs:
        replica = start()
        await pass_time(lambda: replica.rounds == 2)
        watched = server.watching

    events = [log["event"] for log in logs]
    started = logs[events.index("daemon.started")]
    assert started["logger"] == "koord_descheduler.daemon"
    assert events.index("daemon.started") < events.index("cluster.synced")
    assert events.index("cluster.synced") < events.index("cycle.started")
    assert events.count("cycle.ended") == 2
    assert replica.watchers[0].rounds == [3, 3]
    assert watched == 13
    [ended, *_] = [log for log in logs if log["event"] == "cycle.ended"]
    assert (ended["nodes"], ended["errors"], ended["evictions"]) == (3, [], {})
    [plain] = [log for log in logs if log["event"] == "server.unencrypted"]
    assert plain["address"] == f"0.0.0.0:{replica.port}"
    [warning] = [log["warning"] for log in logs if log["event"] == "config.warning"]
    assert "LowNodeLoad" in warning
    [effective] = [log["config"] for log in logs if log["event"] == "config.effective"]
    assert "deschedulingInterval: 10s" in effective
    assert holder(server)


async def test_endpoints(leading: Replica) -> None:
    """As Koordinator's, with the leader's check; the configuration only for who may see it."""
    for path in ("/healthz", "/healthz/leaderElection", "/healthz/ping", "/livez", "/readyz"):
        assert (await leading.get(path))[:2] == (200, "ok"), path
    assert (await leading.get("/healthz/nonsense"))[0] == 404
    status, text = await leading.get("/configz")
    assert status == 200
    assert '"deschedulingInterval": "10s"' in text
    assert (await leading.get("/configz", {"Host": "evil.example"}))[0] != 200
    status, text = await leading.get("/explain?node=n1")
    assert (status, '"leader": true' in text, '"began": "' in text) == (200, True, True)
    assert (await leading.get("/explain", {"Host": "evil.example"}))[0] != 200
    status, text = await leading.get("/metrics")
    assert 'descheduler_cycle_duration_seconds_bucket{le="+Inf"} 1.0' in text
    assert 'leader_election_master_status{name="koord-descheduler"} 1.0' in text
    assert (await leading.get("/debug/pprof/"))[0] == 404


async def test_it_stands_by_until_the_cluster_is_known(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """A leader whose list of pods does not come runs no cycle, and says so."""
    server.script(*[refuse(500)] * 100, path=PODS)
    replica = start()
    await pass_time(lambda: bool(server.asked("create", "/apis/coordination.k8s.io")))
    await pass_time(lambda: holder(server) != "")
    status, text = await replica.get("/readyz")
    assert (status, text) == (503, "unhealthy\nunhealthy: cluster: not listed yet: pod\n")
    assert not replica.rounds
    server.unscript()
    await pass_time(lambda: replica.rounds == 1)

    assert (await replica.get("/readyz"))[0] == 200


async def test_of_two_replicas_one_works(
    start: Start, server: ApiServer, clock, let_pass: PassTime, pass_time: PassTime
) -> None:
    """A stop releases the lease: the other one leads within a retry period."""
    one = start()
    await pass_time(lambda: one.rounds == 1, step=0.5)
    other, first = start(), holder(server)
    await let_pass(30)
    await pass_time(lambda: one.rounds >= 4)
    assert other.rounds == 0
    assert (await other.get("/healthz/leaderElection"))[0] == 200

    one.stop.set()
    await pass_time(one.task.done, step=0.5)
    assert one.task.exception() is None
    assert all(each.closed for each in one.watchers)
    stopped, rounds = clock.monotonic(), one.rounds
    await pass_time(lambda: other.rounds == 1, step=0.5)

    assert clock.monotonic() - stopped <= 6
    assert holder(server) not in ("", first)
    assert one.rounds == rounds


async def test_a_lost_lease_ends_the_process(
    leading: Replica, server: ApiServer, pass_time: PassTime
) -> None:
    """With an error, which is exit status 1; nothing is written to the lease any more."""
    server.script(*[refuse(500)] * 1000, path=LEASES)
    server.script(*[refuse(500)] * 1000, path="/apis/coordination.k8s.io")
    await pass_time(leading.task.done)

    with pytest.raises(LeaseLost, match="lost lease koordinator-system/koord-descheduler"):
        leading.task.result()
    assert all(each.closed for each in leading.watchers)


async def test_without_leader_election(start: Start, pass_time: PassTime) -> None:
    """Its end is an error, as Koordinator's."""
    replica = start(SHIPPED.replace(ELECTION, ALONE + "\n"))
    await pass_time(lambda: replica.rounds == 2)
    assert "leaderElection" not in await replica.healthz()
    replica.stop.set()
    await pass_time(replica.task.done)

    with pytest.raises(FinishedWithoutElection, match="finished without leader elect"):
        replica.task.result()


async def test_flags_of_leader_election_win(start: Start, server: ApiServer, pass_time) -> None:
    """Those that are given; the file says the rest."""
    replica = start(SHIPPED, "--leader-elect-resource-name=other", "--leader_elect=true")
    await pass_time(lambda: replica.rounds == 1)

    assert server.objects.get(LEASES, "koordinator-system/other")


async def test_a_changed_file_takes_effect_between_cycles(
    leading: Replica, pass_time: PassTime
) -> None:
    """The plugin whose arguments changed is new; the interval too."""
    [before] = leading.watchers
    arguments = "  pluginConfig:\n  - {{name: Watcher, args: {{weight: 2}}}}\n"
    with capture_logs() as logs:
        leading.write(SHIPPED.replace("  pluginConfig:\n", arguments).replace("10s", "60s"))
        await pass_time(lambda: len(leading.watchers) == 2)
        await pass_time(lambda: before.closed)

    [_, after] = leading.watchers
    assert after.args == {"weight": 2}
    [read] = [log for log in logs if log["event"] == "config.read"]
    assert read["changed"] == ["deschedulingInterval", "profiles[koord-descheduler]"]
    assert '"deschedulingInterval": "1m0s"' in (await leading.get("/configz"))[1]
    assert readings(leading) == 2
    begun = leading.clock.monotonic()
    await pass_time(lambda: len(after.rounds) == 2)
    assert leading.clock.monotonic() - begun >= 60


async def test_a_plugin_that_is_enabled_later_sees_what_it_reads_in_its_first_round(
    leading: Replica, server: ApiServer, pass_time: PassTime
) -> None:
    """Pods that are known are listed again before the new configuration is in force."""
    made = pod("web", "n1")
    made["metadata"]["annotations"] = {"example.com/seat": "7", "other": "8"}
    server.objects.create(PODS, made)
    leading.write(SHIPPED.replace("{balance}", "{balance}, {{name: Reader}}"))
    await pass_time(lambda: any(isinstance(one, Reader) and one.rounds for one in leading.watchers))
    [reader] = [one for one in leading.watchers if isinstance(one, Reader)]
    assert reader.seen[0] == (("example.com/seat", "7"),)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("dryRun: maybe", "dryRun"),
        ("profiles: [", "config.yaml"),
        ("args: {{broken: true}}", "it is broken"),
    ],
)
async def test_a_bad_file_changes_nothing(
    leading: Replica, pass_time: PassTime, broken: str, reason: str
) -> None:
    """Health, log and metric say why, until it is mended."""
    [watcher] = leading.watchers
    changed = SHIPPED.replace("dryRun: false", broken)
    if "args" in broken:
        changed = SHIPPED.replace(
            "pluginConfig:\n", "pluginConfig:\n  - {{name: Watcher, " + broken + "}}\n"
        )
    with capture_logs() as logs:
        leading.write(changed)
        await pass_time(lambda: any(log["event"] == "config.rejected" for log in logs))
    health = (await leading.healthz())["config"]
    assert health["status"] == "degraded"
    assert reason in health["reason"]
    assert readings(leading, "refused") == 1
    rounds = len(watcher.rounds)
    await pass_time(lambda: len(watcher.rounds) == rounds + 2)
    assert not watcher.closed

    leading.write(SHIPPED)
    await pass_time(lambda: readings(leading) == 2)
    assert (await leading.healthz())["config"]["status"] == "ok"


async def test_what_needs_a_restart_is_named(leading: Replica, pass_time: PassTime) -> None:
    with capture_logs() as logs:
        leading.write(SHIPPED.replace("enableProfiling: true", "enableProfiling: false"))
        await pass_time(lambda: any(log["event"] == "config.restart_required" for log in logs))

    [waits] = [log["keys"] for log in logs if log["event"] == "config.restart_required"]
    assert waits == ["enableProfiling"]


async def test_another_dry_run_makes_all_plugins_anew(
    leading: Replica, pass_time: PassTime
) -> None:
    """They were given it with their handle."""
    assert not leading.watchers[0].handle.dry_run
    leading.write(SHIPPED.replace("dryRun: false", "dryRun: true"))
    await pass_time(lambda: len(leading.watchers) == 2 and leading.watchers[0].closed)

    assert leading.watchers[1].handle.dry_run
    rounds = leading.rounds
    await pass_time(lambda: leading.rounds > rounds)
    assert len(leading.watchers[1].rounds) >= 1


async def test_a_standby_follows_its_file_too(
    leading: Replica, start: Start, pass_time: PassTime
) -> None:
    """And leads with what it said last."""
    other = start()
    await pass_time(lambda: len(other.watchers) == 1)
    other.write(SHIPPED.replace("dryRun: false", "dryRun: true"))
    await pass_time(lambda: len(other.watchers) == 2)
    leading.stop.set()
    await pass_time(lambda: other.rounds >= 1)

    assert other.watchers[1].rounds


async def test_plugins_that_cannot_be_made_end_the_start(
    start: Start, server: ApiServer, pass_time: PassTime
) -> None:
    """Before it stands for election; all are named."""
    profile = SHIPPED[SHIPPED.index("- name: koord-descheduler") :]
    broken = "  pluginConfig:\n  - {{name: Watcher, args: {{broken: true}}}}\n"
    config = (SHIPPED + profile.replace("- name: koord-descheduler", "- name: two", 1)).replace(
        "  pluginConfig:\n", broken
    )
    replica = start(config)
    await pass_time(replica.task.done)

    with pytest.raises(KoordError) as caught:
        replica.task.result()
    assert str(caught.value).count("it is broken") == 2
    assert not server.asked("create", "/apis/coordination.k8s.io")


async def test_ten_minutes_without_api_server_and_a_410(
    start: Start, server: ApiServer, clock, pass_time: PassTime
) -> None:
    """Without election it goes on with what it knows, says so, and catches up."""
    replica = start(SHIPPED.replace(ELECTION, ALONE + "\n"))
    await pass_time(lambda: replica.rounds == 1)
    begun, rounds = clock.monotonic(), replica.rounds
    await server.stop()
    await pass_time(lambda: clock.monotonic() - begun >= 600, step=5)
    assert replica.rounds - rounds >= 55
    health = await replica.healthz()
    assert health["cluster node"]["status"] == "degraded"
    assert (await replica.get("/healthz"))[0] == 200

    server.objects.create(NODES, node("n4"))
    server.objects.compact()
    server.script(begin(line("ERROR", status_object(410, "Expired"))), path=NODES, watch=True)
    await server.start()
    await pass_time(lambda: replica.watchers[0].rounds[-1] == 4)

    await pass_time(lambda: server.watching == 13)
    assert (await replica.healthz())["cluster node"]["status"] == "ok"


async def test_the_ledger_is_kept(leading: Replica, server: ApiServer, pass_time) -> None:
    """What is evicted for load is in the API when the leader has stopped."""
    server.objects.create(PODS, pod("a", "n1"))
    state = leading.watchers[0].handle.services.cluster
    await pass_time(lambda: state.pod("default/a") is not None)
    evictor = leading.watchers[0].handle.evictor()
    assert await evictor.evict(
        state.pod("default/a"), EvictOptions(plugin_name="x", relief=Relief(cpu=1.0, memory=0.0))
    )
    leading.stop.set()
    await pass_time(leading.task.done)

    found = server.objects.get(CONFIGS, "koordinator-system/koord-descheduler-ledger")
    assert "default/a" in found["data"]["ledger.json"]


async def test_the_status_page_is_served_with_its_views(leading: Replica) -> None:
    """Its data for those who may read the configuration."""
    status, text = await leading.get("/")
    assert (status, 'data-view="descheduler.js"' in text) == (200, True)
    for view in ("descheduler.js", "heatmap.js"):
        assert (await leading.get(f"/page/{view}"))[0] == 200
    assert (await leading.get("/page/detail/node?name=n1"))[0] == 200
    assert (await leading.get("/page/detail/secret?name=n1"))[0] == 404
    other = {"Host": "evil.example"}
    assert (await leading.get("/page/detail/node?name=n1", other))[0] == 401
