"""From a configuration file to running plugins: a third party's is no different."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from koord.component.config.field_errors import InvalidConfig
from koord.plugin.args import FieldError, Seconds, invalid, takes_args
from koord_descheduler.config import Point, parse_configuration
from koord_descheduler.framework.profile import build_profile, known_plugins, profile_settings
from koord_descheduler.plugin import (
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    EvictOptions,
    Evictor,
    Handle,
    Plugin,
    PluginRegistry,
    Status,
)
from koord_descheduler_plugins.low_node_load.args import LowNodeLoadArgs
from tests.support.descheduler.framework import NODES, Kit
from tests.support.descheduler.shipped_plugins import IN_TREE

DOCUMENT = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
deschedulingInterval: 10s
profiles:
- name: quiet
  dryRun: {dry_run}
  plugins:
    balance: {{enabled: [{{name: {balance}}}]}}
    evict: {{disabled: [{{name: "*"}}], enabled: [{{name: Mover}}]}}
    filter: {{disabled: [{{name: "*"}}], enabled: [{{name: Mover}}]}}
  pluginConfig: [{{name: {balance}, args: {args}}}]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuietNodesArgs:
    """Arguments of a third party's plugin."""

    quiet_below: float = 20.0  # percent
    wait: Seconds = 60.0

    def validate(self) -> Iterator[FieldError]:
        if not 0 <= self.quiet_below <= 100:
            yield invalid(("quietBelow",), self.quiet_below, "wanted 0 to 100 percent")


@takes_args(QuietNodesArgs)
class QuietNodes(BalancePlugin):
    """Records the arguments that it was made with."""

    def __init__(self, args: QuietNodesArgs, handle: Handle) -> None:
        self.args = args

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        SEEN.append(self.args)
        return None


class Mover(Evictor):
    """A combined evictor, which declares no arguments."""

    def __init__(self, args: object, handle: Handle) -> None:
        self.args = args

    def filter(self, pod: ClusterPod) -> bool:
        return True

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        return True


SEEN: list[QuietNodesArgs] = []


def make(args: object, handle: Handle) -> Plugin:
    """A factory that is no class."""
    return Mover(args, handle)


def register(registry: PluginRegistry) -> PluginRegistry:
    registry.register("QuietNodes", QuietNodes)
    registry.register("Mover", Mover)
    registry.register("Made", make)
    return registry


def read(text: str) -> object:
    known = known_plugins(register(PluginRegistry()))
    return parse_configuration(text.encode(), Path("/c.yaml"), known).configuration


async def test_arguments_reach_the_plugin_as_its_class(kit: Kit) -> None:
    """From the file through the settings of the profile into the factory."""
    register(kit.registry)
    SEEN.clear()
    text = DOCUMENT.format(balance="QuietNodes", args="{wait: 5s}", dry_run="false")
    config = parse_configuration(text.encode(), Path("/c"), known_plugins(kit.registry))

    (settings,) = profile_settings(config.configuration)
    profile = await build_profile(settings, kit.registry, kit.services, kit.limiter)

    assert (await profile.run_balance_plugins(NODES)).ok
    assert [QuietNodesArgs(wait=5.0)] == SEEN
    assert (profile.name, settings.enabled(Point.BALANCE)) == ("quiet", ("QuietNodes",))
    assert settings.enabled(Point.EVICT) == settings.enabled(Point.FILTER) == ("Mover",)


@pytest.mark.parametrize(
    ("top", "own", "effective"),
    [("false", "false", False), ("false", "true", True), ("true", "false", True)],
)
def test_dry_run_of_the_file_or_of_the_profile(top: str, own: str, effective: bool) -> None:
    text = f"dryRun: {top}\n" + DOCUMENT.format(balance="Made", args="{}", dry_run=own)
    known = known_plugins(register(PluginRegistry()))

    found = parse_configuration(text.encode(), Path("/c"), known).configuration

    assert profile_settings(found)[0].dry_run is effective


@pytest.mark.parametrize(
    ("balance", "args", "message"),
    [
        ("QuietNodes", "{quietBelow: 101}", "args.quietBelow: Invalid value: 101.0: wanted 0 to"),
        ("QuietNodes", "{QuietBelow: 1}", 'args.QuietBelow: unknown field "QuietBelow"; did you'),
        ("Mover", "{}", 'plugin "Mover" does not extend BalancePlugin plugin; it is for evict and'),
        ("PodLifeTime", "{}", 'BalancePlugin "PodLifeTime" does not exist'),
    ],
)
def test_what_cannot_run_is_refused_with_the_file(balance: str, args: str, message: str) -> None:
    """Before a plugin is built; a plugin of Koordinator's that is not registered is unknown."""
    with pytest.raises(InvalidConfig) as caught:
        read(DOCUMENT.format(balance=balance, args=args, dry_run="false"))

    assert message in str(caught.value)


def test_a_plugin_of_koordinators_has_its_arguments() -> None:
    """It declares them itself; a factory that declares none has none."""
    shipped, known = IN_TREE["LowNodeLoad"], known_plugins(register(PluginRegistry()))

    assert shipped.args is not None
    assert shipped.args.cls is LowNodeLoadArgs
    assert known["Made"].args is None
