"""What daemons of the control plane decide before their first part is built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from koord.component.config.componentconfig import ReadConfig
from koord.component.features import FeatureGates
from koord.component.flags import FlagSet
from koord.component.plugins.factories import FactoryRegistry
from koord.controlplane.effective import LogEvent, without_effect
from koord.controlplane.flags import ControlPlaneFlags
from koord.util.errors import OptionError

G = TypeVar("G", bound=FactoryRegistry[Any])
C = TypeVar("C")

Discover = Callable[[G], Sequence[str]]
"""Registers plugins; returns what went wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonSettings(Generic[G, C]):
    """The settings that every daemon has; each adds its own."""

    flags: FlagSet
    options: ControlPlaneFlags
    gates: FeatureGates
    registry: G
    plugin_problems: tuple[str, ...]  # what discovery could not register
    read: ReadConfig[C]
    config_path: Path | None  # None: no --config
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def configuration(self) -> C:
        """The configuration of the start."""
        return self.read.configuration

    def warnings(self) -> list[LogEvent]:
        """What the user should know about these settings, as log events with their facts."""
        return without_effect(self.flags, self.gates, self.plugin_problems)


def take_command_line(
    argv: Sequence[str], flags: FlagSet, options: ControlPlaneFlags, gates: FeatureGates
) -> Path | None:
    """Set flags and gates by a command line; return the configuration's path, None: there is none.

    Raises:
        OptionError: a flag cannot be used.
        HelpRequested: the user asked for help.
    """
    if rest := flags.parse(argv):
        raise OptionError("command line", rest[0], "only flags are expected, like --name=value")
    options.check_together()
    gates.replace_map(options.feature_gates.value)
    return Path(options.config.value) if options.config.value else None
