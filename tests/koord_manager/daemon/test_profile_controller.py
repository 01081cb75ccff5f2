"""Pods that wait for a node and came before their profile, against a scripted API server."""

import json
from typing import Any

import pytest

from tests.koord_manager.daemon.test_profiles import CONFIG, KINDS, PROFILES, serve
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import refuse

PODS, NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
GATE = "--feature-gates=ColocationProfileController=true"
MANAGED = {"config.koordinator.sh/controller-managed": "true"}
SPEC: dict[str, Any] = {
    "selector": {"matchLabels": {"app": "spark"}},
    "labels": {"team": "blue"},
    "labelSuffixes": {"name": "-be"},
    "koordinatorPriority": 7,
    "schedulerName": "koord-scheduler",
    "priorityClassName": "koord-batch",
    "patch": {"metadata": {"annotations": {"a": "b"}}},
}


def pod(name: str, namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    labels = {"app": "spark", "name": name}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c"}], **spec},
        "status": {"phase": "Pending"},
    }


def profile(labels: dict[str, str] = MANAGED, name: str = "p", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {**SPEC, **spec}}


@pytest.fixture(autouse=True)
def cluster(server: ApiServer) -> None:
    serve(server, *KINDS)
    for name, labels in (("shop", {}), ("system", {"control-plane": "x"}), ("other", {"a": "b"})):
        server.objects.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})


def patches(server: ApiServer) -> list[Any]:
    return [one for one in server.asked("patch") if "/pods/" in one.path]


def labels_of(server: ApiServer, name: str = "a", namespace: str = "shop") -> dict[str, str]:
    found: dict[str, str] = server.objects.get(PODS, f"{namespace}/{name}")["metadata"]["labels"]
    return found


async def test_a_waiting_pod_gets_what_may_change_once(start, server, let_pass, pass_time):
    """Not the scheduler nor the class; a suffix is not appended again."""
    server.objects.create(PROFILES, profile())
    server.objects.create(PODS, pod("a"))
    server.objects.create(PODS, pod("bound", nodeName="n1"))
    server.objects.create(PODS, pod("a", "system"))
    server.objects.create(PODS, {**pod("runs"), "status": {"phase": "Running"}})
    start(CONFIG, GATE)

    await pass_time(lambda: "team" in labels_of(server), step=1)
    await let_pass(95)

    assert len(patches(server)) == 1
    found = server.objects.get(PODS, "shop/a")
    assert labels_of(server) == {
        "app": "spark", "name": "a-be", "team": "blue", "koordinator.sh/priority": "7"
    }  # fmt: skip
    assert found["metadata"]["annotations"] == {"a": "b"}
    assert found["spec"] == pod("a")["spec"]
    sent = json.loads(patches(server)[0].body)
    assert sent["metadata"]["resourceVersion"]


@pytest.mark.parametrize(
    ("argv", "labels", "spec"),
    [
        ((), MANAGED, {}),
        ((GATE,), {}, {}),
        ((GATE,), MANAGED, {"selector": None}),
        ((GATE,), MANAGED, {"probability": 50}),
        ((GATE,), MANAGED, {"namespaceSelector": {"matchLabels": {"a": "b"}}}),
    ],
    ids=["gate off", "no label", "no selector", "drawn", "another namespace"],
)
async def test_other_pods_stay_as_they_are(argv, labels, spec, start, server, let_pass, pass_time):
    server.objects.create(PROFILES, profile(labels, **spec))
    server.objects.create(PODS, pod("a"))
    start(CONFIG, *argv)
    await pass_time(lambda: bool(server.asked("watch", PROFILES)), step=1)
    await let_pass(65)

    assert patches(server) == []


async def test_all_profiles_by_a_flag(start, server, pass_time):
    server.objects.create(PROFILES, profile({}))
    server.objects.create(PODS, pod("a"))
    start(CONFIG, GATE, "--colocation-profile-reconcile-by-default")

    await pass_time(lambda: "team" in labels_of(server), step=1)


async def test_a_refused_change_is_tried_again_for_another_version(
    start, server, let_pass, pass_time
):
    """Once in five minutes else; the other pods get theirs."""
    server.objects.create(PROFILES, profile())
    server.objects.create(PODS, pod("a"))
    server.objects.create(PODS, pod("b"))
    path = f"{NAMESPACES}/shop/pods/a"
    server.script(*[refuse(422, "Invalid", "immutable")] * 9, method="PATCH", path=path)
    replica = start(CONFIG, GATE)
    await pass_time(lambda: "team" in labels_of(server, "b"), step=1)
    await let_pass(200)
    tried = [one for one in patches(server) if one.path == path]
    assert len(tried) == 1
    assert (await replica.healthz())["ColocationProfileController"]["status"] == "ok"

    changed = profile()
    changed["spec"]["labels"] = {"team": "red"}
    server.objects.replace(PROFILES, changed)
    await pass_time(lambda: len([one for one in patches(server) if one.path == path]) == 2, step=1)


async def test_a_missing_right_is_said(start, server, pass_time):
    server.objects.create(PROFILES, profile())
    server.objects.create(PODS, pod("a"))
    path = f"{NAMESPACES}/shop/pods/a"
    server.script(refuse(403, "Forbidden", "no right"), method="PATCH", path=path)
    replica = start(CONFIG, GATE)
    await pass_time(lambda: bool(patches(server)), step=1)
    await pass_time(lambda: True)

    assert "no right" in (await replica.healthz())["ColocationProfileController"]["reason"]
    await pass_time(lambda: "team" in labels_of(server), step=1)


async def test_changes_are_paced(start, server, clock, pass_time, monkeypatch):
    """After a burst, ten a second."""
    monkeypatch.setattr("koord_manager_plugins.profiles.controller.BURST", 2)
    server.objects.create(PROFILES, profile())
    for number in range(12):
        server.objects.create(PODS, pod(f"p{number}"))
    start(CONFIG, GATE)
    await pass_time(lambda: len(patches(server)) >= 3, step=0.01)
    began = clock.monotonic()
    await pass_time(lambda: len(patches(server)) == 12, step=0.05)

    assert clock.monotonic() - began >= 0.8
