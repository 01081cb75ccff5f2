"""Settings by device from blocks by name. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from koord.api.pods.pod import Pod
from koord.api.slo.resourceqos import Block, IOConfig
from koordlet.plugin import InvalidObject
from koordlet_plugins.blkio_reconcile.devices import Places
from koordlet_plugins.blkio_reconcile.limits import has_half_a_model


class Resolved(NamedTuple):
    """Settings by device, "<major>:<minor>"; problem: of the first block that is left out."""

    devices: dict[str, IOConfig]
    problem: InvalidObject | None = None


def resolve(blocks: Iterable[Block], places: Places, pod: Pod | None, where: str) -> Resolved:
    """Return the settings of the blocks whose devices are known, each device once."""
    devices: dict[str, IOConfig] = {}
    names: dict[str, str] = {}
    problem: InvalidObject | None = None
    for block in blocks:
        place = f"{where}, block {block.name}"
        try:
            number = places.number_of(block, pod, f"{place}: name")
            _check(block, place, number, names.get(number))
        except InvalidObject as err:
            problem = problem or err
        else:
            devices[number], names[number] = block.io, block.name
    return Resolved(devices, problem)


def _check(block: Block, place: str, number: str, other: str | None) -> None:
    """other: the block that names the same device; None: there is none."""
    if other is not None:
        found = f"{block.name}, which is {number} as {other} is"
        wanted = "a device that no other block names"
        raise InvalidObject(f"{place}: name", wanted=wanted, found=found)
    if has_half_a_model(block.io):
        wanted = "all six model fields, from 1 on, beside enableUserModel"
        raise InvalidObject(f"{place}: ioCfg", wanted=wanted, found="some of them")
