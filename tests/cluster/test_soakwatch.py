"""The soak's checks, which need no cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_cluster.client import Object, pod
from tests.support.real_cluster.soak_watch import above_allocatable, died, twice

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
