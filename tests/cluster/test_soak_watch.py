"""The soak's checks, and the machine's own /proc/stat, which need no cluster."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from koord.api.elasticquota import NAME
from koord.api.podgroup import GROUP_LABEL
from koord.api.quantity import Quantity
from koordlet.host.procfiles import parse_cpu_ticks, parse_per_cpu_ticks
from tests.support.real_cluster.client import Object, pod
from tests.support.real_cluster.colocation import (
    BATCH_CPU,
    BATCH_MEMORY,
    EACH,
    MEMORY,
    batch_pod,
    beyond_capacity,
    not_mutated,
)
from tests.support.real_cluster.own_stat import stat_text
from tests.support.real_cluster.soak_groups import (
    HALF_PLACED,
    OF_GANGS,
    GroupChecks,
    beyond_quota,
)
from tests.support.real_cluster.soak_watch import (
    above_allocatable,
    above_offers,
    died,
    given_twice,
    twice,
    unchanged,
    written_by_others,
)

ROOM = {"cpu": "2", "memory": "1Gi", "pods": "3"}
NODE = {"metadata": {"name": "n"}, "status": {"allocatable": ROOM}}


def on_the_node(cpu: str, phase: str = "Running") -> Object:
    """A pod with that request on it."""
    return {**pod("p", "p", cpu=cpu, nodeName="n"), "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ([on_the_node("1"), on_the_node("1000m")], []),
        (
            [on_the_node("1"), on_the_node("1001m")],
            ["pods on n request 2001 of 2000 thousandths of cpu"],
        ),
        ([on_the_node("1"), on_the_node("2", "Failed")], []),
        (
            [on_the_node("")] * 4,
            ["pods on n request 4000 of 3000 thousandths of pods"],
        ),
        ([{**pod("p", "p", cpu="9"), "status": {"phase": "Pending"}}], []),
    ],
)
def test_a_node_has_no_more_than_it_can_give(pods: list[Object], found: list[str]) -> None:
    assert list(above_allocatable(pods, [NODE])) == found


def reserved(cpu: str = "1", phase: str = "Available", version: str = "1", **spec: Any) -> Object:
    """A Reservation on the node."""
    return {
        "metadata": {"name": "r", "uid": "u", "resourceVersion": version},
        "spec": {"allocateOnce": False, **spec},
        "status": {"phase": phase, "nodeName": "n", "allocatable": {"cpu": cpu}},
    }


def consumer(cpu: str, node: str = "n", phase: str = "Running") -> Object:
    found = {**pod("c", "c", cpu=cpu, nodeName=node), "status": {"phase": phase}}
    annotation = {"scheduling.koordinator.sh/reservation-allocated": '{"name":"r","uid":"u"}'}
    found["metadata"] = {**found["metadata"], "annotations": annotation}
    return found


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ([on_the_node("1")], []),
        ([on_the_node("1500m")], ["pods on n request 2500 of 2000 thousandths of cpu"]),
        ([on_the_node("1"), consumer("600m")], []),
        ([on_the_node("1"), consumer("600m", phase="Failed")], []),
        (
            [on_the_node("1"), consumer("1100m")],
            ["pods on n request 2100 of 2000 thousandths of cpu"],
        ),
    ],
)
def test_what_consumers_leave_of_a_reservation_is_nobody_elses(
    pods: list[Object], found: list[str]
) -> None:
    assert list(above_allocatable(pods, [NODE], [reserved()])) == found


@pytest.mark.parametrize(
    ("pods", "spec", "found"),
    [
        ([consumer("600m"), consumer("400m")], {"allocatePolicy": "Restricted"}, []),
        (
            [consumer("600m"), consumer("500m")],
            {"allocatePolicy": "Restricted"},
            ["reservation r has given 100 thousandths of cpu more"],
        ),
        ([consumer("600m"), consumer("500m")], {}, []),
        (
            [consumer("100m"), consumer("100m")],
            {"allocateOnce": True},
            ["reservation r was given to shop/c and shop/c"],
        ),
        (
            [consumer("100m", node="m")],
            {},
            ["reservation r was given to shop/c on another node"],
        ),
        ([consumer("100m", node="")], {"allocateOnce": True}, []),
    ],
)
def test_a_reservation_is_given_as_it_says(pods: list[Object], spec: Any, found: list[str]) -> None:
    assert list(given_twice(pods, [reserved(**spec)])) == found


def test_only_reservations_that_have_stayed_the_same_hold_between_two_lists() -> None:
    same, other = reserved(version="1"), reserved(version="2")
    assert unchanged([same], [same]) == [same]
    assert unchanged([same], [other]) == []
    assert unchanged([], [same]) == []
    pending = reserved(phase="Pending")
    assert unchanged([pending], [pending]) == []


@pytest.mark.parametrize(
    ("part", "offered", "found"),
    [
        ("allocatable", "2k", []),
        ("allocatable", "0", []),
        (
            "allocatable",
            "-1",
            ["n has -1 of kubernetes.io/batch-cpu in its allocatable, and 2 of cpu"],
        ),
        (
            "capacity",
            "2001",
            ["n has 2001 of kubernetes.io/batch-cpu in its capacity, and 2 of cpu"],
        ),
    ],
)
def test_batch_pods_are_offered_what_a_node_has(part: str, offered: str, found: list[str]) -> None:
    status = {"capacity": dict(ROOM), "allocatable": dict(ROOM)}
    status[part][BATCH_CPU] = offered
    assert list(beyond_capacity([{"metadata": {"name": "n"}, "status": status}])) == found


def test_a_batch_pod_is_as_its_profile_has_it() -> None:
    """A pod without the label of the profile may be as it likes."""
    made = batch_pod("p")
    assert list(not_mutated([made])) == ["pod shop/ is not as its profile has it"]
    assert list(not_mutated([pod("p", "p", cpu="1")])) == []
    made["metadata"]["labels"]["koordinator.sh/qosClass"] = "BE"
    made["spec"] |= {"schedulerName": "koord-scheduler", "priorityClassName": "koord-batch"}
    [container] = made["spec"]["containers"]
    container["resources"]["requests"] = {BATCH_CPU: str(EACH), BATCH_MEMORY: MEMORY}
    assert list(not_mutated([made])) == []


def held_batch(uid: str, amount: str) -> Object:
    """A pod on the node that holds so much of its batch-cpu."""
    made = on_the_node("")
    made["metadata"]["uid"] = uid
    made["spec"]["containers"][0]["resources"] = {"requests": {BATCH_CPU: amount}}
    return made


@pytest.mark.parametrize(
    ("arrived", "offers", "found"),
    [
        ({"b"}, ["1k"], []),
        ({"b"}, ["500", "1k", "500"], []),
        (set(), ["500"], []),
        ({"b"}, ["900"], [f"batch pods on n hold 1000000 of 900000 thousandths of {BATCH_CPU}"]),
        ({"b"}, [], [f"batch pods on n hold 1000000 of 0 thousandths of {BATCH_CPU}"]),
        ({"gone"}, ["500"], []),
    ],
    ids=["fits", "has fitted", "offers less since", "too much", "nothing offered", "gone again"],
)
def test_batch_pods_come_to_nodes_that_have_offered_enough(
    arrived: set[str], offers: list[str], found: list[str]
) -> None:
    pods = [held_batch("a", "600"), held_batch("b", "400"), on_the_node("1")]
    looks = [{"n": Counter({BATCH_CPU: Quantity.parse(each).milli})} for each in offers]
    assert list(above_offers(pods, arrived, looks or [{}])) == found


def written(pod: str, resource: str, second: int, code: int = 200, verb: str = "update") -> str:
    """A line of the audit log, of a replica of koord-manager."""
    user = {
        "username": "system:serviceaccount:koordinator-system:koord-manager",
        "extra": {"authentication.kubernetes.io/pod-name": [pod]},
    }
    name = "koordinator-manager" if resource == "leases" else "n"
    made = {
        "verb": verb,
        "requestURI": f"/{resource}/{name}",
        "user": user,
        "objectRef": {"resource": resource, "name": name},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": f"2026-11-29T12:00:{second:02}.000000Z",
    }
    return json.dumps(made) + "\n"


@pytest.mark.parametrize(
    ("resource", "code", "then", "found"),
    [
        ("nodes", 200, "a", ["b wrote /nodes/n, and a led"]),
        ("nodes", 409, "a", []),
        ("events", 200, "a", []),
        ("nodes", 200, "b", []),
    ],
    ids=["two write", "refused", "events are anybody's", "the lease changes hands"],
)
def test_one_replica_writes_at_a_time(
    resource: str, code: int, then: str, found: list[str], tmp_path: Path
) -> None:
    """Lines come in any order, and those of others are between them."""
    lines = [
        written("a", "leases", 1),
        written("a", "nodes", 2, verb="patch"),
        written(then, "leases", 5),
        written("b", resource, 3, code, verb="patch"),
        entry("p") + "\n",
    ]
    (tmp_path / "audit.log").write_text("".join(lines))
    assert written_by_others(tmp_path) == found


def entry(name: str, code: int = 201, **more: Any) -> str:
    """A line of the audit log, of an eviction."""
    asked = {"resource": "pods", "subresource": "eviction", "namespace": "shop", "name": name}
    uri = f"/api/v1/namespaces/shop/pods/{name}/eviction"
    status = {"code": code}
    return json.dumps({"requestURI": uri, "objectRef": asked, "responseStatus": status, **more})


def test_an_eviction_that_was_refused_is_none(tmp_path: Path) -> None:
    """Nor is a dry run, or a line that was cut by the end of the API server; both logs count."""
    dry = entry("b", requestURI="/api/v1/namespaces/shop/pods/b/eviction?dryRun=All")
    (tmp_path / "audit.log").write_text(
        "\n".join([entry("a", 429), entry("a"), dry, entry("b"), entry("b")[:40], ""])
    )
    assert twice(tmp_path, "eviction") == (2, [])

    (tmp_path / "audit-2026-11-24.log").write_text(entry("b") + "\n")

    assert twice(tmp_path, "eviction") == (2, ["shop/b"])


@pytest.mark.parametrize(
    ("code", "reason", "said", "found"),
    [
        (137, "Error", "", []),
        (255, "Unknown", "", []),
        (1, "Error", "koord-scheduler: lost lease koordlet-system/koord-scheduler: wanted", []),
        (1, "Error", "no", ["koordlet-system/koordlet-x has ended with 1 (Error): no"]),
        (137, "OOMKilled", "", ["koordlet-system/koordlet-x has ended with 137 (OOMKilled): "]),
    ],
)
def test_a_daemon_that_ends_otherwise_than_by_kill_is_found_once(
    code: int, reason: str, said: str, found: list[str]
) -> None:
    """Unless its lease was lost, or containerd was away as well."""
    terminated = {"exitCode": code, "reason": reason, "message": said}
    status = {"name": "main", "restartCount": 1, "lastState": {"terminated": terminated}}
    name = {"namespace": "koordlet-system", "name": "koordlet-x"}
    pods = [{"metadata": name, "status": {"containerStatuses": [status]}}]
    known: set[tuple[str, int]] = set()

    assert list(died(pods, known)) == found
    assert list(died(pods, known)) == []


def test_the_machine_shows_its_agents_its_own_work_alone() -> None:
    """A text of /proc/stat replaces the one before it in place, so all are of one length."""
    before = stat_text(0.5, 10.0, 2, "btime 1795252152\n")
    after = stat_text(12345.67, 98765.0, 2, "btime 1795252152\n")
    assert parse_cpu_ticks(before.encode()) == 50
    assert parse_per_cpu_ticks(after.encode()) == {0: 617283, 1: 617283}
    assert len(before) == len(after)


def grouped(name: str, cpu: str, *, placed: bool, gang: str = "", quota: str = "") -> Object:
    """A pod of a gang, and of a quota."""
    found = pod(name, name, cpu=cpu, **({"nodeName": "n"} if placed else {}))
    labels = {GROUP_LABEL: gang} if gang else {}
    labels |= {NAME: quota} if quota else {}
    return {
        **found,
        "metadata": {**found["metadata"], "labels": labels},
        "status": {"phase": "Running" if placed else "Pending"},
    }


def test_pods_of_a_quota_on_nodes_request_no_more_than_its_max() -> None:
    """Those that wait, have finished or are of another quota do not count."""
    pods = [grouped(f"p{number}", "1", placed=True, quota=OF_GANGS) for number in range(3)]
    others = [
        grouped("waits", "9", placed=False, quota=OF_GANGS),
        grouped("other", "9", placed=True),
        {**grouped("over", "9", placed=True, quota=OF_GANGS), "status": {"phase": "Failed"}},
    ]
    assert list(beyond_quota([*pods, *others])) == []
    more = grouped("more", "1m", placed=True, quota=OF_GANGS)
    assert list(beyond_quota([*pods, more])) == [
        f"pods of quota {OF_GANGS} request 3001 of 3000 thousandths of cpu"
    ]


def test_a_gang_is_half_placed_for_a_while_at_most() -> None:
    """One of which members are lacking is being made, or deleted."""
    checks = GroupChecks()

    def look(now: float, *placed: bool) -> list[str]:
        pods = [
            grouped(f"p{number}", "1", placed=each, gang="g") for number, each in enumerate(placed)
        ]
        return list(checks.wrong(pods, now))

    assert look(0.0, False, False, False) == []
    assert look(1.0, True, False, False) == []
    assert look(HALF_PLACED, True, True, False) == []
    found = ["gang g has 2 of 3 members on nodes, and does not go on"]
    assert look(HALF_PLACED + 2.0, True, True, False) == found
    assert not checks.placed
    assert look(HALF_PLACED + 3.0, True, True, True) == []
    assert checks.placed == {"g"}
    assert look(HALF_PLACED + 4.0, True, True, False) == []  # one has left, and was replaced
    assert look(900.0, True, True) == []
    assert look(901.0, True, True, False) == []
