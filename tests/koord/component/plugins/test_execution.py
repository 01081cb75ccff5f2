"""Code of plugins that may await, and need not."""

import asyncio
from typing import Any

import pytest

from koord.component.plugins.execution import PluginCode
from koord.util.simulatedclock import SimulatedClock


class Ended:
    """Counts."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def code() -> PluginCode:
    return PluginCode("p", SimulatedClock(), step_seconds=60.0)


@pytest.mark.parametrize("how", ["plain", "coroutine", "future"])
async def test_a_function_need_not_await(code: PluginCode, how: str) -> None:
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 3

    def future() -> "asyncio.Future[int]":
        return asyncio.ensure_future(coroutine())

    forms: dict[str, Any] = {"plain": lambda: 3, "coroutine": coroutine, "future": future}
    ended, make = Ended(), forms[how]
    assert await code.run(make, 1.0, on_end=ended) == 3
    assert ended.times == 1


async def test_one_that_does_not_costs_no_task(code: PluginCode) -> None:
    def at_once() -> str:
        task = asyncio.current_task()
        return "" if task is None else task.get_name()

    plain: Any = at_once
    own = asyncio.current_task()
    assert own is not None
    assert await code.run(plain, 1.0) == own.get_name()


@pytest.mark.parametrize("awaits", [False, True])
async def test_what_it_raises_is_raised(code: PluginCode, awaits: bool) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    async def fail_later() -> None:
        fail()

    make: Any = fail_later if awaits else fail
    ended = Ended()
    with pytest.raises(RuntimeError, match="no"):
        await code.run(make, 1.0, on_end=ended)
    assert ended.times == 1
