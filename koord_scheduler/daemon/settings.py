"""Command line, environment and configuration file as one checked whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koord.component.config.document import read_config
from koord.component.flags import FlagSet
from koord.controlplane.effective import LogEvent
from koord.controlplane.flags import ControlPlaneDefaults, ControlPlaneFlags
from koord.controlplane.settings import CommonSettings, Discover, take_command_line
from koord_scheduler import NAME
from koord_scheduler.config.configuration import Configuration
from koord_scheduler.config.read import config_parser, default_configuration
from koord_scheduler.config.write import to_document
from koord_scheduler.daemon.flags import SchedulerFlags
from koord_scheduler.features import feature_gates
from koord_scheduler.framework.profiles.configured import known_plugins
from koord_scheduler.framework.profiles.registry import PluginRegistry

DEFAULTS = ControlPlaneDefaults(
    name=NAME, namespace="koordinator-system", port=10251, secure_port=10259
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(CommonSettings[PluginRegistry, Configuration]):
    """Everything that is decided before the first part is built."""

    own: SchedulerFlags

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""
        return to_document(self.configuration)

    def warnings(self) -> list[LogEvent]:
        """Those of every daemon, and what in the file is hardly meant."""
        suspicious: list[LogEvent] = [
            ("config.suspicious", {"warning": str(fault)}) for fault in self.read.warnings
        ]
        return CommonSettings.warnings(self) + suspicious


def new_flags(*, terminal: bool = False) -> tuple[FlagSet, ControlPlaneFlags, SchedulerFlags]:
    """Return the flags of the command; terminal says whether stderr is one."""
    flags = FlagSet(NAME, underscores=True)
    return flags, ControlPlaneFlags(flags, DEFAULTS, terminal=terminal), SchedulerFlags(flags)


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
    flags, options, own = new_flags(terminal=terminal)
    gates, registry = feature_gates(), PluginRegistry()
    path = take_command_line(argv, flags, options, gates)
    own.check_together()
    problems = tuple(discover(registry))
    known, election = known_plugins(registry), options.leader_election()
    read = (
        read_config(path, config_parser(known, election, own.kubeconfig))
        if path
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
        config_path=path,
        environ=environ,
    )
