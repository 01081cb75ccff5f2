"""The journal: originals of changed kernel values on disk, and the ledger of values of ours."""

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from typing import Any

from koord.util.errors import InvalidObject, KoordError, UnsafeFile
from koord.util.filewatch import FileReadError
from koord.util.logs import LogState, get_logger
from koord.util.ownedfiles import FileWriteError, OwnedDirectory, OwnedPath
from koordlet.executor.claims.claim import Key, Target
from koordlet.host.kernelfile import KernelFile, definition_of
from koordlet.host.resource import Level
from koordlet.host.resources import BY_NAME

FILE_MODE = 0o600

StepHook = Callable[[str], None]
"""Called with the name of each step, so that a test can end the process there."""


def ignore_step(name: str) -> None:
    """Ignore the step."""


class AppendLog:
    """Appends whole lines or nothing. Belongs to one thread; blocks."""

    def __init__(self, path: OwnedPath, step: StepHook = ignore_step) -> None:
        self.path = path
        self.size = 0  # bytes
        self._step = step
        self._file: FileIO | None = None
        self._torn = False  # the file may end in the middle of a line

    def open(self) -> None:
        """Go on with the file that is there, or make it. Raises FileWriteError."""
        self.close()
        try:
            descriptor = self.path.open(os.O_RDWR | os.O_APPEND | os.O_CREAT, FILE_MODE)
            file = FileIO(descriptor, "ab+")
            self.size = os.fstat(file.fileno()).st_size
            last = os.pread(file.fileno(), 1, self.size - 1) if self.size else b"\n"
        except OSError as err:
            raise FileWriteError(self.path.path, err) from err
        self._file, self._torn = file, last != b"\n"

    def append(self, data: bytes, *, sync: bool = False) -> None:
        """Add lines; sync: they are on disk on return.

        Raises:
            FileWriteError: nothing was added.
        """
        if self._file is None:
            self.open()
        before = self.size
        try:
            self._write(b"\n" + data if self._torn else data)
            self._step("journal appended")
            if sync:
                os.fsync(self._fd)
                self._step("journal synced")
        except OSError as err:
            self._cut(before)
            raise FileWriteError(self.path.path, err) from err

    def replace(self, data: bytes) -> None:
        """Make these lines the whole file, in one step. Raises FileWriteError; nothing changed."""
        self._step("journal before replacing")
        self.path.write(data, FILE_MODE)
        self._step("journal replaced")
        self.open()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _fd(self) -> int:
        return self._file.fileno() if self._file is not None else -1

    def _write(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written
        self._torn = False

    def _cut(self, size: int) -> None:
        """Remove what was written of lines that are not whole, or not on disk."""
        try:
            os.ftruncate(self._fd, size)
            self.size = size
        except OSError:
            self._torn = True


MAGIC = "koordlet journal"
VERSION = 1
MAX_LINE_LENGTH = 64 << 10  # bytes of a line; a cgroup path has 4 kB at most


@dataclass(slots=True)
class JournalRecord:
    """One kernel value that is ours, as texts that would set it (koordlet.host.resource).

    The value found is still ours when it is confirmed, which was read back, or intended, of which
    that is not known yet. Earlier ones, oldest first, are kept where children copy them.
    """

    resource: str
    level: str
    place: str
    start_time: int  # of a process, in ticks since boot; else 0
    inode: int  # of the cgroup's directory; else 0
    owners: tuple[str, ...]
    original: str
    confirmed: str
    intended: str
    earlier: tuple[str, ...] = ()
    definition: str = ""  # of a file that a plugin declared; "": a row of the table

    @property
    def ours(self) -> tuple[str, str]:
        return self.confirmed, self.intended


class DamagedRecord(ValueError):
    """A line is not what was written."""


class NewerVersion(ValueError):
    """The file was written by a koordlet whose format this one does not know."""


def header_line(boot_id: str) -> bytes:
    """The first lines of a journal of this boot."""
    return 3 * _encode_line([MAGIC, VERSION, boot_id])


def set_line(number: int, record: JournalRecord) -> bytes:
    """All of a record."""
    fields = [getattr(record, name) for name in JournalRecord.__slots__]
    return _encode_line(["set", number, *(fields if record.definition else fields[:-1])])


def update_line(number: int, original: str, confirmed: str, intended: str) -> bytes:
    """The fields of a record that change while it is there."""
    return _encode_line(["now", number, original, confirmed, intended])


def drop_line(number: int) -> bytes:
    """The end of a record."""
    return _encode_line(["drop", number])


@dataclass(slots=True)
class JournalContents:
    """The contents of a journal. Lines that are damaged are passed over; the others hold."""

    boot_id: str
    records: dict[int, JournalRecord]
    damaged: int = 0  # lines


def read_journal(data: bytes) -> JournalContents:
    """Return the contents of a journal.

    Raises:
        NewerVersion: this koordlet cannot know what it means.
    """
    contents = JournalContents("", {})
    for line in data.splitlines(keepends=True):
        try:
            _apply(contents, _fields(line))
        except DamagedRecord:
            contents.damaged += 1
    return contents


def _encode_line(fields: Sequence[object]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _fields(line: bytes) -> list[Any]:
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    if (
        not line.endswith(b"\n")
        or len(line) > MAX_LINE_LENGTH
        or checksum != b"%08x" % zlib.crc32(text)
    ):
        raise DamagedRecord(line[:60])
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise DamagedRecord(line[:60]) from err
    if not isinstance(found, list):
        raise DamagedRecord(line[:60])
    return found


def _apply(contents: JournalContents, fields: list[Any]) -> None:
    """Take in one line. Raises Damaged, with nothing changed, or NewerVersion."""
    records = contents.records
    match fields:
        case [magic, int(version), str(boot_id), *_] if magic == MAGIC:
            if version > VERSION:
                raise NewerVersion(f"version {version} of the format; this koordlet has {VERSION}")
            contents.boot_id = boot_id
        case ["set", int(number), *rest]:
            records[number] = _decode_record(rest)
        case ["now", int(number), str(original), str(confirmed), str(intended), *_]:
            if record := records.get(number):
                record.original, record.confirmed, record.intended = original, confirmed, intended
        case ["drop", int(number), *_]:
            records.pop(number, None)
        case [str(kind), *_] if kind in (MAGIC, "set", "now", "drop"):
            raise DamagedRecord(fields[0])


_TYPES = (str, str, str, int, int, list, str, str, str, list)  # of a record's fields


def _decode_record(values: list[Any]) -> JournalRecord:
    fit = len(values) >= len(_TYPES) and all(map(_has_type, values, _TYPES))
    if not fit:
        raise DamagedRecord("set")
    known: list[Any] = [tuple(v) if isinstance(v, list) else v for v in values[: len(_TYPES)]]
    definition = values[len(_TYPES)] if len(values) > len(_TYPES) else ""
    if not isinstance(definition, str):
        raise DamagedRecord("set")
    return JournalRecord(*known, *[definition])


def _has_type(value: object, wanted: type) -> bool:
    if isinstance(value, list):
        return wanted is list and all(isinstance(item, str) for item in value)
    return type(value) is wanted


JOURNAL_FILE = "journal"
MAX_RECORDS = 20_000  # records
MAX_BYTES = 16 << 20  # bytes of all records
_SLACK = 64 << 10  # bytes of garbage that are not worth a compaction

log = get_logger("koordlet.executor")


def records_left_in(directory: OwnedDirectory, boot_id: str) -> list[JournalRecord]:
    """The values that a journal records as changed, as far as it can be read. Writes nothing."""
    try:
        contents = read_journal((directory / JOURNAL_FILE).read(4 * MAX_BYTES) or b"")
    except (FileReadError, UnsafeFile, NewerVersion):
        return []
    return list(contents.records.values()) if contents.boot_id == boot_id else []


class JournalError(KoordError):
    """A record could not be made; the value must not be written."""


class Journal:
    """The records of one run directory, which has one owner at a time. For one thread; blocks."""

    def __init__(
        self, directory: OwnedDirectory | None, boot_id: str, *, step: StepHook = ignore_step
    ) -> None:
        """Load what an earlier process left. directory None: in memory only.

        Records of an earlier boot are forgotten: the values went with it.
        """
        self._log = AppendLog(directory / JOURNAL_FILE, step) if directory else None
        self._boot_id = boot_id
        self._records: dict[int, JournalRecord] = {}
        self._sizes: dict[int, int] = {}  # bytes of a record's line, by number
        self._last = 0  # number given
        self._compact_at = _SLACK
        self._not_compacted = LogState(log)
        self.damage = ""  # what could not be used of the file that was found
        self.problem = ""  # why nothing can be added now
        if self._log:
            self._load(self._log)

    @property
    def records(self) -> Mapping[int, JournalRecord]:
        """The records by number, in the order of their begin. Change them with note and revise."""
        return self._records

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._log.size if self._log else 0

    def begin(self, new: Sequence[JournalRecord], *, sync: bool = True) -> list[int]:
        """Add records and return their numbers; they are on disk on return.

        sync=False: in the file, so they outlive the process, and the value only a reboot.

        Raises:
            JournalError: none was added.
        """
        numbers = list(range(self._last + 1, self._last + 1 + len(new)))
        lines = [set_line(*pair) for pair in zip(numbers, new, strict=True)]
        self._check_bounds(len(new), sum(map(len, lines)))
        self._append(b"".join(lines), sync=sync)
        for number, record, line in zip(numbers, new, lines, strict=True):
            self._records[number], self._sizes[number] = record, len(line)
        self._last += len(new)
        self._compact_if_due()
        return numbers

    def record(
        self, number: int, original: str, confirmed: str, intended: str, *, sync: bool = False
    ) -> None:
        """Change the texts of a record. Raises JournalError: it is as it was."""
        self._append(update_line(number, original, confirmed, intended), sync=sync)
        record = self._records[number]
        record.original, record.confirmed, record.intended = original, confirmed, intended
        self._compact_if_due()

    def revise(self, number: int, record: JournalRecord) -> None:
        """Replace a record as a whole. Raises JournalError: it is as it was."""
        line = set_line(number, record)
        self._append(line, sync=False)
        self._records[number], self._sizes[number] = record, len(line)
        self._compact_if_due()

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget records: their values are restored, or gone. Never fails.

        Where that cannot be written it does no harm: what is not ours any more is not touched.
        """
        for number in numbers:
            del self._records[number], self._sizes[number]
        if numbers:
            with suppress(JournalError):
                self._append(b"".join(map(drop_line, numbers)), sync=False)
                self._compact_if_due()

    def close(self) -> None:
        """Let go of the file."""
        if self._log:
            self._log.close()

    def _check_bounds(self, more: int, more_bytes: int) -> None:
        if (
            len(self._records) + more > MAX_RECORDS
            or sum(self._sizes.values()) + more_bytes > MAX_BYTES
        ):
            raise JournalError(
                f"wanted to record the original, found the journal full: {len(self._records)} "
                f"values are changed, {MAX_RECORDS} are the most; have fewer plugins claim values"
            )

    def _append(self, data: bytes, *, sync: bool) -> None:
        if self._log is None:
            return
        try:
            self._log.append(data, sync=sync)
        except FileWriteError as err:
            self.problem = str(err)
            raise JournalError(f"wanted to record the original first, found: {err}") from err
        self.problem = ""

    def _compact_if_due(self) -> None:
        if self._log is None or self._log.size < self._compact_at:
            return
        try:
            self._rewrite(self._log)
        except FileWriteError as err:
            self._compact_at = 2 * self._log.size
            self._not_compacted.failed("journal.not_compacted", error=str(err))
        else:
            self._not_compacted.ended("journal.compacted")

    def _rewrite(self, file: AppendLog) -> None:
        """Replace the file by what counts of it. Raises FileWriteError."""
        lines = [set_line(number, record) for number, record in self._records.items()]
        self._sizes = dict(zip(self._records, map(len, lines), strict=True))
        file.replace(b"".join([header_line(self._boot_id), *lines]))
        self.problem = ""
        self._compact_at = 2 * file.size + _SLACK

    def _load(self, file: AppendLog) -> None:
        try:
            contents = self._read(file.path)
        except UnsafeFile as err:
            self.problem = f"no value is changed or restored: {err}"
            log.error("journal.rejected", error=str(err))  # noqa: TRY400 - the message says it all
            return
        if contents.boot_id == self._boot_id:
            self._records = contents.records
        elif contents.records:
            log.info("journal.discarded", values=len(contents.records))
        self._last = max(self._records, default=0)
        try:
            self._rewrite(file)
        except FileWriteError as err:
            self.problem = str(err)
            log.warning("journal.write_failed", error=str(err))

    def _read(self, path: OwnedPath) -> JournalContents:
        """Return the file's contents; keep it aside when something is wrong with it.

        Raises:
            UnsafeFile: another user could have written it; it is left as it is.
        """
        nothing = JournalContents(self._boot_id, {})
        try:
            data = path.read(4 * MAX_BYTES)
            if not data:
                return nothing
            contents = read_journal(data)
        except FileReadError as err:
            self._quarantine(path, "damaged", str(err))
            return nothing
        except NewerVersion as err:
            self._quarantine(path, "newer", str(err))
            return nothing
        if contents.damaged:
            self._quarantine(path, "damaged", f"{contents.damaged} damaged lines", data)
        return contents

    def _quarantine(self, path: OwnedPath, suffix: str, what: str, data: bytes = b"") -> None:
        """Save the file for a look, one of a kind, before it is replaced; data: a copy will do."""
        aside = path.sibling(f"{path.name}.{suffix}")
        self.damage = f"{path}: {what}; kept as {aside.name}"
        log.error("journal.damaged", path=str(path), problem=what, kept_as=aside.name)
        try:
            if data:
                aside.write(data, FILE_MODE)
            else:
                path.rename(aside.name)
        except (FileWriteError, OSError) as err:
            self.damage = f"{path}: {what}"
            log.warning("journal.quarantine_failed", error=str(err))


_NAMED = 5  # refused records that a log line names
_EARLIER = 8  # texts that are remembered of a value that children copy


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

    def original_of_copy(self, key: Key, found: str) -> str:
        """Return the text to restore of a value that a new group copies.

        Copied from a squeezed group above, it has that one's original.
        """
        above = self.above(key)
        return above.original if above is not None and found in copied_texts(above) else found


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
