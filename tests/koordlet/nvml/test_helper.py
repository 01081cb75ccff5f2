"""The helper as a real process with a real library of NVML's functions, built for the test."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from koord.util.clock import SystemClock
from koordlet.nvml.process import GpuProcess, HelperError, HelperProcess, parse_response
from tests.support.node.nvml_stub import GIB, NvmlStub, gpu


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlStub:
    return NvmlStub(tmp_path)


@pytest.fixture
async def start():
    """Starts helpers that are gone after the test."""
    helpers = []

    async def start(environ):
        helper = await HelperProcess.start(environ, SystemClock())
        helpers.append(helper)
        return helper

    yield start
    for helper in helpers:
        assert await helper.end()


async def test_gpus_and_their_processes(nvml: NvmlStub, start) -> None:
    """A process without a sample of utilization counts with its memory."""
    nvml.say(gpu(0), gpu(1, "NVIDIA T4", 16 * GIB), f"process 0 71 40 {GIB}", "process 0 72 0 5")
    helper = await start(nvml.environ)
    answer = parse_response(await helper.request())
    assert answer.driver == "550.90.07"
    assert [(f.gpu.uuid, f.gpu.minor, f.gpu.memory) for f in answer.gpus] == [
        ("GPU-0000", 0, 80 * GIB),
        ("GPU-0001", 1, 16 * GIB),
    ]
    assert answer.gpus[0].bus == "00000000:3B:00.0"
    assert answer.gpus[0].gpu.model == "NVIDIA A100-SXM4-80GB"
    assert set(answer.gpus[0].processes) == {GpuProcess(71, 40.0, GIB), GpuProcess(72, 0.0, 5)}
    assert answer.gpus[1].processes == ()

    nvml.say(gpu(0), gpu(1))
    assert parse_response(await helper.request()).gpus[0].processes == ()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("xid 1 79", "Xid79"),
        ("xid 1 48", "Xid48"),
        ("xid 1 13", ""),
        ("xid 1 31", ""),
        ("xid 1 43", ""),
        ("xid 1 45", ""),
        ("xid 1 68", ""),
        ("xid 1 109", ""),
        ("lost 1", "DeviceLost"),
        ("unchecked 1", "DeviceHealthCheckNotSupported"),
    ],
)
async def test_health(nvml: NvmlStub, start, line: str, error: str) -> None:
    nvml.say(gpu(0), gpu(1), line)
    helper = await start(nvml.environ)
    for _ in range(2):
        found = parse_response(await helper.request()).gpus
        assert [each.gpu.error for each in found] == ["", error]


async def test_a_lost_gpu_is_looked_for_again(nvml: NvmlStub, start) -> None:
    """NVML keeps its list until it is opened anew."""
    nvml.say(gpu(0), gpu(1), "lost 1")
    helper = await start(nvml.environ)
    await helper.request()
    nvml.say(gpu(0), gpu(1), "lost 1")
    for _ in range(29):
        await helper.request()
    nvml.say(gpu(0))
    assert len(parse_response(await helper.request()).gpus) == 1


async def test_without_a_driver_the_reason_is_said(nvml: NvmlStub, start) -> None:
    nvml.say(driver="")
    helper = await start(nvml.environ)
    with pytest.raises(HelperError, match="NVML: Driver Not Loaded"):
        parse_response(await helper.request())
    nvml.say(gpu(0))
    assert len(parse_response(await helper.request()).gpus) == 1


async def test_without_the_library_the_reason_is_said(start) -> None:
    pytest.importorskip("pynvml")
    helper = await start({})
    with pytest.raises(HelperError, match="NVML: NVML Shared Library Not Found"):
        parse_response(await helper.request())


@pytest.mark.parametrize(
    "function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlEventSetWait_v2"]
)
async def test_one_that_hangs_can_be_killed(nvml: NvmlStub, start, function: str) -> None:
    nvml.say(gpu(0), f"hang {function}")
    helper = await start(nvml.environ)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(helper.request(), 1.0)
    assert await helper.end()
    assert helper.exited


async def test_one_that_crashes_has_ended(nvml: NvmlStub, start) -> None:
    nvml.say(gpu(0))
    helper = await start(nvml.environ)
    await helper.request()
    os.kill(helper._process.pid, signal.SIGSEGV)
    await helper._process.wait()
    with pytest.raises(HelperError):
        await helper.request()


async def test_it_ends_with_its_input(nvml: NvmlStub, start) -> None:
    """As when the daemon is gone."""
    nvml.say(gpu(0))
    helper = await start(nvml.environ)
    await helper.request()
    helper._process.stdin.close()
    async with asyncio.timeout(10):
        await helper._process.wait()
    assert helper._process.returncode == 0


async def test_it_gets_only_what_a_library_needs(tmp_path: Path, start) -> None:
    """No secrets of the daemon's environment."""
    helper = await start({"TOKEN": "secret", "PATH": "/usr/bin"})
    await helper.request()  # it runs by then
    process = Path(f"/proc/{helper._process.pid}/environ")
    environ = await asyncio.to_thread(process.read_bytes)
    assert b"secret" not in environ
    assert b"PATH=/usr/bin" in environ
