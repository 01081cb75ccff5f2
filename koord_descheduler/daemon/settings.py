"""Command line, environment and configuration file as one checked whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from koord.component.config.document import read_config
from koord.component.features import FeatureGates
from koord.component.flags import FlagSet
from koord.controlplane.effective import LogEvent, without_effect
from koord.controlplane.flags import ControlPlaneDefaults, ControlPlaneFlags
from koord.util.errors import OptionError
from koord_descheduler import NAME
from koord_descheduler.config.configuration import Configuration
from koord_descheduler.config.points import KnownPlugins
from koord_descheduler.config.read import ReadConfig, config_parser, default_configuration
from koord_descheduler.config.v1alpha2 import DEFAULT_PORT
from koord_descheduler.config.write import to_document
from koord_descheduler.features import feature_gates
from koord_descheduler.framework.configured import known_plugins
from koord_descheduler.framework.registry import PluginRegistry

DEFAULTS = ControlPlaneDefaults(
    name=NAME,
    namespace="koordinator-system",
    port=DEFAULT_PORT,
    secure_port=10258,
    file_has_addresses=True,
)

Discover = Callable[[PluginRegistry], Sequence[str]]
"""Registers plugins; returns what went wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that is decided before the first part is built."""

    flags: FlagSet
    options: ControlPlaneFlags
    gates: FeatureGates
    registry: PluginRegistry
    known: KnownPlugins
    plugin_problems: tuple[str, ...]  # what discovery could not register
    read: ReadConfig
    config_path: Path | None  # None: no --config
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def configuration(self) -> Configuration:
        """The configuration of the start."""
        return self.read.configuration

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""
        return to_document(self.configuration)

    def warnings(self) -> list[LogEvent]:
        """What the user should know about these settings, as log events with their facts."""
        return without_effect(self.flags, self.gates, self.plugin_problems)


def new_flags(*, terminal: bool = False) -> tuple[FlagSet, ControlPlaneFlags]:
    """Return the flags of the command; terminal says whether stderr is one."""
    flags = FlagSet(NAME, underscores=True)
    return flags, ControlPlaneFlags(flags, DEFAULTS, terminal=terminal)


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
    flags, options = new_flags(terminal=terminal)
    gates, registry = feature_gates(), PluginRegistry()
    problems = tuple(discover(registry))
    if rest := flags.parse(argv):
        raise OptionError("command line", rest[0], "only flags are expected, like --name=value")
    options.check_together()
    gates.replace_map(options.feature_gates.value)
    known, path = known_plugins(registry), Path(options.config.value)
    read = (
        read_config(path, config_parser(known, options.leader_election()))
        if options.config.value
        else _without_file(options, known)
    )
    return Settings(
        flags=flags,
        options=options,
        gates=gates,
        registry=registry,
        known=known,
        plugin_problems=problems,
        read=read,
        config_path=path if options.config.value else None,
        environ=environ,
    )


def _without_file(options: ControlPlaneFlags, known: KnownPlugins) -> ReadConfig:
    read = default_configuration(known, options.leader_election())
    address = options.plain_address
    configuration = replace(
        read.configuration, healthz_bind_address=address, metrics_bind_address=address
    )
    return replace(read, configuration=configuration)
