"""What koord-descheduler gives its status page: cycles, the map of nodes, the ledger, health."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koord.cluster.usage import Usage
from koord.component.page.health import health_section
from koord.component.page.sections import SectionPage
from koord.util.clock import Clock
from koord.util.health import Health
from koord_descheduler.config.configuration import Configuration
from koord_descheduler.framework.decisions import CycleDecisions, Decisions
from koord_descheduler.ledger.entries import Entry, Pause
from koord_descheduler.page.rounds import Round, read_round
from koord_descheduler.planning.explain import LONGEST_NAME, Question, explanation

MOST_ENTRIES = 200  # of the ledger, the newest ones

Json = dict[str, Any]
_Stage = tuple[int, int]  # sources and outcomes that a cycle had when it was read


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSources:
    """The sources of the page. All are called on the event loop and must be quick."""

    health: Health
    decisions: Decisions
    leads: Callable[[], bool]
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
        self._rounds: dict[float, tuple[_Stage, Round]] = {}  # by begin of the cycle

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """What the last cycles decided about a node or a pod, as /explain answers."""
        if kind not in ("node", "pod") or not name or len(name) > LONGEST_NAME:
            return None
        question = Question(node=name) if kind == "node" else Question(pod=name)
        cycles = [one.copy() for one in self._sources.decisions.cycles]
        leads = self._sources.leads()
        return await asyncio.to_thread(explanation, cycles, question, leads=leads)

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
                made = await asyncio.to_thread(read_round, cycles[began].copy())
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
                "entries": [_entry(one) for one in reversed(entries[-MOST_ENTRIES:])],
                "pauses": [_pause(one) for one in pauses if one.until > now][:MOST_ENTRIES],
            },
        }

    def _state(self) -> Json:
        """Whether it works, and within which bounds."""
        configuration = self._sources.configuration()
        limits = configuration.limits
        return {
            "leads": self._sources.leads(),
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


def _usage(usage: Usage | None) -> Json | None:
    return None if usage is None else {"cores": usage.cores, "bytes": usage.memory_bytes}


def _pause(one: Pause) -> Json:
    return {"workload": str(one.workload), "strikes": one.strikes, "until": one.until}
