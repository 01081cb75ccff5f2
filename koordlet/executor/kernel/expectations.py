"""Values that cgroups will have from the start, recorded before these are made.

A container runtime that makes a cgroup with a value of ours writes it for us: the original, which
the runtime was asked for, is in the journal before the runtime may do so. Such a record has no
inode until the cgroup is seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from koord.util.clock import Clock
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.desired import Expected
from koordlet.executor.claims.target import Level, Target
from koordlet.executor.journal.journal import JournalError
from koordlet.executor.journal.ledger import Ledger, copied
from koordlet.executor.journal.records import Record
from koordlet.executor.kernel.kernelvalues import KernelValues
from koordlet.host.errors import KernelFileError
from koordlet.host.kernelfile import definition_of

PATIENCE = 120.0  # seconds from the announcement until a plugin must have claimed the value


@dataclass(slots=True)
class Expectations:
    """The values of one writer that are recorded but not seen so far. For its thread."""

    values: KernelValues
    ledger: Ledger
    clock: Clock
    _until: dict[Key, float] = field(default_factory=dict)  # monotonic

    def __post_init__(self) -> None:
        """Wait again for what an earlier process announced."""
        for key in self.ledger:
            record = self.ledger.get(key)
            if record is not None and is_ahead(key, record):
                self._until[key] = self.clock.monotonic() + PATIENCE

    def add(self, expected: Sequence[Expected]) -> list[str]:
        """Record the originals; return for each why it must not be so, "" where it may.

        The records outlive the process on return. The disk is not waited for, as the runtime waits:
        a reboot that takes the records takes the containers as well.
        """
        new: list[tuple[Key, Record]] = []
        problems = []
        for one in expected:
            try:
                problems.append(self._record(one, new))
            except (KernelFileError, JournalError) as err:
                problems.append(str(err))
        try:
            self.ledger.begin(new, sync=False)
        except JournalError as err:
            fresh = {key for key, _ in new}
            problems = [
                why or (str(err) if one.key in fresh else "")
                for one, why in zip(expected, problems, strict=True)
            ]
        else:
            self._until |= {key: self.clock.monotonic() + PATIENCE for key, _ in new}
        return problems

    def seen(self, key: Key) -> None:
        """It is claimed now, or over."""
        self._until.pop(key, None)

    def waits(self, key: Key) -> bool:
        """Whether a value is still expected to be claimed."""
        return self._until.get(key, 0.0) > self.clock.monotonic()

    def _record(self, one: Expected, new: list[tuple[Key, Record]]) -> str:
        """Raises KernelFileError, JournalError."""
        key, target = one.key, one.key.target
        if target.level is not Level.CONTAINER:
            return f"{key} is not of a container"
        intended, original = self.values.text_of(key, one.value), self._original(one)
        if self.values.refusal(key, original):
            return self.values.refusal(key, original)
        record = self.ledger.get(key)
        if record is not None:
            self.ledger.note(
                key,
                original=original,
                confirmed=record.confirmed,
                intended=intended,
                owners=one.owners,
            )
            return ""
        record = Record(
            resource=key.resource.name,
            level=target.level.value,
            place=target.place,
            start_time=target.start_time,
            inode=0,
            owners=one.owners,
            original=original,
            confirmed=intended,
            intended=intended,
            definition=definition_of(key.resource),
        )
        new.append((key, record))
        return ""

    def _original(self, one: Expected) -> str:
        """The text to restore; what nobody asked for may come from the pod. Raises as read."""
        if one.original or not self.values.is_copied(one.key):
            return self.values.text_of(one.key, one.original)
        place = one.key.target.place.rpartition("/")[0]
        found = self.values.read(Key(Target(Level.POD, place), one.key.resource)).text
        above = self.ledger.above(one.key)
        return above.original if above is not None and found in copied(above) else found


def is_ahead(key: Key, record: Record) -> bool:
    """Whether the record was made before its cgroup."""
    return key.target.level is Level.CONTAINER and record.inode == 0
