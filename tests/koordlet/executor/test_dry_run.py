"""Dry-run as configured, and as switched by hand."""

import pytest

from koordlet.executor.claimmanager import DryRun, LiveDryRun

PLUGINS = ("A", "B", "C")


@pytest.mark.parametrize(
    ("configured", "by_hand", "expected"),
    [
        (DryRun(), {}, False),
        (DryRun(all_plugins=True), {}, True),
        (DryRun(plugins=frozenset({"A"})), {}, ["A"]),
        (DryRun(plugins=frozenset({"A"})), {"A": False, "B": True}, ["B"]),
        (DryRun(all_plugins=True), {"B": False}, ["A", "C"]),
        (DryRun(), {"B": False}, False),
    ],
)
def test_the_hand_wins_until_it_is_forgotten(configured, by_hand, expected):
    """For the plugins that it touched; the others are as configured."""
    dry_run = LiveDryRun(lambda: configured, lambda: PLUGINS)
    for plugin, on in by_hand.items():
        dry_run.switch([plugin], on)
    assert dry_run.to_json() == expected
    assert {plugin: dry_run.by_hand(plugin) for plugin in PLUGINS} == {
        plugin: plugin in by_hand for plugin in PLUGINS
    }
    assert dry_run.forget() == by_hand
    assert [dry_run.covers(plugin) for plugin in PLUGINS] == [
        configured.covers(plugin) for plugin in PLUGINS
    ]
