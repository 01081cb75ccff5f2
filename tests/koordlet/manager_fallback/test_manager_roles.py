"""NodeMetric and NodeSLO of a node in a cluster without koord-manager."""

import json
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from koord.util.health import OK, HealthStatus
from koordlet.manager_fallback import ManagerRoleMode
from tests.support.kube.faults import hang, refuse
from tests.support.nodeslo import FULL_CONFIG, spoilt

from .conftest import ALL_NODES, CONFIGS, METRICS, SLOS, Agent, written_by

DEFAULT_POLICY = {
    "aggregateDurationSeconds": 300,
    "reportIntervalSeconds": 60,
    "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
    "nodeMemoryCollectPolicy": "usageWithoutPageCache",
}


def policy(agent: Agent) -> dict[str, Any]:
    return agent.found(METRICS)["spec"]["metricCollectPolicy"]


def threshold(agent: Agent) -> dict[str, Any]:
    return agent.found(SLOS)["spec"]["resourceUsedThresholdWithBE"]


async def begin(agent: Agent, mode: ManagerRoleMode = ManagerRoleMode.AUTO) -> None:
    """Start, and wait until both objects are there and the agent has heard of them."""
    await agent.start(mode)
    await agent.until(lambda: agent.found(METRICS) and agent.found(SLOS))
    await agent.until(lambda: agent.server.watching == 4 + (mode is ManagerRoleMode.AUTO))
    await agent.clock.settle()


async def test_without_a_manager_the_node_makes_its_objects(agent: Agent) -> None:
    """As the ConfigMap asks for a node with its labels; they go when the Node goes."""
    agent.configure(
        colocation={"enable": True, "metricReportIntervalSeconds": 90},
        resource_threshold={
            "clusterStrategy": {"enable": True},
            "nodeStrategies": [
                {"nodeSelector": {"matchLabels": {"pool": "a"}}, "memoryEvictThresholdPercent": 80}
            ],
        },
    )
    await begin(agent)

    metric = agent.found(METRICS)
    uid = agent.found(ALL_NODES)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}
    assert metric["metadata"]["ownerReferences"] == [owner]
    assert (metric["apiVersion"], metric["kind"]) == ("slo.koordinator.sh/v1alpha1", "NodeMetric")
    assert policy(agent) == DEFAULT_POLICY | {"reportIntervalSeconds": 90}
    assert threshold(agent)["memoryEvictThresholdPercent"] == 80
    assert agent.found(SLOS)["metadata"]["ownerReferences"] == [owner]
    assert {write.query["fieldManager"] for write in agent.writes()} == {"koordlet-duties"}
    assert agent.state("NodeMetric") == "kept: no koord-manager is seen"
    assert agent.held("nodemetric") == agent.held("nodeslo") == 1
    assert all(part.status is HealthStatus.OK for part in agent.roles.health().values())


async def test_without_a_config_map_all_is_default(agent: Agent) -> None:
    """As koord-manager has it, but for one whose ConfigMap is deleted: that keeps what it said."""
    await begin(agent)
    assert policy(agent) == DEFAULT_POLICY
    assert threshold(agent)["enable"] is False

    agent.configure(resource_threshold={"clusterStrategy": {"enable": True}})
    await agent.minutes(1)
    await agent.until(lambda: threshold(agent)["enable"])
    agent.server.objects.delete(CONFIGS, "koordinator-system/slo-controller-config")
    await agent.minutes(1)
    await agent.until(lambda: not threshold(agent)["enable"])


async def test_a_change_is_one_patch_of_what_is_ours(agent: Agent) -> None:
    """Of the object that was looked at; what others have put into it stays."""
    await begin(agent)
    slo = agent.found(SLOS)
    slo["metadata"] |= {"labels": {"a": "b"}}
    slo["spec"] |= {"extensions": {"Object": {"x": 1}}, "ofTheFuture": True}
    agent.server.objects.replace(SLOS, slo)
    stored = agent.found(SLOS)
    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    await agent.minutes(1)
    await agent.until(lambda: agent.found(SLOS)["spec"]["cpuBurstStrategy"]["policy"] == "auto")

    [patch] = [write for write in agent.writes() if write.verb == "patch"]
    uid, version, change = patch.json
    assert (uid["op"], uid["value"]) == ("test", stored["metadata"]["uid"])
    assert (version["op"], version["path"]) == ("test", "/metadata/resourceVersion")
    assert version["value"] == stored["metadata"]["resourceVersion"]
    assert change["path"] == "/spec"
    now = agent.found(SLOS)
    assert now["metadata"]["labels"] == {"a": "b"}
    assert now["spec"]["extensions"] == {"Object": {"x": 1}}
    assert now["spec"]["ofTheFuture"] is True


async def test_what_is_in_line_is_not_written(agent: Agent) -> None:
    """Neither at a restart, nor when a status or the Node's heartbeat comes by."""
    await begin(agent)
    await agent.stop()
    written = len(agent.writes())
    again = Agent(agent.server, agent.client, agent.clock)
    await again.start()
    await again.until(lambda: again.held("nodeslo") == 1)
    again.server.objects.replace(METRICS, again.found(METRICS) | {"status": {"updateTime": "x"}})
    await again.minutes(20)

    assert len(again.writes()) == written
    await again.stop()


async def test_annotations_of_the_node_count(agent: Agent) -> None:
    """At once; a bad one changes nothing and is named."""
    agent.configure(colocation={"enable": True})
    await begin(agent)
    node = agent.found(ALL_NODES)
    node["metadata"]["annotations"] = {
        "node.koordinator.sh/network-bandwidth": "10G",
        "node.koordinator.sh/colocation-strategy": "{",
    }
    agent.server.objects.replace(ALL_NODES, node)
    await agent.minutes(1)
    await agent.until(
        lambda: agent.found(SLOS)["spec"]["systemStrategy"]["totalNetworkBandwidth"] == "10G"
    )
    assert (
        "annotation node.koordinator.sh/colocation-strategy: wanted valid JSON" in agent.reasons()
    )
    assert policy(agent) == DEFAULT_POLICY


BAD = {  # what is refused, and a word of the reason
    "no JSON": ("{", "valid JSON"),
    "a list": ("[]", "an object"),
    "a wrong type": ('{"clusterStrategy": {"cpuSuppressThresholdPercent": "65"}}', "whole number"),
    "out of range": ('{"clusterStrategy": {"cpuSuppressThresholdPercent": 165}}', "0 to 100"),
    "a wrong type for other nodes": ('{"nodeStrategies": [{"enable": 1}]}', "true or false"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD.keys())
async def test_a_bad_key_keeps_its_last_good_value(agent: Agent, text: str, reason: str) -> None:
    """The others count; health and log name key and field until it is mended."""
    agent.configure(resource_threshold={"clusterStrategy": {"cpuSuppressThresholdPercent": 50}})
    await begin(agent)
    with capture_logs() as logs:
        agent.configure(resource_threshold=text, cpu_burst={"clusterStrategy": {"policy": "auto"}})
        await agent.minutes(1)
        await agent.until(lambda: agent.found(SLOS)["spec"]["cpuBurstStrategy"]["policy"] == "auto")
        await agent.minutes(5)
    assert threshold(agent)["cpuSuppressThresholdPercent"] == 50
    assert "slo-controller-config.resource-threshold-config" in agent.reasons()
    assert reason in agent.reasons()
    assert [entry["event"] for entry in logs].count("config.partly_rejected") == 1
    [reported] = agent.reported
    assert "slo-controller-config.resource-threshold-config" in reported
    assert reason in reported

    agent.configure(resource_threshold={"clusterStrategy": {"cpuSuppressThresholdPercent": 55}})
    await agent.minutes(1)
    await agent.until(lambda: threshold(agent)["cpuSuppressThresholdPercent"] == 55)
    assert agent.reasons() == ""


@pytest.mark.parametrize("key", FULL_CONFIG)
async def test_a_wrong_type_in_any_field(agent: Agent, key: str) -> None:
    """For all nodes or some: the key stays as it was; /healthz and an event say which field."""
    agent.configure(**{key: FULL_CONFIG[key]})
    await begin(agent)
    written = len(agent.writes())
    for field, value in spoilt(FULL_CONFIG[key], f"slo-controller-config.{key}-config"):
        agent.configure(**{key: json.dumps(value)})
        said = f"{field}: wanted "
        await agent.until(lambda said=said: said in agent.reasons())
        assert said in agent.reported[-1]
    await agent.minutes(1)
    assert len(agent.writes()) == written

    agent.configure(**{key: FULL_CONFIG[key]})
    await agent.until(lambda: agent.reasons() == "")


async def test_data_that_is_no_object(agent: Agent) -> None:
    """No API server would store that; what was known stays."""
    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    await begin(agent)
    config = agent.server.objects.all(CONFIGS)[0]
    agent.server.objects.replace(CONFIGS, config | {"data": ["x"]})
    await agent.until(lambda: "data: wanted an object" in agent.reasons())

    assert agent.found(SLOS)["spec"]["cpuBurstStrategy"]["policy"] == "auto"


async def test_an_object_made_anew_is_put_right(agent: Agent) -> None:
    """And one that is deleted comes back."""
    await begin(agent)
    agent.server.objects.delete(SLOS, "n1")
    await agent.until(lambda: agent.found(SLOS))

    agent.server.objects.delete(METRICS, "n1")
    agent.server.objects.create(
        METRICS, {"metadata": {"name": "n1"}, "spec": {"metricCollectPolicy": {"other": 1}}}
    )
    agent.configure(colocation={"enable": True})
    await agent.minutes(1)
    await agent.until(lambda: policy(agent) == {"other": 1, **DEFAULT_POLICY})
    assert agent.found(METRICS)["metadata"]["ownerReferences"][0]["name"] == "n1"


async def test_a_node_made_anew_owns_its_objects(agent: Agent) -> None:
    """Else they would be deleted as those of the old one; other owners stay."""
    await begin(agent)
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    slo = agent.found(SLOS)
    slo["metadata"]["ownerReferences"].insert(0, other)
    agent.server.objects.replace(SLOS, slo)
    agent.server.objects.delete(ALL_NODES, "n1")
    agent.server.objects.create(ALL_NODES, {"metadata": {"name": "n1", "uid": "new"}})
    await agent.minutes(1)
    await agent.until(
        lambda: (
            [owner["uid"] for owner in agent.found(SLOS)["metadata"]["ownerReferences"]]
            == ["x", "new"]
        )
    )
    await agent.until(
        lambda: agent.found(METRICS)["metadata"]["ownerReferences"][0]["uid"] == "new"
    )


async def test_no_objects_without_a_node(agent: Agent) -> None:
    """A node that was renamed or deleted: who would delete them?"""
    await begin(agent)
    agent.server.objects.delete(ALL_NODES, "n1")
    await agent.until(lambda: "wanted a Node to own it, found none" in agent.reasons())
    written = len(agent.writes())
    agent.server.objects.delete(SLOS, "n1")
    agent.server.objects.delete(METRICS, "n1")
    await agent.minutes(30)
    assert len(agent.writes()) == written

    agent.server.objects.create(ALL_NODES, {"metadata": {"name": "n1"}})
    await agent.until(lambda: agent.found(SLOS) and agent.found(METRICS))
    await agent.until(lambda: agent.reasons() == "")


@pytest.mark.parametrize("code", [403, 422])
async def test_what_is_refused_is_said_once_and_tried_rarely(agent: Agent, code: int) -> None:
    """No right to create, a schema that refuses: an operator has to mend that first."""
    causes = {"causes": [{"field": "spec"}]}
    agent.server.script(*[refuse(code, details=causes)] * 9, method="POST", path=METRICS)
    with capture_logs() as logs:
        await agent.start()
        await agent.until(lambda: agent.found(SLOS) and str(code) in agent.reasons())
        await agent.minutes(20)
    assert 3 <= len(agent.writes(METRICS)) <= 6
    assert [entry["object"] for entry in logs if entry["event"] == "manager_role.failed"] == [
        "nodemetric"
    ]
    assert agent.roles.health()["nodemetric"].status is HealthStatus.DEGRADED
    assert agent.roles.health()["nodeslo"].status is HealthStatus.OK

    agent.server.unscript()
    await agent.minutes(20)
    await agent.until(lambda: agent.found(METRICS))
    await agent.until(lambda: agent.roles.health()["nodemetric"].reason == "")


async def test_a_crd_that_comes_later_gets_its_objects_soon(agent: Agent) -> None:
    """Until then the server is asked every few seconds, and it is said once."""
    agent.server.script(*[refuse(404)] * 999, path=METRICS)
    with capture_logs() as logs:
        await agent.start()
        await agent.until(lambda: agent.found(SLOS))
        await agent.minutes(5)
    assert len(agent.writes(METRICS)) <= 5 * 60 / 8
    assert len([entry for entry in logs if entry["event"] == "manager_role.failed"]) <= 1

    agent.server.unscript()
    seconds = 0
    while not agent.found(METRICS):
        await agent.minutes(1 / 60)
        seconds += 1
        assert seconds <= 30


@pytest.mark.parametrize("fault", [refuse(409, "Conflict"), refuse(422, "Invalid"), refuse(503)])
async def test_a_conflict_is_tried_again(agent: Agent, fault: Any) -> None:
    """The object was changed meanwhile, or the server is busy: no matter for anybody."""
    await begin(agent)
    agent.server.script(fault, fault, method="PATCH", path=SLOS)
    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    await agent.minutes(2)
    await agent.until(lambda: agent.found(SLOS)["spec"]["cpuBurstStrategy"]["policy"] == "auto")
    await agent.until(lambda: agent.reasons() == "")


async def test_a_change_of_another_writer_is_not_overwritten_unseen(agent: Agent) -> None:
    """A patch that is based on an old version does not count."""
    await begin(agent)

    async def overtake(request: web.Request) -> web.StreamResponse:
        slo = agent.found(SLOS)
        agent.server.objects.replace(SLOS, slo | {"spec": slo["spec"] | {"mine": 1}})
        return await agent.server.answer(request)

    agent.server.script(overtake, method="PATCH", path=SLOS)
    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    await agent.minutes(1)
    await agent.until(lambda: agent.found(SLOS)["spec"]["cpuBurstStrategy"]["policy"] == "auto")
    assert agent.found(SLOS)["spec"]["mine"] == 1


async def test_a_schema_that_drops_fields_is_not_fought(agent: Agent) -> None:
    """An older CRD takes the patch and stores less: that is as good as it gets."""
    await begin(agent)

    async def drop(_: web.Request) -> web.StreamResponse:
        return web.json_response(agent.found(SLOS))

    agent.server.script(*[drop] * 99, method="PATCH", path=SLOS)
    agent.configure(cpu_burst={"clusterStrategy": {"policy": "auto"}})
    await agent.minutes(30)
    assert len(agent.server.asked("patch", SLOS)) == 1
    assert agent.reasons() == ""


async def test_on_does_not_ask_whether_there_is_a_manager(agent: Agent) -> None:
    """Who undoes each write is met ever more rarely."""
    agent.renew("1")
    agent.store(SLOS, written_by("koordinator-manager", {"cpuBurstStrategy": {"policy": "none"}}))
    await begin(agent, ManagerRoleMode.ON)
    await agent.until(lambda: "systemStrategy" in agent.found(SLOS)["spec"])
    assert not [entry for entry in agent.server.requests if "leases" in entry.path]
    assert agent.state("NodeSLO") == "kept: --manager-duties=on"

    for _ in range(60):
        agent.store(SLOS, written_by("koordinator-manager", {"cpuBurstStrategy": {"policy": "x"}}))
        await agent.minutes(0.5)
    assert 4 <= len(agent.server.asked("patch", SLOS)) <= 10


async def test_stop_does_not_wait_for_a_write(agent: Agent) -> None:
    """Nor for anything else that the server owes."""
    agent.server.script(*[hang] * 9, method="POST")
    await agent.start()
    await agent.until(lambda: len(agent.writes()) == 2)


async def test_the_server_is_asked_for_these_objects_only(agent: Agent) -> None:
    """By name, in the namespace of the configuration."""
    await begin(agent)
    asked = {
        (entry.path.rpartition("/")[2], entry.query.get("fieldSelector"))
        for entry in agent.server.requests
        if entry.verb in ("list", "watch")
    }
    assert asked == {
        ("nodes", "metadata.name=n1"),
        ("nodemetrics", "metadata.name=n1"),
        ("nodeslos", "metadata.name=n1"),
        ("configmaps", "metadata.name=slo-controller-config"),
        ("leases", "metadata.name=koordinator-manager"),
    }
    assert json.dumps(agent.roles.state())
    assert agent.roles.health()["slo config"] == OK
