"""Signals that memory eviction needs before its first victim: usage alone, or pressure as well."""

from dataclasses import dataclass
from enum import StrEnum

from koord.api.eviction import EvictionOutcome
from koordlet.plugin import OptionError
from koordlet_plugins.eviction.plan import EvictionTask
from koordlet_plugins.eviction.settings import EvictionBlocked


class Signals(StrEnum):
    """The signals that must be high."""

    BOTH = "usage,pressure"
    USAGE = "usage"


@dataclass(frozen=True, slots=True)
class PressureRule:
    """The pressure that is enough, in percent of the time; signals: whether it is needed."""

    signals: Signals
    percent: float

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise OptionError("--memory-evict-pressure", self.percent, "use up to 100 percent")


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Share of the last ten seconds in which tasks of the node waited for memory, in percent.

    percent None: not known. supported False: this kernel does not measure it.
    """

    percent: float | None
    supported: bool = True


def parse_signals(text: str) -> Signals:
    """Return the signals that a flag names, in either order.

    Raises:
        OptionError: it names others.
    """
    named = {piece.strip() for piece in text.split(",")}
    for signals in Signals:
        if named == set(signals.split(",")):
            return signals
    raise OptionError("--memory-evict-signals", text, f"use {' or '.join(Signals)}")


def check_pressure(task: EvictionTask, pressure: MemoryPressure, rule: PressureRule) -> None:
    """Let a task pass when there is enough pressure as well.

    Raises:
        EvictionBlocked: the pressure is too low, or not known.
    """
    if rule.signals is Signals.USAGE or not pressure.supported:
        return
    if pressure.percent is None:
        message = "wanted the node's memory pressure, found none of late"
        raise EvictionBlocked(task.feature, EvictionOutcome.NO_DATA, message, reason=task.trigger)
    if pressure.percent < rule.percent:
        message = (
            f"tasks waited for memory {pressure.percent:.1f} % of the last 10 s, wanted "
            f"{rule.percent:g} % (--memory-evict-pressure)"
        )
        raise EvictionBlocked(
            task.feature, EvictionOutcome.NO_PRESSURE, message, reason=task.trigger
        )
