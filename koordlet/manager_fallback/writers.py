"""Detects other writers of an object's spec, by its managedFields."""

from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koordlet.statesinformer.objects.stored import SpecWriter, Stored

FIELD_MANAGER = "koordlet-duties"
# Seconds without a write after which the object has no other writer. A writer without a Lease shows
# only by its writes, so this is long, and longer for one that came back: two agents that overwrite
# each other must stay rare.
FIRST_SILENCE, LONGEST_SILENCE = 3600.0, 86400.0


class OtherWriter:
    """Remembers the other writer of one object's spec, and when its write was seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: frozenset[SpecWriter] = frozenset()
        self._silence = Backoff(FIRST_SILENCE, LONGEST_SILENCE)
        self._name = ""
        self._until = clock.monotonic()  # when its silence is long enough

    def look(self, stored: Stored | None) -> None:
        """Record the writers of a version; None: there is no object."""
        if stored is None:
            return
        others = {writer for writer in stored.writers if writer.name != FIELD_MANAGER}
        new = others - self._known
        self._known = frozenset(others)
        if new:
            self._name = max(new, key=lambda writer: writer.time).name
            self._until = self._clock.monotonic() + self._silence.next()

    @property
    def name(self) -> str:
        """The other writer of the object; empty: there is none."""
        return self._name if self.silent_in > 0 else ""

    @property
    def silent_in(self) -> float:
        """Seconds until there is no other writer, without a write meanwhile; 0: there is none."""
        return max(self._until - self._clock.monotonic(), 0.0)
