"""Command line, environment, feature gates and configuration file as one checked whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from koord.component.config.document import read_config
from koord.component.features import FeatureGates, FeatureSpec
from koord.component.flags import FlagSet
from koord.controlplane.settings import (
    CommonSettings,
    ControlPlaneDefaults,
    ControlPlaneFlags,
    Discover,
    apply_command_line,
)
from koord_descheduler import NAME
from koord_descheduler.config.configuration import Configuration, KnownPlugins
from koord_descheduler.config.file import (
    ReadConfig,
    config_parser,
    default_configuration,
    to_document,
)
from koord_descheduler.config.v1alpha2 import DEFAULT_PORT
from koord_descheduler.framework.profile import PluginRegistry, known_plugins

# Source: Koordinator, pkg/features (koord-descheduler).
GATES: Mapping[str, FeatureSpec] = {"DisablePVCReservation": FeatureSpec()}


def feature_gates() -> FeatureGates:
    """Return the table with all gates at their defaults."""
    return FeatureGates(GATES, NAME)


DEFAULTS = ControlPlaneDefaults(
    name=NAME,
    namespace="koordinator-system",
    port=DEFAULT_PORT,
    secure_port=10258,
    file_has_addresses=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(CommonSettings[PluginRegistry, Configuration]):
    """Everything that is decided before the first part is built."""

    known: KnownPlugins

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""
        return to_document(self.configuration)


def new_flags(*, terminal: bool = False) -> tuple[FlagSet, ControlPlaneFlags]:
    """Return the flags of the command; terminal says whether stderr is one."""
    flags = FlagSet(NAME, underscores=True)
    return flags, ControlPlaneFlags(flags, DEFAULTS, terminal=terminal)


def load_settings(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    discover: Discover[PluginRegistry],
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
    path = apply_command_line(argv, flags, options, gates)
    problems = tuple(discover(registry))
    known = known_plugins(registry)
    read = (
        read_config(path, config_parser(known, options.leader_election()))
        if path
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
        config_path=path,
        environ=environ,
    )


def _without_file(options: ControlPlaneFlags, known: KnownPlugins) -> ReadConfig:
    read = default_configuration(known, options.leader_election())
    address = options.plain_address
    configuration = replace(
        read.configuration, healthz_bind_address=address, metrics_bind_address=address
    )
    return replace(read, configuration=configuration)
