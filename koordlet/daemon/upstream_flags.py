"""Koordinator's flags of runtime hooks and prediction, and those that mean nothing here.

The arguments of its DaemonSet must start this daemon too. A row of INERT_FLAGS moves to flags.py,
or to the plugin that it belongs to, together with the feature that gives it a meaning.
"""

import re
from collections.abc import Iterable

from koord.component.flag_values import (
    BOOL,
    DURATION,
    FLOAT,
    INT,
    STRING,
    STRING_LIST,
    absolute,
    at_least,
    at_least_seconds,
    one_of,
)
from koord.component.flags import FlagSpec, FlagTable
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


class HookFlags(FlagTable):
    """The flags of runtime hooks, a row each. Durations are in seconds."""

    nri = FlagSpec(
        "enable-nri-runtime-hook",
        BOOL,
        True,
        "adjust containers before they start, where the runtime's NRI socket is there",
    )
    socket = FlagSpec(
        "runtime-hooks-nri-socket-path",
        STRING,
        "nri/nri.sock",
        "the NRI socket, below --var-run-root-dir; it must be root's",
        _below,
    )
    name = FlagSpec(
        "runtime-hooks-nri-plugin-name", STRING, "koordlet_nri", "name that the runtime logs", _name
    )
    index = FlagSpec(
        "runtime-hooks-nri-plugin-index",
        STRING,
        "00",
        "place among NRI plugins, which are called in this order",
        _two_digits,
    )
    connect_timeout = FlagSpec(
        "runtime-hooks-nri-connect-timeout",
        DURATION,
        6.0,
        "time to register, and to live for a connection after which pauses are short again",
        at_least_seconds(0.1),
    )
    backoff = FlagSpec(
        "runtime-hooks-nri-backoff-duration",
        DURATION,
        1.0,
        "first pause before connecting again",
        at_least_seconds(0.1),
    )
    backoff_factor = FlagSpec(
        "runtime-hooks-nri-backoff-factor",
        FLOAT,
        2.0,
        "growth of the pause",
        lambda value: "" if 1 <= value <= 100 else "use 1 to 100",
        unit="ratio",
    )
    backoff_cap = FlagSpec(
        "runtime-hooks-nri-backoff-cap",
        DURATION,
        _MAX_SECONDS,
        "longest pause, and never more than a minute",
        at_least_seconds(0.1),
    )
    failure_policy = FlagSpec(
        "runtime-hooks-plugin-failure-policy",
        STRING,
        "Ignore",
        "Fail: when a plugin cannot use a pod's annotations its container is not made; Ignore: "
        "it is made without that plugin's settings",
        one_of("Fail", "Ignore"),
    )
    disabled_stages = FlagSpec(
        "runtime-hooks-disable-stages", STRING_LIST, (), "stages to skip; repeat the flag", _stages
    )
    hami_library = FlagSpec(
        "hami-core-library-directory-path",
        STRING,
        "/usr/local/vgpu/libvgpu.so",
        "HAMi-core's library on the node, which GPUEnvInject mounts into containers",
        _library,
    )
    runtime = FlagSpec(
        "default-runtime-type",
        STRING,
        "containerd",
        "runtime of containers, for their ids",
        one_of("containerd", "docker", "pouch", "cri-o"),
    )


HOUR = 3600.0


class PredictionFlags(FlagTable):
    """The flags of prediction, a row each. Durations are in seconds."""

    checkpoints = FlagSpec(
        "prediction-checkpoint-filepath",
        STRING,
        "/prediction-checkpoints",
        "directory of what was learnt; unless given <run-dir>/prediction-checkpoints, which is "
        "where Koordinator's agent has it on the host",
        absolute,
    )
    cold_start = FlagSpec(
        "prediction-cold-start-duration",
        DURATION,
        24 * HOUR,
        "age of a pod, and of what was learnt of it, from which it is predicted; until then "
        "its whole request counts",
        at_least_seconds(0.0),
    )
    safety_margin = FlagSpec(
        "prediction-safety-margin-percent",
        INT,
        10,
        "added to the predicted peaks",
        at_least(0),
        unit="percent",
    )
    cpu_half_life = FlagSpec(
        "prediction-cpu-histogram-decay-halflife",
        DURATION,
        12 * HOUR,
        "time after which a sample of CPU counts half",
        at_least_seconds(60.0),
    )
    memory_half_life = FlagSpec(
        "prediction-memory-histogram-decay-halflife",
        DURATION,
        24 * HOUR,
        "time after which a sample of memory counts half",
        at_least_seconds(60.0),
    )
    training_interval = FlagSpec(
        "prediction-training-interval",
        DURATION,
        60.0,
        "period of samples; each is the 90th percentile of this time",
        at_least_seconds(5.0),
    )
    expiration = FlagSpec(
        "prediction-model-expiration-duration",
        DURATION,
        1800.0,
        "time without a sample after which a model is forgotten",
        at_least_seconds(60.0),
    )
    checkpoint_interval = FlagSpec(
        "prediction-model-checkpoint-interval",
        DURATION,
        600.0,
        "period in which each model is saved",
        at_least_seconds(60.0),
    )
    checkpoints_per_step = FlagSpec(
        "prediction-model-checkpoint-max-per-step",
        INT,
        12,
        "models saved a minute; more if the period needs it",
        at_least(1),
        unit="models per minute",
    )

    def follow_run_dir(self, run_dir: str) -> None:
        """Set the default of the directory, once the run directory is known."""
        self.checkpoints.default = f"{run_dir}/prediction-checkpoints"


_POLICY = one_of("Fail", "Ignore")


INERT_FLAGS = (
    # process
    FlagSpec("enable-pprof", BOOL, False, "profiling server of Go"),
    FlagSpec("pprof-addr", STRING, ":9317", "address of the profiling server"),
    FlagSpec("configmap-name", STRING, "koordlet-config", "used nowhere, in Koordinator either"),
    FlagSpec("configmap-namespace", STRING, "koordinator-system", "used nowhere either"),
    # host paths and runtimes
    FlagSpec("run-root-dir", STRING, "/host-run/", "used nowhere, in Koordinator either"),
    FlagSpec("containerd-endpoint", STRING, "", "socket file of containerd"),
    FlagSpec("docker-endpoint", STRING, "", "socket file of docker"),
    FlagSpec("pouch-endpoint", STRING, "", "socket file of pouch"),
    # states informer
    FlagSpec("enable-pod-taskids", BOOL, False, "collect the task ids of containers"),
    # metric cache: Koordinator's is a Prometheus TSDB, ours has rings of fixed size
    FlagSpec("metric-gc-interval-seconds", INT, 300, "clean-up period of the cache"),
    FlagSpec("metric-expire-seconds", INT, 1800, "expiry of entries"),
    FlagSpec("tsdb-path", STRING, "/metric-data/", "directory of the cache; ours is --run-dir"),
    FlagSpec("tsdb-retention-duration", DURATION, 12 * HOUR, "retention"),
    FlagSpec("tsdb-enable-prometheus-metric", BOOL, True, "metrics of the TSDB itself"),
    FlagSpec("tsdb-stripe-size", INT, 16384, "size of the series hash"),
    FlagSpec("tsdb-max-bytes", INT, 104857600, "most bytes of blocks"),
    FlagSpec("tsdb-wal-segment-size", INT, 1048576, "bytes of a log segment"),
    FlagSpec("tsdb-max-block-chunk-segment-size", INT, 5242880, "bytes of a chunk segment"),
    FlagSpec("tsdb-min-block-duration", DURATION, 600.0, "range of the head block"),
    FlagSpec("tsdb-max-block-duration", DURATION, 600.0, "longest compacted range"),
    FlagSpec("tsdb-head-chunks-write-buffer-size", INT, 1048576, "bytes of the write buffer"),
    # runtime hooks
    FlagSpec(
        "runtime-hooks-network",
        STRING,
        "unix",
        "hook server of koord-runtime-proxy, which is not supported",
    ),
    FlagSpec("runtime-hooks-addr", STRING, "/host-var-run-koordlet/koordlet.sock", "its address"),
    FlagSpec(
        "runtime-hooks-host-endpoint",
        STRING,
        "/var/run/koordlet/koordlet.sock",
        "its address as seen from the host",
    ),
    FlagSpec("runtime-hooks-failure-policy", STRING, "Ignore", "for koord-runtime-proxy", _POLICY),
    FlagSpec(
        "runtime-hooks-config-path", STRING, "/host-etc-hookserver/", "its registration directory"
    ),
    FlagSpec("runtime-hooks-nri-backoff-steps", INT, 2147483647, "it never gives up"),
    # resource executor
    FlagSpec("resource-force-update-seconds", INT, 60, "age at which a value is written again"),
    # klog; use --log-level and --log-format
    FlagSpec("v", INT, 0, "verbosity of klog; use --log-level"),
    FlagSpec("vmodule", STRING, "", "verbosity by file; use --log-level"),
    FlagSpec("logtostderr", BOOL, True, "logs always go to stderr"),
    FlagSpec("alsologtostderr", BOOL, False, "logs always go to stderr"),
    FlagSpec("stderrthreshold", STRING, "INFO", "severity for stderr; use --log-level"),
    FlagSpec("log_dir", STRING, "", "logs always go to stderr"),
    FlagSpec("log_file", STRING, "", "logs always go to stderr"),
    FlagSpec("log_file_max_size", INT, 1800, "megabytes of a log file", at_least(0)),
    FlagSpec("log_backtrace_at", STRING, ":0", "backtrace at a source line"),
    FlagSpec("add_dir_header", BOOL, False, "directory in klog's header"),
    FlagSpec("skip_headers", BOOL, False, "no klog header"),
    FlagSpec("skip_log_headers", BOOL, False, "no header in log files"),
    FlagSpec("one_output", BOOL, False, "write to one severity's file only"),
)
