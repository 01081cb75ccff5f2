"""Others who write our object's status: seen while they do, not by what they once wrote."""

import pytest

from koordlet.plugin.testing import SimulatedClock
from koordlet.statesinformer.kube_sources import FIELD_MANAGER, StatusWriters, status_writers


def entry(manager, time="2026-01-01T00:00:00Z", subresource="status"):
    return {
        "manager": manager,
        "operation": "Update",
        "subresource": subresource,
        "time": time,
        "fieldsV1": {"f:status": {}},
    }


def written(*entries):
    return status_writers({"metadata": {"name": "n1", "managedFields": list(entries)}})


def at(second):
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def writers(clock):
    return StatusWriters(clock, lambda: 60.0)


def test_who_has_written_the_status():
    """We do not count, nor do those who write the spec."""
    found = written(
        entry("koordlet", at(1)), entry(FIELD_MANAGER, at(2)), entry("koord-manager", at(3), "")
    )

    assert found == {"koordlet": at(1)}


@pytest.mark.parametrize("fields", [None, {}, "x", [1], [{"manager": 1, "subresource": "status"}]])
def test_odd_managed_fields(fields):
    """Are as good as none."""
    assert status_writers({"metadata": {"managedFields": fields}}) == {}


def test_an_agent_that_goes_on_writing(writers, clock):
    """Is present from its second report on, until it has missed three."""
    for second in (0, 60, 120, 180):
        writers.look(written(entry("koordlet", at(second))))
        assert writers.present == ("koordlet" if second >= 120 else "")
        clock.tick(60)
    clock.tick(60)
    assert writers.present == "koordlet"
    clock.tick(60)
    assert writers.present == ""


def test_what_an_agent_has_left_behind(writers, clock):
    """Stays in managedFields for ever, and changes no more, however often we write."""
    for second in range(0, 600, 60):
        writers.look(written(entry("koordlet", at(0)), entry(FIELD_MANAGER, at(second))))
        clock.tick(60)
        assert writers.present == ""


def test_one_write_by_hand(writers, clock):
    """Makes no client an agent."""
    writers.look(written())
    writers.look(written(entry("kubectl-patch", at(5))))
    clock.tick(600)
    writers.look(written(entry("kubectl-patch", at(605))))

    assert writers.present == ""


def test_our_previous_pod(writers, clock):
    """Writes under our name."""
    for second in range(0, 300, 60):
        writers.look(written(entry(FIELD_MANAGER, at(second))))
        clock.tick(60)

    assert writers.present == ""
