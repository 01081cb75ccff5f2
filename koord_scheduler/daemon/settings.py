"""Command line, environment and configuration file as one checked whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from koord.component.config.document import read_config
from koord.component.features import FeatureGates
from koord.component.flags import FlagSet
from koord.controlplane.effective import LogEvent, without_effect
from koord.controlplane.flags import ControlPlaneDefaults, ControlPlaneFlags
from koord.util.errors import OptionError
from koord_scheduler import NAME
from koord_scheduler.config.configuration import Configuration
from koord_scheduler.config.read import ReadConfig, config_parser, default_configuration
from koord_scheduler.config.write import to_document
from koord_scheduler.daemon.flags import SchedulerFlags
from koord_scheduler.features import feature_gates
from koord_scheduler.framework.profiles.configured import known_plugins
from koord_scheduler.framework.profiles.registry import PluginRegistry

DEFAULTS = ControlPlaneDefaults(
    name=NAME, namespace="koordinator-system", port=10251, secure_port=10259
)

Discover = Callable[[PluginRegistry], Sequence[str]]
"""Registers plugins; returns what went wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that is decided before the first part is built."""

    flags: FlagSet
    options: ControlPlaneFlags
    own: SchedulerFlags
    gates: FeatureGates
    registry: PluginRegistry
    plugin_problems: tuple[str, ...]  # what discovery could not register
    read: ReadConfig
    config_path: Path | None  # None: no --config
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def configuration(self) -> Configuration:
        """The configuration of this process."""
        return self.read.configuration

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""
        return to_document(self.configuration)

    def warnings(self) -> list[LogEvent]:
        """What the user should know about these settings, as log events with their facts."""
        found = without_effect(self.flags, self.gates, self.plugin_problems)
        return found + [
            ("config.suspicious", {"warning": str(fault)}) for fault in self.read.warnings
        ]


def new_flags(*, terminal: bool = False) -> tuple[FlagSet, ControlPlaneFlags, SchedulerFlags]:
    """Return the flags of the command; terminal says whether stderr is one."""
    flags = FlagSet(NAME, underscores=True)
    return flags, ControlPlaneFlags(flags, DEFAULTS, terminal=terminal), SchedulerFlags(flags)


def load_settings(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    discover: Discover,
    terminal: bool = False,
) -> Settings:
    """Return the settings of a command line and environment.

    Raises:
        OptionError, InvalidConfig, InvalidObject: a flag or the file cannot be used; nothing has
            been started.
        HelpRequested: the user asked for help.
    """
    flags, options, own = new_flags(terminal=terminal)
    gates, registry = feature_gates(), PluginRegistry()
    if rest := flags.parse(argv):
        raise OptionError("command line", rest[0], "only flags are expected, like --name=value")
    options.check_together()
    gates.replace_map(options.feature_gates.value)
    problems = tuple(discover(registry))
    known, path = known_plugins(registry), Path(options.config.value)
    election = options.leader_election()
    read = (
        read_config(path, config_parser(known, election, own.kubeconfig))
        if options.config.value
        else default_configuration(known, election, own.client_connection())
    )
    return Settings(
        flags=flags,
        options=options,
        own=own,
        gates=gates,
        registry=registry,
        plugin_problems=problems,
        read=read,
        config_path=path if options.config.value else None,
        environ=environ,
    )
