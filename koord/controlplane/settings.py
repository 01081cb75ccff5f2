"""Settings of a control plane daemon: common flags, config file, gates, effective configuration."""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from koord.component.config.componentconfig import ReadConfig
from koord.component.flag_values import (
    BOOL,
    BOOL_MAP,
    DURATION,
    INT,
    STRING,
    STRING_LIST,
    at_least,
    at_least_seconds,
    levels,
    one_of,
    within,
)
from koord.component.flags import FeatureGates, FlagSet, FlagSpec, FlagTable, define_ignored_flags
from koord.component.plugins.registry import FactoryRegistry
from koord.util.errors import KoordError, OptionError
from koord.util.logs import LogFormat

DEBUG_VERBOSITY = 5  # of --v, from which on debug events are shown
CONFIG_VERBOSITY = 2  # from which on the effective configuration is logged

TLS_VERSIONS = ("VersionTLS12", "VersionTLS13")


def _ip(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return "use an IP address"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlPlaneDefaults:
    """The defaults that differ between daemons."""

    name: str  # of the program and of its Lease
    namespace: str  # of its Lease
    port: int  # of plain HTTP
    secure_port: int
    file_has_addresses: bool = False  # of plain HTTP: flags count only without a file


_INERT = (
    FlagSpec("cert-dir", STRING, "", "directory of a generated certificate; none is generated"),
    FlagSpec("tls-cipher-suites", STRING, "", "cipher suites of TLS 1.2"),
    FlagSpec("tls-sni-cert-key", STRING_LIST, (), "further certificates by host name"),
    FlagSpec("http2-max-streams-per-connection", INT, 0, "HTTP/2 is not served", at_least(0)),
    FlagSpec("permit-port-sharing", BOOL, False, "SO_REUSEPORT"),
    FlagSpec("permit-address-sharing", BOOL, False, "SO_REUSEADDR, which is always set"),
    FlagSpec("show-hidden-metrics-for-version", STRING, "", "there are no hidden metrics"),
    FlagSpec("disabled-metrics", STRING_LIST, (), "no metric can be disabled"),
    FlagSpec("allow-metric-labels", STRING_LIST, (), "labels are bounded already"),
    FlagSpec("allow-metric-labels-manifest", STRING, "", "labels are bounded already"),
    FlagSpec("log-flush-frequency", DURATION, 5.0, "each line is written at once"),
    FlagSpec("log-text-split-stream", BOOL, False, "all goes to stderr"),
    FlagSpec("log-text-info-buffer-size", STRING, "0", "all goes to stderr"),
    FlagSpec("log-json-split-stream", BOOL, False, "all goes to stderr"),
    FlagSpec("log-json-info-buffer-size", STRING, "0", "all goes to stderr"),
    FlagSpec("vmodule", STRING, "", "verbosity by file; use --log-level"),
    FlagSpec("logtostderr", BOOL, True, "logs always go to stderr"),
    FlagSpec("alsologtostderr", BOOL, False, "logs always go to stderr"),
    FlagSpec("stderrthreshold", STRING, "INFO", "severity for stderr; use --log-level"),
    FlagSpec("log-dir", STRING, "", "logs always go to stderr"),
    FlagSpec("log-file", STRING, "", "logs always go to stderr"),
    FlagSpec("log-file-max-size", INT, 1800, "megabytes of a log file", at_least(0)),
    FlagSpec("log-backtrace-at", STRING, ":0", "backtrace at a source line"),
    FlagSpec("add-dir-header", BOOL, False, "directory in klog's header"),
    FlagSpec("skip-headers", BOOL, False, "no klog header"),
    FlagSpec("skip-log-headers", BOOL, False, "no header in log files"),
    FlagSpec("one-output", BOOL, False, "write to one severity's file only"),
)


_SECOND = at_least_seconds(1.0)
_PORT = within(0, 65535)


class ElectionFlags(FlagTable):
    """Flags of leader election; attributes are fields of LeaderElection. Durations in seconds."""

    leader_elect = FlagSpec(
        "leader-elect", BOOL, True, "work only while this replica is the leader"
    )
    lease_duration = FlagSpec(
        "leader-elect-lease-duration",
        DURATION,
        15.0,
        "time after which another replica may take over",
        _SECOND,
    )
    renew_deadline = FlagSpec(
        "leader-elect-renew-deadline",
        DURATION,
        10.0,
        "time for which the leader tries to renew",
        _SECOND,
    )
    retry_period = FlagSpec(
        "leader-elect-retry-period", DURATION, 2.0, "time between two tries", at_least_seconds(0.1)
    )
    resource_lock = FlagSpec(
        "leader-elect-resource-lock", STRING, "leases", "kind of the lock", one_of("leases")
    )
    resource_name = FlagSpec("leader-elect-resource-name", STRING, "", "name of the Lease")
    resource_namespace = FlagSpec(
        "leader-elect-resource-namespace", STRING, "", "namespace of the Lease"
    )

    def __init__(self, flags: FlagSet, defaults: ControlPlaneDefaults) -> None:
        """Define all flags."""
        cls = type(self)
        super().__init__(
            flags,
            {
                "resource_name": replace(cls.resource_name, default=defaults.name),
                "resource_namespace": replace(cls.resource_namespace, default=defaults.namespace),
            },
        )


class ControlPlaneFlags(FlagTable):
    """The flags as attributes, a row each. Values are checked when they are given.

    Ports without a default of their own have that of ControlPlaneDefaults.
    """

    config = FlagSpec("config", STRING, "", "configuration file, YAML or JSON")
    write_config_to = FlagSpec(
        "write-config-to", STRING, "", "write the effective configuration to this file, and exit"
    )
    feature_gates = FlagSpec("feature-gates", BOOL_MAP, {}, "features to switch, as A=true,B=false")

    # serving
    address = FlagSpec("address", STRING, "127.0.0.1", "IP address of plain HTTP", _ip)
    port = FlagSpec("port", INT, 0, "port of plain HTTP, 0 for none", _PORT, unit="port")
    status_page = FlagSpec("status-page", BOOL, True, "serve the status page at /")
    bind_address = FlagSpec(
        "bind-address",
        STRING,
        "0.0.0.0",  # noqa: S104 - HTTPS is served with a certificate only, and a token guard
        "IP address of HTTPS",
        _ip,
    )
    secure_port = FlagSpec(
        "secure-port",
        INT,
        0,
        "port of HTTPS, 0 for none; only served with a certificate",
        _PORT,
        unit="port",
    )
    tls_cert_file = FlagSpec(
        "tls-cert-file", STRING, "", "certificate in PEM of HTTPS, followed by those of its CAs"
    )
    tls_private_key_file = FlagSpec(
        "tls-private-key-file",
        STRING,
        "",
        "its key in PEM; both are read again when they change",
    )
    tls_min_version = FlagSpec(
        "tls-min-version",
        STRING,
        TLS_VERSIONS[0],
        "oldest version of TLS",
        one_of(*TLS_VERSIONS),
    )

    # logs
    v = FlagSpec(
        "v",
        INT,
        0,
        f"verbosity: from {CONFIG_VERBOSITY} on the effective configuration is logged, from "
        f"{DEBUG_VERBOSITY} on debug events",
        at_least(0),
        unit="level",
    )
    log_level = FlagSpec(
        "log-level",
        STRING,
        "info",
        "least level of logs, in general and by logger, as info,LowNodeLoad=debug",
        levels,
    )
    logging_format = FlagSpec(
        "logging-format",
        STRING,
        "json",
        "json or text; on a terminal text by default",
        one_of("json", "text"),
    )

    def __init__(self, flags: FlagSet, defaults: ControlPlaneDefaults, *, terminal: bool) -> None:
        """Define all flags; terminal says whether stderr is one."""
        cls, unless = (
            type(self),
            "; the file's with --config" if defaults.file_has_addresses else "",
        )
        super().__init__(
            flags,
            {
                "address": replace(cls.address, help=cls.address.help + unless),
                "port": replace(cls.port, default=defaults.port, help=cls.port.help + unless),
                "secure_port": replace(cls.secure_port, default=defaults.secure_port),
            },
        )
        self._election = ElectionFlags(flags, defaults)
        self._terminal = terminal
        define_ignored_flags(flags, _INERT)

    def check_combinations(self) -> None:
        """Check flags against each other; call it after parsing.

        Raises:
            OptionError: one of two is missing that belong together.
        """
        pair = (self.tls_cert_file, self.tls_private_key_file)
        for given, missing in (pair, pair[::-1]):
            if given.value and not missing.value:
                hint = f"give --{missing.name} as well, or neither"
                raise OptionError(f"--{given.name}", given.value, hint)

    @property
    def level_spec(self) -> str:
        """The log levels, of --log-level or else of --v."""
        if self.log_level.is_set or self.v.value < DEBUG_VERBOSITY:
            return self.log_level.value
        return "debug"

    @property
    def log_format(self) -> LogFormat:
        """json or console."""
        if not self.logging_format.is_set and self._terminal:
            return "console"
        return "console" if self.logging_format.value == "text" else "json"

    @property
    def plain_address(self) -> str:
        """The address of plain HTTP, HOST:PORT."""
        host, port = self.address.value, self.port.value
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def leader_election(self) -> dict[str, object]:
        """The fields of LeaderElection, by attribute, that flags set: they win over the file's."""
        return {name: flag.value for name, flag in vars(self._election).items() if flag.is_set}


LogEvent = tuple[str, dict[str, object]]
"""Name of a log event, and its facts."""


def effective_text(document: object) -> str:
    """Return the document of a configuration as YAML that reads back."""
    return str(yaml.safe_dump(document, sort_keys=False))


def write_configuration(document: object, path: Path) -> None:
    """Write the effective configuration.

    Raises:
        KoordError: the file cannot be written.
    """
    try:
        path.write_text(effective_text(document))
    except OSError as err:
        hint = "name a file that this user can write to"
        raise KoordError(f"--write-config-to: {path}: found {err.strerror}; {hint}") from err


def without_effect(
    flags: FlagSet, gates: FeatureGates, plugin_problems: Iterable[str]
) -> list[LogEvent]:
    """Return log events for settings without effect.

    These are flags and gates that do nothing, and plugins that could not be registered.
    """
    found: list[LogEvent] = []
    if inert := flags.inert_set():
        found.append(("flags.without_effect", {"flags": inert}))
    if missing := gates.not_built():
        found.append(("gates.not_built", {"gates": missing}))
    return found + [("plugin.problem", {"error": problem}) for problem in plugin_problems]


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
        """Return the warnings about these settings, as log events with their facts."""
        return without_effect(self.flags, self.gates, self.plugin_problems)

    def file_warnings(self) -> list[LogEvent]:
        """Return the probable mistakes in the file, as log events."""
        return [("config.warning", {"warning": str(fault)}) for fault in self.read.warnings]


def apply_command_line(
    argv: Sequence[str], flags: FlagSet, options: ControlPlaneFlags, gates: FeatureGates
) -> Path | None:
    """Set flags and gates by a command line; return the configuration's path, None: there is none.

    Raises:
        OptionError: a flag cannot be used.
        HelpRequested: the user asked for help.
    """
    if rest := flags.parse(argv):
        raise OptionError("command line", rest[0], "only flags are expected, like --name=value")
    options.check_combinations()
    gates.replace_map(options.feature_gates.value)
    return Path(options.config.value) if options.config.value else None
