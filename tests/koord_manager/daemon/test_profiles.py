"""The policies that the leader keeps, against a scripted API server."""

import asyncio
import json
import sys
from typing import Any

import pytest

from koord.util.errors import OptionError
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import answer, refuse

GROUP = "/apis/admissionregistration.k8s.io"
POLICIES, BINDINGS = (
    f"{GROUP}/v1/mutatingadmission{one}" for one in ("policies", "policybindings")
)
RULES = f"{GROUP}/v1/validatingadmissionpolicies"
PROFILES = "/apis/config.koordinator.sh/v1alpha1/clustercolocationprofiles"
CLASSES, EVENTS = "/apis/scheduling.k8s.io/v1/priorityclasses", "/api/v1/events"
CONFIG = "apiVersion: manager/v1alpha1\nkind: ManagerConfiguration\n"
KINDS = ("mutating", "validating")
NAME = "koord-manager-profile-a"


def serve(server: ApiServer, *kinds: str, version: str = "v1") -> None:
    """Let it say, once, which policies it has."""
    names = [f"{kind}admission{one}" for kind in kinds for one in ("policies", "policybindings")]
    body = json.dumps({"kind": "APIResourceList", "resources": [{"name": one} for one in names]})
    none = refuse(404, "NotFound")
    every = {"v1": none, "v1beta1": none, "v1alpha1": none, version: answer(body.encode())}
    server.script(*every.values(), method="GET", path=GROUP)


def profile(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec or {"labels": {"team": "blue"}}}


@pytest.fixture(autouse=True)
def cluster(server: ApiServer) -> None:
    """A profile, its PriorityClass."""
    server.objects.create(CLASSES, {"metadata": {"name": "koord-batch"}, "value": 5500})
    server.objects.create(PROFILES, profile())


def names(server: ApiServer, collection: str = POLICIES) -> set[str]:
    return {one["metadata"]["name"] for one in server.objects.all(collection)}


def text(server: ApiServer, name: str = NAME) -> str:
    return json.dumps(server.objects.get(POLICIES, name))


def reasons(server: ApiServer) -> list[str]:
    return [one["reason"] for one in server.objects.all(EVENTS)]


async def test_policies_come_and_go_with_profiles(start, server, pass_time):
    serve(server, *KINDS)
    start()
    await pass_time(lambda: len(names(server, BINDINGS)) == 3, step=0.5)

    server.objects.create(PROFILES, profile("b"))
    await pass_time(lambda: "koord-manager-profile-b" in names(server, BINDINGS), step=0.5)
    server.objects.delete(PROFILES, "a")
    await pass_time(lambda: NAME not in names(server), step=0.5)

    assert NAME not in names(server, BINDINGS)
    assert names(server, RULES) == {"koord-manager-pod-qos"}
    policy = server.objects.get(POLICIES, "koord-manager-profile-b")
    [owner] = policy["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ClusterColocationProfile", "b")


async def test_an_edited_policy_is_taken_back_and_said(start, server, let_pass, pass_time):
    serve(server, *KINDS)
    start()
    await pass_time(lambda: len(names(server, BINDINGS)) == 3, step=0.5)
    before = server.objects.get(POLICIES, NAME)

    server.objects.replace(POLICIES, {**before, "spec": {**before["spec"], "mutations": []}})
    await pass_time(lambda: "team" in text(server), step=1)
    await pass_time(lambda: "PolicyEdited" in reasons(server), step=1)

    writes = len(server.asked("update", GROUP)) + len(server.asked("create", GROUP))
    await let_pass(65)
    assert len(server.asked("update", GROUP)) + len(server.asked("create", GROUP)) == writes


async def test_what_is_not_ours_stays(start, server, pass_time):
    """An object without the label is neither written nor deleted, whatever its name."""
    foreign = {"metadata": {"name": NAME, "labels": {}}, "spec": {"by": "somebody"}}
    server.objects.create(POLICIES, foreign)
    server.objects.create(POLICIES, {"metadata": {"name": "other"}, "spec": {}})
    serve(server, *KINDS)
    replica = start()
    await pass_time(lambda: len(names(server, BINDINGS)) == 3, step=0.5)

    assert server.objects.get(POLICIES, NAME)["spec"] == {"by": "somebody"}
    assert "other" in names(server)
    assert "not ours" in json.dumps(await replica.healthz())


async def test_an_invalid_profile_keeps_its_last_good_policy(start, server, pass_time):
    serve(server, *KINDS)
    replica = start()
    await pass_time(lambda: NAME in names(server, BINDINGS), step=0.5)

    server.objects.replace(PROFILES, profile(qosClass="FAST"))
    server.objects.create(PROFILES, profile("b", priorityClassName="none"))
    await pass_time(lambda: reasons(server).count("InvalidProfile") == 2, step=0.5)
    assert "blue" in text(server)
    assert "koord-manager-profile-b" not in names(server)
    assert "qosClass" in json.dumps(await replica.healthz())

    server.objects.create(CLASSES, {"metadata": {"name": "none"}, "value": 1})
    server.objects.replace(PROFILES, profile(labels={"team": "red"}))
    await pass_time(lambda: "red" in text(server), step=0.5)
    await pass_time(lambda: "koord-manager-profile-b" in names(server), step=0.5)


async def test_a_policy_that_the_server_refuses_keeps_the_last_good_one(start, server, pass_time):
    serve(server, *KINDS)
    replica = start()
    await pass_time(lambda: len(names(server, BINDINGS)) == 3, step=0.5)

    server.script(refuse(422, "Invalid", "no such field"), method="PUT", path=POLICIES)
    server.objects.replace(PROFILES, profile(labels={"team": "red"}))
    await pass_time(lambda: "PolicyRefused" in reasons(server), step=0.5)

    assert "blue" in text(server)
    assert "no such field" in json.dumps(await replica.healthz())
    await pass_time(lambda: "red" in text(server), step=1)  # asked again half a minute later


async def test_a_server_without_mutating_policies_is_named(start, server, pass_time):
    serve(server, "validating")
    replica = start()
    await pass_time(lambda: names(server, RULES) != set(), step=0.5)

    assert names(server) == set()
    assert "no MutatingAdmissionPolicy" in json.dumps(await replica.healthz())


async def test_the_best_version_that_is_served_is_written(start, server, pass_time):
    serve(server, "mutating", version="v1beta1")
    start()
    beta = POLICIES.replace("/v1/", "/v1beta1/")

    await pass_time(lambda: NAME in names(server, beta), step=0.5)

    assert server.objects.get(beta, NAME)["apiVersion"].endswith("/v1beta1")


async def test_gates_remove_what_they_switch_off(start, server, pass_time):
    ours = {"app.kubernetes.io/managed-by": "koord-manager"}
    for collection in (POLICIES, RULES):
        server.objects.create(collection, {"metadata": {"name": "old", "labels": ours}})
    serve(server, *KINDS)
    start(CONFIG, "--feature-gates=PodMutatingWebhook=false,PodValidatingWebhook=false")

    await pass_time(lambda: not names(server) and not names(server, RULES), step=0.5)


async def test_while_profiles_are_not_known_their_policies_stay(start, server, let_pass, pass_time):
    """The CRD is missing, or the list is forbidden: that deletes nothing."""
    meta = {
        "name": NAME,
        "labels": {"app.kubernetes.io/managed-by": "koord-manager"},
        "annotations": {"config.koordinator.sh/colocation-profile": "a"},
    }
    server.objects.create(POLICIES, {"metadata": meta, "spec": {}})
    server.script(*[refuse(404, "NotFound")] * 50, method="GET", path=PROFILES)
    serve(server, *KINDS)
    start()

    await pass_time(lambda: names(server, RULES) != set(), step=0.5)
    await let_pass(40)

    assert NAME in names(server)


async def test_without_the_package_that_signs_it_does_not_start(start, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "koord_manager.certificates", None)
    replica = start(CONFIG, "--webhook-bind-address=127.0.0.1:0")

    with pytest.raises(OptionError, match="cryptography"):
        await asyncio.wait_for(replica.task, 10)


async def test_with_the_webhook_there_are_no_mutating_policies(start, server, pass_time, authority):
    """The rules stay policies."""
    pair = authority.issue("webhook")
    serve(server, *KINDS)
    flags = f"--tls-cert-file={pair.certificate}", f"--tls-private-key-file={pair.key}"
    start(CONFIG, "--webhook-bind-address=127.0.0.1:0", *flags)

    await pass_time(lambda: names(server, RULES) != set(), step=0.5)

    assert names(server) == set()
