"""The blocks of annotation and NodeSLO, checked, and the kernel values from them. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from koord.api.annotations import json_annotation, place
from koord.api.gojson import shape_of, wire
from koord.api.pod import Pod
from koord.api.qosstrategy import Block, BlockType, IOConfig
from koord.plugin import InvalidObject
from koordlet.plugin import resources
from koordlet.plugin.kernel import Resource

Devices = Mapping[str, IOConfig]  # settings by device, "<major>:<minor>"

V1_THROTTLES: tuple[tuple[Resource[dict[str, int]], str], ...] = (
    (resources.BLKIO_READ_IOPS, "read_iops"),
    (resources.BLKIO_READ_BPS, "read_bps"),
    (resources.BLKIO_WRITE_IOPS, "write_iops"),
    (resources.BLKIO_WRITE_BPS, "write_bps"),
)
V2_THROTTLES = {
    "rbps": "read_bps",
    "wbps": "write_bps",
    "riops": "read_iops",
    "wiops": "write_iops",
}
WEIGHTS = (  # the first that the kernel has
    resources.BLKIO_COST_WEIGHT,
    resources.IO_DEVICE_WEIGHT,
    resources.BFQ_DEVICE_WEIGHT,
)
LATENCY, PERCENT = 3000, 95  # defaults of iocost's targets: us, percent
_MODEL = {
    "rbps": "model_read_bps",
    "rseqiops": "model_read_seq_iops",
    "rrandiops": "model_read_rand_iops",
    "wbps": "model_write_bps",
    "wseqiops": "model_write_seq_iops",
    "wrandiops": "model_write_rand_iops",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A value for one file of a cgroup, and its reason."""

    resource: Resource[Any]
    value: Mapping[str, Any]  # by device
    reason: str


def throttles(devices: Devices, version: int) -> Iterator[Limit]:
    """Return the limits in bytes and operations per second; 0 is none, as if it were not set."""
    if version == 2:
        named = _by_device(
            devices,
            lambda io: {
                name: most for name, key in V2_THROTTLES.items() if (most := getattr(io, key))
            },
        )
        if named:
            yield Limit(resources.IO_MAX, named, "limits by device as they are set")
        return
    for resource, key in V1_THROTTLES:
        numbers = {device: most for device, io in devices.items() if (most := getattr(io, key))}
        if numbers:
            yield Limit(resource, numbers, "limits by device as they are set")


def weights(devices: Devices, resource: Resource[dict[str, int]]) -> Iterator[Limit]:
    """Return the weights; 100 is that of a group without one."""
    numbers = _by_device(devices, lambda io: io.io_weight_percent or 0)
    if numbers:
        yield Limit(resource, numbers, "ioWeightPercent by device as it is set")


def latencies(devices: Devices) -> Iterator[Limit]:
    """Return the latency targets of io.latency, which knows one for reads and writes together."""

    def target(io: IOConfig) -> dict[str, int]:
        least = min((one for one in (io.read_latency, io.write_latency) if one), default=0)
        return {"target": least} if least else {}

    targets = _by_device(devices, target)
    if targets:
        yield Limit(resources.IO_LATENCY, targets, "the lower of readLatency and writeLatency")


def costs(devices: Devices) -> Iterator[Limit]:
    """Return the settings of iocost in the root cgroup: its targets, and the cost model."""
    if devices:
        targets = {device: _targets(io) for device, io in devices.items()}
        yield Limit(resources.BLKIO_COST_QOS, targets, "latency targets of iocost as they are set")
    models = _by_device(devices, _model)
    if models:
        yield Limit(resources.BLKIO_COST_MODEL, models, "cost model of the device as it is set")


def has_half_a_model(io: IOConfig) -> bool:
    """Whether a cost model is wanted, and some of its numbers are missing."""
    return bool(io.enable_user_model) and not _model(io)


def tighter(one: Devices, other: Devices) -> dict[str, IOConfig]:
    """Return the lower of the throttles of two groups that both hold, and nothing else."""
    keys = [key for _, key in V1_THROTTLES]
    return {
        device: IOConfig(
            **{
                key: min(found)
                for key in keys
                if (
                    found := [
                        most
                        for io in (one.get(device), other.get(device))
                        if io and (most := getattr(io, key))
                    ]
                )
            }
        )
        for device in one.keys() | other.keys()
    }


def _targets(io: IOConfig) -> dict[str, str]:
    def number(value: int | None, default: int) -> int:
        return default if value is None else value

    return {
        "enable": "1",
        "ctrl": "user",
        "rpct": f"{number(io.read_latency_percent, PERCENT)}.00",
        "rlat": str(number(io.read_latency, LATENCY)),
        "wpct": f"{number(io.write_latency_percent, PERCENT)}.00",
        "wlat": str(number(io.write_latency, LATENCY)),
    }


def _model(io: IOConfig) -> dict[str, str]:
    """A model needs all of its six numbers; without one of them the kernel keeps its own."""
    numbers = {name: getattr(io, key) for name, key in _MODEL.items()}
    if not io.enable_user_model or not all(numbers.values()):
        return {}
    return {"ctrl": "user"} | {name: str(number) for name, number in numbers.items()}


def _by_device(devices: Devices, of: Callable[[IOConfig], Any]) -> dict[str, Any]:
    return {device: value for device, io in sorted(devices.items()) if (value := of(io))}


ANNOTATION = "koordinator.sh/blkioQOS"
MAX_BLOCKS = 64
MAX_NAME = 253  # characters
_UINT32_MAX = 2**32 - 2  # the kernel keeps 32 bits of operations per second
_MAX_VALUES = {"read_iops": _UINT32_MAX, "write_iops": _UINT32_MAX}
_MAX_LATENCY = 60_000_000  # us
_KEYS = {"read_iops": "readIOPS", "write_iops": "writeIOPS"}
_LATENCIES = {"read_latency": "readLatency", "write_latency": "writeLatency"}


@dataclass(frozen=True, slots=True)
class _Annotation:
    blocks: tuple[Block, ...] = wire("blocks", ())


_SHAPE = shape_of(_Annotation)


def blocks_of_pod(pod: Pod) -> tuple[Block, ...]:
    """Return the blocks of a pod's annotation; none without it, and where it is empty.

    Raises:
        InvalidObject: it is malformed, or a value in it cannot be used.
    """
    if not pod.annotations.get(ANNOTATION):
        return ()
    found = _SHAPE.load(json_annotation(pod, ANNOTATION, _SHAPE))
    return checked(found.blocks, f"{place(pod, ANNOTATION)}.blocks")


def checked(blocks: tuple[Block, ...], where: str) -> tuple[Block, ...]:
    """Return blocks of which each type and name is there once: later fields come first.

    Raises:
        InvalidObject: there are too many, or one of them cannot be used.
    """
    if len(blocks) > MAX_BLOCKS:
        raise InvalidObject(where, wanted=f"{MAX_BLOCKS} blocks at most", found=len(blocks))
    merged: dict[tuple[BlockType | None, str], Block] = {}
    for index, block in enumerate(blocks):
        _check(block, f"{where}[{index}]")
        key = (block.type, block.name)
        before = merged.get(key)
        merged[key] = block if before is None else replace(block, io=_over(before.io, block.io))
    return tuple(merged.values())


def _check(block: Block, where: str) -> None:
    if block.type is None:
        known = ", ".join(BlockType)
        raise InvalidObject(f"{where}.type", wanted=f"one of {known}", found="another, or none")
    name = block.name
    if not 0 < len(name) <= MAX_NAME or not (name.isascii() and name.isprintable()):
        wanted = f"1 to {MAX_NAME} printable characters"
        raise InvalidObject(f"{where}.name", wanted=wanted, found=name)
    for attribute, key in (_KEYS | _LATENCIES).items():
        value = getattr(block.io, attribute)
        most = _MAX_VALUES.get(attribute, _MAX_LATENCY)
        if value is not None and not 0 <= value <= most:
            raise InvalidObject(f"{where}.ioCfg.{key}", wanted=f"0 to {most}", found=value)


def _over(before: IOConfig, after: IOConfig) -> IOConfig:
    given = {
        field.name: value
        for field in fields(after)
        if (value := getattr(after, field.name)) is not None
    }
    return replace(before, **given)
