"""Side by side: what was done to each kernel value, and what would have been done. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from koordlet.replay.player import Played

_SETS = frozenset({"set", "would_set", "retaken"})
_HOLDS = _SETS | {"held"}  # held: since before the record began
_ENDS = frozenset({"restored", "would_restore", "yielded"})


@dataclass(frozen=True, slots=True)
class Held:
    """The history of one value: how often it was changed, and for how long it was held.

    Numbers are in the value's unit; None: it was never set, or is no number.
    """

    changes: int = 0
    seconds: float = 0.0
    lowest: float | None = None
    mean: float | None = None  # over the time it was held
    highest: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel value of one place."""

    place: str
    resource: str
    unit: str
    plugins: tuple[str, ...]
    done: Held
    would: Held


def compare(played: Played) -> list[Row]:
    """One row per value that was changed, or would have been; in order of place and resource."""
    end = played.began + played.seconds
    done, would = _by_value(played.done), _by_value(played.would)
    rows = []
    for place, resource in sorted(done.keys() | would.keys()):
        ours, theirs = would.get((place, resource), []), done.get((place, resource), [])
        changes = [change for _, change in theirs + ours]
        plugins = dict.fromkeys(plugin for change in changes for plugin in change["plugins"])
        unit = str(changes[0].get("unit", ""))
        rows.append(
            Row(place, resource, unit, tuple(plugins), _held(theirs, end), _held(ours, end))
        )
    return rows


def as_json(played: Played) -> dict[str, Any]:
    """Everything, for programs. Times are seconds since the record began."""
    return {
        "seconds": played.seconds,
        "linesLost": played.lost,
        "problems": played.problems,
        "values": [asdict(row) for row in compare(played)],
        "changes": {"done": _since(played, played.done), "would": _since(played, played.would)},
        "evictions": {"done": played.decided, "would": played.would_decide},
    }


_Changes = list[tuple[float, Mapping[str, Any]]]


def _by_value(
    changes: _Changes,
) -> dict[tuple[str, str], _Changes]:
    found: dict[tuple[str, str], _Changes] = {}
    for at, change in changes:
        found.setdefault((change["place"], change["resource"]), []).append((at, change))
    return found


def _held(changes: _Changes, end: float) -> Held:
    """Sum up the changes of one value; what is still set at the end was held until then."""
    if not changes:
        return Held()
    seconds, weighted = 0.0, 0.0
    numbers: list[float] = []
    for (at, change), (until, _) in zip(changes, [*changes[1:], (end, {})], strict=True):
        if change["what"] not in _HOLDS:
            continue
        seconds += until - at
        if isinstance(change["new"], int | float):
            numbers.append(change["new"])
            weighted += change["new"] * (until - at)
    made = sum(change["what"] in _SETS | _ENDS for _, change in changes)
    if not numbers:
        return Held(made, seconds)
    mean = weighted / seconds if seconds else numbers[-1]
    return Held(made, seconds, min(numbers), mean, max(numbers))


def _since(played: Played, changes: _Changes) -> list[dict[str, Any]]:
    return [{"at": round(at - played.began, 3), **change} for at, change in changes]
