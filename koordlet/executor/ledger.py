"""The kernel values that are ours: the journal's records by the values that they are about."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from koord.util.errors import InvalidObject
from koord.util.logs import get_logger
from koordlet.executor.claims.claim import Key, Target
from koordlet.executor.journal import Journal, JournalRecord
from koordlet.host.kernelfile import KernelFile, definition_of
from koordlet.host.resource import Level
from koordlet.host.resources import BY_NAME

_NAMED = 5  # refused records that a log line names
_EARLIER = 8  # texts that are remembered of a value that children copy

log = get_logger("koordlet.executor")


class Ledger:
    """At most one record per value. For one thread, the journal's."""

    def __init__(self, journal: Journal, reject_reason: Callable[[Key, str], str]) -> None:
        """reject_reason returns why a value must not be restored to a text; "": it may be."""
        self.journal = journal
        self._entries: dict[_LedgerKey, tuple[Key, int]] = {}  # key, number in the journal
        self.unknown = 0  # records about values that this koordlet does not know
        self.refused: dict[str, str] = {}  # why records that were found are not acted on, by value
        for number, record in journal.records.items():
            try:
                key = _claim_key(record)
            except (KeyError, ValueError):
                self.unknown += 1
                continue
            except InvalidObject as err:  # a definition that no plugin could have declared
                self.refused[f"{record.resource!r:.80} of {record.place!r:.80}"] = str(err)
                continue
            if why := reject_reason(key, record.original):
                self.refused[str(key)] = why
            else:
                self._entries[_ledger_key(key)] = (key, number)
        if self.refused:
            first = dict(list(self.refused.items())[:_NAMED])
            log.error("journal.records_rejected", count=len(self.refused), first=first)

    def __iter__(self) -> Iterator[Key]:
        return iter([key for key, _ in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> JournalRecord | None:
        """The record of a value; None: it is not ours."""
        entry = self._entries.get(_ledger_key(key))
        return None if entry is None else self.journal.records[entry[1]]

    def begin(self, new: Sequence[tuple[Key, JournalRecord]], *, sync: bool = True) -> None:
        """Add records, as Journal.begin does. Raises JournalError: none was added."""
        if new:
            numbers = self.journal.begin([record for _, record in new], sync=sync)
            for (key, _), number in zip(new, numbers, strict=True):
                self._entries[_ledger_key(key)] = (key, number)

    def record(
        self, key: Key, *, original: str, confirmed: str, intended: str, owners: tuple[str, ...]
    ) -> None:
        """Change a record, on disk if the original changed. Raises JournalError."""
        _, number = self._entries[_ledger_key(key)]
        record = self.journal.records[number]
        recorded = (record.original, record.confirmed, record.intended)
        same_owners = owners in (record.owners, ())
        definition = definition_of(key.resource)
        same = same_owners and record.definition == definition
        if recorded == (original, confirmed, intended) and same:
            return
        if same and not key.resource.copied:
            fresh = original != record.original
            self.journal.record(number, original, confirmed, intended, sync=fresh)
            return
        self.journal.revise(
            number,
            replace(
                record,
                owners=owners or record.owners,
                original=original,
                confirmed=confirmed,
                intended=intended,
                earlier=_earlier(key, record),
                definition=definition,
            ),
        )

    def confirm(self, key: Key, text: str) -> None:
        """Note that the intended text is in force now. On disk that comes with the next note."""
        record = self.get(key)
        if record is not None:
            record.earlier = _earlier(key, record)
            record.confirmed = record.intended = text

    def adopt(self, key: Key, inode: int, found: str) -> None:
        """The cgroup of a record that was made before it is there. Raises JournalError."""
        _, number = self._entries[_ledger_key(key)]
        record = self.journal.records[number]
        self.journal.revise(number, replace(record, inode=inode, confirmed=found))

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget values that are restored, or gone, or another agent's."""
        slots = filter(self._entries.__contains__, map(_ledger_key, keys))
        self.journal.drop([self._entries.pop(slot)[1] for slot in list(slots)])

    def above(self, key: Key) -> JournalRecord | None:
        """The record of the same resource at the nearest group above that has one."""
        place = key.target.place
        while "/" in place:
            place = place.rpartition("/")[0]
            if entry := self._entries.get((key.resource.name, place, 0)):
                return self.journal.records[entry[1]]
        return None


def copied_texts(record: JournalRecord) -> frozenset[str]:
    """Return the texts that a group may have copied from that of this record while it was ours."""
    return frozenset((*record.earlier, *record.ours)) - {record.original}


def _earlier(key: Key, record: JournalRecord) -> tuple[str, ...]:
    """Return the texts that a value which children copy has had, the present included."""
    if not key.resource.copied:
        return ()
    return tuple(dict.fromkeys((*record.earlier, *record.ours)))[-_EARLIER:]


_LedgerKey = tuple[str, str, int]


def _ledger_key(key: Key) -> _LedgerKey:
    """The identity of a value, whatever the level it was claimed at."""
    return key.resource.name, key.target.place, key.target.start_time


def _claim_key(record: JournalRecord) -> Key:
    target = Target(Level(record.level), record.place, record.start_time)
    if record.definition:
        return Key(target, KernelFile.from_definition(record.resource, record.definition))
    return Key(target, BY_NAME[record.resource])
