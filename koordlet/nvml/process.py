"""The NVML helper as a process: start, request, checked response, end."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from koord.api.fields import Fields
from koord.util.clock import Clock
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject, KoordError
from koord.util.stop import first_completed
from koord.util.text import printable
from koordlet.rules.devices import Gpu, condition_reason

MAX_GPUS = 256
MAX_PROCESSES = 4096  # of one GPU
_MAX_TEXT_LENGTH = 128
_MAX_NUMBER = 2**63


class HelperError(KoordError):
    """The helper gave no response that can be used; it is started anew."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Usage of one GPU by one process."""

    pid: int
    core: float  # percent of the GPU
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One GPU of a response. bus: its PCI address as NVML writes it."""

    gpu: Gpu
    bus: str
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class GpuResponse:
    """All GPUs, and the version of their driver."""

    driver: str
    gpus: tuple[GpuStatus, ...]


def parse_response(line: bytes) -> GpuResponse:
    """Return what a line of the helper says.

    Raises:
        HelperError: it says what went wrong, or nothing that can be used.
    """
    try:
        response = Fields(decode_line(line, "helper"), "helper")
        if error := response.text("error"):
            raise HelperError(printable(error[:500]))
        gpus = tuple(map(_gpu, response.objects("gpus")))
        driver = _text_field(response, "driver")
    except InvalidObject as err:
        raise HelperError(str(err)) from err
    if len(gpus) > MAX_GPUS or len({found.gpu.uuid for found in gpus}) < len(gpus):
        raise HelperError(f"wanted at most {MAX_GPUS} different GPUs, found {len(gpus)}")
    return GpuResponse(driver, gpus)


def _gpu(fields: Fields) -> GpuStatus:
    error = fields.text("error")
    gpu = Gpu(
        uuid=_text_field(fields, "uuid"),
        minor=_number(fields.raw.get("minor"), fields.path("minor"), 2**31),
        model=_text_field(fields, "model"),
        memory=_number(fields.raw.get("memory"), fields.path("memory")),
        error=condition_reason(error) if error else "",
    )
    processes = fields.list_of("processes", _process, "a pid, a percentage and bytes")
    return GpuStatus(gpu, _text_field(fields, "bus"), tuple(processes[:MAX_PROCESSES]))


def _process(value: object) -> GpuProcess:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(value)
    pid, core, memory = value
    if isinstance(core, bool) or not isinstance(core, int | float) or not 0 <= core <= 100:
        raise ValueError(value)
    return GpuProcess(_number(pid, "pid", 2**31), float(core), _number(memory, "memory"))


def _number(value: object, where: str, end: int = _MAX_NUMBER) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < end:
        raise InvalidObject(where, wanted=f"a number from 0 to {end - 1}", found=value)
    return value


def _text_field(fields: Fields, key: str) -> str:
    text = fields.required_text(key)
    if len(text) > _MAX_TEXT_LENGTH or not text.isascii() or printable(text) != text:
        raise InvalidObject(fields.path(key), wanted="a short plain text", found=printable(text))
    return text


MAX_RESPONSE_BYTES = 4 << 20  # of a response
KILL_TIMEOUT = 2.0  # seconds that a killed process may take to be gone
_SCRIPT = Path(__file__).with_name("helper.py")
_PASSED_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "NVIDIA_VISIBLE_DEVICES")


class HelperProcess:
    """One running helper. Its caller limits how long a response may take."""

    def __init__(self, process: asyncio.subprocess.Process, clock: Clock) -> None:
        self._process = process
        self._clock = clock

    @classmethod
    async def start(cls, environ: Mapping[str, str], clock: Clock) -> "HelperProcess":
        """Start one. environ: the daemon's; of it the helper gets what a library needs.

        Raises:
            HelperError: it cannot be started.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                str(_SCRIPT),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: environ[name] for name in _PASSED_ENVIRONMENT if name in environ},
                limit=MAX_RESPONSE_BYTES,
                start_new_session=True,
            )
        except OSError as err:
            raise HelperError(f"it cannot be started: {err.strerror or err}") from err
        return cls(process, clock)

    async def request(self) -> bytes:
        """Return the next response, a line.

        Raises:
            HelperError: it has ended, or says more than MAX_RESPONSE_BYTES.
        """
        given, responses = self._process.stdin, self._process.stdout
        assert given is not None  # noqa: S101 - for the type checker
        assert responses is not None  # noqa: S101
        try:
            given.write(b"\n")
            await given.drain()
            line = await responses.readline()
        except (OSError, ValueError) as err:
            raise HelperError(f"it cannot be asked: {err}") from err
        if not line.endswith(b"\n"):
            raise HelperError("it has ended")
        return line

    async def end(self) -> bool:
        """Kill it; return whether it is gone. One that waits in the kernel cannot be killed."""
        if self._process.returncode is None:
            self._process.kill()
            gone = asyncio.ensure_future(self._process.wait())
            timer = self._clock.timer(KILL_TIMEOUT)
            try:
                await first_completed(gone, timer)
            finally:
                timer.cancel()
                gone.cancel()
        return self.exited

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None
