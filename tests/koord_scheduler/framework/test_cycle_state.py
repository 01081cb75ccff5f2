"""The state of one pod's cycle."""

from dataclasses import dataclass
from typing import Self

import pytest

from koord_scheduler.framework.status import CycleState, StateNotFound, WrongStateType


@dataclass
class Count:
    """Is copied for a what-if."""

    value: int = 0

    def clone(self) -> "Count":
        return Count(self.value)


class Shared:
    """Is the same in every what-if."""

    def clone(self) -> Self:
        return self


def test_a_key_that_is_missing_is_an_error_with_upstreams_text() -> None:
    """Never written, and deleted."""
    state = CycleState()
    state.write("a", Count())
    state.delete("a")
    state.delete("a")
    with pytest.raises(StateNotFound, match=r"^not found$"):
        state.read("a", Count)
    assert state.find("a", Count) is None


def test_a_value_of_another_type_is_refused_by_name() -> None:
    """find takes it for no value, as a plugin must."""
    state = CycleState()
    state.write("a", Shared())
    with pytest.raises(WrongStateType, match="state a: wanted Count, found Shared"):
        state.read("a", Count)
    assert state.find("a", Count) is None


def test_a_value_must_be_clonable() -> None:
    """It is noticed when it is written, not at the first what-if."""
    with pytest.raises(WrongStateType, match="wanted a value with clone"):
        CycleState().write("a", 5)  # type: ignore[arg-type]


def test_writing_replaces() -> None:
    """The last value counts."""
    state = CycleState()
    state.write("a", Count(1))
    state.write("a", Count(2))
    assert state.read("a", Count).value == 2


def test_a_clone_has_clones_of_the_values_and_the_skipped_plugins() -> None:
    """What changes in one does not change the other; what clones to itself is shared."""
    state, shared = CycleState(), Shared()
    state.write("a", Count(1))
    state.write("b", shared)
    state.skipped_filters = frozenset({"A"})
    state.skipped_scores = frozenset({"B"})
    state.skipped_pre_binds = frozenset({"C"})
    state.measured = True
    other = state.clone()
    other.read("a", Count).value = 5
    other.write("c", Count())

    assert state.read("a", Count).value == 1
    assert state.find("c", Count) is None
    assert other.read("b", Shared) is shared
    assert (other.skipped_filters, other.skipped_scores) == ({"A"}, {"B"})
    assert (other.skipped_pre_binds, other.measured) == ({"C"}, True)
