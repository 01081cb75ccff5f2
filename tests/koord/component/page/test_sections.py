"""Which sections a reader gets: all at first, then those that changed."""

from koord.component.page.sections import CURSORS, SectionReader
from koord.util.simulatedclock import SimulatedClock


def test_each_reader_gets_what_changed_since_its_own_last_answer():
    reader = SectionReader(SimulatedClock())
    reader.take({"a": 1, "b": [1]})
    first = reader.all()
    assert first["whole"] is True
    assert first["sections"] == {"a": 1, "b": [1]}

    reader.take({"a": 1, "b": [1, 2]})
    second = reader.since(first["now"])
    reader.take({"a": 3})

    assert second["sections"] == {"b": [1, 2]}
    assert "whole" not in second
    assert reader.since(second["now"])["sections"] == {"a": 3}
    assert reader.since(first["now"])["sections"] == {"a": 3, "b": [1, 2]}


def test_a_reader_that_was_forgotten_gets_everything():
    clock = SimulatedClock()
    reader = SectionReader(clock)
    reader.take({"a": 1})
    first = reader.all()
    for _ in range(CURSORS):
        clock.tick(1.0)
        reader.all()
    again = reader.since(first["now"])
    assert (again["whole"], again["sections"]) == (True, {"a": 1})


def test_answers_of_one_moment_have_different_names():
    reader = SectionReader(SimulatedClock())
    reader.take({"a": 1})
    first = reader.all()
    reader.take({"a": 2})
    assert reader.since(first["now"])["now"] != first["now"]
