"""Pods and nodes that hold more than anybody needs, in a whole daemon: their room counts."""

from typing import Any

import pytest

from tests.support.clusters import node
from tests.support.kube.apiserver import ApiServer
from tests.support.scheduler.replicas import NODES, PODS, Start, pending, placed

EVENTS = "/api/v1/events"
Json = dict[str, Any]
TERMS = [
    {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": f"{at:060}"}}}
    for at in range(4000)
]


def odd(obj: Json, **more: Json) -> Json:
    """With labels, owners, tolerations and a status beyond all bounds."""
    obj["metadata"]["labels"] = {f"k{at}": "v" for at in range(5000)}
    obj["metadata"]["ownerReferences"] = [
        {"kind": "ConfigMap", "name": f"c{at}", "uid": f"u{at}"} for at in range(3000)
    ]
    obj["spec"]["tolerations"] = [{"key": f"k{at}"} for at in range(2000)]
    for part, fields in more.items():
        obj[part] = {**obj.get(part, {}), **fields}
    return obj


@pytest.fixture
def small(server: ApiServer, start: Start) -> Start:
    """A cluster of one node of 4 cores, which has too many resources and labels itself."""
    for name in ("n1", "n2"):
        server.objects.delete(NODES, name)
    resources = {f"example.com/r{at}": "1" for at in range(300)}
    labels = {f"k{at}": "v" for at in range(2000)}
    amounts = {"cpu": "4", "memory": "1Ei", "pods": "10", **resources}
    server.objects.create(NODES, node("big", labels, amounts))
    return start


async def test_the_room_of_an_odd_pod_is_not_given_away(
    server: ApiServer, small: Start, pass_time: Any
) -> None:
    """A second pod of 3 cores gets the node only when the first one has ended."""
    server.objects.create(PODS, odd(pending("first", cpu="3")))
    replica = small()
    await pass_time(lambda: "first" in placed(server), step=0.2)
    server.objects.create(PODS, odd(pending("second", cpu="3")))
    name, labels = "scheduler_schedule_attempts_total", {"profile": "koord-scheduler"}
    await pass_time(lambda: replica.metric(name, result="unschedulable", **labels))
    assert set(placed(server)) == {"first"}

    ended = odd(pending("first", cpu="3"), spec={"nodeName": "big"}, status={"phase": "Succeeded"})
    server.objects.replace(PODS, ended)
    await pass_time(lambda: "second" in placed(server), step=0.2)
    events = server.objects.all(EVENTS)
    cut = [one for one in events if one["reason"] == "PartsLeftOut"]
    assert {one["involvedObject"]["name"] for one in cut} >= {"first", "second"}
    assert all(
        "labels: " in one["message"] for one in cut if one["involvedObject"]["kind"] == "Pod"
    )


async def test_a_pod_whose_rules_cannot_be_read_waits_and_says_why(
    server: ApiServer, small: Start, pass_time: Any
) -> None:
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}
    server.objects.create(PODS, odd(pending("odd"), spec={"affinity": affinity}))
    server.objects.create(PODS, pending("plain"))
    small()
    await pass_time(lambda: "plain" in placed(server), step=0.2)

    def reasons() -> list[str]:
        return [
            one["message"]
            for one in server.objects.all(EVENTS)
            if one["reason"] == "FailedScheduling"
        ]

    await pass_time(lambda: bool(reasons()), step=0.2)
    [why] = reasons()
    assert why.startswith("0/1 nodes are available: the pod cannot be read in full: ")
    assert "podAntiAffinity, required: " in why
    assert set(placed(server)) == {"plain"}
