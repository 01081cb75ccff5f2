"""The Secret and the caBundle that the leader keeps, against a scripted API server."""

import asyncio
import base64
import ssl
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import refuse
from tests.support.kube.replicas import free_port

SECRETS = "/api/v1/secrets"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
EVENTS = "/api/v1/events"
SYSTEM, NAME = "koordinator-system", "koord-manager-webhook"
CONFIG = "apiVersion: manager/v1alpha1\nkind: ManagerConfiguration\n"
DAY = 86_400.0
EXPIRY = "slo_controller_webhook_certificate_expiry_timestamp_seconds"


def webhook(name: str = "pods", service: str = NAME, **client: str) -> dict[str, Any]:
    found = {"service": {"namespace": SYSTEM, "name": service}, **client}
    return {"name": name, "clientConfig": found}


@pytest.fixture(autouse=True)
def configuration(server: ApiServer) -> None:
    """Ours, with a webhook of another Service."""
    webhooks = [webhook("other", "another", caBundle="bm9uZQ=="), webhook()]
    server.objects.create(
        CONFIGURATIONS, {"metadata": {"name": "koord-manager"}, "webhooks": webhooks}
    )


def secret(server: ApiServer) -> dict[str, bytes]:
    """Its data; empty: there is none."""
    found = [one for one in server.objects.all(SECRETS) if one["metadata"]["name"] == NAME]
    return {key: base64.b64decode(text) for one in found for key, text in one["data"].items()}


def bundles(server: ApiServer) -> list[bytes]:
    found = server.objects.get(CONFIGURATIONS, "koord-manager")["webhooks"]
    return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in found]


def writes(server: ApiServer) -> int:
    return sum(
        len(server.asked(verb, path))
        for verb in ("create", "update", "patch")
        for path in ("/api/v1/namespaces/koordinator-system/secrets", CONFIGURATIONS)
    )


def is_kept(server: ApiServer) -> bool:
    data = secret(server)
    return bool(data) and bundles(server) == [b"none", data["ca.crt"]]


@pytest.fixture
def serve(start):
    """Start a replica with the webhook; return it and the webhook's port."""

    def serve() -> tuple[Any, int]:
        port = free_port()
        return start(CONFIG, f"--webhook-bind-address=127.0.0.1:{port}"), port

    return serve


async def served(port: int) -> bytes:
    """The certificate that a new connection is shown, PEM."""
    found = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    return x509.load_pem_x509_certificate(found.encode()).public_bytes(Encoding.PEM)


def expires(replica: Any) -> float:
    """Unix seconds; 0: it has no certificate."""
    return replica.metric(EXPIRY) or 0.0


async def health(replica: Any) -> dict[str, Any]:
    return dict((await replica.healthz())["webhook certificate"])


async def test_all_replicas_serve_what_the_leader_keeps(server, serve, clock, pass_time):
    """One Secret, written once; the other webhook of the configuration is left alone."""
    first, one = serve()
    await pass_time(lambda: is_kept(server), step=0.5)
    second, other = serve()
    await pass_time(lambda: expires(second) > 0, step=0.5)
    await clock.advance(1)

    data = secret(server)
    for port in (one, other):
        assert await served(port) == data["tls.crt"]
    assert writes(server) == 2
    assert expires(first) == expires(second)
    assert (await health(second))["status"] == "ok"


async def test_it_is_renewed_before_it_expires_without_a_restart(
    server, serve, clock, let_pass, pass_time
):
    """By the same authority, so the configuration is not written again."""
    replica, port = serve()
    await pass_time(lambda: is_kept(server), step=0.5)
    before, count = secret(server), writes(server)

    clock.step_wall(59 * DAY)
    await let_pass(65)
    assert secret(server) == before
    clock.step_wall(2 * DAY)
    await pass_time(lambda: secret(server) != before, step=2)
    await pass_time(lambda: expires(replica) > clock.wall() + 89 * DAY, step=0.5)

    assert secret(server)["ca.crt"] == before["ca.crt"]
    assert await served(port) == secret(server)["tls.crt"] != before["tls.crt"]
    assert writes(server) == count + 1


async def test_a_new_authority_is_in_the_configuration_before_it_signs(
    server, serve, clock, pass_time
):
    serve()
    await pass_time(lambda: is_kept(server), step=0.5)
    clock.step_wall(3280 * DAY)
    first = secret(server)
    await pass_time(lambda: secret(server)["tls.crt"] != first["tls.crt"], step=2)
    before = secret(server)
    assert before["ca.crt"] == first["ca.crt"]

    clock.step_wall(10 * DAY)
    await pass_time(lambda: len(secret(server)["ca.crt"]) > len(before["ca.crt"]), step=2)
    both = secret(server)
    assert both["tls.crt"] == before["tls.crt"]
    await pass_time(lambda: is_kept(server), step=0.5)
    at = clock.monotonic()
    await pass_time(lambda: secret(server)["tls.crt"] != before["tls.crt"], step=1)

    assert clock.monotonic() - at >= 55
    assert secret(server)["ca.crt"] == both["ca.crt"]


@pytest.mark.parametrize(
    "data",
    [{}, {"tls.crt": "!"}, {"ca.crt": base64.b64encode(b"x").decode()}],
    ids=["emptied", "no base64", "no PEM"],
)
async def test_a_broken_secret_is_written_again(data, server, serve, let_pass, pass_time):
    """Meanwhile the last good certificate is served."""
    replica, port = serve()
    await pass_time(lambda: is_kept(server), step=0.5)
    before = server.objects.get(SECRETS, f"{SYSTEM}/{NAME}")

    broken = {**before, "data": {**(before["data"] if data else {}), **data}}
    server.objects.replace(SECRETS, broken)
    await pass_time(lambda: is_kept(server) and secret(server)["tls.crt"] != b"", step=0.5)
    await pass_time(lambda: expires(replica) > 0, step=0.5)

    await let_pass(2)
    assert await served(port) == secret(server)["tls.crt"]
    assert (await health(replica))["status"] == "ok"


async def test_a_deleted_secret_comes_back(server, serve, pass_time):
    serve()
    await pass_time(lambda: is_kept(server), step=0.5)

    server.objects.delete(SECRETS, f"{SYSTEM}/{NAME}")

    await pass_time(lambda: is_kept(server), step=0.5)


@pytest.mark.parametrize("text", ["", "ZWRpdGVk"], ids=["taken out", "another"])
async def test_a_bundle_changed_by_hand_is_taken_back_and_said(
    text, server, serve, let_pass, pass_time
):
    serve()
    await pass_time(lambda: is_kept(server), step=0.5)
    await let_pass(70)
    found = server.objects.get(CONFIGURATIONS, "koord-manager")
    client = {key: one for key, one in found["webhooks"][1]["clientConfig"].items()
              if key != "caBundle"}  # fmt: skip
    if text:
        client["caBundle"] = text
    edited = {**found["webhooks"][1], "clientConfig": client}
    server.objects.replace(CONFIGURATIONS, {**found, "webhooks": [found["webhooks"][0], edited]})

    await pass_time(lambda: is_kept(server), step=0.5)
    await pass_time(
        lambda: "CABundleEdited" in [one["reason"] for one in server.objects.all(EVENTS)], step=0.5
    )


async def test_another_s_secret_is_left_alone(server, serve, let_pass, pass_time):
    """And named: without a certificate the replica is not ready, but works on."""
    foreign = {"metadata": {"name": NAME, "namespace": SYSTEM}, "data": {"tls.crt": "eA=="}}
    server.objects.create(SECRETS, foreign)
    replica, _ = serve()
    await pass_time(lambda: bool(server.asked("watch", CONFIGURATIONS)), step=0.5)
    await let_pass(20, step=0.5)

    found = await health(replica)
    assert found["status"] == "unhealthy"
    assert "has no label" in found["reason"]
    assert (await replica.get("/readyz"))[0] == 503
    assert (await replica.get("/livez"))[0] == 200
    assert writes(server) == 0


async def test_cert_manager_s_configuration_is_left_alone(server, serve, let_pass, pass_time):
    found = server.objects.get(CONFIGURATIONS, "koord-manager")
    found["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": "a/b"}
    server.objects.replace(CONFIGURATIONS, found)
    replica, _ = serve()
    await pass_time(lambda: expires(replica) > 0, step=0.5)
    await let_pass(5)

    assert "cert-manager.io" in (await health(replica))["reason"]
    assert bundles(server) == [b"none", b""]


async def test_a_missing_configuration_is_named_and_found_later(server, serve, let_pass, pass_time):
    found = server.objects.delete(CONFIGURATIONS, "koord-manager")
    replica, _ = serve()
    await pass_time(lambda: expires(replica) > 0, step=0.5)
    await let_pass(5)
    assert "no MutatingWebhookConfiguration" in (await health(replica))["reason"]

    server.objects.create(CONFIGURATIONS, {**found, "metadata": {"name": "koord-manager"}})

    await pass_time(lambda: is_kept(server), step=0.5)


async def test_a_refused_write_is_said_and_tried_again(server, serve, clock, pass_time):
    path = f"/api/v1/namespaces/{SYSTEM}/secrets"
    server.script(refuse(403, "Forbidden", "no right"), method="POST", path=path)
    replica, _ = serve()
    await pass_time(lambda: bool(server.asked("create", path)), step=0.5)
    await clock.advance(0.5)
    assert "no right" in (await health(replica))["reason"]

    await pass_time(lambda: is_kept(server), step=2)


async def test_in_dry_run_nothing_is_written(server, start, let_pass, pass_time):
    replica = start(CONFIG + "dryRun: true\n", f"--webhook-bind-address=127.0.0.1:{free_port()}")
    await pass_time(lambda: bool(server.asked("watch", CONFIGURATIONS)), step=0.5)
    await let_pass(20, step=0.5)

    assert writes(server) == 0
    assert (await health(replica))["status"] == "unhealthy"
