"""Bounded decreases: one report alone does not take what a node offers. Pure but for its memory."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from koord_manager.framework.facts import NodeFacts

FUTURE = 60.0  # seconds that the clock of a node may be ahead
MOST_CPU, MOST_MEMORY = 1.5, 1.05  # of the capacity; more in use is not possible, only reported


def doubts(node: NodeFacts) -> tuple[str, ...]:
    """Return what of a node's report cannot be right, or is missing; empty: nothing."""
    report, found = node.report, list[str]()
    if report is None or report.update_time is None:
        return ()
    if report.update_time > node.now + FUTURE:
        found.append(f"its time is {report.update_time - node.now:.0f} s in the future")
    if report.usage is None:
        found.append("the usage of the node is missing")
    if report.system_usage is None:
        found.append("the usage of the system is missing")
    capacity = dict(node.node.capacity)
    parts = [("node", report.usage), ("system", report.system_usage)]
    parts += [(f"pod {one.namespace}/{one.name}", one.usage) for one in report.pods]
    for name, usage in parts:
        if usage is None:
            continue
        if usage.cores * 1000 > capacity.get("cpu", 0) * MOST_CPU:
            found.append(f"{name}: {usage.cores:g} cores in use")
        if usage.memory_bytes > capacity.get("memory", 0) * MOST_MEMORY:
            found.append(f"{name}: {usage.memory_bytes:.0f} bytes in use")
    return tuple(found[:5])


@dataclass(slots=True)
class _Known:
    amount: int
    report: float  # the report by which it was lowered last; 0: by none
    low_since: float | None = None  # the report that was the first to say much less


@dataclass(slots=True)
class History:
    """What a node has offered. basis: what besides reports decides; with another one all is new."""

    basis: Hashable = None
    known: dict[str, _Known] = field(default_factory=dict)

    def begin(self, basis: Hashable) -> None:
        """Start a calculation."""
        if basis != self.basis:
            if self.basis is not None:
                self.known.clear()
            self.basis = basis

    def assume(self, name: str, amount: int) -> None:
        """Begin with what the node has, unless it is known what it has offered."""
        if name not in self.known:
            self.known[name] = _Known(amount, 0.0)

    def forget(self, name: str) -> None:
        """The node offers nothing of it."""
        self.known.pop(name, None)

    def bounded(
        self, name: str, wanted: int, report: float, percent: int, doubtful: tuple[str, ...]
    ) -> tuple[int, str]:
        """Return how much to offer when so much is calculated, and why it is not that; "": it is.

        One report lowers it by so many percent at most, until a second one agrees. A doubtful one
        agrees with nothing, and raises nothing. report is its time.
        """
        known = self.known.get(name)
        if known is None:
            self.known[name] = _Known(wanted, report)
            return wanted, ""
        why = f"doubtful: {'; '.join(doubtful)}" if doubtful else ""
        if wanted >= known.amount:
            if not doubtful:
                self.known[name] = _Known(wanted, report)
                return wanted, ""
            return known.amount, why if wanted > known.amount else ""
        if report == known.report and known.low_since is not None:  # lowered by it already
            return (known.amount, _lowered(percent, why)) if wanted < known.amount else (wanted, "")
        lowest = known.amount - known.amount * percent // 100
        if wanted >= lowest and not doubtful:
            self.known[name] = _Known(wanted, report)
            return wanted, ""
        is_agreed = known.low_since is not None and known.low_since < report
        if is_agreed and not doubtful:
            self.known[name] = _Known(wanted, report)
            return wanted, ""
        since = known.low_since
        if not doubtful and since in (None, _NEVER):
            since = report
        found = max(wanted, lowest)
        # A doubtful report is remembered as having lowered it, but not as one to agree with.
        self.known[name] = _Known(found, report, since if since is not None else _NEVER)
        return found, _lowered(percent, why) if found > wanted else ""


_NEVER = float("inf")


def _lowered(percent: int, why: str) -> str:
    waits = "the report is" if why else "a second report must say the same:"
    return f"lowered by at most {percent}% for one report; {waits} {why}".rstrip(": ")
