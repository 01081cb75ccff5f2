"""The daemon's flags: Koordinator's are all there with its defaults, ours are checked."""

import pytest
from prometheus_client import CollectorRegistry

from koord.component.flag_values import FLOAT, INT, TriState
from koord.component.flags import FlagSet, FlagSpec, FlagTable
from koord.component.plugins.discovery import discover
from koord.util.errors import OptionError
from koordlet.daemon.environment import Mode
from koordlet.daemon.flags import DaemonFlags, define_flags
from koordlet.daemon.upstream_flags import HookFlags, PredictionFlags
from koordlet.features import feature_gates
from koordlet.plugin import PluginRegistry
from koordlet.plugin.testing import SimulatedClock
from koordlet.qosmanager.config import QOSExtensionConfig

# name, type, default; "-" for an empty text. Source: the options of Koordinator's koordlet;
# --qos-extension-plugins is the QoS manager's.
KOORDINATOR = """
addr string :9316
enable-pprof bool false
pprof-addr string :9317
kube-api-qps float 20
kube-api-burst int 30
configmap-name string koordlet-config
configmap-namespace string koordinator-system
feature-gates map -
kubeconfig string -
cgroup-root-dir string /host-cgroup/
sys-root-dir string /host-sys/
sys-fs-root-dir string /host-sys-fs/
proc-root-dir string /proc/
var-run-root-dir string /host-var-run/
var-lib-kubelet-dir string /var/lib/kubelet/
run-root-dir string /host-run/
containerd-endpoint string -
docker-endpoint string -
pouch-endpoint string -
default-runtime-type string containerd
hami-core-library-directory-path string /usr/local/vgpu/libvgpu.so
pod-resources-proxy-path string /var/run/koordlet/pod-resources
xpu-device-infos-dir string /var/run/koordlet/xpu-device-infos/
kubelet-preferred-address-type string InternalIP
kubelet-sync-interval duration 10s
kubelet-sync-timeout duration 3s
kubelet-insecure-tls bool false
kubelet-read-only-port int 10255
node-topology-sync-interval duration 3s
disable-query-kubelet-config bool false
report-interval duration 0s
enable-node-metric-report bool true
enable-pod-taskids bool false
xpu-enforce-collect-from-device-infos bool false
collect-res-used-interval duration 1s
collect-sys-metric-outdated-interval duration 10s
collect-node-cpu-info-interval duration 1m0s
collect-node-storage-info-interval duration 1s
cpi-collector-interval duration 1m0s
collect-cpi-timewindow duration 10s
psi-collector-interval duration 10s
coldpage-collector-interval duration 5s
resctrl-collector-interval duration 10s
enable-pagecache-collector bool false
enable-resctrl-collector bool false
metric-gc-interval-seconds int 300
metric-expire-seconds int 1800
tsdb-path string /metric-data/
tsdb-retention-duration duration 12h0m0s
tsdb-enable-prometheus-metric bool true
tsdb-stripe-size int 16384
tsdb-max-bytes int 104857600
tsdb-wal-segment-size int 1048576
tsdb-max-block-chunk-segment-size int 5242880
tsdb-min-block-duration duration 10m0s
tsdb-max-block-duration duration 10m0s
tsdb-head-chunks-write-buffer-size int 1048576
reconcile-interval-seconds int 1
cpu-suppress-interval-seconds int 1
cpu-evict-interval-seconds int 1
memory-evict-interval-seconds int 1
memory-evict-cool-time-seconds int 4
cpu-evict-cool-time-seconds int 20
only-evict-by-api bool false
runtime-hooks-network string unix
runtime-hooks-addr string /host-var-run-koordlet/koordlet.sock
runtime-hooks-host-endpoint string /var/run/koordlet/koordlet.sock
runtime-hooks-failure-policy string Ignore
runtime-hooks-plugin-failure-policy string Ignore
runtime-hooks-config-path string /host-etc-hookserver/
runtime-hooks-disable-stages list -
runtime-hooks-reconcile-interval duration 10s
disable-unset-cpu-quota bool false
enable-nri-runtime-hook bool true
runtime-hooks-nri-connect-timeout duration 6s
runtime-hooks-nri-backoff-duration duration 1s
runtime-hooks-nri-backoff-cap duration 1281023h53m38.427387904s
runtime-hooks-nri-backoff-steps int 2147483647
runtime-hooks-nri-backoff-factor float 2
runtime-hooks-nri-socket-path string nri/nri.sock
runtime-hooks-nri-plugin-name string koordlet_nri
runtime-hooks-nri-plugin-index string 00
audit-log-dir string /var/log/koordlet
audit-verbose int 3
audit-max-disk-space-mb int 16
audit-max-concurrent-readers int 4
audit-max-events-limit int 2048
prediction-checkpoint-filepath string /prediction-checkpoints
prediction-cold-start-duration duration 24h0m0s
prediction-safety-margin-percent int 10
prediction-memory-histogram-decay-halflife duration 24h0m0s
prediction-cpu-histogram-decay-halflife duration 12h0m0s
prediction-training-interval duration 1m0s
prediction-model-expiration-duration duration 30m0s
prediction-model-checkpoint-interval duration 10m0s
prediction-model-checkpoint-max-per-step int 12
resource-force-update-seconds int 60
v int 0
vmodule string -
logtostderr bool true
alsologtostderr bool false
stderrthreshold string INFO
log_dir string -
log_file string -
log_file_max_size int 1800
log_backtrace_at string :0
add_dir_header bool false
skip_headers bool false
skip_log_headers bool false
one_output bool false
"""
TABLE = [tuple(line.split()) for line in KOORDINATOR.split("\n") if line]
OURS = {
    "coldpage-cpu-percent": "0.5",
    "config": "",
    "status-page": "true",
    "standalone": "false",
    "run-dir": "/host-var-run-koordlet",
    "log-format": "json",
    "log-level": "info",
    "node-name": "",
    "kubelet-ca-file": "",
    "dry-run": "false",
    "on-exit": "restore",
    "on-foreign-change": "retake",
    "evict-budget-per-hour": "20",
    "evict-fallback": "none",
    "pods-file": "",
    "node-file": "",
    "nodeslo-file": "",
    "node-metric-file": "",
    "exporter-compat": "auto",
    "metrics-node-label": "",
    "network-collector-interval": "5s",
    "descriptor-budget": "8192",
    "report-change-threshold": "0",
    "tls-cert-file": "",
    "tls-private-key-file": "",
    "auth-token-audiences": "",
    "force": "false",
    "other-agent-namespaces": "koordinator-system,koordlet-system,kube-system",
    "trust-allocations": "false",
    "manager-duties": "auto",
    "config-namespace": "koordinator-system",
    "slo-config-name": "slo-controller-config",
}


@pytest.fixture
def flag_set() -> FlagSet:
    return FlagSet()


@pytest.fixture
def flags(flag_set: FlagSet) -> DaemonFlags:
    return define_flags(flag_set)


@pytest.fixture(scope="module")
def installed() -> FlagSet:
    """The flags of the daemon and of the plugins that ship with it."""
    flag_set, registry = FlagSet(), PluginRegistry()
    define_flags(flag_set)
    discover(registry)
    config = QOSExtensionConfig(
        registry, feature_gates(), clock=SimulatedClock(), metrics=CollectorRegistry()
    )
    config.init_flags(flag_set)
    assert not config.failures
    return flag_set


@pytest.mark.parametrize(("name", "kind", "default"), TABLE)
def test_koordinators_flags_are_accepted(installed, name, kind, default):
    """Same name, type and default; the default given on the command line changes nothing."""
    flag_set, flag = installed, installed[name]
    assert kind in flag.kind.name
    assert flag.default_text == ("" if default == "-" else default)
    before = flag.value
    flag_set.parse([f"--{name}={flag.default_text}"])
    assert flag.value == (before or ("",) if kind == "list" else before)


def test_there_are_no_flags_but_koordinators_and_ours(flag_set, flags):
    """Some of Koordinator's are those of plugins."""
    ours = {row.name: row.default for row in flag_set.describe()}
    for name, _, _ in TABLE:
        ours.pop(name, None)
    assert ours == OURS


def test_flags_without_meaning_are_named_once_set(flag_set, flags):
    """The daemon warns about these; the others are not worth a word."""
    flag_set.parse(["-addr=:9316", "-v=4", "--tsdb-path", "/x", "--audit-verbose=0x1"])
    assert flag_set.inert_set() == ["tsdb-path", "v"]


def test_arguments_of_koordinators_daemonset_are_taken(flag_set, flags):
    """The args of its manifest start this daemon."""
    rest = flag_set.parse(
        [
            "-addr=:9316",
            "-cgroup-root-dir=/host-cgroup/",
            "-feature-gates=BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true",
            "-runtime-hooks-network=unix",
            "-runtime-hooks-addr=/host-var-run-koordlet/koordlet.sock",
            "--logtostderr=true",
            "--v=4",
        ]
    )
    assert rest == []
    assert flags.feature_gates.value["CgroupReconcile"] is True


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("--addr=9316", "--addr: found '9316'; wanted HOST:PORT"),
        ("--addr=:99999", "a port from 0 to 65535"),
        ("--collect-res-used-interval=500ms", "use 1s or more"),
        ("--psi-collector-interval=0", "use 1s or more"),
        ("--report-interval=10ms", "use 1s or more"),
        ("--log-format=yaml", "use one of json, console"),
        ("--log-level=inof", "the nearest is info"),
        ("--descriptor-budget=-1", "use 0 or more"),
        ("--kube-api-burst=-1", "use 0 or more"),
        ("--report-change-threshold=101", "use 0 to 100 percent"),
        ("--cgroup-root-dir=cgroup", "use an absolute path"),
        ("--run-dir=", "use an absolute path"),
        ("--exporter-compat=perhaps", "wanted true, false or auto"),
        ("--dry-run=,", "wanted true, false or names of plugins"),
        ("--evict-budget-per-hour=-1", "use 0 to 1000"),
        ("--evict-fallback=always", "use one of none, kill"),
        ("--evict-budget-per-hour=1001", "use 0 to 1000"),
        ("--runtime-hooks-failure-policy=fail", "use one of Fail, Ignore; the nearest is Fail"),
        ("--runtime-hooks-nri-plugin-index=0", "use two digits"),
        *(
            (f"--hami-core-library-directory-path={path}", "use an absolute path in a directory")
            for path in ("", "/", "/l.so", "a/l.so", "/a/../l.so", "/a/./b", "/a//b", "/a/b:c")
        ),
        ("--hami-core-library-directory-path=/a/b c", "use an absolute path in a directory"),
        ("--hami-core-library-directory-path=/a/b\n", "use an absolute path in a directory"),
        ("--audit-max-disk-space-mb=0", "use 1 or more"),
        ("--feature-gate=A=true", "the nearest is --feature-gates"),
    ],
)
def test_a_bad_value_is_found_at_start(flag_set, flags, arg, message):
    """Checked once, when given, and explained."""
    with pytest.raises(OptionError) as caught:
        flag_set.parse([arg])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("args", "yaml", "covers"),
    [
        ([], False, ""),
        (["--dry-run"], True, "AB"),
        (["--dry-run=true"], "true", "AB"),
        (["--dry-run=false"], "f", ""),
        (["--dry-run=A"], "A", "A"),
        (["--dry-run= B ,A,"], ["A", "B"], "AB"),
    ],
)
def test_dry_run_covers_all_plugins_or_those_named(flag_set, flags, args, yaml, covers):
    """On the command line and in the config file; what is written is read as the same."""
    flag_set.set_from_config({"dry-run": yaml})
    configured = flags.dry_run.value
    flag_set.parse(args)
    for value in (configured, flags.dry_run.value):
        assert "".join(filter(value.covers, "AB")) == covers
        assert flags.dry_run.kind.read(flags.dry_run.kind.write(value)) == value


@pytest.mark.parametrize("value", [5, None, [], [5], {}, "", [""]])
def test_a_bad_dry_run_in_a_config_file(flag_set, flags, value):
    with pytest.raises(OptionError, match="wanted true, false or names of plugins"):
        flag_set.set_from_config({"dry-run": value})


@pytest.mark.parametrize(("arg", "seconds"), [("0", 0), ("1s", 1), ("1m", 60)])
def test_report_interval_of_zero_means_the_default(flag_set, flags, arg, seconds):
    flag_set.parse([f"--report-interval={arg}"])
    assert flags.report_interval.value == seconds


@pytest.mark.parametrize(
    ("args", "standalone", "in_cluster"),
    [
        ([], True, False),
        (["--exporter-compat"], True, True),
        (["--exporter-compat=true"], True, True),
        (["--exporter-compat=false"], False, False),
        (["--exporter-compat=auto"], True, False),
    ],
)
def test_exporter_names_are_automatic_until_said_otherwise(
    flag_set, flags, args, standalone, in_cluster
):
    flag_set.parse(args)
    assert flags.exporter_compat.value.settle(True) is standalone
    assert flags.exporter_compat.value.settle(False) is in_cluster


def test_exporter_compat_in_a_config_file(flag_set, flags):
    """YAML's booleans and the word auto; the command line can go back to auto."""
    flag_set.set_from_config({"exporter-compat": True})
    assert flags.exporter_compat.value is TriState.ON
    flag_set.parse(["--exporter-compat=auto"])
    assert flags.exporter_compat.value is TriState.AUTO
    with pytest.raises(OptionError, match="true, false or auto"):
        flag_set.set_from_config({"exporter-compat": "yes"})


@pytest.mark.parametrize(
    ("mode", "uid", "expected"),
    [
        (
            Mode(standalone=False, host_mode=False, reason=""),
            0,
            (":9316", "/host-cgroup/", "/host-sys-fs/", "/host-var-run-koordlet"),
        ),
        (
            Mode(standalone=False, host_mode=True, reason=""),
            0,
            (":9316", "/sys/fs/cgroup/", "/sys/fs/", "/run/koordlet"),
        ),
        (
            Mode(standalone=True, host_mode=True, reason=""),
            1000,
            ("127.0.0.1:9316", "/sys/fs/cgroup/", "/sys/fs/", "/tmp/koordlet-1000"),
        ),
    ],
)
def test_defaults_follow_the_mode(flags, mode, uid, expected):
    """Container paths, host paths, or what a user without root may use."""
    flags.adopt_mode(mode, uid=uid, environ={})
    found = (flags.addr, flags.cgroup_root_dir, flags.sys_fs_root_dir, flags.run_dir)
    assert tuple(flag.value for flag in found) == expected


def test_given_values_do_not_follow_the_mode(flag_set, flags):
    flag_set.parse(["--addr=:80", "--cgroup-root-dir=/cg"])
    flag_set.set_from_config({"run-dir": "/somewhere"})
    flags.adopt_mode(Mode(standalone=True, host_mode=True, reason=""), uid=0, environ={})
    assert flags.addr.value == ":80"
    assert flags.cgroup_root_dir.value == "/cg"
    assert flags.run_dir.value == "/somewhere"


def test_logs_for_people_on_a_terminal():
    assert DaemonFlags(FlagSet(), terminal=True).log_format.value == "console"
    assert DaemonFlags(FlagSet()).log_format.value == "json"


@pytest.mark.parametrize("table", [DaemonFlags, HookFlags, PredictionFlags])
def test_a_number_has_a_unit(table: type[FlagTable]):
    """Durations are in seconds; any other number says what it counts."""
    rows = [row for row in vars(table).values() if isinstance(row, FlagSpec)]
    assert rows
    assert [row.name for row in rows if row.kind in (INT, FLOAT) and not row.unit] == []
