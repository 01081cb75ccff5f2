"""One patch for all that PreBind plugins have changed."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.controlplane.testing import api_error_response
from koord.kube.errors import Unreachable
from koord.kube.transport import Call
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, Handle, PodChanges, PreBindPlugin, Status, pod_changes
from koord_scheduler_plugins.default_binding import DefaultPreBind
from tests.support.scheduler.framework import Kit, make_pod

PATH = "/api/v1/namespaces/team/pods/web"
CHANGES = PodChanges({"gone": None}, {"node": "a"})


class Annotates(PreBindPlugin):
    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        pod_changes(state).annotations["node"] = node_name


def made(kit: Kit) -> DefaultPreBind:
    handle = Handle(profile="p", services=kit.services, filters=lambda: None)  # type: ignore[arg-type, return-value]
    return DefaultPreBind(None, handle)


def known_pod(kit: Kit, **facts: Any) -> ClusterPod:
    pod = replace(make_pod(namespace="team"), **facts)
    kit.cluster.state.put(POD, pod)
    return pod


async def apply(kit: Kit, pod: ClusterPod) -> Status | None:
    task = asyncio.ensure_future(made(kit).apply_patch(CycleState(), pod, CHANGES))
    for _ in range(10):
        await asyncio.sleep(0)
        await kit.clock.advance(1)
    return await task


async def test_it_is_called_after_the_plugins_that_change_something() -> None:
    """Without changes nothing is sent."""
    kit = Kit()
    kit.server.answer(lambda call: {"metadata": {"name": "web"}})
    pod = known_pod(kit)
    profile = await kit.profile(preBind={"DefaultPreBind": made(kit), "Annotates": Annotates()})
    state, binding = CycleState(), PodBinding(profile)
    assert binding.pre_bind_pre_flight(state, pod, "a").ok
    assert state.skipped_pre_binds == {"DefaultPreBind"}
    assert (await binding.pre_bind(state, pod, "a")).ok
    (call,) = kit.server.calls
    assert (call.method, call.path) == ("PATCH", PATH)
    assert call.content_type == "application/merge-patch+json"
    assert json.loads(call.body or b"") == {
        "metadata": {"uid": pod.uid, "annotations": {"node": "a"}}
    }


@pytest.mark.parametrize("refused", [409, 429, 0])
async def test_it_is_sent_again(refused: int) -> None:
    """After a conflict, too many requests, or without a response: it sets, it does not add."""
    kit = Kit()
    pod = known_pod(kit)

    def answer(call: Call) -> Any:
        if len(kit.server.calls) < 3:
            if not refused:
                raise Unreachable("connection reset")
            raise api_error_response(call, refused, "Because", "not now")
        return {"metadata": {"name": "web"}}

    kit.server.answer(answer)
    assert await apply(kit, pod) is None
    assert len(kit.server.calls) == 3


async def test_it_gives_up() -> None:
    """With the last error."""
    kit = Kit()
    pod = known_pod(kit)

    def refuse(call: Call) -> None:
        raise api_error_response(call, 409, "Conflict", "not now")

    kit.server.answer(refuse)
    found = await apply(kit, pod)
    assert found is not None
    assert (found.code, len(kit.server.calls)) == (Code.ERROR, 5)
    assert "not now" in found.message


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_what_is_refused_for_good_fails_at_once(status: int) -> None:
    """The binding ends."""
    kit = Kit()
    pod = known_pod(kit)

    def refuse(call: Call) -> None:
        raise api_error_response(call, status, "Because", "never")

    kit.server.answer(refuse)
    found = await apply(kit, pod)
    assert found is not None
    assert (found.code, len(kit.server.calls)) == (Code.ERROR, 1)


async def test_a_pod_whose_name_another_one_has_is_not_changed() -> None:
    """The uid keeps it from that, and there is no second attempt."""
    kit = Kit()
    pod = known_pod(kit)
    known_pod(kit, uid="another")

    def refuse(call: Call) -> None:
        raise api_error_response(call, 409, "Conflict", "UID in precondition")

    kit.server.answer(refuse)
    found = await apply(kit, pod)
    assert found is not None
    assert (found.code, len(kit.server.calls)) == (Code.ERROR, 1)


async def test_a_pod_that_is_being_deleted_is_not_bound() -> None:
    """Whether that is known before, or with the response."""
    kit = Kit()
    kit.server.answer(lambda call: {"metadata": {"deletionTimestamp": "2026-07-24T06:52:45Z"}})
    found = await apply(kit, known_pod(kit))
    assert found is not None
    assert found.message == "the pod is being deleted"
    assert len(kit.server.calls) == 1
    found = await apply(kit, known_pod(kit, deleting=True))
    assert found is not None
    assert found.message == "the pod is being deleted"
    assert len(kit.server.calls) == 1


def test_there_is_something_to_do_if_the_pod_was_changed_before() -> None:
    """As in Reserve."""
    kit, state = Kit(), CycleState()
    answer = made(kit).pre_bind_pre_flight(state, make_pod(), "a")
    assert answer is not None
    assert answer.code is Code.SKIP
    pod_changes(state).labels["x"] = "y"
    assert made(kit).pre_bind_pre_flight(state, make_pod(), "a") is None
