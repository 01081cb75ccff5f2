"""A plan in words: for plan, explain and the record."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import Decision, NodeDecision, PodDecision
from koord_descheduler_plugins.low_node_load.limits import Amounts, percent_of
from koord_descheduler_plugins.low_node_load.plan import VERDICTS, PoolPlan, Verdict

Percentages = NDArray[np.float64]

_HIGH = (Verdict.HIGH, Verdict.PROD_HIGH)


def unusable_of(
    unusable: Mapping[str, str], *, profile: str, plugin: str
) -> Iterator[NodeDecision]:
    """The nodes about which nothing is known."""
    for name, reason in unusable.items():
        yield NodeDecision(
            profile=profile, plugin=plugin, node=name, verdict="left alone", reason=reason
        )


class Report:
    """A plan and the figures on which it was made; keeps nothing else of the round.

    It costs little to make: words are found when they are asked for.
    """

    def __init__(self, plan: PoolPlan, *, profile: str, plugin: str) -> None:
        self.profile, self.plugin = profile, plugin
        self.names = plan.census.names
        self.resources = plan.census.resources
        self.capacity = plan.census.capacity
        self.usage, self.prod_usage = plan.usage, plan.prod_usage
        self.limits = plan.limits
        self.classes = plan.classes
        self.outcome = plan.outcome
        self.node_notes = plan.node_notes
        self.pod_notes = plan.pod_notes
        self.hints = not plan.pool.use_deviation_thresholds

    def decisions(self) -> Iterator[Decision]:
        """What the plan makes of each node of its pool, and of the pods of nodes that are high."""
        words = _Words(self)
        for place, name in enumerate(self.names):
            yield NodeDecision(
                profile=self.profile,
                plugin=self.plugin,
                node=name,
                verdict=words.verdict(place).value,
                reason=words.reason(place),
                facts=words.facts(place),
                hint=words.hint(place) if self.hints else "",
            )
        for note in self.pod_notes:
            yield PodDecision(
                profile=self.profile,
                plugin=self.plugin,
                pod=note.pod.key,
                node=note.pod.node,
                action=note.action,
                reason=note.reason,
                candidates=note.candidates,
            )


class _Side(NamedTuple):
    """Thresholds of one kind, in percent of what nodes have: (nodes, resources)."""

    prefix: str
    key: str  # of the high thresholds, in args
    judged: list[int]  # columns
    usage: Percentages
    high: Percentages
    low: Percentages


class _Words:
    """Sentences and figures about the nodes of a report."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._resources = report.resources
        limits = report.limits

        def percents(amounts: Amounts) -> Percentages:
            return np.round(percent_of(amounts, report.capacity), 2)

        self._sides = (
            _Side(
                "",
                "highThresholds",
                np.flatnonzero(limits.judged).tolist(),
                percents(report.usage),
                percents(limits.high),
                percents(limits.low),
            ),
            _Side(
                "prod_",
                "prodHighThresholds",
                np.flatnonzero(limits.prod_judged).tolist(),
                percents(report.prod_usage),
                percents(limits.prod_high),
                percents(limits.prod_low),
            ),
        )

    def verdict(self, place: int) -> Verdict:
        return VERDICTS[int(self._report.classes[place])]

    def reason(self, place: int) -> str:
        figures = ", ".join(
            f"{side.prefix}{self._resources[at]} {side.usage[place, at]:g}% "
            f"(low {side.low[place, at]:g}%, high {side.high[place, at]:g}%)".replace("_", " ")
            for side in self._sides
            for at in side.judged
        )
        note = self._report.node_notes.get(self._report.names[place], "")
        if self.verdict(place) in _HIGH and not note:
            note = self._report.outcome
        return "; ".join(filter(None, (figures, note)))

    def facts(self, place: int) -> dict[str, float]:
        return {
            f"{side.prefix}{self._resources[at]}_{what}_percent": float(table[place, at])
            for side in self._sides
            for at in side.judged
            for what, table in (("usage", side.usage), ("low", side.low), ("high", side.high))
        }

    def hint(self, place: int) -> str:
        """The thresholds by which the node would be something else."""
        verdict = self.verdict(place)
        side = self._sides[verdict is Verdict.PROD_HIGH]
        usage, high, low = side.usage[place], side.high[place], side.low[place]

        def listed(columns: Iterable[int]) -> str:
            return ", ".join(f"{self._resources[at]} {usage[at]:g}" for at in columns)

        if verdict in _HIGH:
            over = [at for at in side.judged if usage[at] > high[at]]
            return f"would not be high with {side.key}: {listed(over)}" if over else ""
        if not side.judged:
            return ""
        nearest = max(side.judged, key=lambda at: usage[at] - high[at])
        hints = [f"would be high with {side.key} below {listed([nearest])}"]
        above = [at for at in side.judged if usage[at] > low[at]]
        if above and verdict in (Verdict.NORMAL, Verdict.PROD_LOW):
            hints.append(f"would be low with lowThresholds: {listed(above)}")
        return "; ".join(hints)
