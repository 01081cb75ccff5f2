"""Answers of PreFilter and PreScore that are kept for equal pods, with what they wrote."""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from koord_scheduler.framework.cyclestate import CycleState, StateData

A = TypeVar("A")
R = TypeVar("R")


class Prepared(Generic[A, R]):
    """Answers A of the plugins of one extension point, for one kind of pods, and their result R.

    They are right while the keys that the plugins give stay the same; None keeps nothing.
    """

    def __init__(self) -> None:
        self._keys: list[Hashable | None] = []  # of the plugins, by their place
        self._answers: dict[int, tuple[A, Mapping[str, StateData]]] = {}  # by place
        self._result: R | None = None
        self._written: dict[str, StateData] | None = None  # by all plugins; made when it is needed

    def result(self, keys: list[Hashable | None], state: CycleState) -> R | None:
        """What came of all plugins with these keys, which is written into the state.

        None: each of them is to be asked for its answer.
        """
        if keys == self._keys:
            if self._result is None:
                return None
            if self._written is None:
                self._written = {}
                for place in range(len(keys)):
                    self._written.update(self._answers[place][1])
            state.take(self._written)
            return self._result
        self._answers = {
            place: answer
            for place, answer in self._answers.items()
            if place < len(keys) and keys[place] == self._keys[place]
        }
        self._keys, self._result, self._written = keys, None, None
        return None

    def answer(self, place: int, state: CycleState, prepare: Callable[[], A]) -> A:
        """What a plugin has answered, or answers now; raises what prepare raises."""
        known = self._answers.get(place)
        if known is not None:
            answer, written = known
            state.take(written)
            return answer
        if self._keys[place] is None:
            return prepare()
        writes = state.writes
        answer = prepare()
        self._answers[place] = answer, state.written_since(writes)
        return answer

    def keep(self, result: R) -> None:
        """Keep what has come of all plugins, if each of them has a key."""
        if len(self._answers) == len(self._keys):
            self._result = result
