"""Keeps the originals of changed kernel values on disk, so that they survive the process.

A value's record is on disk before the value is written for the first time, and each later value is
in the file before it is in the kernel. The page cache outlives the process; a reboot, after which
the file may be shorter, also takes away the kernel values that it is about.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from koord.util.atomicfile import FileWriteError
from koord.util.errors import KoordError, UnsafeFile
from koord.util.filewatch import FileReadError
from koord.util.logs import LogState, get_logger
from koord.util.owneddir import OwnedDirectory, OwnedPath
from koordlet.executor.journal import records
from koordlet.executor.journal.appendlog import MODE, AppendLog, StepHook, no_step
from koordlet.executor.journal.records import Contents, Record

FILE = "journal"
MOST = 20_000  # records
LARGEST = 16 << 20  # bytes of all records
_SLACK = 64 << 10  # bytes of garbage that are not worth a compaction

log = get_logger("koordlet.executor")


def left_in(directory: OwnedDirectory, boot_id: str) -> list[Record]:
    """The values that a journal records as changed, as far as it can be read. Writes nothing."""
    try:
        contents = records.read((directory / FILE).read(4 * LARGEST) or b"")
    except (FileReadError, UnsafeFile, records.NewerVersion):
        return []
    return list(contents.records.values()) if contents.boot_id == boot_id else []


class JournalError(KoordError):
    """A record could not be made; the value must not be written."""


class Journal:
    """The records of one run directory, which has one owner at a time. For one thread; blocks."""

    def __init__(
        self, directory: OwnedDirectory | None, boot_id: str, *, step: StepHook = no_step
    ) -> None:
        """Load what an earlier process left. directory None: in memory only.

        Records of an earlier boot are forgotten: the values went with it.
        """
        self._log = AppendLog(directory / FILE, step) if directory else None
        self._boot_id = boot_id
        self._records: dict[int, Record] = {}
        self._sizes: dict[int, int] = {}  # bytes of a record's line, by number
        self._last = 0  # number given
        self._compact_at = _SLACK
        self._not_compacted = LogState(log)
        self.damage = ""  # what could not be used of the file that was found
        self.problem = ""  # why nothing can be added now
        if self._log:
            self._load(self._log)

    @property
    def records(self) -> Mapping[int, Record]:
        """By number, in the order in which they were begun. Change them with note and revise."""
        return self._records

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._log.size if self._log else 0

    def begin(self, new: Sequence[Record], *, sync: bool = True) -> list[int]:
        """Add records and return their numbers; they are on disk on return.

        sync=False: in the file, so they outlive the process, and the value only a reboot.

        Raises:
            JournalError: none was added.
        """
        numbers = list(range(self._last + 1, self._last + 1 + len(new)))
        lines = [records.set_line(*pair) for pair in zip(numbers, new, strict=True)]
        self._check_bounds(len(new), sum(map(len, lines)))
        self._append(b"".join(lines), sync=sync)
        for number, record, line in zip(numbers, new, lines, strict=True):
            self._records[number], self._sizes[number] = record, len(line)
        self._last += len(new)
        self._compact_if_due()
        return numbers

    def note(
        self, number: int, original: str, confirmed: str, intended: str, *, sync: bool = False
    ) -> None:
        """Change the texts of a record. Raises JournalError: it is as it was."""
        self._append(records.now_line(number, original, confirmed, intended), sync=sync)
        record = self._records[number]
        record.original, record.confirmed, record.intended = original, confirmed, intended
        self._compact_if_due()

    def revise(self, number: int, record: Record) -> None:
        """Replace a record as a whole. Raises JournalError: it is as it was."""
        line = records.set_line(number, record)
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
                self._append(b"".join(map(records.drop_line, numbers)), sync=False)
                self._compact_if_due()

    def close(self) -> None:
        """Let go of the file."""
        if self._log:
            self._log.close()

    def _check_bounds(self, more: int, more_bytes: int) -> None:
        if len(self._records) + more > MOST or sum(self._sizes.values()) + more_bytes > LARGEST:
            raise JournalError(
                f"wanted to record the original, found the journal full: {len(self._records)} "
                f"values are changed, {MOST} are the most; have fewer plugins claim values"
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
        lines = [records.set_line(number, record) for number, record in self._records.items()]
        self._sizes = dict(zip(self._records, map(len, lines), strict=True))
        file.replace(b"".join([records.header(self._boot_id), *lines]))
        self.problem = ""
        self._compact_at = 2 * file.size + _SLACK

    def _load(self, file: AppendLog) -> None:
        try:
            contents = self._read(file.path)
        except UnsafeFile as err:
            self.problem = f"no value is changed or restored: {err}"
            log.error("journal.refused", error=str(err))  # noqa: TRY400 - the message says it all
            return
        if contents.boot_id == self._boot_id:
            self._records = contents.records
        elif contents.records:
            log.info("journal.of_earlier_boot", values=len(contents.records))
        self._last = max(self._records, default=0)
        try:
            self._rewrite(file)
        except FileWriteError as err:
            self.problem = str(err)
            log.warning("journal.not_writable", error=str(err))

    def _read(self, path: OwnedPath) -> Contents:
        """Return the file's contents; keep it aside when something is wrong with it.

        Raises:
            UnsafeFile: another user could have written it; it is left as it is.
        """
        nothing = Contents(self._boot_id, {})
        try:
            data = path.read(4 * LARGEST)
            if not data:
                return nothing
            contents = records.read(data)
        except FileReadError as err:
            self._keep_aside(path, "damaged", str(err))
            return nothing
        except records.NewerVersion as err:
            self._keep_aside(path, "newer", str(err))
            return nothing
        if contents.damaged:
            self._keep_aside(path, "damaged", f"{contents.damaged} damaged lines", data)
        return contents

    def _keep_aside(self, path: OwnedPath, suffix: str, what: str, data: bytes = b"") -> None:
        """Save the file for a look, one of a kind, before it is replaced; data: a copy will do."""
        aside = path.sibling(f"{path.name}.{suffix}")
        self.damage = f"{path}: {what}; kept as {aside.name}"
        log.error("journal.damaged", path=str(path), problem=what, kept_as=aside.name)
        try:
            if data:
                aside.write(data, MODE)
            else:
                path.rename(aside.name)
        except (FileWriteError, OSError) as err:
            self.damage = f"{path}: {what}"
            log.warning("journal.not_kept_aside", error=str(err))
