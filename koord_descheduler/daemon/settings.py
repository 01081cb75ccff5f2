"""Command line, environment and configuration file as one checked whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from koord.component.config.document import read_config
from koord.component.flags import FlagSet
from koord.controlplane.flags import ControlPlaneDefaults, ControlPlaneFlags
from koord.controlplane.settings import CommonSettings, Discover, take_command_line
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
    path = take_command_line(argv, flags, options, gates)
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
