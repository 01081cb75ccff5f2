"""Scheduler features: one word each in a list."""

import pytest

from koordlet.host.cpu_scheduler import feature_parser, feature_text
from koordlet.host.resources import BY_NAME, SCHED_FEATURE

LIST = b"GENTLE_FAIR_SLEEPERS NO_HRTICK WA_IDLE NO_WA_IDLE\n"


@pytest.mark.parametrize(("name", "value"), [("GENTLE_FAIR_SLEEPERS", 1), ("HRTICK", 0)])
def test_a_feature_in_the_list(name, value):
    """On by its name, off with NO_ before it; the text that sets it is the one that shows it."""
    text = feature_text(name)
    assert feature_parser(name)(LIST) == value
    assert text.shown(LIST) == text.of(value)
    assert text.value(text.of(value)) == value
    assert text.of(0) == f"NO_{name}"


@pytest.mark.parametrize("name", ["WA_IDLE", "LB_MIN", "GENTLE"])
def test_a_feature_that_is_not_there_or_both(name):
    """That is no value, and never "off"."""
    with pytest.raises(ValueError, match=f"NO_{name}"):
        feature_parser(name)(LIST)


@pytest.mark.parametrize("value", [2, -1, "on"])
def test_only_on_and_off_can_be_written(value):
    """Anything else is a mistake of the caller."""
    with pytest.raises(ValueError, match="0 or 1"):
        feature_text("HRTICK").of(value)


def test_features_have_names_of_their_own():
    """By which a journal finds them again."""
    assert all(BY_NAME[row.name] is row for row in SCHED_FEATURE.values())
