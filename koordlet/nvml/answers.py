"""What the helper answers, checked: GPUs, and the use of each."""

from dataclasses import dataclass

from koord.api.decoding.fields import Fields
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject, KoordError
from koord.util.printable import printable
from koordlet.rules.devices import Gpu, reason

MOST_GPUS = 256
MOST_PROCESSES = 4096  # of one GPU
_LONGEST_TEXT = 128
_LARGEST = 2**63


class HelperFailed(KoordError):
    """The helper gave no answer that can be used; it is started anew."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """What one process uses of one GPU."""

    pid: int
    core: float  # percent of the GPU
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """One GPU of an answer. bus: its PCI address as NVML writes it."""

    gpu: Gpu
    bus: str
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """All GPUs, and the version of their driver."""

    driver: str
    gpus: tuple[FoundGpu, ...]


def parse_answer(line: bytes) -> GpuAnswer:
    """Return what a line of the helper says.

    Raises:
        HelperFailed: it says what went wrong, or nothing that can be used.
    """
    try:
        answer = Fields(decode_line(line, "helper"), "helper")
        if error := answer.text("error"):
            raise HelperFailed(printable(error[:500]))
        gpus = tuple(map(_gpu, answer.objects("gpus")))
        driver = _word(answer, "driver")
    except InvalidObject as err:
        raise HelperFailed(str(err)) from err
    if len(gpus) > MOST_GPUS or len({found.gpu.uuid for found in gpus}) < len(gpus):
        raise HelperFailed(f"wanted at most {MOST_GPUS} different GPUs, found {len(gpus)}")
    return GpuAnswer(driver, gpus)


def _gpu(fields: Fields) -> FoundGpu:
    error = fields.text("error")
    gpu = Gpu(
        uuid=_word(fields, "uuid"),
        minor=_number(fields.raw.get("minor"), fields.path("minor"), 2**31),
        model=_word(fields, "model"),
        memory=_number(fields.raw.get("memory"), fields.path("memory")),
        error=reason(error) if error else "",
    )
    processes = fields.list_of("processes", _process, "a pid, a percentage and bytes")
    return FoundGpu(gpu, _word(fields, "bus"), tuple(processes[:MOST_PROCESSES]))


def _process(value: object) -> GpuProcess:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(value)
    pid, core, memory = value
    if isinstance(core, bool) or not isinstance(core, int | float) or not 0 <= core <= 100:
        raise ValueError(value)
    return GpuProcess(_number(pid, "pid", 2**31), float(core), _number(memory, "memory"))


def _number(value: object, where: str, end: int = _LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < end:
        raise InvalidObject(where, wanted=f"a number from 0 to {end - 1}", found=value)
    return value


def _word(fields: Fields, key: str) -> str:
    text = fields.required_text(key)
    if len(text) > _LONGEST_TEXT or not text.isascii() or printable(text) != text:
        raise InvalidObject(fields.path(key), wanted="a short plain text", found=printable(text))
    return text
