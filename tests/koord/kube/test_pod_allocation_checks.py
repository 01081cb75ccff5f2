"""The check that only schedulers write what a pod was given."""

import pytest

from koord.kube.authorization import check_pod_allocations
from koord.kube.client import PODS, ApiClient
from koord.util.clock import SystemClock
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import refuse

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
POLICY = (
    "pods is forbidden: ValidatingAdmissionPolicy 'koordlet-pod-allocations' with binding "
    f"'koordlet-pod-allocations' denied request: only schedulers may write {ALLOCATED} of a pod"
)
OTHER = 'admission webhook "images.example" denied the request: registry.invalid is not allowed'
RBAC = 'pods is forbidden: User "it" cannot create resource "pods" in API group "" in the namespace'


async def test_a_dry_run_that_is_allowed_is_found_out(server: ApiServer, client: ApiClient) -> None:
    check = await check_pod_allocations(client, "qos", SystemClock())

    assert check.holds is False
    assert f"a pod with {ALLOCATED} was allowed" in check.detail
    [asked] = server.asked("create")
    assert asked.path == PODS.collection("qos")
    assert asked.query == {"dryRun": "All"}
    assert asked.json["metadata"]["annotations"] == {ALLOCATED: "{}"}
    assert asked.json["spec"]["schedulerName"] == "koordlet-doctor"


@pytest.mark.parametrize(
    ("message", "holds", "detail"),
    [
        (POLICY, True, f"refused as wanted: {POLICY}"),
        (OTHER, None, "refused for another reason"),
        (
            RBAC,
            None,
            "this agent may not create pods, as it should, so it cannot try: `kubectl",
        ),
    ],
)
async def test_refusals(
    server: ApiServer, client: ApiClient, message: str, holds: bool | None, detail: str
) -> None:
    """Only one that names the annotation shows that the policy holds."""
    server.script(refuse(403, "Forbidden", message), method="POST")

    check = await check_pod_allocations(client, "qos", SystemClock())

    assert check.holds is holds
    assert check.detail.startswith(detail)


async def test_without_an_answer_it_is_not_known(server: ApiServer, client: ApiClient) -> None:
    server.script(refuse(422, "Invalid", "no"), method="POST")

    assert (await check_pod_allocations(client, "qos", SystemClock())).holds is None
