"""Detects other writers of the NodeMetric's status, by its managedFields."""

from collections import deque
from collections.abc import Callable, Mapping

from koord.api.decoding.fields import Fields
from koord.kube.answers import Object
from koord.util.clock import Clock
from koord.util.errors import InvalidObject

FIELD_MANAGER = "koordlet-reporter"
"""This agent's name in managedFields. Koordinator's agent has its program's name, koordlet."""

WRITES = 2  # one alone may be a person's, or the last of an agent that has just ended
INTERVALS = 3  # report intervals in which there must be that many


def status_writers(item: Object) -> Mapping[str, str]:
    """Return the other writers of an object's status, with the server's time of the latest write.

    Only a hint, so malformed managedFields count as absent.
    """
    try:
        entries = list(Fields(item, "object").nested("metadata").objects("managedFields"))
        return {
            entry.text("manager"): entry.text("time")
            for entry in entries
            if entry.text("subresource") == "status" and entry.text("manager") != FIELD_MANAGER
        }
    except InvalidObject:
        return {}


class StatusWriters:
    """Records writes of other agents as they happen; writes before the first look do not count.

    Clocks are not compared: a time that differs from the one before is a new write.
    """

    def __init__(self, clock: Clock, interval: Callable[[], float]) -> None:
        """interval is that of reports, in seconds."""
        self._clock = clock
        self._interval = interval
        self._last: Mapping[str, str] | None = None
        self._writes: deque[tuple[float, str]] = deque(maxlen=WRITES)  # when seen, and whose

    def look(self, writers: Mapping[str, str]) -> None:
        """Record the writers of a version; see status_writers."""
        before, self._last = self._last, writers
        if before is None:
            return
        for name in sorted(name for name in writers if writers[name] != before.get(name)):
            self._writes.append((self._clock.monotonic(), name))

    @property
    def present(self) -> str:
        """The present other writer of the status; "" when there is none."""
        since = self._clock.monotonic() - INTERVALS * self._interval()
        recent = [name for seen, name in tuple(self._writes) if seen >= since]  # any thread
        return recent[-1] if len(recent) == WRITES else ""
