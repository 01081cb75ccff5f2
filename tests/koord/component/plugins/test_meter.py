"""The meter charges a plugin for what its own code does, and for nothing else."""

import asyncio
import time
from contextlib import suppress

import pytest

from koord.component.plugins.execution import Meter, PluginExitError, ResidentMemory, account_tasks


class Guard:
    """Records the steps that were reported to it."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def enter(self, name: str) -> None:
        self.steps.append(f"enter {name}")

    def leave(self) -> None:
        self.steps.append("leave")


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_waiting_is_not_charged():
    """While a coroutine waits, others' work is not on its account."""
    meter = Meter("P")

    async def work() -> str:
        spin(0.01)
        await asyncio.sleep(0.03)
        spin(0.01)
        return "done"

    async def other() -> None:
        spin(0.2)

    other_task = asyncio.create_task(other())
    assert await meter.drive(work()) == "done"
    await other_task
    assert 0.02 <= meter.cpu_seconds < 0.1
    assert meter.steps == 2
    assert 0.01 <= meter.longest_step < 0.1


async def test_without_a_clock_of_cpu_steps_are_guarded_and_counted_all_the_same():
    """Where nothing reads the cost, it is not measured: two system calls a step."""
    guard = Guard()
    meter = Meter("P", guard=guard, cpu=None)

    async def work() -> None:
        spin(0.002)
        await asyncio.sleep(0)

    await meter.drive(work())
    assert guard.steps == ["enter P", "leave"] * 2
    assert (meter.steps, meter.cpu_seconds, meter.longest_step) == (2, 0.0, 0.0)


async def test_the_clock_of_cpu_is_read_at_both_ends_of_a_step():
    """Cost is what it says has gone by between them; the longest step is kept."""
    readings = iter((1.0, 1.5, 4.0, 4.25))
    meter = Meter("P", cpu=lambda: next(readings))
    for _ in range(2):
        with meter.step():
            pass
    assert (meter.cpu_seconds, meter.longest_step) == (0.75, 0.5)


async def test_each_step_is_reported_to_the_guard():
    """The guard knows exactly when the plugin's code runs."""
    guard = Guard()

    async def work() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    await Meter("P", guard=guard).drive(work())
    assert guard.steps == ["enter P", "leave"] * 3


async def test_tasks_of_a_plugin_are_charged_to_it_too():
    """A child task, and its children, are on the account of the plugin that started them."""
    account_tasks(asyncio.get_running_loop())
    meter = Meter("P")

    async def child(depth: int) -> None:
        spin(0.01)
        if depth:
            await asyncio.create_task(child(depth - 1))

    async def work() -> None:
        await asyncio.gather(child(1), asyncio.create_task(child(1)))

    await meter.drive(work())
    assert meter.cpu_seconds >= 0.04
    assert not meter.tasks

    before = meter.cpu_seconds
    await asyncio.create_task(child(0))
    assert meter.cpu_seconds == before


async def test_exceptions_and_cancellation_pass_through():
    """Metering changes nothing about how a coroutine ends."""
    meter = Meter("P")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("bang")

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cleaned up"
        return ""

    with pytest.raises(ValueError, match="bang"):
        await meter.drive(fails())
    task = asyncio.create_task(meter.drive(stubborn()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cleaned up"


async def test_a_plugin_cannot_exit_the_process():
    """sys.exit() in a plugin is an error of the plugin."""
    meter = Meter("P")

    async def exits() -> None:
        raise SystemExit(1)

    with pytest.raises(PluginExitError, match=r"sys\.exit"):
        await meter.drive(exits())
    with pytest.raises(PluginExitError), meter.step():
        raise SystemExit(1)


async def test_a_dropped_task_ends_whatever_it_does():
    """Ignoring cancellation and close does not keep a coroutine alive."""
    meter = Meter("P")

    async def immortal() -> None:
        while True:
            with suppress(BaseException):
                await asyncio.Event().wait()

    task = asyncio.create_task(meter.drive(immortal()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    meter.drop(task)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_memory_growth_is_net_and_never_negative():
    """What a plugin frees is credited, but it cannot save up."""
    used = 100
    meter = Meter("P", memory=lambda: used)

    def step(change: int) -> int:
        nonlocal used
        with meter.step():
            used += change
        return meter.growth

    assert [step(50), step(-20), step(-100), step(10)] == [50, 30, 0, 10]
    used += 1000  # by other code
    assert step(0) == 10
    meter.reset()
    assert meter.growth == 0


def test_resident_memory_is_that_of_this_process():
    """The cheap reading is plausible and grows with what is held."""
    memory = ResidentMemory()
    before = memory()
    hoard = bytearray(b"x" * (32 * 2**20))
    assert memory() - before > 24 * 2**20
    assert len(hoard) > 0
    memory.close()


def test_the_public_api_imports_nothing_heavy():
    """A plugin author's import does not load HTTP, YAML, network or table libraries."""
    import subprocess
    import sys

    code = (
        "import sys, koordlet.plugin; "
        "print(*sorted({m.split('.')[0] for m in sys.modules}"
        " & {'aiohttp','yaml','pyroute2','rich','psutil','numpy','prometheus_client'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
