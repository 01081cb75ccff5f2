"""Command line, feature gates, environment and configuration file as one checked whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from koord.component.config.document import read_config
from koord.component.flag_values import (
    BOOL,
    DURATION,
    FLOAT,
    INT,
    STRING,
    STRING_LIST,
    address,
    at_least,
)
from koord.component.flags import (
    FeatureGates,
    FeatureSpec,
    Flag,
    FlagSet,
    FlagSpec,
    FlagTable,
    Stage,
    define_ignored_flags,
)
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
from koord_scheduler.config.configuration import (
    Configuration,
    config_parser,
    default_configuration,
    to_document,
)
from koord_scheduler.extenderserver import AccessFiles
from koord_scheduler.framework.profile import PluginRegistry, known_plugins
from koord_scheduler.queue import MAX_IN_UNSCHEDULABLE_PODS
from koord_scheduler.scheduling.cycle import QUEUE, Debugging
from koord_scheduler.scheduling.failures import AttemptTimeouts

_ON = FeatureSpec(default=True, stage=Stage.BETA)
_OFF = FeatureSpec()
_GA = FeatureSpec(default=True, stage=Stage.GA)

# Source: Koordinator, pkg/features (koord-scheduler).
_KOORDINATOR: Mapping[str, FeatureSpec] = {
    "CSIStorageCapacity": _GA,
    "CleanExpiredReservationAllocated": _OFF,
    "CompatibleCSIStorageCapacity": _OFF,
    "CompatiblePodDisruptionBudget": _OFF,
    "CrossSchedulerNomination": _OFF,
    "DevicePluginAdaption": _OFF,
    "DisableCSIStorageCapacityInformer": _OFF,
    "DisableDefaultQuota": _OFF,
    "DisablePodDisruptionBudgetInformer": _OFF,
    "DynamicSchedulerCheck": FeatureSpec(default=True),
    "ElasticQuotaEnableUpdateResourceKey": _OFF,
    "ElasticQuotaGuaranteeUsage": _OFF,
    "ElasticQuotaIgnorePodOverhead": _OFF,
    "ElasticQuotaIgnoreTerminatingPod": _OFF,
    "ElasticQuotaImmediateIgnoreTerminatingPod": _OFF,
    "EnableBatchScheduleNodeSnapshot": FeatureSpec(default=True),
    "EnableInlineBatchSchedule": _OFF,
    "GangPendingPodsConditionPatch": FeatureSpec(default=True),
    "GenericEphemeralVolume": _GA,
    "LazyReservationRestore": _OFF,
    "MultiQuotaTree": _OFF,
    "OmitNodeLabelsForReservation": _OFF,
    "PodDisruptionBudget": _GA,
    "ResizePod": _OFF,
    "SkipFilterWithNominatedPods": _OFF,
    "SkipReservationFitsNode": _OFF,
    "SupportParentQuotaSubmitPod": _OFF,
    "SyncBarrier": _OFF,
}
# Source: Kubernetes, pkg/features (kube-scheduler's part).
_KUBERNETES: Mapping[str, FeatureSpec] = {
    "DynamicResourceAllocation": _GA,
    "GangScheduling": _OFF,
    "GenericWorkload": _OFF,
    "InPlacePodVerticalScaling": _GA,
    "MatchLabelKeysInPodAffinity": _GA,
    "MatchLabelKeysInPodTopologySpread": _ON,
    "NodeInclusionPolicyInPodTopologySpread": _GA,
    "NominatedNodeNameForExpectation": _ON,
    "OpportunisticBatching": _ON,
    "PodLevelResources": _ON,
    "PodSchedulingReadiness": _GA,
    "SchedulerAsyncAPICalls": _ON,
    "SchedulerAsyncPreemption": _ON,
    "SchedulerPopFromBackoffQ": _ON,
    "SchedulerQueueingHints": _GA,
    "SidecarContainers": _GA,
    "StorageCapacityScoring": _OFF,
}
_BUILT = (  # of the framework and of plugins that ship
    "CleanExpiredReservationAllocated",
    "CrossSchedulerNomination",
    "DevicePluginAdaption",
    "DisableDefaultQuota",
    "DynamicSchedulerCheck",
    "ElasticQuotaEnableUpdateResourceKey",
    "ElasticQuotaGuaranteeUsage",
    "ElasticQuotaIgnorePodOverhead",
    "ElasticQuotaIgnoreTerminatingPod",
    "ElasticQuotaImmediateIgnoreTerminatingPod",
    "MultiQuotaTree",
    "OmitNodeLabelsForReservation",
    "ResizePod",
    "SkipFilterWithNominatedPods",
    "SkipReservationFitsNode",
    "SupportParentQuotaSubmitPod",
)
GATES: Mapping[str, FeatureSpec] = {**_KOORDINATOR, **_KUBERNETES}


def feature_gates() -> FeatureGates:
    """Return the table with all gates at their defaults; those that do something are built."""
    gates = FeatureGates(GATES, NAME)
    gates.mark_built(name for name, spec in _KUBERNETES.items() if spec.default)
    gates.mark_built(_BUILT)
    return gates


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


_UNLESS = "; the file's with --config"
_TIMEOUTS = AttemptTimeouts()


class ClientFlags(FlagTable):
    """Flags of the client of the API server; attributes are fields of ClientConnection."""

    kubeconfig = FlagSpec(
        "kubeconfig", STRING, "", "path of a kubeconfig; the file's, if it names one"
    )
    qps = FlagSpec(
        "kube-api-qps", FLOAT, 50.0, f"requests per second{_UNLESS}", unit="requests per second"
    )
    burst = FlagSpec(
        "kube-api-burst", INT, 100, f"requests at once{_UNLESS}", at_least(0), unit="requests"
    )


class ExtenderFlags(FlagTable):
    """Files of the extender; attributes are fields of AccessFiles."""

    certificate = FlagSpec(
        "extender-tls-cert-file", STRING, "", "certificate in PEM of HTTPS for --extender"
    )
    key = FlagSpec("extender-tls-private-key-file", STRING, "", "its key in PEM; both are followed")
    client_ca = FlagSpec(
        "extender-client-ca-file",
        STRING,
        "",
        "CAs in PEM of which a client of --extender needs a certificate",
    )
    token = FlagSpec(
        "extender-token-file",
        STRING,
        "",
        "file with the bearer token that a client of --extender needs",
    )


class SchedulerFlags(FlagTable):
    """The flags as attributes, a row each. Durations are in seconds."""

    master = FlagSpec("master", STRING, "", "URL of the API server, in place of the kubeconfig's")

    # what cycles log; of a flag and its letter either counts
    debug_scores = FlagSpec(
        "debug-scores", INT, 0, "log so many of the best nodes of each cycle", at_least(0), "nodes"
    )
    s = replace(debug_scores, name="s")
    debug_filters = FlagSpec("debug-filters", BOOL, False, "log which nodes each plugin rejects")
    f = replace(debug_filters, name="f")
    debug_diagnosis = FlagSpec(
        "debug-diagnosis", BOOL, False, "log as JSON why a pod found no node"
    )
    d = replace(debug_diagnosis, name="d")
    diagnosis_blocking = FlagSpec(
        "debug-diagnosis-blocking",
        BOOL,
        False,
        "log diagnoses before the next cycle, and drop none",
    )
    diagnoses = FlagSpec(
        "debug-diagnosis-queue-size",
        INT,
        QUEUE,
        "diagnoses that wait to be logged; further ones are dropped",
        at_least(0),
        "diagnoses",
    )

    # attempts
    monitor_period = FlagSpec(
        "scheduler-monitor-period",
        DURATION,
        _TIMEOUTS.period,
        "time between two looks at attempts that are under way",
        _positive,
    )
    scheduling_timeout = FlagSpec(
        "scheduling-timeout",
        DURATION,
        _TIMEOUTS.timeout,
        "time after which an attempt, with its binding, is logged and counted as too long",
        _positive,
    )
    max_in_unschedulable_pods = FlagSpec(
        "pod-max-in-unschedulable-pods-duration",
        DURATION,
        MAX_IN_UNSCHEDULABLE_PODS,
        "time after which a rejected pod is tried again without an event",
        _positive,
    )

    # the extender
    extender = FlagSpec(
        "extender",
        STRING,
        "",
        "serve the plugins to a kube-scheduler on this address (:PORT is 127.0.0.1:PORT), and "
        "schedule nothing",
        _extender_address,
    )
    extender_timeout = FlagSpec(
        "extender-timeout",
        DURATION,
        5.0,
        "the httpTimeout that kube-scheduler has for this extender",
        _positive,
    )
    extender_fail_open = FlagSpec(
        "extender-fail-open",
        BOOL,
        False,
        "where a plugin fails let all nodes pass, in place of failing the pod's attempt",
    )

    # what plugins find
    network_topology = FlagSpec(
        "enable-network-topology-manager",
        BOOL,
        False,
        "have plugins see the network between nodes, as ClusterNetworkTopology has it",
    )
    auditor = FlagSpec(
        "enable-workload-auditor", BOOL, False, "record what becomes of each workload"
    )
    controller_plugins = FlagSpec(
        "controller-plugins",
        STRING_LIST,
        ("*",),
        "plugins whose controllers run: names, * for all, -NAME for all but that one",
    )

    def __init__(self, flags: FlagSet) -> None:
        """Define all flags."""
        super().__init__(flags)
        self._client = ClientFlags(flags)
        self._extender_files = ExtenderFlags(flags)
        define_ignored_flags(flags, _INERT)

    def check_combinations(self) -> None:
        """Check flags against each other; call it after parsing.

        Raises:
            OptionError: the extender's clients could be anyone, or a file is missing.
        """
        files: Mapping[str, Flag[str]] = vars(self._extender_files)
        given = {name: flag for name, flag in files.items() if flag.value}
        for one, needs in (("certificate", "key"), ("key", "certificate"), ("client_ca", "key")):
            if one in given and needs not in given:
                hint = f"give --{files[needs].name} as well"
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
            scores=max(self.debug_scores.value, self.s.value),
            filters=self.debug_filters.value or self.f.value,
            diagnosis=self.debug_diagnosis.value or self.d.value,
            diagnosis_blocking=self.diagnosis_blocking.value,
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
        files: Mapping[str, Flag[str]] = vars(self._extender_files)
        given = {name: flag.value for name, flag in files.items() if flag.value}
        return AccessFiles(**{name: Path(value) for name, value in given.items()})

    @property
    def kubeconfig(self) -> str:
        """Path of a kubeconfig; empty: not given."""
        return self._client.kubeconfig.value

    def client_connection(self) -> dict[str, object]:
        """The fields of ClientConnection, by attribute, that flags set."""
        return {name: flag.value for name, flag in vars(self._client).items() if flag.is_set}


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
        return CommonSettings.warnings(self) + self.file_warnings()


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
    own.check_combinations()
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
