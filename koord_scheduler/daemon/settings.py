"""Command line, environment and configuration file as one checked whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koord.component.config.document import read_config
from koord.component.flag_values import BOOL, DURATION, INT, STRING, STRING_LIST, address, at_least
from koord.component.flags import Flag, FlagSet, FlagSpec, define_ignored_flags
from koord.component.http.sockets import Address
from koord.controlplane.settings import (
    CommonSettings,
    ControlPlaneDefaults,
    ControlPlaneFlags,
    Discover,
    LogEvent,
    apply_command_line,
)
from koord.util.errors import OptionError
from koord.util.goformat import is_loopback
from koord_scheduler import NAME
from koord_scheduler.config.configuration import Configuration
from koord_scheduler.config.file import config_parser, default_configuration, to_document
from koord_scheduler.extenderserver.server import AccessFiles
from koord_scheduler.features import feature_gates
from koord_scheduler.framework.profile import PluginRegistry, known_plugins
from koord_scheduler.queue.schedulingqueue import MAX_IN_UNSCHEDULABLE_PODS
from koord_scheduler.scheduling.attempt import AttemptTimeouts
from koord_scheduler.scheduling.debugging import QUEUE, Debugging

_NO_LOOKUP = "tokens are checked by the API server that the scheduler works for"
_NO_CERTIFICATES = "clients are known by their tokens only"
_ONE_WRITER = "one writer of diagnoses is enough, on the event loop"

_INERT = (
    FlagSpec("authentication-kubeconfig", STRING, "", _NO_LOOKUP),
    FlagSpec("authentication-skip-lookup", BOOL, False, _NO_LOOKUP),
    FlagSpec("authentication-token-webhook-cache-ttl", DURATION, 10.0, _NO_LOOKUP),
    FlagSpec("authentication-tolerate-lookup-failure", BOOL, True, _NO_LOOKUP),
    FlagSpec(
        "authorization-always-allow-paths",
        STRING,
        "/healthz,/readyz,/livez",
        "health and metrics are for all, the rest is not",
    ),
    FlagSpec("authorization-kubeconfig", STRING, "", _NO_LOOKUP),
    FlagSpec("authorization-webhook-cache-authorized-ttl", DURATION, 10.0, _NO_LOOKUP),
    FlagSpec("authorization-webhook-cache-unauthorized-ttl", DURATION, 10.0, _NO_LOOKUP),
    FlagSpec("client-ca-file", STRING, "", _NO_CERTIFICATES),
    FlagSpec("requestheader-allowed-names", STRING_LIST, (), _NO_CERTIFICATES),
    FlagSpec("requestheader-client-ca-file", STRING, "", _NO_CERTIFICATES),
    FlagSpec("requestheader-extra-headers-prefix", STRING_LIST, (), _NO_CERTIFICATES),
    FlagSpec("requestheader-group-headers", STRING_LIST, (), _NO_CERTIFICATES),
    FlagSpec("requestheader-uid-headers", STRING_LIST, (), _NO_CERTIFICATES),
    FlagSpec("requestheader-username-headers", STRING_LIST, (), _NO_CERTIFICATES),
    FlagSpec("contention-profiling", BOOL, True, "no profiles are served"),
    FlagSpec("profiling", BOOL, True, "no profiles are served"),
    FlagSpec("disable-http2-serving", BOOL, False, "HTTP/2 is not served"),
    FlagSpec("emulated-version", STRING_LIST, (), "the version of Kubernetes to behave like"),
    FlagSpec("emulation-forward-compatible", BOOL, False, "see --emulated-version"),
    FlagSpec("min-compatibility-version", STRING_LIST, (), "see --emulated-version"),
    FlagSpec("kube-api-content-type", STRING, "", "always JSON"),
    FlagSpec("debug-diagnosis-worker-count", INT, 10, _ONE_WRITER, at_least(0)),
    FlagSpec(
        "scheduling-drop-unhandled-timeout",
        DURATION,
        5.0,
        "a pod that leaves the queue is tried or let go at once, and not watched before",
    ),
)


def _extender_address(text: str) -> str:
    return address(text) if text else ""


def _positive(seconds: float) -> str:
    return "" if seconds > 0 else "use more than 0s"


class SchedulerFlags:
    """The flags as attributes."""

    def __init__(self, flags: FlagSet) -> None:
        """Define all flags."""
        self.master = flags.string(
            "master", "", "URL of the API server, in place of the kubeconfig's"
        )
        unless = "; the file's with --config"
        self._client: dict[str, Flag[Any]] = {
            "kubeconfig": flags.string(
                "kubeconfig", "", "path of a kubeconfig; the file's, if it names one"
            ),
            "qps": flags.float("kube-api-qps", 50.0, f"requests per second{unless}"),
            "burst": flags.int(
                "kube-api-burst", 100, f"requests at once{unless}", check=at_least(0)
            ),
        }
        self._scores = [
            flags.int(name, 0, "log so many of the best nodes of each cycle", check=at_least(0))
            for name in ("debug-scores", "s")
        ]
        self._filters = [
            flags.bool(name, False, "log which nodes each plugin rejects")
            for name in ("debug-filters", "f")
        ]
        self._diagnosis = [
            flags.bool(name, False, "log as JSON why a pod found no node")
            for name in ("debug-diagnosis", "d")
        ]
        self._diagnosis_blocking = flags.bool(
            "debug-diagnosis-blocking", False, "log diagnoses before the next cycle, and drop none"
        )
        self.diagnoses = flags.int(
            "debug-diagnosis-queue-size",
            QUEUE,
            "diagnoses that wait to be logged; further ones are dropped",
            check=at_least(0),
        )
        defaults = AttemptTimeouts()
        self.monitor_period = flags.duration(
            "scheduler-monitor-period",
            defaults.period,
            "time between two looks at attempts that are under way",
            check=_positive,
        )
        self.scheduling_timeout = flags.duration(
            "scheduling-timeout",
            defaults.timeout,
            "time after which an attempt, with its binding, is logged and counted as too long",
            check=_positive,
        )
        self.max_in_unschedulable_pods = flags.duration(
            "pod-max-in-unschedulable-pods-duration",
            MAX_IN_UNSCHEDULABLE_PODS,
            "time after which a rejected pod is tried again without an event",
            check=_positive,
        )
        self.extender = flags.string(
            "extender",
            "",
            "serve the plugins to a kube-scheduler on this address (:PORT is 127.0.0.1:PORT), and "
            "schedule nothing",
            check=_extender_address,
        )
        self.extender_timeout = flags.duration(
            "extender-timeout",
            5.0,
            "the httpTimeout that kube-scheduler has for this extender",
            check=_positive,
        )
        self.extender_fail_open = flags.bool(
            "extender-fail-open",
            False,
            "where a plugin fails let all nodes pass, in place of failing the pod's attempt",
        )
        self._extender_files = {
            name: flags.string(f"extender-{flag}", "", meaning)
            for name, flag, meaning in (
                ("certificate", "tls-cert-file", "certificate in PEM of HTTPS for --extender"),
                ("key", "tls-private-key-file", "its key in PEM; both are followed"),
                (
                    "client_ca",
                    "client-ca-file",
                    "CAs in PEM of which a client of --extender needs a certificate",
                ),
                (
                    "token",
                    "token-file",
                    "file with the bearer token that a client of --extender needs",
                ),
            )
        }
        self.network_topology = flags.bool(
            "enable-network-topology-manager",
            False,
            "have plugins see the network between nodes, as ClusterNetworkTopology has it",
        )
        self.auditor = flags.bool(
            "enable-workload-auditor", False, "record what becomes of each workload"
        )
        self.controller_plugins = flags.string_list(
            "controller-plugins",
            ("*",),
            "plugins whose controllers run: names, * for all, -NAME for all but that one",
        )
        define_ignored_flags(flags, _INERT)

    def check_together(self) -> None:
        """Check flags against each other; call it after parsing.

        Raises:
            OptionError: the extender's clients could be anyone, or a file is missing.
        """
        given = {name: flag for name, flag in self._extender_files.items() if flag.value}
        for one, needs in (("certificate", "key"), ("key", "certificate"), ("client_ca", "key")):
            if one in given and needs not in given:
                hint = f"give --{self._extender_files[needs].name} as well"
                raise OptionError(f"--{given[one].name}", given[one].value, hint)
        address = self.extender_address
        local = address is None or address.host == "localhost" or is_loopback(address.host)
        if not local and not self.extender_files.known:
            hint = (
                "others can connect there: give --extender-client-ca-file and a certificate, or "
                "--extender-token-file; or listen on 127.0.0.1"
            )
            raise OptionError(f"--{self.extender.name}", self.extender.value, hint)

    def debugging(self) -> Debugging:
        """Return what cycles log at the start; of a flag and its letter either counts."""
        return Debugging(
            scores=max(flag.value for flag in self._scores),
            filters=any(flag.value for flag in self._filters),
            diagnosis=any(flag.value for flag in self._diagnosis),
            diagnosis_blocking=self._diagnosis_blocking.value,
        )

    def timeouts(self) -> AttemptTimeouts:
        """How long attempts may take."""
        return AttemptTimeouts(
            timeout=self.scheduling_timeout.value, period=self.monitor_period.value
        )

    @property
    def extender_address(self) -> Address | None:
        """Where plugins are served to a kube-scheduler; None: this process schedules itself."""
        if not self.extender.value:
            return None
        found = Address.parse(self.extender.value)
        return Address(found.host or "127.0.0.1", found.port)

    @property
    def extender_files(self) -> AccessFiles:
        """Return the files for TLS of the extender and for the authentication of its clients."""
        given = {name: flag.value for name, flag in self._extender_files.items() if flag.value}
        return AccessFiles(**{name: Path(value) for name, value in given.items()})

    @property
    def kubeconfig(self) -> str:
        """Path of a kubeconfig; empty: not given."""
        return str(self._client["kubeconfig"].value)

    def client_connection(self) -> dict[str, object]:
        """The fields of ClientConnection, by attribute, that flags set."""
        return {name: flag.value for name, flag in self._client.items() if flag.is_set}


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
        """The warnings of every daemon, and probable mistakes in the file."""
        suspicious: list[LogEvent] = [
            ("config.warning", {"warning": str(fault)}) for fault in self.read.warnings
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
    path = apply_command_line(argv, flags, options, gates)
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
