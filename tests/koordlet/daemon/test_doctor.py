"""What `koordletctl doctor` asks the API server."""

import asyncio
from pathlib import Path

from koord.kube.authorization import ADMISSION_CHECK_TIMEOUT, AdmissionCheck
from koord.util.simulatedclock import SimulatedClock
from koordlet.daemon.servers import Doctor
from koordlet.host.paths import HostPaths


class SlowCluster:
    """An API server that gives no answer in time."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock

    async def check_own_node(self) -> AdmissionCheck:
        await self._clock.sleep(ADMISSION_CHECK_TIMEOUT)
        return AdmissionCheck(None, "no answer")

    check_pod_allocations = check_own_node


async def test_an_api_server_that_is_slow_is_waited_for_once(tmp_path: Path) -> None:
    """Its checks wait beside each other, as a command waits 10 s for the findings of all."""
    clock = SimulatedClock()
    doctor = Doctor(HostPaths.below(tmp_path), tmp_path, tuple, SlowCluster(clock))
    looking = asyncio.create_task(doctor.look())
    await clock.until(lambda: clock.sleepers == 2)
    await clock.advance(ADMISSION_CHECK_TIMEOUT)
    found = [each for each in await looking if each["area"] == "cluster"]
    assert [each["detail"] for each in found] == ["no answer", "no answer"]
