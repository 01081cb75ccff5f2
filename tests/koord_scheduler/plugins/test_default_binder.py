"""Binding by the API server."""

import json

import pytest

from koord.controlplane.testing import api_error_response
from koord.kube.errors import Unreachable
from koord.kube.transport import Call
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, Handle
from koord_scheduler_plugins.default_binding import DefaultBinder
from tests.support.scheduler.framework import Kit, make_pod

PATH = "/api/v1/namespaces/team/pods/web/binding"


def binder(kit: Kit) -> DefaultBinder:
    return DefaultBinder(None, Handle(profile="p", services=kit.services, filters=lambda: None))  # type: ignore[arg-type, return-value]


async def test_it_posts_a_binding_of_this_very_pod() -> None:
    kit = Kit()
    kit.server.answer(lambda call: {"kind": "Status"} if call.path == PATH else None)
    assert await binder(kit).bind(CycleState(), make_pod(namespace="team"), "node-1") is None
    (call,) = kit.server.calls
    assert (call.method, call.path) == ("POST", PATH)
    assert json.loads(call.body or b"") == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": "team", "name": "web", "uid": "uid-team-web"},
        "target": {"kind": "Node", "name": "node-1"},
    }


@pytest.mark.parametrize("status", [403, 404, 409, 429, 500])
async def test_what_is_refused_fails_and_is_not_repeated(status: int) -> None:
    """A conflict as any other: it is the cluster's state that says whether the pod is bound."""
    kit = Kit()

    def refuse(call: Call) -> None:
        raise api_error_response(call, status, "Because", "pod web is already assigned to node n")

    kit.server.answer(refuse)
    found = await binder(kit).bind(CycleState(), make_pod(namespace="team"), "node-1")
    assert found is not None
    assert found.code is Code.ERROR
    assert "already assigned to node" in found.message
    assert len(kit.server.calls) == 1


async def test_a_server_that_is_away_fails_the_attempt() -> None:
    kit = Kit()

    def away(call: Call) -> None:
        raise Unreachable("connection refused")

    kit.server.answer(away)
    found = await binder(kit).bind(CycleState(), make_pod(namespace="team"), "node-1")
    assert found is not None
    assert "connection refused" in found.message
