"""Flags of Koordinator's koordlet that mean nothing here (yet): accepted, with one warning.

Its DaemonSet's arguments must start this daemon too. A row moves to flags.py, or to the plugin it
belongs to, together with the feature that gives it a meaning.
"""

from koord.component.flagchecks import at_least, one_of
from koord.component.flagkinds import BOOL, DURATION, INT, STRING
from koord.component.inertflags import InertFlag

HOUR = 3600.0
_POLICY = one_of("Fail", "Ignore")


INERT_FLAGS = (
    # process
    InertFlag("enable-pprof", BOOL, False, "profiling server of Go"),
    InertFlag("pprof-addr", STRING, ":9317", "address of the profiling server"),
    InertFlag("configmap-name", STRING, "koordlet-config", "used nowhere, in Koordinator either"),
    InertFlag("configmap-namespace", STRING, "koordinator-system", "used nowhere either"),
    # host paths and runtimes
    InertFlag("run-root-dir", STRING, "/host-run/", "used nowhere, in Koordinator either"),
    InertFlag("containerd-endpoint", STRING, "", "socket file of containerd"),
    InertFlag("docker-endpoint", STRING, "", "socket file of docker"),
    InertFlag("pouch-endpoint", STRING, "", "socket file of pouch"),
    # states informer
    InertFlag("enable-pod-taskids", BOOL, False, "collect the task ids of containers"),
    # metric cache: Koordinator's is a Prometheus TSDB, ours has rings of fixed size
    InertFlag("metric-gc-interval-seconds", INT, 300, "clean-up period of the cache"),
    InertFlag("metric-expire-seconds", INT, 1800, "expiry of entries"),
    InertFlag("tsdb-path", STRING, "/metric-data/", "directory of the cache; ours is --run-dir"),
    InertFlag("tsdb-retention-duration", DURATION, 12 * HOUR, "retention"),
    InertFlag("tsdb-enable-prometheus-metric", BOOL, True, "metrics of the TSDB itself"),
    InertFlag("tsdb-stripe-size", INT, 16384, "size of the series hash"),
    InertFlag("tsdb-max-bytes", INT, 104857600, "most bytes of blocks"),
    InertFlag("tsdb-wal-segment-size", INT, 1048576, "bytes of a log segment"),
    InertFlag("tsdb-max-block-chunk-segment-size", INT, 5242880, "bytes of a chunk segment"),
    InertFlag("tsdb-min-block-duration", DURATION, 600.0, "range of the head block"),
    InertFlag("tsdb-max-block-duration", DURATION, 600.0, "longest compacted range"),
    InertFlag("tsdb-head-chunks-write-buffer-size", INT, 1048576, "bytes of the write buffer"),
    # runtime hooks
    InertFlag(
        "runtime-hooks-network",
        STRING,
        "unix",
        "hook server of koord-runtime-proxy, which is not supported",
    ),
    InertFlag("runtime-hooks-addr", STRING, "/host-var-run-koordlet/koordlet.sock", "its address"),
    InertFlag(
        "runtime-hooks-host-endpoint",
        STRING,
        "/var/run/koordlet/koordlet.sock",
        "its address as seen from the host",
    ),
    InertFlag("runtime-hooks-failure-policy", STRING, "Ignore", "for koord-runtime-proxy", _POLICY),
    InertFlag(
        "runtime-hooks-config-path", STRING, "/host-etc-hookserver/", "its registration directory"
    ),
    InertFlag("runtime-hooks-nri-backoff-steps", INT, 2147483647, "it never gives up"),
    # resource executor
    InertFlag("resource-force-update-seconds", INT, 60, "age at which a value is written again"),
    # klog; use --log-level and --log-format
    InertFlag("v", INT, 0, "verbosity of klog; use --log-level"),
    InertFlag("vmodule", STRING, "", "verbosity by file; use --log-level"),
    InertFlag("logtostderr", BOOL, True, "logs always go to stderr"),
    InertFlag("alsologtostderr", BOOL, False, "logs always go to stderr"),
    InertFlag("stderrthreshold", STRING, "INFO", "severity for stderr; use --log-level"),
    InertFlag("log_dir", STRING, "", "logs always go to stderr"),
    InertFlag("log_file", STRING, "", "logs always go to stderr"),
    InertFlag("log_file_max_size", INT, 1800, "megabytes of a log file", at_least(0)),
    InertFlag("log_backtrace_at", STRING, ":0", "backtrace at a source line"),
    InertFlag("add_dir_header", BOOL, False, "directory in klog's header"),
    InertFlag("skip_headers", BOOL, False, "no klog header"),
    InertFlag("skip_log_headers", BOOL, False, "no header in log files"),
    InertFlag("one_output", BOOL, False, "write to one severity's file only"),
)
