"""Debug output of cycles: score tables, rejected nodes, and diagnoses as JSON."""

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.clock import Clock
from koord.util.logs import LimitedLog, get_logger
from koord.util.stop import Stop
from koord_scheduler.framework.nodes.scoring import ScoreTable
from koord_scheduler.framework.nodes.search import SearchResult
from koord_scheduler.framework.status import FEASIBLE, Code, NodeStatuses, PostFilterResult
from koord_scheduler.scheduling.attempt import Attempt

MAX_NODES = 10  # that a line names

log = get_logger("koord_scheduler.debug")


class Debugging:
    """The debug logs that are on; they can be changed at any time."""

    def __init__(
        self,
        *,
        scores: int = 0,
        filters: bool = False,
        diagnosis: bool = False,
        diagnosis_blocking: bool = False,
    ) -> None:
        self.scores = scores  # so many nodes with the highest totals; 0: none
        self.filters = filters
        self.diagnosis = diagnosis  # of pods that found no node
        self.diagnosis_blocking = diagnosis_blocking  # before the next cycle, and none dropped

    def scored(self, pod: ClusterPod, nodes: View, table: ScoreTable) -> None:
        """Log the highest totals of a cycle, with the part of each plugin."""
        if self.scores:
            text = "\n".join(score_lines(pod, nodes, table, self.scores))
            log.info("scores.table", pod=pod.key, table=text)

    def filtered(self, pod: ClusterPod, nodes: View, statuses: NodeStatuses | None) -> None:
        """Log what plugins have rejected, a line for each reason."""
        if not self.filters or statuses is None:
            return
        for number, status in enumerate(statuses.statuses, FEASIBLE + 1):
            rows = np.flatnonzero(statuses.numbers == number)
            if len(rows):
                named = [nodes.node(int(row)).name for row in rows[:MAX_NODES]]
                log.info(
                    "nodes.rejected",
                    pod=pod.key,
                    plugin=status.plugin,
                    reason=status.message,
                    nodes=len(rows),
                    first=named,
                )


def score_lines(pod: ClusterPod, nodes: View, table: ScoreTable, most: int) -> Iterator[str]:
    """The lines of a Markdown table of the nodes with the highest totals, the best first.

    The scores of plugins are normalized, times their weights.
    """
    columns = table.columns
    yield f"| {' | '.join(['#', 'Pod', 'Node', 'Score', *columns])} |"
    yield f"| {' | '.join(['---'] * (4 + len(columns)))} |"
    best = np.argsort(-table.totals, kind="stable")[:most]
    for place, at in enumerate(best.tolist()):
        node = nodes.node(int(table.rows[at])).name
        scores = [str(int(column[at])) for column in columns.values()]
        cells = [str(place), pod.key, node, str(int(table.totals[at])), *scores]
        yield f"| {' | '.join(cells)} |"


Json = dict[str, Any]

QUEUE = 1000  # diagnoses that wait to be written


class DiagnosisDump:
    """Dumps a diagnosis of each cycle that ends in PostFilter, while debugging says so."""

    def __init__(self, debugging: Debugging, clock: Clock, *, most: int = QUEUE) -> None:
        """most: diagnoses that wait; further ones are dropped."""
        self._debugging = debugging
        self._clock = clock
        self._most = most
        self._waiting: deque[Json] = deque()
        self._came = asyncio.Event()
        self._drops = LimitedLog(log, clock)

    def note(self, attempt: Attempt, found: SearchResult, result: PostFilterResult | None) -> None:
        """Dump the diagnosis of an attempt. result: of PostFilter; None: it was not called."""
        if not self._debugging.diagnosis:
            return
        diagnosis = diagnosis_report(attempt, found, result, self._clock.wall())
        if self._debugging.diagnosis_blocking:
            _dump(diagnosis)
        elif len(self._waiting) < self._most:
            self._waiting.append(diagnosis)
            self._came.set()
        else:
            self._drops.warning("diagnosis.dropped", pod=attempt.pod.key, waiting=self._most)

    async def run(self, stop: Stop) -> None:
        """Write those that wait, one at a time with other work in between, until stop."""
        await stop.bound(self._write())

    async def _write(self) -> None:
        while True:
            while self._waiting:
                _dump(self._waiting.popleft())
                await asyncio.sleep(0)
            self._came.clear()
            await self._came.wait()


def diagnosis_report(
    attempt: Attempt, found: SearchResult, result: PostFilterResult | None, now: float
) -> Json:
    """Return a diagnosis as JSON values. now: Unix seconds."""
    nominated = None if result is None else result.nominated_node
    preemption = None
    if result is not None:
        preemption = {
            "status": result.status.code.title,
            "message": result.status.message,
            "nominatedNode": nominated or "",
        }
    return {
        "timestamp": datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "questionedKey": attempt.pod.key,
        "nominatedNode": attempt.pod.nominated_node,
        "preFilterMessage": found.diagnosis.pre_filter_message,
        "isRootCausePod": True,
        "scheduleDiagnosis": {
            "alreadyWaitForBound": 0,
            "nodeFailedDetails": _failed_nodes(found),
        },
        "preemptionDiagnosis": {"dryRunFilterDiagnosis": None, "otherDiagnosis": preemption},
    }


def _failed_nodes(found: SearchResult) -> list[Json]:
    """The nodes that were rejected, together by plugin and reason, most nodes first."""
    statuses, nodes = found.diagnosis.node_statuses, found.cycle.nodes
    if statuses is None:
        return []
    details = []
    for number in np.unique(statuses.numbers).tolist():
        status = statuses.of_number(number)
        if number == FEASIBLE or status is None:
            continue
        rows = np.flatnonzero(statuses.numbers == number).tolist()
        details.append(
            {
                "failedNodes": sorted(nodes.node(row).name for row in rows),
                "reason": status.message,
                "failedPlugin": status.plugin,
                "preemptMightHelp": status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            }
        )
    return sorted(details, key=lambda one: (-len(one["failedNodes"]), one["reason"]))


def _dump(diagnosis: Json) -> None:
    log.info("diagnosis.dumped", pod=diagnosis["questionedKey"], diagnosis=json.dumps(diagnosis))
