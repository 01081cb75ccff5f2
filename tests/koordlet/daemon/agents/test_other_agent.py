"""This agent acts, or only observes, look by look."""

import asyncio

import pytest
from structlog.testing import capture_logs

from koord.util.health import OK, HealthStatus
from koord.util.stop import Stop
from koordlet.daemon.other_agents import GONE_AFTER, SCAN_INTERVAL, OtherAgent
from koordlet.plugin.testing import SimulatedClock
from tests.support.kube.inline_executor import InlineExecutor


class World:
    """What can be seen, and the agent that looks."""

    def __init__(self, *, force=False):
        self.clock = SimulatedClock()
        self.process, self.pod = "", ""
        self.synced = True
        self.agent = OtherAgent(self.clock, synced=lambda: self.synced, force=force)
        self.agent.add_signs(lambda: self.process)
        self.agent.add_signs(lambda: self.pod)
        self._stop = Stop(self.clock)

    async def __aenter__(self):
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        self._task = asyncio.create_task(self.agent.run(self._stop))
        return self

    async def __aexit__(self, *_):
        self._stop.set()
        await self._task


async def test_alone_on_the_node():
    """It acts from the first look on."""
    async with World() as world:
        assert world.agent.observe_only() != ""
        await world.clock.settle()

        assert (world.agent.observe_only(), await world.agent.wait_observe_only()) == ("", "")
        assert (world.agent.health(), world.agent.observing) == (OK, False)


async def test_nothing_is_done_before_the_pods_are_known():
    """Another agent's may be among them."""
    async with World() as world:
        world.synced = False
        judging = asyncio.ensure_future(world.agent.wait_observe_only())
        await world.clock.advance(100)
        assert "not known yet" in world.agent.observe_only()
        assert not judging.done()

        world.synced, world.pod = True, "pod other runs"
        await world.clock.advance(1)
        assert await judging == world.agent.observe_only() == "pod other runs"


@pytest.mark.parametrize("sign", ["process", "pod"])
async def test_another_agent_comes_and_goes(sign):
    """Ours observes, and acts again when the other has not been seen for a minute."""
    async with World() as world:
        await world.clock.settle()
        with capture_logs() as logs:
            setattr(world, sign, "it is here")
            await world.clock.advance(SCAN_INTERVAL)
            assert (world.agent.observe_only(), world.agent.observing) == ("it is here", True)
            assert world.agent.health().status is HealthStatus.DEGRADED
            assert "--force" in world.agent.health().reason

            setattr(world, sign, "")
            await world.clock.advance(GONE_AFTER - 1)
            assert world.agent.observe_only() == "it is here"
            await world.clock.advance(SCAN_INTERVAL)
            assert (world.agent.observe_only(), world.agent.observing) == ("", False)
            assert world.agent.health() == OK

    assert [log["event"] for log in logs] == ["other_agent.detected", "other_agent.gone"]


async def test_an_agent_that_crashes_and_is_started_again():
    """Is there all the time: its place is not free for half a minute."""
    async with World() as world:
        with capture_logs() as logs:
            for number in range(5):
                world.process = f"process {number}"
                await world.clock.advance(SCAN_INTERVAL)
                assert world.agent.observe_only() == f"process {number}"
                world.process = ""
                await world.clock.advance(2 * SCAN_INTERVAL)
                assert world.agent.observe_only() == f"process {number}"

    assert [log["event"] for log in logs] == ["other_agent.detected"]


async def test_force():
    """It acts at once, and says which agent it found."""
    async with World(force=True) as world:
        assert (world.agent.observe_only(), await world.agent.wait_observe_only()) == ("", "")
        world.process = "it is here"
        await world.clock.advance(SCAN_INTERVAL)

        assert (world.agent.observe_only(), world.agent.observing) == ("", False)
        assert world.agent.health().status is HealthStatus.OK
        assert "it is here" in world.agent.health().reason
