"""Who else writes the status of our object, and whether they still do."""

from collections import deque
from collections.abc import Callable, Mapping

from koord.api.fields import Fields
from koord.kube.answers import Object
from koord.util.clock import Clock
from koord.util.errors import InvalidObject

FIELD_MANAGER = "koordlet-reporter"
"""Our own name in managedFields. Koordinator's agent is called koordlet there, by its program."""

WRITES = 2  # one alone may be a person's, or the last of an agent that has just ended
INTERVALS = 3  # report intervals in which there must be that many


def status_writers(item: Object) -> Mapping[str, str]:
    """Return who else has written the status of an object, and when last by the server's clock.

    Only a hint, so what is wrong with managedFields counts as absent.
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
    """Notices others' writes as they happen. What they wrote before we came does not count.

    Clocks are not compared: a write shows by another time than the one before.
    """

    def __init__(self, clock: Clock, interval: Callable[[], float]) -> None:
        """interval is that of reports, in seconds."""
        self._clock = clock
        self._interval = interval
        self._last: Mapping[str, str] | None = None
        self._writes: deque[tuple[float, str]] = deque(maxlen=WRITES)  # when seen, and whose

    def look(self, writers: Mapping[str, str]) -> None:
        """Take note of a version; see status_writers."""
        before, self._last = self._last, writers
        if before is None:
            return
        for name in sorted(name for name in writers if writers[name] != before.get(name)):
            self._writes.append((self._clock.monotonic(), name))

    @property
    def present(self) -> str:
        """Who writes it beside us at present; "" when nobody does."""
        since = self._clock.monotonic() - INTERVALS * self._interval()
        recent = [name for seen, name in tuple(self._writes) if seen >= since]  # any thread
        return recent[-1] if len(recent) == WRITES else ""
