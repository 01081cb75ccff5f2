"""Reviews of tokens and grants, with good and with malformed answers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from koord.kube import errors
from koord.kube.authorization import Reviews, User
from koord.kube.client import ApiClient
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import answer, drop, hang, refuse

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
GRANTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ANNA = {
    "username": "anna",
    "uid": "u1",
    "groups": ["sre", "system:authenticated"],
    "extra": {"example.org/team": ["blue"]},
}


def say(status: Any) -> Any:
    """The answer to a review, as the API server gives it."""
    return answer(json.dumps({"kind": "Review", "status": status}).encode(), 201)


@pytest.fixture
def reviews(client: ApiClient, clock: SimulatedClock) -> Reviews:
    return Reviews(client, clock)


async def test_a_token_and_whose_it_is(reviews: Reviews, server: ApiServer) -> None:
    """All that is known of the user is handed on when their grants are asked for."""
    server.script(say({"authenticated": True, "user": ANNA}), path=TOKENS)
    server.script(say({"allowed": True}), path=GRANTS)

    user = await reviews.user("abc")
    assert user is not None
    assert await reviews.may_get(user, "/nodemetric")

    asked, granted = (request.json for request in server.requests)
    assert (asked["kind"], asked["spec"]) == ("TokenReview", {"token": "abc"})
    assert granted["kind"] == "SubjectAccessReview"
    assert granted["spec"] == {
        "nonResourceAttributes": {"path": "/nodemetric", "verb": "get"},
        "user": "anna",
        "uid": "u1",
        "groups": ["sre", "system:authenticated"],
        "extra": {"example.org/team": ["blue"]},
    }


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {},
        {"error": "[invalid bearer token, token has expired]"},
        {"authenticated": False, "user": {}, "error": "no"},
    ],
)
async def test_a_token_of_no_user(reviews: Reviews, server: ApiServer, status: Any) -> None:
    """Unknown, expired or malformed: the server's word for it differs."""
    server.script(say(status), path=TOKENS)

    assert await reviews.user("abc") is None


@pytest.mark.parametrize(
    ("status", "may"),
    [
        ({"allowed": False, "reason": "no RBAC policy matched"}, False),
        ({"allowed": True, "denied": True}, False),
        ({"allowed": False, "evaluationError": "role not found"}, False),
        ({"allowed": True, "denied": False, "reason": "RBAC"}, True),
    ],
)
async def test_grants(reviews: Reviews, server: ApiServer, status: Any, may: bool) -> None:
    """Only what is allowed, and not denied, may be done."""
    server.script(say(status), path=GRANTS)

    assert await reviews.may_get(User("anna"), "/explain") is may


@pytest.mark.parametrize(
    ("audiences", "known"),
    [(["koordlet"], True), (["vault", "koordlet"], True), (["vault"], False), (None, False)],
)
async def test_audiences(
    client: ApiClient, clock: SimulatedClock, server: ApiServer, audiences: Any, known: bool
) -> None:
    """A token for others does not count; nor does the word of a server that did not look."""
    status = {"authenticated": True, "user": ANNA, "audiences": audiences}
    server.script(say(status), path=TOKENS)

    user = await Reviews(client, clock, ("koordlet", "metrics")).user("abc")

    assert server.requests[0].json["spec"]["audiences"] == ["koordlet", "metrics"]
    assert (user is not None) is known


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (refuse(401, "Unauthorized"), errors.Unauthorized),
        (refuse(403, "Forbidden"), errors.Forbidden),
        (refuse(429, "TooManyRequests", headers={"Retry-After": "1"}), errors.TooManyRequests),
        (refuse(500, "InternalError"), errors.ServerError),
        (answer(b"{half"), errors.BadResponse),
        (answer(b"[]"), errors.BadResponse),
        (answer(b"{}"), errors.BadResponse),
        (say({"authenticated": "yes"}), errors.BadResponse),
        (say({"authenticated": True}), errors.BadResponse),
        (say({"authenticated": True, "user": {"username": 1}}), errors.BadResponse),
        (say({"authenticated": True, "user": ANNA | {"uid": 1}}), errors.BadResponse),
        (say({"authenticated": True, "user": ANNA | {"groups": "sre"}}), errors.BadResponse),
        (say({"authenticated": True, "user": ANNA | {"groups": [1]}}), errors.BadResponse),
        (say({"authenticated": True, "user": ANNA | {"extra": ["a"]}}), errors.BadResponse),
        (say({"authenticated": True, "user": ANNA | {"extra": {"a": "b"}}}), errors.BadResponse),
        (drop, errors.Unreachable),
    ],
)
async def test_no_word_on_a_token(
    reviews: Reviews, server: ApiServer, fault: Any, error: type[Exception]
) -> None:
    """Is an error, never a yes: what is not understood is not believed in part."""
    server.script(fault, fault, path=TOKENS)  # 401 is asked twice

    with pytest.raises(error):
        await reviews.user("abc")


@pytest.mark.parametrize("status", [None, {"allowed": "true"}, {"allowed": True, "denied": 0}])
async def test_no_word_on_a_grant(reviews: Reviews, server: ApiServer, status: Any) -> None:
    """The same for grants."""
    server.script(say(status), path=GRANTS)

    with pytest.raises(errors.BadResponse):
        await reviews.may_get(User("anna"), "/nodemetric")


async def test_silence_ends(reviews: Reviews, server: ApiServer, pass_time: Any) -> None:
    """After ten seconds, for a client waits."""
    server.script(hang, path=TOKENS)
    requesting = asyncio.ensure_future(reviews.user("abc"))
    await pass_time(requesting.done)

    with pytest.raises(errors.TimedOut, match="wanted a review within 10 s"):
        requesting.result()


async def test_our_own_token_may_have_expired(
    make_client: Any, clock: SimulatedClock, server: ApiServer, service_account: Path
) -> None:
    """It is read again, and the review asked for again with the new one."""
    reviews = Reviews(make_client(token_file=service_account / "token"), clock)
    nobody = say({"authenticated": False})

    async def renewed(request: web.Request) -> web.StreamResponse:
        known = request.headers["Authorization"] == "Bearer second"
        return await (nobody if known else refuse(401))(request)

    server.script(nobody, renewed, renewed, path=TOKENS)
    await reviews.user("abc")
    (service_account / "token").write_text("second\n")

    assert await reviews.user("abc") is None
    shown = [request.headers["Authorization"] for request in server.requests]
    assert (shown[0], shown[-1]) == ("Bearer first", "Bearer second")
