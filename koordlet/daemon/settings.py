"""Command line, environment and config file as one checked whole; the config file is followed."""

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from koord.api.nodemetric import MIN_REPORT_INTERVAL
from koord.component.config.document import ConfigDocument
from koord.component.config.follower import (
    ConfigFollower,
    LiveFlags,
    parse_command_line,
    parse_flag_document,
)
from koord.component.flags import FeatureGates, FlagSet
from koord.util.clock import Clock
from koord.util.logs import get_logger, parse_levels, set_levels
from koordlet import NAME
from koordlet.daemon.environment import Mode, detect_mode
from koordlet.daemon.flags import DaemonFlags, define_flags
from koordlet.executor.claimmanager import LiveDryRun
from koordlet.features import feature_gates
from koordlet.host.paths import HOST_MODE, HostPaths
from koordlet.plugin.registry import PluginRegistry
from koordlet.qosmanager.config import QOSExtensionConfig

_CLUSTER_INTERVAL = (
    f"set metricReportIntervalSeconds in slo-controller-config, {MIN_REPORT_INTERVAL:.0f} or more"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything that is decided before the first part is built."""

    flags: FlagSet
    options: DaemonFlags
    mode: Mode
    gates: FeatureGates
    plugins: QOSExtensionConfig
    plugin_problems: tuple[str, ...]  # what discovery could not register
    config: ConfigDocument | None  # None: no --config
    dry_run: LiveDryRun
    node_name: str
    laid_out: bool = False  # as in HostPaths
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def paths(self) -> HostPaths:
        """The host's directories."""
        options = self.options
        return HostPaths(
            cgroup=Path(options.cgroup_root_dir.value),
            proc=Path(options.proc_root_dir.value),
            sys=Path(options.sys_root_dir.value),
            sysfs=Path(options.sys_fs_root_dir.value),
            var_run=Path(options.var_run_root_dir.value),
            kubelet=Path(options.var_lib_kubelet_dir.value),
            root=self._root,
            laid_out=self.laid_out,
        )

    @property
    def _root(self) -> Path:
        if self.laid_out:  # beside the others
            return Path(self.options.cgroup_root_dir.value).parent / "root"
        return HostPaths.for_mode(HOST_MODE if self.mode.host_mode else "").root

    @property
    def run_dir(self) -> Path:
        return Path(self.options.run_dir.value)

    def warnings(self) -> list[tuple[str, dict[str, object]]]:
        """Settings without effect, as log events with their facts."""
        found: list[tuple[str, dict[str, object]]] = []
        if inert := self.flags.inert_set():
            found.append(("flags.without_effect", {"flags": inert}))
        if missing := self.gates.not_built():
            found.append(("gates.not_built", {"gates": missing}))
        interval = self.options.report_interval
        if interval.value and not self.mode.standalone:
            facts = {"interval_s": interval.value, "decides": "spec of the NodeMetric"}
            found.append(("report_interval.overruled", {**facts, "hint": _CLUSTER_INTERVAL}))
        return found


def load_settings(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    clock: Clock,
    metrics: CollectorRegistry,
    discover: Callable[[PluginRegistry], Sequence[str]],
    terminal: bool = False,
    laid_out: bool = False,
) -> Settings:
    """Return the settings of a command line and environment.

    discover registers plugins and returns what went wrong; terminal says whether stderr is one.
    laid_out is that of HostPaths: the root flags name plain files, for tests.

    Raises:
        OptionError: a flag, gate or config entry cannot be used; nothing has been started.
        HelpRequested: the user asked for help.
    """
    flags, gates, registry = FlagSet(NAME), feature_gates(), PluginRegistry()
    options = define_flags(flags, terminal=terminal)
    problems = tuple(discover(registry))
    plugins = QOSExtensionConfig(registry, gates, clock=clock, metrics=metrics)
    plugins.init_flags(flags)
    config = parse_command_line(flags, argv, options.config)
    options.check_combinations()
    mode = detect_mode(
        environ,
        standalone=options.standalone.value if options.standalone.is_set else None,
        kubeconfig=options.kubeconfig.value,
    )
    options.adopt_mode(mode, uid=os.geteuid(), environ=environ)
    gates.replace_map(plugins.gate_values(options.feature_gates.value))
    plugins.check_names("--dry-run", options.dry_run.value.plugins)
    return Settings(
        flags=flags,
        options=options,
        mode=mode,
        gates=gates,
        plugins=plugins,
        plugin_problems=problems,
        config=config,
        dry_run=LiveDryRun(lambda: options.dry_run.value, plugins.acting_names),
        environ=environ,
        laid_out=laid_out,
        node_name=options.node_name.value or environ.get("NODE_NAME") or socket.gethostname(),
    )


LIVE_KEYS = frozenset(
    {"feature-gates", "qos-extension-plugins", "log-level", "dry-run", "evict-budget-per-hour"}
)
DRY_RUN = "dry-run"

LiveConfig = ConfigFollower[ConfigDocument]

log = get_logger("koordlet.daemon")


def follow_config(settings: Settings, config: ConfigDocument) -> LiveConfig:
    """Return what follows the config file that the agent has started with."""

    def gate_values() -> Mapping[str, bool]:
        values = settings.plugins.gate_values(settings.options.feature_gates.value)
        settings.plugins.check_names(DRY_RUN, settings.options.dry_run.value.plugins)
        return values

    def applied(read: ConfigDocument, changed: Collection[str]) -> None:
        if DRY_RUN in read.values or DRY_RUN in changed:
            _forget_switches(settings)
        set_levels(parse_levels(settings.options.log_level.value))

    live = LiveFlags(
        settings.flags,
        settings.gates,
        config,
        live=LIVE_KEYS,
        gate_values=gate_values,
        applied=applied,
    )
    return ConfigFollower(config.path, parse_flag_document, live.apply)


def _forget_switches(settings: Settings) -> None:
    """A file with an entry for dry-run, or one that has lost it, wins over the control socket."""
    forgotten = settings.dry_run.forget()
    if forgotten:
        log.warning("dry_run.reset", switched_by_hand_before=dict(forgotten))
