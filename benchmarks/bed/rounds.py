"""Rounds of a descheduler, found in its log while it runs."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.bed.machine import cpu_seconds, tree
from benchmarks.bed.running import Bed

_TIME = re.compile(r"(?:^[IWE]\d{4} |\d{4}-\d\d-\d\dT)(\d\d):(\d\d):([\d.]+)")  # klog or ISO
_PAUSE = 0.05  # seconds between two looks: how exact the CPU seconds are


@dataclass(slots=True)
class Round:
    """From the line that begins it to the last one of interest before the next round."""

    begun: float  # seconds of the day
    cpu_at_begin: float
    ended: float
    cpu_at_end: float
    lines: list[str] = field(default_factory=list)

    @property
    def wall_seconds(self) -> float:
        return self.ended - self.begun

    @property
    def cpu_seconds(self) -> float:
        return self.cpu_at_end - self.cpu_at_begin


def follow(
    bed: Bed, count: int, *, begin: str, patterns: Sequence[str], limit: float
) -> list[Round]:
    """Return so many whole rounds, or fewer after limit seconds, the last then perhaps cut off.

    begin is in the line that a round begins with, one of patterns in those that are kept. A round
    is whole when the next one has begun.
    """
    found: list[Round] = []
    end, rest = time.time() + limit, ""
    with bed.log.open(errors="replace") as log:
        while time.time() < end and len(found) <= count:
            time.sleep(_PAUSE)
            bed.check()
            text, _, rest = (rest + log.read()).rpartition("\n")
            used = cpu_seconds(tree(bed.program.pid))
            for line in text.split("\n"):
                _take(line, used, found, begin, patterns)
    return found[:count]


def _take(line: str, used: float, found: list[Round], begin: str, patterns: Sequence[str]) -> None:
    moment = _TIME.search(line)
    if moment is None:
        return
    seconds = int(moment[1]) * 3600 + int(moment[2]) * 60 + float(moment[3])
    if begin in line:
        found.append(Round(seconds, used, seconds, used))
    elif found and any(pattern in line for pattern in patterns):
        found[-1].ended, found[-1].cpu_at_end = seconds, used
        found[-1].lines.append(line)
