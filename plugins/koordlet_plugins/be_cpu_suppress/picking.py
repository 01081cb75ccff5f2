"""Which CPUs best-effort pods get where only their number is given. Pure.

Source: Koordinator, pkg/koordlet/qosmanager/plugins/cpusuppress: calculateBESuppressPolicy.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from koord.api.machine import Cpu


def pick(count: int, cpus: Iterable[Cpu]) -> list[int]:
    """Return so many CPUs, or all when there are fewer: spread over sockets, in whole cores.

    Sockets take turns, the one with the most CPUs first. What is left over of an odd number, or of
    cores that are not whole, comes as single CPUs.
    """
    free = _buckets(cpus)
    pairs, turn = _deal(count, free, together=2)
    singles, _ = _deal(count - len(pairs), [*free[turn:], *free[:turn]], together=1)
    return [*pairs, *singles]


def _buckets(cpus: Iterable[Cpu]) -> list[list[Cpu]]:
    """CPUs by NUMA node and socket, sorted by core; the largest first, then by the first CPU."""
    buckets: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in sorted(cpus, key=lambda cpu: (cpu.core, cpu.cpu)):
        buckets.setdefault((cpu.node, cpu.socket), []).append(cpu)
    return sorted(buckets.values(), key=lambda bucket: (-len(bucket), bucket[0].cpu))


def _deal(count: int, free: Sequence[list[Cpu]], *, together: int) -> tuple[list[int], int]:
    """Take CPUs of one core at a time, `together` of them, from the buckets in turns.

    Ends when that is enough, or after a whole cycle in which no bucket had any. Also returns the
    place of the bucket whose turn is next.
    """
    dealt: list[int] = []
    turn, had = 0, -1  # had: how many were dealt when the cycle began
    while free and count - len(dealt) >= together:
        if turn == 0 and len(dealt) == had:
            break
        had = len(dealt) if turn == 0 else had
        for cpu in _first_of_one_core(free[turn], together):
            free[turn].remove(cpu)
            dealt.append(cpu.cpu)
        turn = (turn + 1) % len(free)
    return dealt, turn


def _first_of_one_core(free: list[Cpu], together: int) -> Sequence[Cpu]:
    if together == 1:
        return free[:1]
    return next((pair for pair in pairwise(free) if pair[0].core == pair[1].core), ())
