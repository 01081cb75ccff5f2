"""The check that the API server limits an agent to its own node's objects."""

import asyncio

import pytest

from koord.kube.authorization import check_own_node
from koord.kube.client import NODE_METRICS, ApiClient
from koord.util.clock import SystemClock
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer, Handler
from tests.support.kube.faults import answer, hang, refuse

METRICS = NODE_METRICS.collection()
POLICY = (
    'nodemetrics.slo.koordinator.sh "n2" is forbidden: ValidatingAdmissionPolicy '
    "'koordlet-own-node' with binding 'koordlet-own-node' denied request: koordlet on node n1 may "
    "write nodemetrics of this node only, not n2"
)
WEBHOOK = 'admission webhook "guard.example" denied the request: not yours'
RBAC = (
    'nodemetrics.slo.koordinator.sh "n2" is forbidden: User "it" cannot patch resource '
    '"nodemetrics/status" in API group "slo.koordinator.sh" at the cluster scope'
)


@pytest.fixture(autouse=True)
def nodes(server: ApiServer) -> None:
    """A cluster of three nodes; by default it allows all writes."""
    for name in ("n1", "n2", "n3"):
        item = {"metadata": {"name": name}, "status": {"of": name}}
        server.objects.create(METRICS, item)


async def test_a_policy_that_is_not_there_is_found_out_without_a_trace(
    server: ApiServer, client: ApiClient
) -> None:
    """A dry run of an empty patch to another node's status; the objects are as before."""
    before = server.objects.all(METRICS)

    check = await check_own_node(client, "n1", SystemClock())

    assert check.holds is False
    assert "NodeMetric of n2 was allowed" in check.detail
    [asked] = server.asked("patch")
    assert asked.path == f"{METRICS}/n2/status"
    assert asked.query == {"dryRun": "All"}
    assert asked.json == {}
    assert server.objects.all(METRICS) == before


@pytest.mark.parametrize("message", [POLICY, WEBHOOK])
async def test_a_refusal_by_admission_is_what_is_wanted(
    server: ApiServer, client: ApiClient, message: str
) -> None:
    """By our policy, or by another guard of the cluster."""
    server.script(refuse(403, "Forbidden", message), method="PATCH")

    check = await check_own_node(client, "n1", SystemClock())

    assert (check.holds, check.detail) == (True, f"refused as wanted: {message}")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (refuse(403, "Forbidden", RBAC), "cannot patch resource"),
        (refuse(404, "NotFound", "it is gone"), "it is gone"),
        (refuse(500, "InternalError", "a bug"), "a bug"),
        (answer(b"<html>", 200), "JSON object"),
    ],
)
async def test_other_answers_prove_nothing(
    server: ApiServer, client: ApiClient, fault: Handler, why: str
) -> None:
    """RBAC's refusal comes before admission is asked: it does not show that the policy is there."""
    server.script(fault, method="PATCH")

    check = await check_own_node(client, "n1", SystemClock())

    assert check.holds is None
    assert why in check.detail


async def test_a_cluster_of_one_node_has_nothing_to_try_it_on(
    server: ApiServer, client: ApiClient
) -> None:
    """Nothing is written then."""
    for name in ("n2", "n3"):
        server.objects.delete(METRICS, name)

    check = await check_own_node(client, "n1", SystemClock())

    assert (check.holds, server.asked("patch")) == (None, [])
    assert "no NodeMetric of another node" in check.detail


async def test_a_server_that_hangs_is_not_waited_for(server: ApiServer, client: ApiClient) -> None:
    """The rest of what the doctor shows is due."""
    server.script(hang, method="PATCH")
    clock = SimulatedClock()

    asked = asyncio.create_task(check_own_node(client, "n1", clock))
    async with asyncio.timeout(30):
        while not server.asked("patch"):  # noqa: ASYNC110 - the server has no event to await
            await asyncio.sleep(0.005)
    await clock.advance(6)
    check = await asked

    assert check.holds is None
    assert "within 5 s" in check.detail
