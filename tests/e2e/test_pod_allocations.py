"""The component pod-allocations, as Kubernetes' own plugin decides by its policy."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.overlay import overlay
from tests.support.programs import ADMISSION, ask

STATUS, DEVICES, RESERVATION = (
    f"scheduling.koordinator.sh/{name}"
    for name in ("resource-status", "device-allocated", "reservation-allocated")
)
OURS, KOORDINATORS = (
    f"system:serviceaccount:{namespace}:koord-scheduler"
    for namespace in ("koordlet-system", "koordinator-system")
)
TENANT, CONTROLLER = "jane", "system:serviceaccount:kube-system:replicaset-controller"


def asks(
    before: dict[str, str] | None,
    after: dict[str, str],
    *,
    user: str = TENANT,
    groups: tuple[str, ...] = (),
    subresource: str = "",
    kind: str = "Pod",
    resource: str = "pods",
) -> dict[str, Any]:
    """A request about a pod with these annotations; before None: it is created."""

    def pod(annotations: dict[str, str]) -> dict[str, Any]:
        return {"metadata": {"name": "web", "namespace": "shop", "annotations": annotations}}

    return {
        "user": user,
        "groups": list(groups),
        "operation": "CREATE" if before is None else "UPDATE",
        "version": "v1",
        "kind": kind,
        "resource": resource,
        "subresource": subresource,
        "namespace": "shop",
        "name": "web",
        "object": pod(after),
        "oldObject": None if before is None else pod(before),
    }


@pytest.fixture(scope="module")
def plugin(go_program: Any) -> Path:
    binary: Path = go_program(ADMISSION)
    return binary


@pytest.fixture(params=["as shipped", "another namespace", "by Helm"])
def decide(
    request: pytest.FixtureRequest, plugin: Path, render: Any, installed: Any, tmp_path: Path
) -> Any:
    """Ask the plugin; it answers "" for an allowed request, else why not."""
    namespace = "koordlet-system"
    if request.param == "by Helm":
        on = {"koordlet": {"components": {"podAllocations": True}}, "scheduler": {"enabled": True}}
        made = installed(on)
    else:
        namespace = "koordlet-system" if request.param == "as shipped" else "qos"
        made = render(overlay(tmp_path, "scheduler", "pod-allocations", namespace=namespace))
    objects: dict[str, list[dict[str, Any]]] = {}
    for each in made:
        objects.setdefault(each["kind"], []).append(each)

    def named(kind: str) -> dict[str, Any]:
        [found] = [
            each for each in objects[kind] if each["metadata"]["name"] == "koordlet-pod-allocations"
        ]
        return found

    further = {
        "metadata": {"name": "more"},
        "roleRef": named("ClusterRoleBinding")["roleRef"],
        "subjects": [{"kind": "User", "name": "planner"}, {"kind": "Group", "name": "placers"}],
    }
    ours = f"system:serviceaccount:{namespace}:koord-scheduler"

    def decide(*requests: dict[str, Any]) -> list[str]:
        question = {
            "policy": named("ValidatingAdmissionPolicy"),
            "binding": named("ValidatingAdmissionPolicyBinding"),
            "roles": objects["ClusterRole"],
            "roleBindings": [*objects["ClusterRoleBinding"], further],
            "requests": [
                each | {"user": ours if each["user"] == OURS else each["user"]} for each in requests
            ],
        }
        return ask(plugin, question)

    return decide


KEPT = {STATUS: '{"cpuset":"0-3"}', "note": "a"}
ALLOWED = [
    asks(None, {"note": "a"}),
    asks(None, {"note": "a"}, user=CONTROLLER),
    asks(KEPT, KEPT | {"note": "b"}),
    asks(KEPT, KEPT, subresource="status", user="system:node:n1", groups=("system:nodes",)),
    asks({}, {"note": "b"}, subresource="ephemeralcontainers"),
    asks(None, {}, subresource="binding", kind="Binding", user="system:kube-scheduler"),
    *(asks({}, {key: "{}"}, user=user) for key in (STATUS, DEVICES, RESERVATION)
      for user in (OURS, KOORDINATORS, "planner")),
    asks(KEPT, {}, user=OURS),
    asks({}, KEPT, groups=("placers",)),
    asks(None, KEPT, user=KOORDINATORS),
    asks(None, KEPT, subresource="binding", kind="Binding", user=OURS),
]  # fmt: skip
FORBIDDEN = [
    *(asks(None, {key: "{}"}, user=user) for key in (STATUS, DEVICES, RESERVATION)
      for user in (TENANT, CONTROLLER)),
    *(asks({}, {DEVICES: "{}"}, subresource=each)
      for each in ("", "status", "resize", "ephemeralcontainers")),
    asks(KEPT, KEPT | {STATUS: '{"cpuset":"0-14"}'}),
    asks(KEPT, {"note": "a"}),
    asks(None, {STATUS: "{}"}, subresource="binding", kind="Binding"),
    asks(None, {STATUS: "{}"}, resource="bindings", kind="Binding"),
    asks({}, {STATUS: "{}"}, user="system:serviceaccount:shop:koord-scheduler"),
]  # fmt: skip


def test_only_schedulers_write_what_a_pod_was_given(decide: Any) -> None:
    """Also no controller that creates pods of a tenant's template; all else is left alone."""
    assert decide(*ALLOWED) == [""] * len(ALLOWED)
    for answer in decide(*FORBIDDEN):
        assert "only schedulers may write scheduling.koordinator.sh/" in answer


def test_without_a_binding_nobody_may(plugin: Path, render: Any, tmp_path: Path) -> None:
    """And pods without the annotations are admitted as ever."""
    made = render(overlay(tmp_path, "pod-allocations"))
    found = {
        each["kind"]: each
        for each in made
        if each["metadata"]["name"] == "koordlet-pod-allocations"
    }
    question = {
        "policy": found["ValidatingAdmissionPolicy"],
        "binding": found["ValidatingAdmissionPolicyBinding"],
        "requests": [asks({}, KEPT, user=OURS), asks(None, {"note": "a"})],
    }
    refused, allowed = ask(plugin, question)
    assert "only schedulers" in refused
    assert allowed == ""
