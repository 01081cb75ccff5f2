"""The flags of the daemon: Koordinator's that mean something here, and our own."""

from collections.abc import Iterable, Mapping

from koord.api.node import AddressType
from koord.api.slocontroller import CONFIG_MAP, CONFIG_NAMESPACE
from koord.component.flag_values import (
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
from koord.component.flags import Flag, FlagSet, define_ignored_flags
from koord.util.errors import OptionError
from koordlet.daemon.environment import Mode, default_run_dir
from koordlet.daemon.upstream_flags import INERT_FLAGS, HookFlags, PredictionFlags
from koordlet.executor.audit.log import MAX_PAGE_EVENTS
from koordlet.executor.dryrun import DryRun
from koordlet.executor.evictions.eviction import EvictionFallback
from koordlet.executor.evictions.limits import MAX_BUDGET
from koordlet.executor.kernel.conflicts import OnForeignChange
from koordlet.executor.restorer import OnExit
from koordlet.manager_fallback.mode import ManagerRoleMode
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


class DaemonFlags:
    """The flags as attributes, so that a mistyped name is found by the type checker.

    Values are checked when they are given, so a reader need not check it again.
    """

    def __init__(self, flags: FlagSet, *, terminal: bool = False) -> None:
        """Define all flags; terminal says whether stderr is one."""
        self._define_process(flags)
        self._define_protection(flags)
        self._define_logs(flags, terminal=terminal)
        self._define_roots(flags)
        self._define_cluster(flags)
        self._define_kubelet(flags)
        self._define_actions(flags)
        self._define_audit(flags)
        self._define_duties(flags)
        self._define_states(flags)
        self._define_collection(flags)
        self._define_devices(flags)
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

    def check_together(self) -> None:
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
    def roots(self) -> "tuple[Flag[str], ...]":
        """The flags of the host's directories."""
        return (
            self.cgroup_root_dir,
            self.proc_root_dir,
            self.sys_root_dir,
            self.sys_fs_root_dir,
            self.var_run_root_dir,
            self.var_lib_kubelet_dir,
        )

    def _define_process(self, flags: FlagSet) -> None:
        self.addr = flags.string(
            "addr", ":9316", f"listen address of HTTP; standalone {_LOCAL_ADDRESS}", check=address
        )
        self.status_page = flags.bool("status-page", True, "serve the status page at /")
        self.config = flags.string("config", "", "YAML file with flag names as keys")
        self.standalone = flags.bool(
            "standalone", False, "do without Kubernetes; implied when no API server is configured"
        )
        self.run_dir = flags.string(
            "run-dir",
            "/host-var-run-koordlet",
            "directory of state that outlives the process; on the host /run/koordlet, or without "
            "root a directory of the user",
            check=absolute,
        )
        self.node_name = flags.string(
            "node-name", "", "name of this node; else NODE_NAME, else the host name"
        )
        self.force = flags.bool(
            "force", False, "act although another QoS agent is on this node, instead of observing"
        )
        self.other_agent_namespaces = flags.string_list(
            "other-agent-namespaces",
            SYSTEM_NAMESPACES,
            "namespaces beside our own whose pods count as another QoS agent by their names alone; "
            "pods elsewhere count only if they may act on the node",
        )
        self.trust_allocations = flags.bool(
            "trust-allocations",
            False,
            "let all CPUs and devices in the annotations of pods count, as Koordinator does: also "
            "those that the pod does not request, or that an older pod has",
        )
        self.feature_gates = flags.bool_map(
            "feature-gates", {}, "features to switch, as A=true,B=false"
        )

    def _define_protection(self, flags: FlagSet) -> None:
        self.tls_cert_file = flags.string(
            "tls-cert-file",
            "",
            "certificate in PEM to serve HTTPS with, followed by those of its CAs; read again when "
            "it changes",
        )
        self.tls_private_key_file = flags.string(
            "tls-private-key-file", "", "key of --tls-cert-file, in PEM and without a password"
        )
        self.auth_token_audiences = flags.string_list(
            "auth-token-audiences",
            (),
            "audiences that the tokens of clients may be meant for, instead of the API server; "
            "repeat the flag",
        )

    def _define_logs(self, flags: FlagSet, *, terminal: bool) -> None:
        self.log_format = flags.string(
            "log-format",
            "console" if terminal else "json",
            "json or console; on a terminal console",
            check=one_of("json", "console"),
        )
        self.log_level = flags.string(
            "log-level",
            "info",
            "least level shown, also by logger name: info,MyPlugin=debug",
            check=levels,
        )

    def _define_roots(self, flags: FlagSet) -> None:
        def root(name: str) -> Flag[str]:
            container, host, meaning = _ROOTS[name]
            other = f"; on the host itself {host}" if host != container else ""
            return flags.string(name, container, f"directory of {meaning}{other}", check=absolute)

        self.cgroup_root_dir = root("cgroup-root-dir")
        self.proc_root_dir = root("proc-root-dir")
        self.sys_root_dir = root("sys-root-dir")
        self.sys_fs_root_dir = root("sys-fs-root-dir")
        self.var_run_root_dir = root("var-run-root-dir")
        self.var_lib_kubelet_dir = root("var-lib-kubelet-dir")

    def _define_cluster(self, flags: FlagSet) -> None:
        self.kubeconfig = flags.string("kubeconfig", "", "kubeconfig file")
        self.kube_api_qps = flags.float(
            "kube-api-qps", 20.0, "most requests to the API server per second; 0 for no bound"
        )
        self.kube_api_burst = flags.int(
            "kube-api-burst", 30, "requests at once after a quiet time", check=at_least(0)
        )
        self.node_topology_sync_interval = flags.duration(
            "node-topology-sync-interval",
            3.0,
            "period of looks at whether the node's topology has changed",
            check=at_least_seconds(1.0),
        )
        self.report_change_threshold = flags.float(
            "report-change-threshold",
            15.0,
            "change of node usage, in percent of capacity, that is reported to the cluster at once "
            "(at most every 10 s); 0 for never",
            check=percent,
        )

    def _define_kubelet(self, flags: FlagSet) -> None:
        self.kubelet_preferred_address_type = flags.string(
            "kubelet-preferred-address-type",
            AddressType.INTERNAL_IP,
            "which of the Node's addresses to reach the kubelet at: " + ", ".join(AddressType),
            check=one_of(*AddressType),
        )
        self.kubelet_ca_file = flags.string(
            "kubelet-ca-file",
            "",
            "CA that signs the kubelet's certificate, if not the one of the API server",
        )
        self.kubelet_sync_interval = flags.duration(
            "kubelet-sync-interval",
            10.0,
            "period of the kubelet's list of pods, which new cgroups of pods make come at once; 0 "
            "for pods from the API server",
            check=zero_or_at_least_seconds(1.0),
        )
        self.kubelet_sync_timeout = flags.duration(
            "kubelet-sync-timeout",
            3.0,
            "most time for an answer of the kubelet, connection included",
            check=at_least_seconds(0.1),
        )
        self.kubelet_insecure_tls = flags.bool(
            "kubelet-insecure-tls",
            False,
            "ask the kubelet's read-only port: plain HTTP, without our token",
        )
        self.kubelet_read_only_port = flags.int(
            "kubelet-read-only-port", 10255, "that port", check=port
        )
        self.disable_query_kubelet_config = flags.bool(
            "disable-query-kubelet-config",
            False,
            "do not ask the kubelet's /configz; CPUs that it gives to pods are not known then",
        )

    def _define_duties(self, flags: FlagSet) -> None:
        self.manager_duties = flags.define(
            "manager-duties",
            MANAGER_ROLE_MODE,
            ManagerRoleMode.AUTO,
            "keep the specs of this node's NodeMetric and NodeSLO, as koord-manager does; auto: "
            "while no koord-manager is seen",
        )
        self.config_namespace = flags.string(
            "config-namespace",
            CONFIG_NAMESPACE,
            "namespace of koord-manager's ConfigMap and Lease",
            check=object_name,
        )
        self.slo_config_name = flags.string(
            "slo-config-name", CONFIG_MAP, "name of that ConfigMap", check=object_name
        )

    def _define_actions(self, flags: FlagSet) -> None:
        self.dry_run = flags.define(
            "dry-run",
            DRY_RUN,
            DryRun(),
            "plugins in dry-run, as A,B; true for all: their decisions are recorded and shown, and "
            "nothing is changed",
        )
        self.on_exit = flags.string(
            "on-exit",
            OnExit.RESTORE,
            "what becomes of changed kernel values at the end: restore, or keep for the next start "
            "to take over, as in a rolling update",
            check=one_of(*OnExit),
        )
        self.on_foreign_change = flags.string(
            "on-foreign-change",
            OnForeignChange.RETAKE,
            "what to do when another agent changes a value that a plugin claims: retake "
            "it after 10 s, doubling, at most 5 times an hour, or yield",
            check=one_of(*OnForeignChange),
        )
        self.evict_budget_per_hour = flags.int(
            "evict-budget-per-hour",
            20,
            "most pods that the plugins of this node evict in an hour, restarts included; 0 for no "
            "bound",
            check=within(0, MAX_BUDGET),
        )
        self.evict_fallback = flags.string(
            "evict-fallback",
            EvictionFallback.NONE,
            "what becomes of a victim that runs on after its accepted eviction and its grace "
            "period, or of any where there is no API server: none, or kill its processes",
            check=one_of(*EvictionFallback),
        )
        self.only_evict_by_api = flags.bool(
            "only-evict-by-api", False, "never kill, whatever --evict-fallback says"
        )

    def _define_audit(self, flags: FlagSet) -> None:
        self.audit_log_dir = flags.string(
            "audit-log-dir", "/var/log/koordlet", "directory of the audit log", check=absolute
        )
        self.audit_verbose = flags.int(
            "audit-verbose", 3, "most verbose audit events kept; 0 keeps all", check=at_least(0)
        )
        self.audit_max_disk_space_mb = flags.int(
            "audit-max-disk-space-mb", 16, "most MiB of disk for the audit log", check=at_least(1)
        )
        self.audit_max_concurrent_readers = flags.int(
            "audit-max-concurrent-readers",
            4,
            "clients of /events that can be in the middle of paging; one more closes the oldest",
            check=at_least(1),
        )
        self.audit_max_events_limit = flags.int(
            "audit-max-events-limit",
            2048,
            "largest page of /events, in events",
            check=within(1, MAX_PAGE_EVENTS),
        )

    def _define_states(self, flags: FlagSet) -> None:
        self.pods_file = flags.string(
            "pods-file", "", "PodList to use instead of the cluster's or of discovered pods"
        )
        self.node_file = flags.string(
            "node-file", "", "Node to use instead of the cluster's or of this host"
        )
        self.nodeslo_file = flags.string(
            "nodeslo-file", "", "NodeSLO to use instead of the cluster's"
        )
        self.node_metric_file = flags.string(
            "node-metric-file",
            "",
            "file for the reports, in a cluster too; standalone <run-dir>/nodemetric.json",
        )
        self.enable_node_metric_report = flags.bool(
            "enable-node-metric-report", True, "report the NodeMetric"
        )
        self.report_interval = flags.duration(
            "report-interval",
            0.0,
            "period of standalone reports, 0 means 1m; in a cluster the NodeMetric's spec decides",
            check=zero_or_at_least_seconds(1.0),
        )

    def _define_collection(self, flags: FlagSet) -> None:
        self.collect_res_used_interval = flags.duration(
            "collect-res-used-interval",
            DEFAULT_INTERVALS[Cadence.USAGE],
            "period of usage samples",
            check=at_least_seconds(1.0),
        )
        self.collect_sys_metric_outdated_interval = flags.duration(
            "collect-sys-metric-outdated-interval",
            10.0,
            "age at which samples no longer count for system usage",
            check=at_least_seconds(1.0),
        )
        self.collect_node_cpu_info_interval = flags.duration(
            "collect-node-cpu-info-interval",
            DEFAULT_INTERVALS[Cadence.NODE_INFO],
            "period of CPU facts",
            check=at_least_seconds(1.0),
        )
        self.collect_node_storage_info_interval = flags.duration(
            "collect-node-storage-info-interval",
            DEFAULT_INTERVALS[Cadence.STORAGE],
            "period of disk facts",
            check=at_least_seconds(1.0),
        )
        self.psi_collector_interval = flags.duration(
            "psi-collector-interval",
            DEFAULT_INTERVALS[Cadence.PSI],
            "period of pressure samples",
            check=at_least_seconds(1.0),
        )
        self.cpi_collector_interval = flags.duration(
            "cpi-collector-interval",
            DEFAULT_INTERVALS[Cadence.CPI],
            "period of counts of cycles and instructions",
            check=at_least_seconds(5.0),
        )
        self.collect_cpi_timewindow = flags.duration(
            "collect-cpi-timewindow",
            10.0,
            "time that is counted in each of these periods; at most the period",
            check=at_least_seconds(1.0),
        )
        self.coldpage_collector_interval = flags.duration(
            "coldpage-collector-interval",
            DEFAULT_INTERVALS[Cadence.COLD_PAGE],
            "period of samples of cold memory",
            check=at_least_seconds(1.0),
        )
        self.coldpage_cpu_percent = flags.float(
            "coldpage-cpu-percent",
            0.5,
            "percent of one CPU that going over idle pages may take where there is no kidled",
            check=percent,
        )
        self.network_collector_interval = flags.duration(
            "network-collector-interval",
            DEFAULT_INTERVALS[Cadence.NETWORK],
            "period of network samples",
            check=at_least_seconds(1.0),
        )
        self.resctrl_collector_interval = flags.duration(
            "resctrl-collector-interval",
            DEFAULT_INTERVALS[Cadence.RESCTRL],
            "period of what control groups use of caches and memory bandwidth",
            check=at_least_seconds(1.0),
        )
        self.enable_resctrl_collector = flags.bool(
            "enable-resctrl-collector",
            False,
            "collect that; with the gate ResctrlCollector",
        )
        self.enable_pagecache_collector = flags.bool(
            "enable-pagecache-collector", False, "collect memory usage with page cache"
        )
        self.descriptor_budget = flags.int(
            "descriptor-budget", 8192, "most kernel files held open", check=at_least(0)
        )
        self.exporter_compat = flags.define(
            "exporter-compat",
            TRI_STATE,
            TriState.AUTO,
            "also export under the names of node_exporter and cAdvisor; auto: when standalone",
        )
        self.metrics_node_label = flags.string(
            "metrics-node-label",
            "",
            "label with the node's name to put on the families that --exporter-compat adds",
        )

    def _define_devices(self, flags: FlagSet) -> None:
        self.xpu_device_infos_dir = flags.string(
            "xpu-device-infos-dir",
            "/var/run/koordlet/xpu-device-infos/",
            "directory of files in which vendors' agents describe devices; unless given "
            "<run-dir>/xpu-device-infos, which is where Koordinator's agent has it on the host",
            check=absolute,
        )
        self.xpu_enforce_collect = flags.bool(
            "xpu-enforce-collect-from-device-infos",
            False,
            "take GPUs from these files alone: never ask NVML",
        )
        self.pod_resources_proxy_path = flags.string(
            "pod-resources-proxy-path",
            "/var/run/koordlet/pod-resources",
            "directory of the proxy's socket kubelet.sock; unless given <run-dir>/pod-resources, "
            "which is where Koordinator's agent has it on the host",
            check=absolute,
        )


def define_flags(flags: FlagSet, *, terminal: bool = False) -> DaemonFlags:
    """Define the daemon's flags; terminal says whether stderr is one."""
    return DaemonFlags(flags, terminal=terminal)
