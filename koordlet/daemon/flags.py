"""The flags of the daemon: Koordinator's that mean something here, and our own."""

from collections.abc import Iterable, Mapping

from koord.api.node import AddressType
from koord.api.slocontroller import CONFIG_MAP, CONFIG_NAMESPACE
from koord.component.flag_values import (
    BOOL,
    BOOL_MAP,
    DURATION,
    FLOAT,
    INT,
    STRING,
    STRING_LIST,
    TRI_STATE,
    FlagType,
    TriState,
    absolute,
    address,
    at_least,
    at_least_seconds,
    levels,
    object_name,
    one_of,
    percent,
    port,
    read_bool,
    within,
    zero_or_at_least_seconds,
)
from koord.component.flags import Flag, FlagSet, FlagSpec, FlagTable, define_ignored_flags
from koord.util.errors import OptionError
from koordlet.daemon.environment import Mode, default_run_dir
from koordlet.daemon.upstream_flags import INERT_FLAGS, HookFlags, PredictionFlags
from koordlet.executor.audit.log import MAX_PAGE_EVENTS
from koordlet.executor.claimmanager import DryRun
from koordlet.executor.evictions.eviction import EvictionFallback
from koordlet.executor.evictions.limits import MAX_BUDGET
from koordlet.executor.kernel.plan import OnForeignChange
from koordlet.executor.restorer import OnExit
from koordlet.manager_fallback import ManagerRoleMode
from koordlet.metriccache.kinds import DEFAULT_INTERVALS, Cadence
from koordlet.rules.other_agent import SYSTEM_NAMESPACES


def _read_dry_run(text: str) -> DryRun:
    try:
        return DryRun(all_plugins=read_bool(text))
    except ValueError:
        return _dry_run_of(name.strip() for name in text.split(","))


def _yaml_dry_run(value: object) -> DryRun:
    if isinstance(value, bool):
        return DryRun(all_plugins=value)
    if isinstance(value, str):
        return _read_dry_run(value)
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return _dry_run_of(value)
    raise ValueError("wanted true, false or names of plugins")


def _dry_run_of(names: Iterable[str]) -> DryRun:
    plugins = frozenset(filter(None, names))
    if not plugins:
        raise ValueError("wanted true, false or names of plugins")
    return DryRun(plugins=plugins)


def _write_dry_run(value: DryRun) -> str:
    return ",".join(sorted(value.plugins)) or str(value.all_plugins).lower()


DRY_RUN = FlagType(
    "true, false or plugins", _read_dry_run, _yaml_dry_run, _write_dry_run, needs_value=False
)


def _read_role_mode(text: str) -> ManagerRoleMode:
    try:
        return ManagerRoleMode(text)
    except ValueError as err:
        raise ValueError("wanted auto, on or off") from err


def _yaml_role_mode(value: object) -> ManagerRoleMode:
    if isinstance(value, bool):  # what on and off are in YAML
        return ManagerRoleMode.ON if value else ManagerRoleMode.OFF
    return _read_role_mode(str(value))


MANAGER_ROLE_MODE = FlagType(
    "auto, on or off", _read_role_mode, _yaml_role_mode, lambda mode: mode.value
)

_LOCAL_ADDRESS = "127.0.0.1:9316"

# flag: (default as Koordinator's DaemonSet mounts it, default on the host itself, meaning)
_ROOTS = {
    "cgroup-root-dir": ("/host-cgroup/", "/sys/fs/cgroup/", "the cgroup file system"),
    "proc-root-dir": ("/proc/", "/proc/", "the host's /proc"),
    "sys-root-dir": ("/host-sys/", "/sys/", "the host's /sys"),
    "sys-fs-root-dir": ("/host-sys-fs/", "/sys/fs/", "the host's /sys/fs"),
    "var-run-root-dir": ("/host-var-run/", "/var/run/", "sockets of container runtimes"),
    "var-lib-kubelet-dir": ("/var/lib/kubelet/", "/var/lib/kubelet/", "the kubelet's files"),
}


def _root(name: str) -> FlagSpec[str]:
    container, host, meaning = _ROOTS[name]
    other = f"; on the host itself {host}" if host != container else ""
    return FlagSpec(name, STRING, container, f"directory of {meaning}{other}", absolute)


class DaemonFlags(FlagTable):
    """The flags of the daemon, a row each. Durations are in seconds."""

    # the process
    addr = FlagSpec(
        "addr", STRING, ":9316", f"listen address of HTTP; standalone {_LOCAL_ADDRESS}", address
    )
    status_page = FlagSpec("status-page", BOOL, True, "serve the status page at /")
    config = FlagSpec("config", STRING, "", "YAML file with flag names as keys")
    standalone = FlagSpec(
        "standalone", BOOL, False, "do without Kubernetes; implied when no API server is configured"
    )
    run_dir = FlagSpec(
        "run-dir",
        STRING,
        "/host-var-run-koordlet",
        "directory of state that outlives the process; on the host /run/koordlet, or without "
        "root a directory of the user",
        absolute,
    )
    node_name = FlagSpec(
        "node-name", STRING, "", "name of this node; else NODE_NAME, else the host name"
    )
    force = FlagSpec(
        "force", BOOL, False, "act although another QoS agent is on this node, instead of observing"
    )
    other_agent_namespaces = FlagSpec(
        "other-agent-namespaces",
        STRING_LIST,
        SYSTEM_NAMESPACES,
        "namespaces beside our own whose pods count as another QoS agent by their names alone; "
        "pods elsewhere count only if they may act on the node",
    )
    trust_allocations = FlagSpec(
        "trust-allocations",
        BOOL,
        False,
        "let all CPUs and devices in the annotations of pods count, as Koordinator does: also "
        "those that the pod does not request, or that an older pod has",
    )
    feature_gates = FlagSpec("feature-gates", BOOL_MAP, {}, "features to switch, as A=true,B=false")

    # TLS and tokens
    tls_cert_file = FlagSpec(
        "tls-cert-file",
        STRING,
        "",
        "certificate in PEM to serve HTTPS with, followed by those of its CAs; read again when "
        "it changes",
    )
    tls_private_key_file = FlagSpec(
        "tls-private-key-file", STRING, "", "key of --tls-cert-file, in PEM and without a password"
    )
    auth_token_audiences = FlagSpec(
        "auth-token-audiences",
        STRING_LIST,
        (),
        "audiences that the tokens of clients may be meant for, instead of the API server; "
        "repeat the flag",
    )

    # logs
    log_format = FlagSpec(
        "log-format",
        STRING,
        "json",
        "json or console; on a terminal console",
        one_of("json", "console"),
    )
    log_level = FlagSpec(
        "log-level",
        STRING,
        "info",
        "least level shown, also by logger name: info,MyPlugin=debug",
        levels,
    )

    # directories of the host
    cgroup_root_dir = _root("cgroup-root-dir")
    proc_root_dir = _root("proc-root-dir")
    sys_root_dir = _root("sys-root-dir")
    sys_fs_root_dir = _root("sys-fs-root-dir")
    var_run_root_dir = _root("var-run-root-dir")
    var_lib_kubelet_dir = _root("var-lib-kubelet-dir")

    # the API server and reports to it
    kubeconfig = FlagSpec("kubeconfig", STRING, "", "kubeconfig file")
    kube_api_qps = FlagSpec(
        "kube-api-qps",
        FLOAT,
        20.0,
        "most requests to the API server per second; 0 for no bound",
        unit="requests per second",
    )
    kube_api_burst = FlagSpec(
        "kube-api-burst",
        INT,
        30,
        "requests at once after a quiet time",
        at_least(0),
        unit="requests",
    )
    node_topology_sync_interval = FlagSpec(
        "node-topology-sync-interval",
        DURATION,
        3.0,
        "period of looks at whether the node's topology has changed",
        at_least_seconds(1.0),
    )
    report_change_threshold = FlagSpec(
        "report-change-threshold",
        FLOAT,
        0.0,
        "change of node usage, in percent of capacity, that is reported to the cluster at once "
        "(at most every 10 s), for example 15; 0 for never",
        percent,
        unit="percent",
    )

    # the kubelet
    kubelet_preferred_address_type = FlagSpec(
        "kubelet-preferred-address-type",
        STRING,
        AddressType.INTERNAL_IP,
        "which of the Node's addresses to reach the kubelet at: " + ", ".join(AddressType),
        one_of(*AddressType),
    )
    kubelet_ca_file = FlagSpec(
        "kubelet-ca-file",
        STRING,
        "",
        "CA that signs the kubelet's certificate, if not the one of the API server",
    )
    kubelet_sync_interval = FlagSpec(
        "kubelet-sync-interval",
        DURATION,
        10.0,
        "period of the kubelet's list of pods, which new cgroups of pods make come at once; 0 "
        "for pods from the API server",
        zero_or_at_least_seconds(1.0),
    )
    kubelet_sync_timeout = FlagSpec(
        "kubelet-sync-timeout",
        DURATION,
        3.0,
        "most time for an answer of the kubelet, connection included",
        at_least_seconds(0.1),
    )
    kubelet_insecure_tls = FlagSpec(
        "kubelet-insecure-tls",
        BOOL,
        False,
        "ask the kubelet's read-only port: plain HTTP, without our token",
    )
    kubelet_read_only_port = FlagSpec(
        "kubelet-read-only-port", INT, 10255, "that port", port, unit="port"
    )
    disable_query_kubelet_config = FlagSpec(
        "disable-query-kubelet-config",
        BOOL,
        False,
        "do not ask the kubelet's /configz; CPUs that it gives to pods are not known then",
    )

    # actions on the node
    dry_run = FlagSpec(
        "dry-run",
        DRY_RUN,
        DryRun(),
        "plugins in dry-run, as A,B; true for all: their decisions are recorded and shown, and "
        "nothing is changed",
    )
    on_exit = FlagSpec(
        "on-exit",
        STRING,
        OnExit.RESTORE,
        "what becomes of changed kernel values at the end: restore, or keep for the next start "
        "to take over, as in a rolling update",
        one_of(*OnExit),
    )
    on_foreign_change = FlagSpec(
        "on-foreign-change",
        STRING,
        OnForeignChange.RETAKE,
        "what to do when another agent changes a value that a plugin claims: retake "
        "it after 10 s, doubling, at most 5 times an hour, or yield",
        one_of(*OnForeignChange),
    )
    evict_budget_per_hour = FlagSpec(
        "evict-budget-per-hour",
        INT,
        20,
        "most pods that the plugins of this node evict in an hour, restarts included; 0 for no "
        "bound",
        within(0, MAX_BUDGET),
        unit="evictions per hour",
    )
    evict_fallback = FlagSpec(
        "evict-fallback",
        STRING,
        EvictionFallback.NONE,
        "what becomes of a victim that runs on after its accepted eviction and its grace "
        "period, or of any where there is no API server: none, or kill its processes",
        one_of(*EvictionFallback),
    )
    only_evict_by_api = FlagSpec(
        "only-evict-by-api", BOOL, False, "never kill, whatever --evict-fallback says"
    )

    # the audit log
    audit_log_dir = FlagSpec(
        "audit-log-dir", STRING, "/var/log/koordlet", "directory of the audit log", absolute
    )
    audit_verbose = FlagSpec(
        "audit-verbose",
        INT,
        3,
        "most verbose audit events kept; 0 keeps all",
        at_least(0),
        unit="level",
    )
    audit_max_disk_space_mb = FlagSpec(
        "audit-max-disk-space-mb",
        INT,
        16,
        "most MiB of disk for the audit log",
        at_least(1),
        unit="MiB",
    )
    audit_max_concurrent_readers = FlagSpec(
        "audit-max-concurrent-readers",
        INT,
        4,
        "clients of /events that can be in the middle of paging; one more closes the oldest",
        at_least(1),
        unit="clients",
    )
    audit_max_events_limit = FlagSpec(
        "audit-max-events-limit",
        INT,
        2048,
        "largest page of /events, in events",
        within(1, MAX_PAGE_EVENTS),
        unit="events",
    )

    # the roles of a missing koord-manager
    manager_duties = FlagSpec(
        "manager-duties",
        MANAGER_ROLE_MODE,
        ManagerRoleMode.AUTO,
        "keep the specs of this node's NodeMetric and NodeSLO, as koord-manager does; auto: "
        "while no koord-manager is seen",
    )
    config_namespace = FlagSpec(
        "config-namespace",
        STRING,
        CONFIG_NAMESPACE,
        "namespace of koord-manager's ConfigMap and Lease",
        object_name,
    )
    slo_config_name = FlagSpec(
        "slo-config-name", STRING, CONFIG_MAP, "name of that ConfigMap", object_name
    )

    # objects from files, and the report
    pods_file = FlagSpec(
        "pods-file", STRING, "", "PodList to use instead of the cluster's or of discovered pods"
    )
    node_file = FlagSpec(
        "node-file", STRING, "", "Node to use instead of the cluster's or of this host"
    )
    nodeslo_file = FlagSpec("nodeslo-file", STRING, "", "NodeSLO to use instead of the cluster's")
    node_metric_file = FlagSpec(
        "node-metric-file",
        STRING,
        "",
        "file for the reports, in a cluster too; standalone <run-dir>/nodemetric.json",
    )
    enable_node_metric_report = FlagSpec(
        "enable-node-metric-report", BOOL, True, "report the NodeMetric"
    )
    report_interval = FlagSpec(
        "report-interval",
        DURATION,
        0.0,
        "period of standalone reports, 0 means 1m; in a cluster the NodeMetric's spec decides, "
        "by metricReportIntervalSeconds in slo-controller-config (30 or more)",
        zero_or_at_least_seconds(1.0),
    )

    # measuring
    collect_res_used_interval = FlagSpec(
        "collect-res-used-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.USAGE],
        "period of usage samples",
        at_least_seconds(1.0),
    )
    collect_sys_metric_outdated_interval = FlagSpec(
        "collect-sys-metric-outdated-interval",
        DURATION,
        10.0,
        "age at which samples no longer count for system usage",
        at_least_seconds(1.0),
    )
    collect_node_cpu_info_interval = FlagSpec(
        "collect-node-cpu-info-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.NODE_INFO],
        "period of CPU facts",
        at_least_seconds(1.0),
    )
    collect_node_storage_info_interval = FlagSpec(
        "collect-node-storage-info-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.STORAGE],
        "period of disk facts",
        at_least_seconds(1.0),
    )
    psi_collector_interval = FlagSpec(
        "psi-collector-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.PSI],
        "period of pressure samples",
        at_least_seconds(1.0),
    )
    cpi_collector_interval = FlagSpec(
        "cpi-collector-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.CPI],
        "period of counts of cycles and instructions",
        at_least_seconds(5.0),
    )
    collect_cpi_timewindow = FlagSpec(
        "collect-cpi-timewindow",
        DURATION,
        10.0,
        "time that is counted in each of these periods; at most the period",
        at_least_seconds(1.0),
    )
    coldpage_collector_interval = FlagSpec(
        "coldpage-collector-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.COLD_PAGE],
        "period of samples of cold memory",
        at_least_seconds(1.0),
    )
    coldpage_cpu_percent = FlagSpec(
        "coldpage-cpu-percent",
        FLOAT,
        0.5,
        "percent of one CPU that going over idle pages may take where there is no kidled",
        percent,
        unit="percent of a CPU",
    )
    network_collector_interval = FlagSpec(
        "network-collector-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.NETWORK],
        "period of network samples",
        at_least_seconds(1.0),
    )
    resctrl_collector_interval = FlagSpec(
        "resctrl-collector-interval",
        DURATION,
        DEFAULT_INTERVALS[Cadence.RESCTRL],
        "period of what control groups use of caches and memory bandwidth",
        at_least_seconds(1.0),
    )
    enable_resctrl_collector = FlagSpec(
        "enable-resctrl-collector", BOOL, False, "collect that; with the gate ResctrlCollector"
    )
    enable_pagecache_collector = FlagSpec(
        "enable-pagecache-collector", BOOL, False, "collect memory usage with page cache"
    )
    descriptor_budget = FlagSpec(
        "descriptor-budget", INT, 8192, "most kernel files held open", at_least(0), unit="files"
    )
    exporter_compat = FlagSpec(
        "exporter-compat",
        TRI_STATE,
        TriState.AUTO,
        "also export under the names of node_exporter and cAdvisor; auto: when standalone",
    )
    metrics_node_label = FlagSpec(
        "metrics-node-label",
        STRING,
        "",
        "label with the node's name to put on the families that --exporter-compat adds",
    )

    # devices
    xpu_device_infos_dir = FlagSpec(
        "xpu-device-infos-dir",
        STRING,
        "/var/run/koordlet/xpu-device-infos/",
        "directory of files in which vendors' agents describe devices; unless given "
        "<run-dir>/xpu-device-infos, which is where Koordinator's agent has it on the host",
        absolute,
    )
    xpu_enforce_collect = FlagSpec(
        "xpu-enforce-collect-from-device-infos",
        BOOL,
        False,
        "take GPUs from these files alone: never ask NVML",
    )
    pod_resources_proxy_path = FlagSpec(
        "pod-resources-proxy-path",
        STRING,
        "/var/run/koordlet/pod-resources",
        "directory of the proxy's socket kubelet.sock; unless given <run-dir>/pod-resources, "
        "which is where Koordinator's agent has it on the host",
        absolute,
    )

    def __init__(self, flags: FlagSet, *, terminal: bool = False) -> None:
        """Define all flags; terminal says whether stderr is one."""
        super().__init__(flags)
        if terminal:
            self.log_format.default = "console"
        self.prediction = PredictionFlags(flags)
        self.hooks = HookFlags(flags)
        define_ignored_flags(flags, INERT_FLAGS)

    def adopt_mode(self, mode: Mode, *, uid: int, environ: Mapping[str, str]) -> None:
        """Set the defaults that depend on where the daemon runs; call it after parsing."""
        for flag in self.roots:
            container, host, _ = _ROOTS[flag.name]
            flag.default = host if mode.host_mode else container
        run_dir = default_run_dir(host_mode=mode.host_mode, uid=uid, environ=environ)
        self.run_dir.default = str(run_dir)
        self.prediction.follow_run_dir(self.run_dir.value)
        self.xpu_device_infos_dir.default = f"{self.run_dir.value}/xpu-device-infos"
        self.pod_resources_proxy_path.default = f"{self.run_dir.value}/pod-resources"
        if mode.standalone:
            self.addr.default = _LOCAL_ADDRESS

    def check_combinations(self) -> None:
        """Check flags against each other; call it after parsing.

        Raises:
            OptionError: flags are missing that belong to those that were given, or do not fit them.
        """
        if self.collect_cpi_timewindow.value > self.cpi_collector_interval.value:
            found = self.collect_cpi_timewindow.value
            hint = "use at most --cpi-collector-interval"
            raise OptionError("--collect-cpi-timewindow", found, hint)
        pair = (self.tls_cert_file, self.tls_private_key_file)
        for given, missing in (pair, pair[::-1]):
            if given.value and not missing.value:
                hint = f"give --{missing.name} as well, or neither"
                raise OptionError(f"--{given.name}", given.value, hint)

    @property
    def roots(self) -> tuple[Flag[str], ...]:
        """The flags of the host's directories."""
        return (
            self.cgroup_root_dir,
            self.proc_root_dir,
            self.sys_root_dir,
            self.sys_fs_root_dir,
            self.var_run_root_dir,
            self.var_lib_kubelet_dir,
        )


def define_flags(flags: FlagSet, *, terminal: bool = False) -> DaemonFlags:
    """Define the daemon's flags; terminal says whether stderr is one."""
    return DaemonFlags(flags, terminal=terminal)
