"""--debug-diagnosis: why pods found no node, as JSON."""

import json
from typing import Any

from structlog.testing import capture_logs

from koord_scheduler.scheduling.cycle import Debugging
from tests.support.scheduler.loop import Loop


async def dumped(debugging: Debugging, pods: int = 1, **settings: Any) -> list[Any]:
    loop = await Loop().build(debugging=debugging, **settings)
    loop.api.add_node("a", cpu="1")
    loop.api.add_node("b", cpu="1")
    for number in range(pods):
        loop.api.add_pod(f"web-{number}", cpu="2")
    loop.api.deliver()
    with capture_logs() as logs:
        await loop.start()
        await loop.end()
    return [
        json.loads(one["diagnosis"]) if "diagnosis" in one else one["event"]
        for one in logs
        if one["event"].startswith("diagnosis.")
    ]


async def test_a_pod_without_a_node_is_diagnosed() -> None:
    [found] = await dumped(Debugging(diagnosis=True))
    assert found["questionedKey"] == "default/web-0"
    assert found["scheduleDiagnosis"]["nodeFailedDetails"] == [
        {
            "failedNodes": ["a", "b"],
            "reason": "Insufficient cpu",
            "failedPlugin": "FreeCpu",
            "preemptMightHelp": True,
        }
    ]
    assert found["preemptionDiagnosis"]["otherDiagnosis"] is None


async def test_what_does_not_fit_the_queue_is_dropped_and_said() -> None:
    found = await dumped(Debugging(diagnosis=True), pods=4, diagnoses=0)
    assert found[0] == "diagnosis.dropped"
    assert "diagnosis.dumped" not in found


async def test_in_blocking_mode_none_is_dropped() -> None:
    debugging = Debugging(diagnosis=True, diagnosis_blocking=True)
    found = await dumped(debugging, pods=4, diagnoses=0)
    assert sorted(one["questionedKey"] for one in found) == [f"default/web-{n}" for n in range(4)]


async def test_nothing_is_dumped_unless_it_was_asked_for() -> None:
    assert await dumped(Debugging()) == []
