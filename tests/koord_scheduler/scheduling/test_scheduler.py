"""The loop from a pending pod to a bound one."""

from tests.support.scheduler.loop import Loop


async def started(**settings: object) -> Loop:
    loop = await Loop().build(**settings)
    await loop.start()
    return loop


async def test_a_pending_pod_is_bound_with_one_request_and_an_event() -> None:
    """Two requests, with the event that the recorder writes."""
    loop = await started()
    loop.api.add_node("a")
    key = loop.api.add_pod("web")
    await loop.settle()
    assert loop.where(key) == "a"
    assert loop.api.requests == 1
    assert loop.events == [("web", "Scheduled", "Successfully assigned default/web to a")]
    assert loop.state.assumed_count == 0
    assert loop.place(key) == ""
    labels = {"result": "scheduled", "profile": "p"}
    assert loop.sample("scheduler_schedule_attempts_total", **labels) == 1
    await loop.end()


async def test_a_pod_without_room_waits_for_an_event() -> None:
    """Its event and condition say why, in kube-scheduler's words; the new node helps."""
    loop = await started()
    loop.api.add_node("a", cpu="1")
    key = loop.api.add_pod("web", cpu="2")
    await loop.settle()
    message = "0/1 nodes are available: 1 Insufficient cpu."
    assert loop.events == [("web", "FailedScheduling", message)]
    assert loop.api.pods[key]["status"]["conditions"][0]["message"] == message
    assert loop.place(key) == "unschedulable"
    assert loop.sample("scheduler_pending_pods", queue="unschedulable") == 1
    loop.api.add_node("b", cpu="2")
    await loop.advance(2)
    assert loop.where(key) == "b"
    await loop.end()
