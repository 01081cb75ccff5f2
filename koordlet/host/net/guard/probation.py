"""When a change of an interface is kept, and when it is rolled back. Pure.

A change is on probation if the control plane could be reached before it: the first time that it is
reached again confirms it, and LIMIT seconds without roll it back: to what the kernel has by itself,
which the journal has as the original, so that a rollback is never taken for another agent's tree.

Pods come and go every few seconds. What a change has of them only is not judged anew: it would put
a rollback that is due off, and be taken for the cause when the control plane itself is away.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from koordlet.host.kerneltext import ABSENT

LIMIT = 10.0  # seconds
_MATCHES = ("from ", "to ", "socket ")
_CLASS = re.compile(r"class (\d+) below (\d+) ", re.ASCII)


class Verdict(Enum):
    """What to do about a change."""

    WAIT = "wait"
    CONFIRM = "confirm"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Probation:
    """A change that is not confirmed. identity: the interface's number."""

    identity: int
    wanted: str
    until: float  # monotonic seconds

    def verdict(self, *, reachable: bool, now: float) -> Verdict:
        """Return what follows from a look at the control plane."""
        if reachable:
            return Verdict.CONFIRM
        return Verdict.ROLL_BACK if now >= self.until else Verdict.WAIT


@dataclass(frozen=True, slots=True)
class Note:
    """A change that was rolled back, and is refused from then on."""

    wanted: str
    at: str  # UTC, ISO 8601
    why: str


@dataclass(frozen=True, slots=True)
class GuardState:
    """All that outlives a helper, by interface."""

    probations: Mapping[str, Probation] = field(default_factory=dict)
    notes: Mapping[str, Note] = field(default_factory=dict)

    def with_probation(self, interface: str, probation: Probation | None) -> "GuardState":
        """Return the state after a change; None: there is nothing to confirm."""
        others = {name: each for name, each in self.probations.items() if name != interface}
        added = {} if probation is None else {interface: probation}
        return GuardState({**others, **added}, self.notes)

    def without_note(self, interface: str) -> "GuardState":
        """Return the state when another change is made than the one that was rolled back."""
        kept = {name: each for name, each in self.notes.items() if name != interface}
        return GuardState(self.probations, kept)

    def rolled_back(self, interface: str, at: str, why: str) -> "GuardState":
        """Return the state after the rollback of a change on probation."""
        wanted = self.probations[interface].wanted
        after = self.with_probation(interface, None)
        return GuardState(after.probations, {**after.notes, interface: Note(wanted, at, why)})

    def refusal(self, interface: str, wanted: str) -> Note | None:
        """Return the note for which a change is refused."""
        note = self.notes.get(interface)
        return note if note and wanted != ABSENT and shape(wanted) == shape(note.wanted) else None


def probation_of(
    running: Probation | None, *, identity: int, wanted: str, judged: bool, now: float
) -> Probation | None:
    """Return the probation of a change that is about to be made; None: it needs none.

    running: that of the change before on this interface, which stands for having been reachable;
    its time goes on when the shape stays. judged: the control plane could be reached, and the
    change is not of pods only. What the kernel has by itself cannot be what cuts a node off.
    """
    if wanted == ABSENT or not (judged or running):
        return None
    until = now + LIMIT
    if running and shape(running.wanted) == shape(wanted):
        until = running.until
    return Probation(identity, wanted, until)


def shape(text: str) -> str:
    """Return what of a tree does not change with each pod, but by the spec.

    Not its addresses and sockets, nor classes from the third level on, which share what one above
    them has.
    """
    found = []
    upper = {"0"}  # numbers of the root, and of classes right below it
    for part in text.split("; "):
        if match := _CLASS.match(part):
            if match[2] not in upper:
                continue
            if match[2] == "0":
                upper.add(match[1])
        if not part.startswith(_MATCHES):
            found.append(part)
    return "; ".join(found)
