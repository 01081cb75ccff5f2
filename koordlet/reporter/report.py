"""A finished report, and what takes it to where it is wanted."""

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from koord.api.nodemetric import NodeMetricSpec, NodeMetricStatus, node_metric
from koord.util.errors import KoordError


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured, and the NodeMetric object that says so as JSON."""

    spec: NodeMetricSpec
    status: NodeMetricStatus
    body: bytes


def make_report(node: str, spec: NodeMetricSpec, status: NodeMetricStatus) -> Report:
    """Encode the object as Koordinator's own encoder does: compact, fields in its order."""
    text = json.dumps(node_metric(node, spec, status), separators=(",", ":"), ensure_ascii=False)
    return Report(spec, status, (text + "\n").encode("utf-8", "replace"))


class ObserveOnly(KoordError):
    """The report was made, but another agent writes the one that counts."""


class Sink(Protocol):
    """Where reports go."""

    def check(self) -> None:
        """Return when a report would be taken now.

        Raises:
            NotAsked: nobody wants one.
        """

    async def write(self, report: Report) -> None:
        """Take one report there.

        It is what it is: however often it has to be sent, its time stays that of its samples.

        Raises:
            ObserveOnly: it is not wanted from us.
            KoordError: it did not arrive; the message says why. The next report is new.
        """

    def retry_in(self) -> float:
        """Return after how many seconds a new report is worth sending, if the latest failed.

        math.inf: not before the next one is due.
        """


class FileSink:
    """Keeps the latest report in a file, which readers always see whole."""

    def __init__(self, replace: Callable[[bytes], None]) -> None:
        """replace makes these bytes the whole file, in one step; it may block."""
        self._replace = replace

    def check(self) -> None:
        """As Sink.check: always."""

    async def write(self, report: Report) -> None:
        """As Sink.write."""
        await asyncio.to_thread(self._replace, report.body)

    def retry_in(self) -> float:
        """As Sink.retry_in: what is wrong with a file lasts."""
        return math.inf


class AllSinks:
    """Several places: a report goes to each, whether or not the others take it."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def check(self) -> None:
        """As Sink.check, for all."""
        for sink in self._sinks:
            sink.check()

    async def write(self, report: Report) -> None:
        """As Sink.write; raises the first error, ObserveOnly only if there is no other."""
        found = await asyncio.gather(
            *(sink.write(report) for sink in self._sinks), return_exceptions=True
        )
        errors = [error for error in found if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, ObserveOnly)):
            raise error

    def retry_in(self) -> float:
        """As Sink.retry_in, for the one that wants it the soonest."""
        return min((sink.retry_in() for sink in self._sinks), default=math.inf)
