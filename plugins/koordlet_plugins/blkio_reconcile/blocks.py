"""The blocks of a pod's annotation and of the NodeSLO, checked. Pure."""

from dataclasses import dataclass, fields, replace

from koord.api.decoding.annotation import json_annotation, place
from koord.api.decoding.wire import shape_of, wire
from koord.api.pods.pod import Pod
from koord.api.slo.resourceqos import Block, BlockType, IOConfig
from koordlet.plugin import InvalidObject

ANNOTATION = "koordinator.sh/blkioQOS"
MOST_BLOCKS = 64
LONGEST_NAME = 253  # characters
_UINT32_MOST = 2**32 - 2  # the kernel keeps 32 bits of operations per second
_MOST = {"read_iops": _UINT32_MOST, "write_iops": _UINT32_MOST}
_LATENCY_MOST = 60_000_000  # us
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
    if len(blocks) > MOST_BLOCKS:
        raise InvalidObject(where, wanted=f"{MOST_BLOCKS} blocks at most", found=len(blocks))
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
    if not 0 < len(name) <= LONGEST_NAME or not (name.isascii() and name.isprintable()):
        wanted = f"1 to {LONGEST_NAME} printable characters"
        raise InvalidObject(f"{where}.name", wanted=wanted, found=name)
    for attribute, key in (_KEYS | _LATENCIES).items():
        value = getattr(block.io, attribute)
        most = _MOST.get(attribute, _LATENCY_MOST)
        if value is not None and not 0 <= value <= most:
            raise InvalidObject(f"{where}.ioCfg.{key}", wanted=f"0 to {most}", found=value)


def _over(before: IOConfig, after: IOConfig) -> IOConfig:
    given = {
        field.name: value
        for field in fields(after)
        if (value := getattr(after, field.name)) is not None
    }
    return replace(before, **given)
