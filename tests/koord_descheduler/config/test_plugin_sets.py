"""The plugins of an extension point: the defaults, changed by what a profile says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_descheduler.config import DEFAULT_PLUGINS, PluginName, PluginSet, Point, merged

MC, DE, LNL = "MigrationController", "DefaultEvictor", "LowNodeLoad"


def plugin_set(enabled=(), disabled=()):
    return PluginSet(
        enabled=tuple(PluginName(name=name) for name in enabled),
        disabled=tuple(PluginName(name=name) for name in disabled),
    )


@pytest.mark.parametrize(
    ("point", "enabled", "disabled", "result"),
    [
        (Point.EVICT, [], [], [MC]),
        (Point.EVICT, [MC], ["*"], [MC]),
        (Point.EVICT, [DE], [], [MC, DE]),
        (Point.EVICT, [DE], [MC], [DE]),
        (Point.FILTER, [], ["*"], []),
        (Point.BALANCE, [LNL, LNL], [], [LNL, LNL]),
        (Point.FILTER, [DE], [], [MC, DE]),
        # beyond the worked examples of the contract
        (Point.FILTER, [DE, MC], [], [MC, DE]),  # replaced in place
        (Point.FILTER, [MC, DE, MC], [], [MC, MC, DE]),  # only the last occurrence is used
        (Point.EVICT, [MC], [MC], [MC]),  # disabled and enabled: enabled
        (Point.BALANCE, [LNL], ["*"], [LNL]),
        (Point.BALANCE, [], ["Unknown"], []),
    ],
)
def test_the_worked_examples(point, enabled, disabled, result):
    found = merged(DEFAULT_PLUGINS[point], plugin_set(enabled, disabled))

    assert list(found) == result


def plain(defaults, enabled, disabled):
    """The rule step by step, as the contract has it."""
    if "*" in disabled:
        return list(enabled)
    result, used = [], set()
    for name in defaults:
        if name in disabled:
            continue
        at = [index for index, other in enumerate(enabled) if other == name]
        if at:
            used.add(at[-1])
        result.append(name)
    return result + [name for index, name in enumerate(enabled) if index not in used]


_NAMES = st.lists(st.sampled_from("ABC*"), max_size=5)


@given(st.lists(st.sampled_from("ABC"), unique=True), _NAMES, _NAMES)
def test_it_is_the_rule_step_by_step(defaults, enabled, disabled):
    found = merged(defaults, plugin_set(enabled, disabled))

    assert list(found) == plain(defaults, enabled, disabled)
