"""Koordinator's flags of runtime hooks and prediction, and those that mean nothing here.

The arguments of its DaemonSet must start this daemon too. A row of INERT_FLAGS moves to flags.py,
or to the plugin that it belongs to, together with the feature that gives it a meaning.
"""

import re
from collections.abc import Iterable

from koord.component.flag_values import (
    BOOL,
    DURATION,
    INT,
    STRING,
    STRING_LIST,
    absolute,
    at_least,
    at_least_seconds,
    one_of,
)
from koord.component.flags import FlagSet, IgnoredFlag
from koord.util.text import nearest

STAGES = (
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PreUpdateContainerResources",
    "PreRemoveRunPodSandbox",
)
_OTHER_STAGES = (
    "PostStartContainer",
    "PostStopContainer",
    "PostStopPodSandbox",
)
_LIBRARY = re.compile(r"(/[A-Za-z0-9_.+-]+){2,32}")  # the loader splits at blanks and colons
_MAX_SECONDS = (2**62 - 1) / 1e9


class HookFlags:
    """The flags as attributes. Durations are in seconds."""

    def __init__(self, flags: FlagSet) -> None:
        self.nri = flags.bool(
            "enable-nri-runtime-hook",
            True,
            "adjust containers before they start, where the runtime's NRI socket is there",
        )
        self.socket = flags.string(
            "runtime-hooks-nri-socket-path",
            "nri/nri.sock",
            "the NRI socket, below --var-run-root-dir; it must be root's",
            check=_below,
        )
        self.name = flags.string(
            "runtime-hooks-nri-plugin-name",
            "koordlet_nri",
            "name that the runtime logs",
            check=_name,
        )
        self.index = flags.string(
            "runtime-hooks-nri-plugin-index",
            "00",
            "place among NRI plugins, which are called in this order",
            check=_two_digits,
        )
        self.connect_timeout = flags.duration(
            "runtime-hooks-nri-connect-timeout",
            6.0,
            "time to register, and to live for a connection after which pauses are short again",
            check=at_least_seconds(0.1),
        )
        self.backoff = flags.duration(
            "runtime-hooks-nri-backoff-duration",
            1.0,
            "first pause before connecting again",
            check=at_least_seconds(0.1),
        )
        self.backoff_factor = flags.float(
            "runtime-hooks-nri-backoff-factor",
            2.0,
            "growth of the pause",
            check=lambda value: "" if 1 <= value <= 100 else "use 1 to 100",
        )
        self.backoff_cap = flags.duration(
            "runtime-hooks-nri-backoff-cap",
            _MAX_SECONDS,
            "longest pause, and never more than a minute",
            check=at_least_seconds(0.1),
        )
        self.failure_policy = flags.string(
            "runtime-hooks-plugin-failure-policy",
            "Ignore",
            "Fail: when a plugin cannot use a pod's annotations its container is not made; Ignore: "
            "it is made without that plugin's settings",
            check=one_of("Fail", "Ignore"),
        )
        self.disabled_stages = flags.define(
            "runtime-hooks-disable-stages",
            STRING_LIST,
            (),
            "stages to skip; repeat the flag",
            check=_stages,
        )
        self.hami_library = flags.string(
            "hami-core-library-directory-path",
            "/usr/local/vgpu/libvgpu.so",
            "HAMi-core's library on the node, which GPUEnvInject mounts into containers",
            check=_library,
        )
        self.runtime = flags.string(
            "default-runtime-type",
            "containerd",
            "runtime of containers, for their ids",
            check=one_of("containerd", "docker", "pouch", "cri-o"),
        )


def _below(value: str) -> str:
    parts = value.strip("/").split("/")
    return "use a path without .." if not value.strip("/") or ".." in parts else ""


def _name(value: str) -> str:
    usable = 0 < len(value) <= 64 and value.isascii() and value.isprintable() and " " not in value
    return "" if usable else "use up to 64 printable characters"


def _library(value: str) -> str:
    usable = _LIBRARY.fullmatch(value) and not {".", ".."} & set(value.split("/"))
    return "" if usable else "use an absolute path in a directory, of letters, digits and _.+-"


def _two_digits(value: str) -> str:
    usable = len(value) == 2 and value.isascii() and value.isdigit()
    return "" if usable else "use two digits, for example 00"


def _stages(values: Iterable[str]) -> str:
    known = (*STAGES, *_OTHER_STAGES)
    wrong = next((value for value in values if value and value not in known), None)
    return "" if wrong is None else f"the nearest to {wrong} is {nearest(wrong, known)}"


HOUR = 3600.0


class PredictionFlags:
    """The flags as attributes. Durations are in seconds."""

    def __init__(self, flags: FlagSet) -> None:
        self.checkpoints = flags.string(
            "prediction-checkpoint-filepath",
            "/prediction-checkpoints",
            "directory of what was learnt; unless given <run-dir>/prediction-checkpoints, which is "
            "where Koordinator's agent has it on the host",
            check=absolute,
        )
        self.cold_start = flags.duration(
            "prediction-cold-start-duration",
            24 * HOUR,
            "age of a pod, and of what was learnt of it, from which it is predicted; until then "
            "its whole request counts",
            check=at_least_seconds(0.0),
        )
        self.safety_margin = flags.int(
            "prediction-safety-margin-percent",
            10,
            "added to the predicted peaks",
            check=at_least(0),
        )
        self.cpu_half_life = flags.duration(
            "prediction-cpu-histogram-decay-halflife",
            12 * HOUR,
            "time after which a sample of CPU counts half",
            check=at_least_seconds(60.0),
        )
        self.memory_half_life = flags.duration(
            "prediction-memory-histogram-decay-halflife",
            24 * HOUR,
            "time after which a sample of memory counts half",
            check=at_least_seconds(60.0),
        )
        self.training_interval = flags.duration(
            "prediction-training-interval",
            60.0,
            "period of samples; each is the 90th percentile of this time",
            check=at_least_seconds(5.0),
        )
        self.expiration = flags.duration(
            "prediction-model-expiration-duration",
            1800.0,
            "time without a sample after which a model is forgotten",
            check=at_least_seconds(60.0),
        )
        self.checkpoint_interval = flags.duration(
            "prediction-model-checkpoint-interval",
            600.0,
            "period in which each model is saved",
            check=at_least_seconds(60.0),
        )
        self.checkpoints_per_step = flags.int(
            "prediction-model-checkpoint-max-per-step",
            12,
            "models saved a minute; more if the period needs it",
            check=at_least(1),
        )

    def follow_run_dir(self, run_dir: str) -> None:
        """Set the default of the directory, once the run directory is known."""
        self.checkpoints.default = f"{run_dir}/prediction-checkpoints"


_POLICY = one_of("Fail", "Ignore")


INERT_FLAGS = (
    # process
    IgnoredFlag("enable-pprof", BOOL, False, "profiling server of Go"),
    IgnoredFlag("pprof-addr", STRING, ":9317", "address of the profiling server"),
    IgnoredFlag("configmap-name", STRING, "koordlet-config", "used nowhere, in Koordinator either"),
    IgnoredFlag("configmap-namespace", STRING, "koordinator-system", "used nowhere either"),
    # host paths and runtimes
    IgnoredFlag("run-root-dir", STRING, "/host-run/", "used nowhere, in Koordinator either"),
    IgnoredFlag("containerd-endpoint", STRING, "", "socket file of containerd"),
    IgnoredFlag("docker-endpoint", STRING, "", "socket file of docker"),
    IgnoredFlag("pouch-endpoint", STRING, "", "socket file of pouch"),
    # states informer
    IgnoredFlag("enable-pod-taskids", BOOL, False, "collect the task ids of containers"),
    # metric cache: Koordinator's is a Prometheus TSDB, ours has rings of fixed size
    IgnoredFlag("metric-gc-interval-seconds", INT, 300, "clean-up period of the cache"),
    IgnoredFlag("metric-expire-seconds", INT, 1800, "expiry of entries"),
    IgnoredFlag("tsdb-path", STRING, "/metric-data/", "directory of the cache; ours is --run-dir"),
    IgnoredFlag("tsdb-retention-duration", DURATION, 12 * HOUR, "retention"),
    IgnoredFlag("tsdb-enable-prometheus-metric", BOOL, True, "metrics of the TSDB itself"),
    IgnoredFlag("tsdb-stripe-size", INT, 16384, "size of the series hash"),
    IgnoredFlag("tsdb-max-bytes", INT, 104857600, "most bytes of blocks"),
    IgnoredFlag("tsdb-wal-segment-size", INT, 1048576, "bytes of a log segment"),
    IgnoredFlag("tsdb-max-block-chunk-segment-size", INT, 5242880, "bytes of a chunk segment"),
    IgnoredFlag("tsdb-min-block-duration", DURATION, 600.0, "range of the head block"),
    IgnoredFlag("tsdb-max-block-duration", DURATION, 600.0, "longest compacted range"),
    IgnoredFlag("tsdb-head-chunks-write-buffer-size", INT, 1048576, "bytes of the write buffer"),
    # runtime hooks
    IgnoredFlag(
        "runtime-hooks-network",
        STRING,
        "unix",
        "hook server of koord-runtime-proxy, which is not supported",
    ),
    IgnoredFlag(
        "runtime-hooks-addr", STRING, "/host-var-run-koordlet/koordlet.sock", "its address"
    ),
    IgnoredFlag(
        "runtime-hooks-host-endpoint",
        STRING,
        "/var/run/koordlet/koordlet.sock",
        "its address as seen from the host",
    ),
    IgnoredFlag(
        "runtime-hooks-failure-policy", STRING, "Ignore", "for koord-runtime-proxy", _POLICY
    ),
    IgnoredFlag(
        "runtime-hooks-config-path", STRING, "/host-etc-hookserver/", "its registration directory"
    ),
    IgnoredFlag("runtime-hooks-nri-backoff-steps", INT, 2147483647, "it never gives up"),
    # resource executor
    IgnoredFlag("resource-force-update-seconds", INT, 60, "age at which a value is written again"),
    # klog; use --log-level and --log-format
    IgnoredFlag("v", INT, 0, "verbosity of klog; use --log-level"),
    IgnoredFlag("vmodule", STRING, "", "verbosity by file; use --log-level"),
    IgnoredFlag("logtostderr", BOOL, True, "logs always go to stderr"),
    IgnoredFlag("alsologtostderr", BOOL, False, "logs always go to stderr"),
    IgnoredFlag("stderrthreshold", STRING, "INFO", "severity for stderr; use --log-level"),
    IgnoredFlag("log_dir", STRING, "", "logs always go to stderr"),
    IgnoredFlag("log_file", STRING, "", "logs always go to stderr"),
    IgnoredFlag("log_file_max_size", INT, 1800, "megabytes of a log file", at_least(0)),
    IgnoredFlag("log_backtrace_at", STRING, ":0", "backtrace at a source line"),
    IgnoredFlag("add_dir_header", BOOL, False, "directory in klog's header"),
    IgnoredFlag("skip_headers", BOOL, False, "no klog header"),
    IgnoredFlag("skip_log_headers", BOOL, False, "no header in log files"),
    IgnoredFlag("one_output", BOOL, False, "write to one severity's file only"),
)
