"""A plugin of the wrong shape is refused with one sentence, the same in the kit and the daemon."""

import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.component.flags import FlagSet
from koord.component.plugins.registry import PluginError
from koord.plugin import KoordError, Unavailable
from koord.util.errors import OptionError
from koordlet.features import feature_gates
from koordlet.plugin import (
    ClaimScope,
    ExtensionPlugin,
    FeatureSpec,
    Level,
    PluginRegistry,
    Target,
    resources,
)
from koordlet.plugin.kernel import Part, Resource
from koordlet.plugin.testing import FakeHost, PluginHarness, SimulatedClock
from koordlet.qosmanager.config import QOSExtensionConfig


class Good(ExtensionPlugin):
    """Does nothing."""

    def setup(self, client, metric_cache, states_informer):
        pass

    async def run(self, stop):
        await stop.wait()


def of(**attributes: Any) -> ExtensionPlugin:
    """A plugin that is good but for these."""
    return type("Odd", (Good,), attributes)()


async def async_setup(self, client, metric_cache, states_informer): ...
def plain_run(self, stop): ...
def no_stop(self): ...
async def run_without_stop(self): ...
async def generator(self, stop):
    yield 1


OWN = Resource("cpu_quota", "us", resources.CPU_QUOTA.files)
MISTAKES = {
    "async setup": (
        {"setup": async_setup},
        "wanted def setup(self, client, metric_cache, states_informer), found async def",
    ),
    "plain run": ({"run": plain_run}, "wanted async def run(self, stop), found a plain function"),
    "generator": ({"run": generator}, "found an async generator; take the yield out of run"),
    "plain stop": ({"stop": no_stop}, "wanted async def stop(self), found a plain function"),
    "run without stop": (
        {"run": run_without_stop},
        "wanted async def run(self, stop), found run()",
    ),
    "no method": (
        {"setup": None},
        "setup(self, client, metric_cache, states_informer), found None",
    ),
    "gates": ({"gates": "CPUEvict"}, "found 'CPUEvict'; write gates = ('CPUEvict',)"),
    "limits": ({"limits": 30.0}, "wanted Limits in limits, found 30.0"),
    "spec": ({"spec": True}, "wanted a FeatureSpec or None as spec, found True"),
    "one claim": (
        {"may_claim": ClaimScope(resources.CPU_QUOTA, Level.POD)},
        "wanted a tuple in may_claim, found ClaimScope(resource=Resource(cpu_quota)",
    ),
    "no claim": ({"may_claim": ("cpu_quota",)}, "in may_claim, found 'cpu_quota'"),
    "read only": (
        {"may_claim": (ClaimScope(resources.NODE_CPU_PRESSURE, Level.NODE),)},
        "wanted a resource that can be written, found node_cpu_pressure, which is read only",
    ),
    "unknown resource": (
        {"may_claim": (ClaimScope("cpu_qouta", Level.POD),)},
        "wanted a resource of koordlet.plugin.resources, found 'cpu_qouta'; the nearest is "
        "cpu_quota",
    ),
    "own resource": (
        {"may_claim": (ClaimScope(OWN, Level.POD),)},
        "found one of its own called 'cpu_quota'",
    ),
    "level": (
        {"may_claim": (ClaimScope(resources.CPU_QUOTA, Level.NODE),)},
        "wanted level qos or pod or container for cpu_quota, found <Level.NODE",
    ),
    "level of a process": (
        {"may_claim": (ClaimScope(resources.OOM_SCORE_ADJ, Level.POD),)},
        "wanted level process for oom_score_adj",
    ),
    "part": (
        {"may_claim": (ClaimScope(resources.CPU_SHARES, Level.POD, part=Part.RATIO),)},
        "wanted part value of cpu_shares, found <Part.RATIO",
    ),
    "QoS class": (
        {"may_claim": (ClaimScope(resources.CPU_SHARES, Level.POD, frozenset({"BestEffort"})),)},
        "wanted a QoS class of level pod for cpu_shares, found 'BestEffort'; the nearest is ",
    ),
    "QoS text": (
        {"may_claim": (ClaimScope(resources.CPU_SHARES, Level.POD, "BE"),)},
        "wanted a frozenset of QoS classes for cpu_shares, found 'BE'",
    ),
}


@pytest.mark.parametrize(("attributes", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_wrong_shape_is_said_at_registration(attributes, message):
    """async def setup used to be a coroutine never awaited, and a read-only claim waited."""
    plugin = of(**attributes)

    with pytest.raises(PluginError, match=re.escape(message)) as in_daemon:
        PluginRegistry().from_source("here").register_qos_ext_plugin("Odd", FeatureSpec(), plugin)
    with pytest.raises(PluginError) as in_kit:
        PluginHarness(plugin)

    assert str(in_daemon.value).startswith("plugin Odd from here: ")
    assert str(in_kit.value).partition(": ")[2] == str(in_daemon.value).partition(": ")[2]


@pytest.mark.parametrize("name", ["", "A,B", "A=true", "Two Words", None])
def test_a_name_can_be_switched_by_a_flag(name):
    """--feature-gates=NAME=true has to be able to name it."""
    with pytest.raises(PluginError, match="wanted a name without blanks, commas and ="):
        PluginRegistry().register_qos_ext_plugin(name, FeatureSpec(), Good())


def test_what_is_no_spec_is_refused():
    """True would be a gate without a stage."""
    with pytest.raises(PluginError, match="wanted a FeatureSpec or None as spec, found True"):
        PluginRegistry().register_qos_ext_plugin("Odd", True, Good())


def test_one_wrong_plugin_keeps_no_other_away():
    """The registry stays as it was."""
    registry = PluginRegistry()
    registry.register_qos_ext_plugin("Good", FeatureSpec(), Good())
    with pytest.raises(PluginError):
        registry.register_qos_ext_plugin("Odd", FeatureSpec(), of(run=plain_run))

    assert [entry.name for entry in registry] == ["Good"]


DEFAULTS = {
    "bool": ("bool", 1, "wanted true or false"),
    "int": ("int", 1.5, "wanted a whole number"),
    "int as text": ("int", "5", "wanted a whole number"),
    "int as bool": ("int", True, "wanted a whole number"),
    "float": ("float", "0.5", "wanted a number"),
    "string": ("string", None, "wanted a text"),
    "duration": ("duration", "30s", "wanted seconds as a number"),
    "list": ("string_list", "a,b", "wanted a list of texts"),
    "map": ("bool_map", {"A": "true"}, "wanted a map of names to true or false"),
}


@pytest.mark.parametrize(("kind", "default", "wanted"), DEFAULTS.values(), ids=DEFAULTS.keys())
def test_a_default_of_another_kind_is_said_when_the_flag_is_defined(kind, default, wanted):
    """It used to come back from the flag, and to break whatever counted on its type."""

    def init_flags(self, flags):
        getattr(flags, kind)("odd-flag", default, "An odd flag")

    plugin = of(init_flags=init_flags)
    registry = PluginRegistry()
    registry.register_qos_ext_plugin("Odd", FeatureSpec(), plugin)
    config = QOSExtensionConfig(
        registry, feature_gates(), clock=SimulatedClock(), metrics=CollectorRegistry()
    )

    config.init_flags(FlagSet())
    with pytest.raises(OptionError) as in_kit:
        PluginHarness(plugin)

    message = f"--odd-flag: found {default!r}; {wanted}"
    assert str(in_kit.value).startswith(message)
    assert str(in_kit.value).endswith("; plugin Odd defines it")
    assert str(in_kit.value) in config.failures["Odd"]


def test_a_whole_number_is_a_number():
    """Defaults that mean the same are taken as the flag's own type."""
    flags = FlagSet()

    assert isinstance(flags.float("a", 1, "").value, float)
    assert isinstance(flags.duration("b", 30, "").value, float)
    assert flags.string_list("c", ["x"], "").value == ("x",)


@pytest.mark.parametrize(
    ("target", "resource", "message"),
    [
        ("kubepods/besteffort", resources.CPU_QUOTA, "claim target: found 'kubepods/besteffort'"),
        (Target.node(), "cpu_quota", "found 'cpu_quota'; the nearest is cpu_quota"),
        (Target.node(), resources.NODE_CPU_PRESSURE, "which is read only"),
        (Target.node(), resources.SCHED_CORE, "declare it in may_claim"),
    ],
)
async def test_what_cannot_be_claimed_is_said_by_the_claim(tmp_path, target, resource, message):
    """The plugin's round fails with the sentence, not with an attribute that is missing."""
    may_claim = (ClaimScope(resources.CPU_QUOTA, Level.QOS),)
    async with PluginHarness(of(may_claim=may_claim), gates=(), host=FakeHost(tmp_path)) as harness:
        with pytest.raises(OptionError, match=re.escape(message)):
            await harness.plugin.claim(target, resource, 1, reason="r")


@pytest.mark.parametrize(
    "look",
    [
        lambda kernel: kernel.layout,
        lambda kernel: kernel.read(resources.MEMINFO),
        lambda kernel: kernel.read_many([(resources.MEMINFO, "")]),
        lambda kernel: kernel.watch([], 0.1, bool, 1.0),
        lambda kernel: kernel.groups_below("", 1),
        lambda kernel: kernel.supports(resources.MEMINFO),
    ],
)
async def test_a_harness_without_a_host_says_so(look):
    """It used to be an AttributeError."""
    async with PluginHarness(Good()) as harness:
        with pytest.raises(Unavailable, match=r"PluginHarness\(host=FakeHost\(tmp_path\)\)"):
            await look(harness.plugin.kernel)


def test_all_of_them_are_of_one_family():
    """So that a caller can catch what koordlet says on purpose."""
    assert issubclass(PluginError, KoordError)
    assert issubclass(OptionError, KoordError)
