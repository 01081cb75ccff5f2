"""The ledger as a JSON document of bounded size, and two ledgers as one. Pure."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from koord.util.errors import InvalidObject
from koord_descheduler.ledger.entries import Entry, Outcome, Pause, WorkloadRef

VERSION = 1
MOST_BYTES = 640 << 10  # a ConfigMap holds 1 MiB
MOST_ENTRIES = 2000
MOST_PAUSES = 2000
_WHERE = "ledger"


class LedgerDocument(Struct, frozen=True):
    """What a ledger knows: entries, the oldest first, and pauses."""

    entries: Annotated[tuple[Entry, ...], Meta(max_length=MOST_ENTRIES)] = ()
    pauses: Annotated[tuple[Pause, ...], Meta(max_length=MOST_PAUSES)] = ()
    version: int = VERSION


class _Version(Struct):
    version: int


class _Written(Struct):
    version: int
    pauses: list[Raw]
    entries: list[Raw]


_DECODER = msgspec.json.Decoder(LedgerDocument)
_VERSION = msgspec.json.Decoder(_Version)
_encode = msgspec.json.Encoder().encode


def to_text(document: LedgerDocument) -> str:
    """Return the JSON text. Of what does not fit, the oldest is left out, settled entries first."""
    pauses = sorted(document.pauses, key=lambda one: one.until, reverse=True)[:MOST_PAUSES]
    room = MOST_BYTES - 100
    texts = _fitting(map(_encode, pauses), room // 2)
    room -= sum(len(text) + 1 for text in texts)
    ranked = sorted(
        document.entries, key=lambda one: (one.outcome is Outcome.PENDING, one.at), reverse=True
    )[:MOST_ENTRIES]
    fitting = _fitting(map(_encode, ranked), room)
    kept = sorted(zip(ranked, fitting, strict=False), key=lambda one: (one[0].at, one[0].uid))
    written = _Written(VERSION, [Raw(text) for text in texts], [Raw(text) for _, text in kept])
    return _encode(written).decode()


def from_text(text: str) -> LedgerDocument:
    """Return the document of a text.

    Raises:
        InvalidObject: it is malformed, or of another version.
    """
    try:
        version = _VERSION.decode(text).version
        if version != VERSION:
            raise InvalidObject(f"{_WHERE}: version", wanted=str(VERSION), found=version)
        return _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as err:
        raise InvalidObject(_WHERE, wanted="what this program has written", found=str(err)) from err


def merge_entries(one: Iterable[Entry], other: Iterable[Entry]) -> list[Entry]:
    """The entries of two ledgers, each pod once, the oldest first; a settled one counts."""
    merged: dict[str, Entry] = {}
    for entry in (*one, *other):
        known = merged.get(entry.uid)
        if known is None or _rank(entry) > _rank(known):
            merged[entry.uid] = entry
    return sorted(merged.values(), key=lambda entry: (entry.at, entry.uid))


def merge_pauses(
    one: Mapping[WorkloadRef, Pause], other: Mapping[WorkloadRef, Pause]
) -> dict[WorkloadRef, Pause]:
    """The pauses of two ledgers, of each workload the longest."""
    merged = dict(one)
    for workload, pause in other.items():
        known = merged.get(workload)
        if known is None or _weight(pause) > _weight(known):
            merged[workload] = pause
    return merged


def _fitting(texts: Iterable[bytes], room: int) -> list[bytes]:
    """The first texts that fit into so many bytes, with a comma each."""
    fitting = []
    for text in texts:
        room -= len(text) + 1
        if room < 0:
            break
        fitting.append(text)
    return fitting


def _rank(entry: Entry) -> tuple[float, bool, float, bytes]:
    """Order of two entries of one pod: the later eviction, settled, the later news."""
    news = entry.settled or entry.left or (entry.before.time if entry.before else 0.0)
    return entry.at, entry.outcome is not Outcome.PENDING, news, _encode(entry)


def _weight(pause: Pause) -> tuple[float, int, float]:
    return pause.until, pause.strikes, pause.began
