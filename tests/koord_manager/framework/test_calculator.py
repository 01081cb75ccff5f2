"""What plugins may say, and what becomes of one that fails."""

import signal

import pytest

from koord.util.simulatedclock import SimulatedClock
from koord_manager.config import feature_gates
from koord_manager.framework import loading
from koord_manager.framework.calculator import Calculator, History
from koord_manager.framework.facts import NOTHING, Calculation, Offered
from koord_manager.framework.interfaces import NodeResourcePlugin, PluginRegistry
from tests.support.manager import facts, node, quantities

WHOLE = quantities(cpu=10, memory="10G")


class Fixed(NodeResourcePlugin):
    def __init__(self, name, answer, order=100):
        self.name, self.answer, self.order = name, answer, order

    def calculate(self, found, earlier):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(earlier) if callable(self.answer) else self.answer


def offer(**amounts):
    return Calculation(resources={name: Offered(amount=one) for name, one in amounts.items()})


def run(*plugins, declared=()):
    failures = []
    made = Calculator(
        plugins,
        declared=declared,
        max_decrease_percent=30,
        failed=lambda plugin, name, error: failures.append((plugin, name)),
    )
    return made.calculate(facts(node(WHOLE)), History()), failures


def test_plugins_run_in_their_order_and_the_later_wins():
    result, failures = run(
        Fixed("late", offer(a=2, b=3), order=2), Fixed("early", offer(a=1), order=1)
    )

    assert {name: (one.plugin, one.amount) for name, one in result.resources.items()} == {
        "a": ("late", 2),
        "b": ("late", 3),
    }
    assert failures == []


def test_a_plugin_sees_what_the_ones_before_it_have_said():
    seen = []

    def look(earlier):
        seen.append(earlier.resources["a"].amount)
        return NOTHING

    run(Fixed("early", offer(a=1), order=1), Fixed("late", look, order=2))

    assert seen == [1]


@pytest.mark.parametrize(
    "bad",
    [
        RuntimeError("broken"),
        offer(cpu=1),
        offer(a=-1),
        offer(a=1.5),
        offer(a=2**60),
        Calculation(annotations={"undeclared": "x"}),
        offer(**{f"r{at}": 1 for at in range(65)}),
    ],
    ids=["raises", "native", "negative", "fraction", "too large", "undeclared", "too many"],
)
def test_a_plugin_that_fails_says_nothing_and_the_rest_goes_on(bad):
    result, failures = run(Fixed("bad", bad, order=1), Fixed("good", offer(b=1), order=2))

    assert list(result.resources) == ["b"]
    assert failures == [("bad", "n1")]
    assert result.problems[0].startswith("bad: ")


class _Endless(NodeResourcePlugin):
    order = 1

    def __init__(self, args, handle):
        pass

    def calculate(self, found, earlier):
        while True:
            pass


class _Quick(_Endless):
    order = 2

    def calculate(self, found, earlier):
        return offer(b=1)


def test_a_plugin_that_holds_the_loop_is_interrupted_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(loading, "STEP", 0.02)
    registry = PluginRegistry()
    registry.register("Endless", _Endless)
    registry.register("Quick", _Quick)
    names = ["Endless", "Quick"]
    plugins = loading.Plugins(registry, names, {}, feature_gates(names), SimulatedClock())
    made = Calculator(
        plugins.node_resource,
        declared=(),
        max_decrease_percent=30,
        call=plugins.calculate,
        limits=plugins.limits,
        failed=plugins.failed,
    )
    before = signal.getsignal(signal.SIGALRM)

    result = made.calculate(facts(node(WHOLE)), History())

    assert list(result.resources) == ["b"]
    assert "within 0.02 s" in plugins.failing["Endless"]
    assert signal.getsignal(signal.SIGALRM) is before
