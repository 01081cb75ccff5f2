"""Why pods found no node, dumped as JSON in Koordinator's shape: --debug-diagnosis.

Source: Koordinator, pkg/scheduler/frameworkext/schedule_diagnosis.go.
"""

import asyncio
import json
from collections import deque
from datetime import UTC, datetime
from typing import Any

import numpy as np

from koord.util.clock import Clock
from koord.util.logs import LimitedLog, get_logger
from koord.util.stop import Stop
from koord_scheduler.framework.debugging import Debugging
from koord_scheduler.framework.diagnosis import FEASIBLE
from koord_scheduler.framework.nodes.search import Found
from koord_scheduler.framework.results import PostFilterResult
from koord_scheduler.framework.status import Code
from koord_scheduler.scheduling.attempt import Attempt

Json = dict[str, Any]

QUEUE = 1000  # diagnoses that wait to be written

log = get_logger("koord_scheduler.debug")


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

    def note(self, attempt: Attempt, found: Found, result: PostFilterResult | None) -> None:
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
    attempt: Attempt, found: Found, result: PostFilterResult | None, now: float
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


def _failed_nodes(found: Found) -> list[Json]:
    """The nodes that were rejected, together by plugin and reason, most nodes first."""
    statuses, nodes = found.diagnosis.node_statuses, found.subject.nodes
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
