"""Command line, environment, feature gates and configuration file as one checked whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koord.component.config.document import read_config
from koord.component.flag_values import (
    BOOL,
    DURATION,
    STRING,
    STRING_LIST,
    address,
    at_least_seconds,
)
from koord.component.flags import FlagSet, FlagSpec, FlagTable, define_ignored_flags
from koord.component.http.sockets import Address
from koord.controlplane.settings import (
    CommonSettings,
    ControlPlaneDefaults,
    ControlPlaneFlags,
    Discover,
    LogEvent,
    apply_command_line,
)
from koord_manager import LEASE, NAME
from koord_manager.config import (
    DEFAULT_PORT,
    FORMAT,
    Configuration,
    feature_gates,
    to_document,
)
from koord_manager.framework.interfaces import PluginRegistry
from koord_manager.framework.loading import enabled_plugins, known_plugins

_EVERYWHERE = "0.0.0.0"  # noqa: S104 - as in Go, no host is every address
_WEBHOOK = "slo-controller-config is not validated by a webhook"
_INERT = (
    FlagSpec("enable-pprof", BOOL, True, "no profiles are served"),
    FlagSpec("pprof-addr", STRING, ":8090", "no profiles are served"),
    FlagSpec("sync-period", DURATION, 0.0, "objects are watched, and listed again when needed"),
    FlagSpec("node-strategy-name-need-check", STRING, "false", _WEBHOOK),
    FlagSpec("allow-privileged", BOOL, True, "it runs no pods"),
)
DEFAULTS = ControlPlaneDefaults(
    name=LEASE, namespace="koordinator-system", port=DEFAULT_PORT, secure_port=10263
)


def _address(text: str) -> str:
    return address(text) if text else ""


def _with_host(text: str) -> str:
    return f"{_EVERYWHERE}{text}" if text.startswith(":") else text


class ManagerFlags(FlagTable):
    """The flags that only koord-manager has."""

    config_namespace = FlagSpec(
        "config-namespace", STRING, "koordinator-system", "namespace of slo-controller-config"
    )
    config_name = FlagSpec(
        "slo-config-name", STRING, "slo-controller-config", "name of the ConfigMap"
    )
    plugins = FlagSpec(
        "noderesource-plugins",
        STRING_LIST,
        ("*",),
        "plugins that say what nodes offer: names, * for all, -NAME for all but that one",
    )
    elect = FlagSpec(
        "enable-leader-election", BOOL, True, "as --leader-elect, which wins; Koordinator's name"
    )
    election_namespace = FlagSpec(
        "leader-election-namespace",
        STRING,
        "",
        "as --leader-elect-resource-namespace, which wins; Koordinator's name",
    )
    webhook_address = FlagSpec(
        "webhook-bind-address",
        STRING,
        "",
        "address of the webhook that mutates pods, as :9876, for API servers without "
        "MutatingAdmissionPolicy; with the certificate of --tls-cert-file, or one that the manager "
        "keeps in a Secret of its namespace",
        _address,
    )
    all_profiles = FlagSpec(
        "colocation-profile-reconcile-by-default",
        BOOL,
        False,
        "with the gate ColocationProfileController each profile changes pods that wait for a node, "
        "also without the label config.koordinator.sh/controller-managed",
    )
    profiles_interval = FlagSpec(
        "colocation-profile-reconcile-interval",
        DURATION,
        30.0,
        "between looks at such pods",
        at_least_seconds(1),
    )
    metrics_address = FlagSpec(
        "metrics-addr", STRING, "", "further address of plain HTTP, as :8080", _address
    )
    health_address = FlagSpec(
        "health-probe-addr", STRING, "", "further address of plain HTTP, as :8000", _address
    )

    def __init__(self, flags: FlagSet) -> None:
        """Define all flags."""
        super().__init__(flags)
        define_ignored_flags(flags, _INERT)

    def leader_election(self, common: Mapping[str, object]) -> dict[str, object]:
        """Return fields of LeaderElection that flags set, by attribute; common has the others'."""
        own: dict[str, object] = {}
        if self.elect.is_set:
            own["leader_elect"] = self.elect.value
        if self.election_namespace.value:
            own["resource_namespace"] = self.election_namespace.value
        return {**own, **common}

    @property
    def addresses(self) -> list[str]:
        """Further addresses of plain HTTP, HOST:PORT."""
        given = (self.metrics_address.value, self.health_address.value)
        return [_with_host(one) for one in given if one]

    @property
    def webhook(self) -> Address | None:
        """The address of the webhook; None: there is none."""
        text = self.webhook_address.value
        return Address.parse(_with_host(text)) if text else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(CommonSettings[PluginRegistry, Configuration]):
    """Everything that is decided before the first part is built."""

    own: ManagerFlags

    @property
    def enabled(self) -> list[str]:
        """The plugins that are switched on."""
        return enabled_plugins(self.registry, self.gates, self.own.plugins.value)

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""
        return to_document(self.configuration)

    def warnings(self) -> list[LogEvent]:
        """The warnings of every daemon, and probable mistakes in the file."""
        return CommonSettings.warnings(self) + self.file_warnings()


def new_flags(*, terminal: bool = False) -> tuple[FlagSet, ControlPlaneFlags, ManagerFlags]:
    """Return the flags of the command; terminal says whether stderr is one."""
    flags = FlagSet(NAME, underscores=True)
    return flags, ControlPlaneFlags(flags, DEFAULTS, terminal=terminal), ManagerFlags(flags)


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
    registry = PluginRegistry()
    problems = tuple(discover(registry))
    gates = feature_gates(entry.name for entry in registry)
    path = apply_command_line(argv, flags, options, gates)
    known, election = known_plugins(registry), own.leader_election(options.leader_election())
    read = read_config(path, FORMAT.parser(known, election)) if path else FORMAT.default(
        known, election
    )  # fmt: skip
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
