"""The status page of koord-descheduler."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from koord.cluster.facts import ReportedUsage
from koord.component.page.sections import SectionPage, health_section
from koord.util.clock import Clock
from koord.util.health import Health
from koord_descheduler.config import Configuration
from koord_descheduler.framework.evictor import (
    Action,
    CycleDecisions,
    Decisions,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.ledger.entries import Entry, Pause
from koord_descheduler.planning import MAX_NAME_LENGTH, Question, explanation

VIEWS = {"descheduler.js": files(__name__).joinpath("descheduler.js")}
MAX_NODES = 10_000  # of a map
MAX_MAPS = 8  # of a cycle: profiles and their plugins
MAX_MOVES = 200  # of a cycle

Json = dict[str, Any]

_USAGE, _LOW, _HIGH = "_usage_percent", "_low_percent", "_high_percent"


@dataclass(frozen=True, slots=True)
class CycleSummary:
    """One cycle as the page has it."""

    summary: Json
    moves: list[Json]
    maps: list[Json]


def summarize_cycle(cycle: CycleDecisions) -> CycleSummary:
    """Find the words of a cycle's decisions, which takes a while with many nodes."""
    nodes, pods = cycle.nodes(), cycle.pods()
    moves = [one for one in pods if one.action is not Action.STAY]
    summary = {
        "t": cycle.began,
        "nodes": Counter(one.verdict for one in nodes),
        "pods": Counter(one.action.value for one in pods),
        "left_out": max(0, len(moves) - MAX_MOVES),
    }
    return CycleSummary(
        summary=summary,
        moves=[_move(cycle.began, one) for one in moves[:MAX_MOVES]],
        maps=_maps(cycle.began, nodes),
    )


def _move(began: float, one: PodDecision) -> Json:
    return {
        "t": began,
        "plugin": f"{one.profile}/{one.plugin}",
        "pod": one.pod,
        "node": one.node,
        "action": one.action.value,
        "to": list(one.candidates[:3]),
        "reason": one.reason,
    }


def _maps(began: float, nodes: Iterable[NodeDecision]) -> list[Json]:
    """A map for each plugin that has judged nodes."""
    by_plugin: dict[str, list[NodeDecision]] = {}
    for one in nodes:
        by_plugin.setdefault(f"{one.profile}/{one.plugin}", []).append(one)
    return [{"t": began, **_map(name, found)} for name, found in list(by_plugin.items())[:MAX_MAPS]]


def _map(name: str, nodes: Sequence[NodeDecision]) -> Json:
    """Columns, in the order of the nodes' names. A figure that is not known is null."""
    shown = sorted(nodes, key=lambda one: one.node)[:MAX_NODES]
    resources = sorted(
        {fact.removesuffix(_USAGE) for one in shown for fact in one.facts if fact.endswith(_USAGE)}
    )
    return {
        "plugin": name,
        "left_out": len(nodes) - len(shown),
        "nodes": [one.node for one in shown],
        "verdicts": [one.verdict for one in shown],
        "resources": {
            each: {
                "usage": [_figure(one.facts, each + _USAGE) for one in shown],
                "low": [_figure(one.facts, each + _LOW) for one in shown],
                "high": [_figure(one.facts, each + _HIGH) for one in shown],
            }
            for each in resources
        },
    }


def _figure(facts: Mapping[str, float], name: str) -> float | None:
    value = facts.get(name)
    return None if value is None else round(value, 1)


MAX_ENTRIES = 200  # of the ledger, the newest ones
_Stage = tuple[int, int]  # sources and outcomes that a cycle had when it was read


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSources:
    """The sources of the page. All are called on the event loop and must be quick."""

    health: Health
    decisions: Decisions
    is_leader: Callable[[], bool]
    configuration: Callable[[], Configuration]
    entries: Callable[[], Sequence[Entry]]  # the oldest first
    pauses: Callable[[], Sequence[Pause]]


class DeschedulerPage(SectionPage):
    """All methods belong to the event loop."""

    title = "koord-descheduler"
    view = "descheduler.js"

    def __init__(self, sources: PageSources, clock: Clock) -> None:
        super().__init__(clock)
        self._sources = sources
        self._rounds: dict[float, tuple[_Stage, CycleSummary]] = {}  # by begin of the cycle

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return the decisions of the last cycles about a node or a pod, as /explain answers."""
        if kind not in ("node", "pod") or not name or len(name) > MAX_NAME_LENGTH:
            return None
        question = Question(node=name) if kind == "node" else Question(pod=name)
        cycles = [one.copy() for one in self._sources.decisions.cycles]
        is_leader = self._sources.is_leader()
        return await asyncio.to_thread(explanation, cycles, question, is_leader=is_leader)

    async def _read(self) -> Json:
        await self._read_cycles()
        return self._read_sections()

    async def _read_cycles(self) -> None:
        """Read at most one cycle that is new or went on: each takes a while with many nodes."""
        cycles = {one.began: one for one in self._sources.decisions.cycles}
        self._rounds = {began: self._rounds[began] for began in self._rounds if began in cycles}
        for began in sorted(cycles, reverse=True):
            stage = _stage(cycles[began])
            known = self._rounds.get(began)
            if known is None or known[0] != stage:
                made = await asyncio.to_thread(summarize_cycle, cycles[began].copy())
                self._rounds[began] = stage, made
                return

    def _read_sections(self) -> Json:
        sources = self._sources
        rounds = [self._rounds[began][1] for began in sorted(self._rounds, reverse=True)]
        entries, pauses = sources.entries(), sources.pauses()
        now = self._clock.wall()
        return {
            "health": health_section(sources.health),
            "state": self._state(),
            "cycles": [one.summary for one in rounds],
            "moves": [move for one in rounds for move in one.moves],
            "maps": next((one.maps for one in rounds if one.maps), []),
            "ledger": {
                "count": len(entries),
                "entries": [_entry(one) for one in reversed(entries[-MAX_ENTRIES:])],
                "pauses": [_pause(one) for one in pauses if one.until > now][:MAX_ENTRIES],
            },
        }

    def _state(self) -> Json:
        """Whether it works, and within which bounds."""
        configuration = self._sources.configuration()
        limits = configuration.limits
        return {
            "leads": self._sources.is_leader(),
            "dry_run": configuration.dry_run,
            "interval": configuration.descheduling_interval,
            "profiles": {each.name: sorted(each.names) for each in configuration.profiles},
            "limits": {
                "per_node": limits.per_node,
                "per_namespace": limits.per_namespace,
                "total": limits.total,
            },
        }


def _stage(cycle: CycleDecisions) -> _Stage:
    return len(cycle.sources), len(cycle.outcomes)


def _entry(one: Entry) -> Json:
    return {
        "t": one.at,
        "uid": one.uid,
        "pod": one.pod,
        "node": one.node,
        "workload": str(one.workload),
        "plugin": one.plugin,
        "reason": one.reason,
        "outcome": one.outcome.value,
        "predicted": _usage(one.predicted),
        "measured": _usage(one.measured),
    }


def _usage(usage: ReportedUsage | None) -> Json | None:
    return None if usage is None else {"cores": usage.cores, "bytes": usage.memory_bytes}


def _pause(one: Pause) -> Json:
    return {"workload": str(one.workload), "strikes": one.strikes, "until": one.until}
