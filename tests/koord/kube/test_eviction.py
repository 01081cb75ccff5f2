"""Outcomes of an eviction, for all responses of the API server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.eviction import EvictionOutcome
from koord.api.pod import Pod
from koord.kube.client import PODS, ApiClient
from koord.kube.events import EventRecorder
from koord.kube.eviction import EVICTION_TIMEOUT, PodEvictions
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import answer, begin, drop, hang, refuse

POD = Pod("jobs", "crunch", "uid-crunch")
PATH = "/api/v1/namespaces/jobs/pods/crunch/eviction"
BY_BUDGET = {
    "causes": [
        {"reason": "DisruptionBudget", "message": "The budget crunch needs 2 healthy pods"}
    ]
}  # fmt: skip
Outcome = EvictionOutcome


@pytest.fixture
def evictions(client: ApiClient, clock: SimulatedClock) -> PodEvictions:
    return PodEvictions(client, EventRecorder(client, "n1", clock), clock, "koordlet-qosManager")


def add_pod(server: ApiServer, uid: str = POD.uid) -> None:
    pod = {"metadata": {"namespace": "jobs", "name": "crunch", "uid": uid}}
    server.objects.create(PODS.collection(), pod)


@pytest.mark.parametrize("grace", [None, 0, 30])
async def test_exactly_this_pod_is_evicted(
    server: ApiServer, evictions: PodEvictions, grace: int | None
) -> None:
    """policy/v1, with the UID as precondition; the pod's own grace period unless one is given."""
    add_pod(server)
    found = await evictions.evict(POD, grace)

    assert found.outcome is Outcome.EVICTED
    assert server.objects.all(PODS.collection()) == []
    [request] = server.requests
    assert (request.method, request.path) == ("POST", PATH)
    options: dict[str, Any] = {"preconditions": {"uid": "uid-crunch"}}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    assert request.json == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "jobs", "name": "crunch"},
        "deleteOptions": options,
    }


async def test_delete_options_go_along(server: ApiServer, evictions: PodEvictions) -> None:
    """But the UID is always ours."""
    add_pod(server)
    options = {"propagationPolicy": "Background", "preconditions": {"uid": "another"}}
    await evictions.evict(POD, options=options)

    [request] = server.requests
    assert request.json["deleteOptions"] == {
        "propagationPolicy": "Background",
        "preconditions": {"uid": "uid-crunch"},
    }


async def test_a_new_pod_of_that_name_lives(server: ApiServer, evictions: PodEvictions) -> None:
    """It has another UID: ours has gone."""
    add_pod(server, uid="another")
    found = await evictions.evict(POD, None)

    assert found.outcome is Outcome.GONE
    assert len(server.objects.all(PODS.collection())) == 1


SEVERAL_BUDGETS = answer(
    b'{"kind": "Status", "status": "Failure", "code": 500, "message": "This pod has more than one '
    b'PodDisruptionBudget, which the eviction subresource does not support."}',
    500,
)


@pytest.mark.parametrize(
    ("fault", "outcome", "busy", "certain"),
    [
        (answer(b"{}"), Outcome.FAILED, True, False),
        (answer(b'{"kind": "Status", "status": "Failure"}'), Outcome.FAILED, True, False),
        (answer(b'{"kind": "Page", "status": "Success"}'), Outcome.FAILED, True, False),
        (answer(b'{"kind": "Status", "status": "Success"}', 201), Outcome.EVICTED, False, True),
        (refuse(400, "BadRequest"), Outcome.FAILED, False, True),
        (refuse(403, "Forbidden"), Outcome.NOT_ALLOWED, False, True),
        (refuse(404, "NotFound"), Outcome.GONE, False, True),
        (answer(b"404 page not found", 404), Outcome.FAILED, True, True),
        (refuse(409, "Conflict"), Outcome.FAILED, False, True),
        (refuse(422, "Invalid"), Outcome.FAILED, False, True),
        (refuse(429, "TooManyRequests", details=BY_BUDGET), Outcome.REFUSED, False, True),
        (refuse(429, "TooManyRequests"), Outcome.RATE_LIMITED, True, True),
        (answer(b"slow down", 429), Outcome.RATE_LIMITED, True, True),
        (refuse(500, "InternalError"), Outcome.FAILED, False, True),
        (SEVERAL_BUDGETS, Outcome.REFUSED, False, True),
        (refuse(503, "ServiceUnavailable"), Outcome.FAILED, False, True),
        (refuse(503, "ServiceUnavailable", headers={"Retry-After": "5"}), Outcome.FAILED, True,
         True),
        (answer(b"<html>502 Bad Gateway</html>", 502), Outcome.FAILED, False, False),
        (refuse(504, "Timeout"), Outcome.FAILED, False, False),
        (answer(b'{"kind": "Sta'), Outcome.FAILED, True, False),
        (answer(b"[]", 201), Outcome.FAILED, True, False),
        (answer(b"", 302, {"Location": "/elsewhere"}), Outcome.FAILED, True, False),
        (drop, Outcome.FAILED, True, False),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)  # fmt: skip
async def test_every_answer_has_its_meaning(
    server: ApiServer, evictions: PodEvictions, fault: Any, outcome: Outcome, busy: bool,
    certain: bool,
) -> None:  # fmt: skip
    """Asked once; whether others have to wait, and whether the pod may have been evicted."""
    server.script(fault, fault)
    found = await evictions.evict(POD, None)

    assert (found.outcome, found.busy, found.certain) == (outcome, busy, certain)
    assert len(server.requests) == 1


async def test_what_the_budget_says_is_passed_on(
    server: ApiServer, evictions: PodEvictions
) -> None:
    """With the pause that the server asks for, which is not waited for here."""
    server.script(refuse(429, "TooManyRequests", headers={"Retry-After": "10"}, details=BY_BUDGET))
    found = await evictions.evict(POD, None)

    assert found.retry_after == 10
    assert "The budget crunch needs 2 healthy pods" in found.message


@pytest.mark.parametrize("causes", ["x", [1], [{"reason": 5}], [{}], None])
async def test_spoilt_causes_are_none(
    server: ApiServer, evictions: PodEvictions, causes: Any
) -> None:
    """A 429 stays one."""
    server.script(refuse(429, "TooManyRequests", details={"causes": causes}))

    assert (await evictions.evict(POD, None)).outcome is Outcome.RATE_LIMITED


@pytest.mark.parametrize("fault", [hang, begin(b'{"kind', then_hang=True)], ids=["head", "body"])
async def test_a_server_that_hangs_costs_ten_seconds(
    server: ApiServer, evictions: PodEvictions, clock: SimulatedClock,
    pass_time: Callable[..., Awaitable[None]], fault: Any,
) -> None:  # fmt: skip
    """A round of a plugin has more; whether the pod was evicted is not known."""
    server.script(fault)
    requesting = asyncio.ensure_future(evictions.evict(POD, None))
    await pass_time(lambda: bool(server.requests), step=0)
    begun = clock.monotonic()
    await pass_time(requesting.done)

    found = requesting.result()
    assert clock.monotonic() - begun == pytest.approx(EVICTION_TIMEOUT, abs=1.1)
    assert (found.outcome, found.busy, found.certain) == (Outcome.FAILED, True, False)


async def test_without_a_server(
    server: ApiServer, evictions: PodEvictions, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message may go into an event, so it names no address; the log does."""
    await server.stop()
    found = await evictions.evict(POD, None)

    assert (found.outcome, found.busy) == (Outcome.FAILED, True)
    assert found.message == "no answer of the API server that can be used (Unreachable)"
    assert "eviction.request_failed" in capsys.readouterr().err
