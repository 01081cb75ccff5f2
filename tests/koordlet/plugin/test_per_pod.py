"""Values that plugins compute per pod, and flags that several of them share."""

import dataclasses

from koordlet.plugin import FlagSet
from koordlet.plugin.pods import PerPod, strategy_interval
from koordlet.plugin.testing import make_pod


async def test_a_result_is_kept_until_pod_or_settings_change():
    """An equal pod, or equal settings, are no change; a pod that is gone is reported."""
    made, gone = [], []

    def work_out(pod, settings):
        made.append(pod.uid)
        return f"{pod.uid}{settings[0]}"

    results = PerPod(work_out, gone.append)
    a, b = make_pod("a"), make_pod("b")

    assert await results.of([a, b], (1,)) == ["a1", "b1"]
    assert await results.of([dataclasses.replace(a), b], (1,)) == ["a1", "b1"]
    assert made == ["a", "b"]
    assert await results.of([make_pod("a", labels={"x": "y"}), b], (1,)) == ["a1", "b1"]
    assert made == ["a", "b", "a"]
    assert await results.of([b], (2,)) == ["b2"]
    assert (made[3:], gone) == (["b"], ["a"])


def test_plugins_share_their_interval():
    """It is one flag, whoever defines it first."""
    flags = FlagSet()
    first, second = (strategy_interval(flags.owned_by(f"plugin {name}")) for name in "AB")

    flags.parse(["--reconcile-interval-seconds=5"])

    assert first is second
    assert (first.value, first.owner) == (5, "plugin A, plugin B")
