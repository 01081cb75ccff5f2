"""Marks where a plugin acted: the changes of kernel values, second by second, bounded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from koordlet.executor.claims.desired import Change

KEPT = 512  # marks
AGE = 1800.0  # seconds that one is shown
LONGEST_TEXT = 300  # characters
MOST_INPUTS = 20

_Place = tuple[int, str, tuple[str, ...], str]


@dataclass(slots=True)
class _Mark:
    number: int
    revision: int  # of the latest change
    first: float  # Unix seconds
    change: Change  # the latest of them
    times: int = 1


class Marks:
    """A listener to changes of claimed values; see koordlet.executor.claims.desired.

    Changes of one second, resource, owner and kind are one mark. Oldest marks go first.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._marks: dict[_Place, _Mark] = {}
        self.revision = 0  # rises with each change

    def __call__(self, change: Change) -> None:
        now = self._wall()
        place = (int(now), change.what, change.owners, change.key.resource.name)
        self.revision += 1
        mark = self._marks.get(place)
        if mark is None:
            self._marks[place] = _Mark(self.revision, self.revision, now, change)
            if len(self._marks) > KEPT:
                del self._marks[next(iter(self._marks))]
        else:
            mark.change, mark.revision, mark.times = change, self.revision, mark.times + 1

    def after(self, revision: int) -> list[Mapping[str, object]]:
        """The marks that are new or changed since that revision, oldest first.

        Call it on the event loop, where changes are noted. The page puts one that it has by its
        number in the place of the older form.
        """
        oldest = self._wall() - AGE
        return [
            _as_json(mark)
            for mark in self._marks.values()
            if mark.revision > revision and mark.first >= oldest
        ]


def _as_json(mark: _Mark) -> Mapping[str, object]:
    change = mark.change
    target = change.key.target
    return {
        "number": mark.number,
        "t": round(mark.first, 2),
        "times": mark.times,
        "what": change.what,
        "plugins": [_text(owner) for owner in change.owners[:MOST_INPUTS]],
        "resource": change.key.resource.name,
        "unit": change.key.resource.unit,
        "target": _text(target),
        "level": target.level.value,
        "place": _text(target.uid or target.place),
        "pod": _text(target.pod),
        "old": _text(change.old),
        "new": _text(change.new),
        "reason": _text(change.reason),
        "inputs": {
            _text(name): value if isinstance(value, int | float) else _text(value)
            for name, value in list(change.inputs.items())[:MOST_INPUTS]
        },
    }


def _text(value: Any) -> str:
    if isinstance(value, set | frozenset):
        value = sorted(value)
    return str(value)[:LONGEST_TEXT]
