"""One event of the audit log, and its line."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

LONGEST_TEXT = 1000  # characters of each text
LONGEST_LINE = 64 << 10  # bytes; what is longer is none of ours

EVICTION, CHANGE = 0, 3  # verbosities: how unimportant an event is


class Subject(StrEnum):
    """The subject of an event; empty where the container says it."""

    NODE = "node"
    POD = "pod"
    GROUP = "group"
    NONE = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEvent:
    """Something that was changed, in Koordinator's words. Texts that are empty are left out."""

    reason: str  # one word, for example UpdateCgroups
    message: str
    verbosity: int = CHANGE
    type: Subject = Subject.NONE
    namespace: str = ""
    name: str = ""
    container: str = ""


def encode(event: AuditEvent, wall: float) -> bytes:
    """Return the line of an event that happened at wall (Unix seconds), in ASCII."""
    texts = {
        "type": event.type.value,
        "namespace": event.namespace,
        "name": event.name,
        "container": event.container,
        "reason": event.reason,
        "message": event.message,
    }
    given = {name: text[:LONGEST_TEXT] for name, text in texts.items() if text}
    record = {"createdAt": created_at(wall)} | given
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None: it is none, for example half of one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("createdAt"), str) else None


def created_at(wall: float) -> str:
    """RFC 3339 with nanoseconds and the local offset."""
    seconds, rest = divmod(wall, 1.0)
    text = datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")
    date_and_time, offset = text[:19], text[19:]
    return f"{date_and_time}.{int(rest * 1e9):09}{'Z' if offset == '+00:00' else offset}"
