"""Orders writes so that the kernel accepts each on the way. Pure.

What loosens a limit goes from parents to children, what tightens it from children to parents, as a
child may not have more than its parent (CPU quota and cpuset of v1), and as no child shall have
less than before in between. A cpuset that shifts goes through the union of both. A value by device
takes a step for each device, as each is a write of its own. A quota may not be below the burst
beside it. CPU shares cannot be set while a group is idle, and its end resets them. An object is
made after those above it (in the path of its place), and deleted before them.

Source: kernel, kernel/sched/core.c (tg_set_cfs_bandwidth, sched_group_set_idle) and
kernel/cgroup/cpuset-v1.c (cpuset1_validate_change).
"""

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from koordlet.host.kerneltext import ABSENT
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_BURST, CPU_IDLE, CPU_SHARES, OOM_SCORE_ADJ


class Move(NamedTuple):
    """A value that shall change; None: not known. Numbers of -1 are no limit."""

    resource: Resource[Any]
    place: str  # the cgroup's path
    old: Any
    new: Any


class Step(NamedTuple):
    """One write: the new value of a move, given by its index, or one on the way to it."""

    move: int
    via: Any = None


class _Phase(IntEnum):
    LESS_BURST = 0
    LOOSEN = 1  # parents first
    TIGHTEN = 2  # children first
    MORE_BURST = 3
    SHARES = 4  # behind the end of idleness


def in_order(moves: Iterable[Move]) -> list[Step]:
    """Return the writes for all moves. Most moves take one step; see above."""
    ranked = []
    for index, move in enumerate(moves):
        depth = move.place.count("/")
        for phase, via in _phases(move):
            rank = -depth if phase is _Phase.TIGHTEN else depth
            ranked.append((phase, rank, index, Step(index, via)))
    return [step for *_, step in sorted(ranked, key=lambda entry: entry[:3])]


def _phases(move: Move) -> list[tuple[_Phase, Any]]:
    resource, old, new = move.resource, move.old, move.new
    if resource is CPU_SHARES:
        return [(_Phase.SHARES, None)]
    if resource.is_object:  # what is made may stand on what is above it
        return [(_Phase.TIGHTEN if new == ABSENT else _Phase.LOOSEN, None)]
    if resource in (CPU_IDLE, OOM_SCORE_ADJ) or old is None or new is None:
        return [(_Phase.LOOSEN, None)]
    if resource is CPU_BURST:
        return [(_Phase.MORE_BURST if new > old else _Phase.LESS_BURST, None)]
    if isinstance(new, Mapping):
        return [(_Phase.LOOSEN, via) for via in (*_by_device(old, new), None)]
    if isinstance(new, frozenset):
        return _cpuset_phases(old, new)
    return [(_Phase.LOOSEN if _limit(new) >= _limit(old) else _Phase.TIGHTEN, None)]


def _by_device(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The value after the write for each device that changes, but the last."""
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    now: dict[str, Any] = dict(old)
    found: list[Mapping[str, Any]] = []
    for name in changed[:-1]:
        now.pop(name, None)
        now |= {name: new[name]} if name in new else {}
        found.append(dict(now))
    return found


def _cpuset_phases(old: frozenset[int], new: frozenset[int]) -> list[tuple[_Phase, Any]]:
    """An empty set has the CPUs of the group above: from it is to tighten, to it to loosen."""
    if not new or (old and old <= new):
        return [(_Phase.LOOSEN, None)]
    if not old or new <= old:
        return [(_Phase.TIGHTEN, None)]
    return [(_Phase.LOOSEN, old | new), (_Phase.TIGHTEN, None)]


def _limit(value: int) -> float:
    return math.inf if value == -1 else value
