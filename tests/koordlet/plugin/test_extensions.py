"""A plugin's own settings in the NodeSLO, and what a plugin says of its own health."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.fields import Fields
from koord.api.nodeslo import merge_nodeslo
from koord.plugin import InvalidObject, OptionError
from koord.util import documents
from koordlet.plugin import Extension, ExtensionPlugin
from koordlet.plugin.base import MAX_PARTS, MAX_REASON
from koordlet.plugin.testing import PluginHarness

WHERE = "nodeSLO.spec.extensions.Object.idle-pods"


@dataclass(frozen=True)
class Idle:
    cores: float = 0.01


def parse(fields: Fields) -> Idle:
    cores = fields.number("cores")
    if cores is not None and cores <= 0:
        raise OptionError("cores", cores, "use more than 0")
    return Idle() if cores is None else Idle(cores)


class IdlePods(ExtensionPlugin):
    """Has one setting in the NodeSLO, and another reader of the same plugin."""

    def setup(self, client, metric_cache, states_informer):
        self.idle = Extension(self, states_informer, "idle-pods", parse, Idle())
        self.other = Extension(self, states_informer, "other", lambda fields: fields.text("a"), "")

    async def run(self, stop):
        await stop.wait()


@pytest.fixture
async def harness():
    async with PluginHarness(IdlePods()) as harness:
        yield harness


def give(harness, extensions: str) -> Idle:
    slo, _ = merge_nodeslo(json.loads(f'{{"spec": {{"extensions": {extensions}}}}}'))
    harness.set_node_slo(slo)
    return harness.plugin.idle.value()


@pytest.mark.parametrize(
    ("extensions", "cores"),
    [
        ('{"Object": {"idle-pods": {"cores": 0.25}}}', 0.25),
        ('{"Object": {"idle-pods": {"cores": 2}}}', 2.0),
        ('{"Object": {"idle-pods": {}}}', 0.01),
        ('{"Object": {"theirs": {"cores": 5}}}', 0.01),
        ('{"Object": null}', 0.01),
        ('{"idle-pods": {"cores": 5}}', 0.01),
        ("null", 0.01),
    ],
)
async def test_settings_as_they_are_on_the_wire(harness, extensions, cores):
    """Below "Object"; with decimals, as JSON has them; what is absent is the default."""
    assert give(harness, extensions) == Idle(cores)
    assert harness.degraded == ""


async def test_without_a_node_slo_the_default_holds(harness):
    assert harness.plugin.idle.value() == Idle()


@pytest.mark.parametrize(
    ("extensions", "problem"),
    [
        ('{"Object": {"idle-pods": {"cores": "1"}}}', f"{WHERE}.cores: wanted a number, found 1"),
        ('{"Object": {"idle-pods": {"cores": true}}}', f"{WHERE}.cores: wanted a number"),
        ('{"Object": {"idle-pods": {"cores": 1e999}}}', f"{WHERE}.cores: wanted a number"),
        ('{"Object": {"idle-pods": {"cores": -0.5}}}', "cores: found -0.5; use more than 0"),
        ('{"Object": {"idle-pods": 5}}', f"{WHERE}: wanted an object, found 5"),
        ('{"Object": 5}', "nodeSLO.spec.extensions.Object: wanted an object, found 5"),
        ("[]", "nodeSLO.spec.extensions: wanted an object, found []"),
    ],
)
async def test_what_cannot_be_used_leaves_the_last_good_value(harness, extensions, problem):
    """Said once in the log, counted, and in the plugin's own line of /healthz until it is right."""
    give(harness, '{"Object": {"idle-pods": {"cores": 0.5}}}')

    assert give(harness, extensions) == Idle(0.5)
    assert harness.plugin.idle.value() == Idle(0.5)
    [rejected] = harness.log.named("setting.rejected")
    assert problem in rejected["error"]
    assert problem in harness.degraded
    assert harness.metric("rejected_total", object="node") == 1

    assert give(harness, '{"Object": {"idle-pods": {"cores": 0.75}}}') == Idle(0.75)
    assert harness.degraded == ""
    assert len(harness.log.named("setting.accepted")) == 1


async def test_a_parser_that_breaks_is_a_rejection(harness):
    """Whatever it raises: what came from outside must not end the round."""
    harness.plugin.idle._parse = lambda fields: fields.raw["missing"]

    assert give(harness, '{"Object": {"idle-pods": {"a": 1}}}') == Idle()
    assert "KeyError" in harness.degraded


async def test_an_object_is_parsed_once_per_change(harness):
    """So a reader may ask in each round."""
    seen = []
    harness.plugin.idle._parse = lambda fields: seen.append(fields) or Idle()
    give(harness, '{"Object": {"idle-pods": {"cores": 1}}}')
    for _ in range(5):
        harness.plugin.idle.value()

    assert len(seen) == 1


async def test_a_node_slo_file_may_have_decimals_too(harness):
    """In YAML as in JSON."""
    found = documents.decode(b"spec: {extensions: {Object: {idle-pods: {cores: 0.125}}}}", "f")
    harness.set_node_slo(merge_nodeslo(found)[0])

    assert harness.plugin.idle.value() == Idle(0.125)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53))
def test_any_json_number_is_read(value):
    assert Fields({"n": value}, "x").number("n") == value


@pytest.mark.parametrize("value", ["1", True, [1], {}, float("nan"), float("inf"), 10**400])
def test_what_is_no_json_number_is_refused(value):
    with pytest.raises(InvalidObject, match=r"x\.n: wanted a number"):
        Fields({"n": value}, "x").number("n")


async def test_a_plugin_says_that_it_works_with_less(harness):
    """One line of printable text, of bounded length, until it takes it back."""
    plugin = harness.plugin
    plugin.degrade("no figures\n\x1b[31m from the switch")
    assert harness.degraded == "no figures  [31m from the switch"
    plugin.degrade("x" * 1000, part="disk")
    assert harness.degraded.endswith("…")
    assert len(harness.degraded) < 2 * MAX_REASON
    for number in range(100):
        plugin.degrade("y", part=str(number))
    assert harness.degraded.count("; ") == MAX_PARTS - 1
    plugin.degrade("")
    assert "no figures" not in harness.degraded
