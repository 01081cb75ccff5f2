"""What daemons of the control plane share: the command line, and parts beside the work."""

import asyncio
from pathlib import Path

import pytest

from koord.component.flags import FeatureGates, FlagSet
from koord.controlplane.daemon import run_in_background
from koord.controlplane.settings import ControlPlaneDefaults, ControlPlaneFlags, apply_command_line
from koord.util.errors import OptionError
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop


def take(*argv: str) -> Path | None:
    flags = FlagSet("x", underscores=True)
    defaults = ControlPlaneDefaults(name="x", namespace="n", port=1, secure_port=2)
    options = ControlPlaneFlags(flags, defaults, terminal=False)
    return apply_command_line(argv, flags, options, FeatureGates({}, owner="x"))


def test_the_command_line_names_the_configuration() -> None:
    """Without --config there is none."""
    assert take("--config=a/b.yaml") == Path("a/b.yaml")
    assert take() is None


@pytest.mark.parametrize("argv", [("file",), ("--feature-gates=Nothing=true",)])
def test_an_unusable_command_line_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(OptionError):
        take(*argv)


async def test_parts_run_until_the_block_ends() -> None:
    """They end by themselves, and the block's end waits for them."""
    phases: list[str] = []

    async def part(stop: Stop) -> None:
        phases.append("began")
        await stop.wait()
        phases.append("ended")

    async with run_in_background(SimulatedClock()) as start:
        start(part)
        await asyncio.sleep(0)
        start(part)
        await asyncio.sleep(0)
        assert phases == ["began", "began"]

    assert phases == ["began", "began", "ended", "ended"]


async def test_parts_end_when_the_block_fails_and_the_block_when_a_part_does() -> None:
    ended = asyncio.Event()

    async def waiting(stop: Stop) -> None:
        try:
            await stop.wait()
        finally:
            ended.set()

    async def failing(_: Stop) -> None:
        raise LookupError("part")

    async def failing_block() -> None:
        async with run_in_background(SimulatedClock()) as start:
            start(waiting)
            await asyncio.sleep(0)
            raise LookupError("block")

    async def block_of_a_failing_part() -> None:
        async with run_in_background(SimulatedClock()) as start:
            start(failing)
            await asyncio.Event().wait()

    with pytest.raises(LookupError, match="block"):
        await failing_block()
    assert ended.is_set()

    with pytest.raises(LookupError, match="part"):
        await block_of_a_failing_part()
