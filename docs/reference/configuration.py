"""docs/configuration.md."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from koord.component.config.follower import parse_flag_document
from koord.component.flags import FlagRow
from koord.component.http.exposition import Exposition
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.daemon.environment import Mode
from koordlet.daemon.settings import LIVE_KEYS, Settings
from koordlet.features import BUILT_GATES
from koordlet.host.paths import HostPaths
from koordlet.metriccache.kinds import Cadence
from koordlet.plugin.testing import SimulatedClock
from koordlet.server.app import FAMILIES
from reference.fakedaemon import settings_of
from reference.markdown import code, codes, page, sentence, table

_INTRO = """
Flags have Go's syntax: `--name=value`, `--name value` or `-name=value`; a bool may stand alone.
Durations are Go's: `300ms`, `10s`, `1h30m`. A map of bool is `A=true,B=false`. An unknown flag or
gate, or a bad value, ends the start with exit code 2 and the nearest name; a start that fails
otherwise (port, run directory, root directories) with 1.

A flag on the command line wins over the config file, that over the default; in maps the command
line wins per entry. Without `--standalone` the daemon stands alone when there is no kubeconfig
(`--kubeconfig`, `KUBECONFIG`, `~/.kube/config`) and no in-cluster token.
"""
_FLAGS = """
Where two defaults stand, the first holds in a container (the mounts of Koordinator's DaemonSet),
the second on the host itself: standalone, or with `agent_mode=hostMode`. The second default of
`--addr` is for standalone only.
"""
_INERT = """
Koordinator's flags without meaning in this build. Values are checked; a flag that is set gets one
warning (`flags.without_effect`).
"""
_ENVIRONMENT = {
    "`agent_mode`": "`hostMode`: paths as on the host; anything else: as Koordinator's DaemonSet "
    "mounts them. Unset: as on the host when standalone",
    "`NODE_NAME`": "Name of the node, unless `--node-name` is given; without both the host name",
    "`KUBECONFIG`, `HOME`, `KUBERNETES_SERVICE_HOST`": "Show whether there is an API server",
    "`XDG_RUNTIME_DIR`": "Holds the run directory of a user other than root; unset: "
    "`/tmp/koordlet-<uid>`",
    "`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`": "Set by systemd for `Type=notify` and "
    "`WatchdogSec=`",
}
_EXAMPLE = """\
addr: 127.0.0.1:9316
log-level: info,PressureWatch=debug
report-interval: 30s
feature-gates:
  PSICollector: true
  PressureWatch: true
"""
_CONFIG = """
YAML, at most 64 KiB, keys are flag names without dashes:

```yaml
{example}```

Texts, numbers, bools, and durations as texts (`30s`); `feature-gates` and `qos-extension-plugins`
are maps, lists are lists. The file is read again when it has changed and stands still, and on
SIGHUP; no content is missed that stood for half a second (two where there is no inotify).
At once take effect: {live}. The other keys need a restart, which the log
(`config.restart_required`) and `koordletctl status` say. A file that cannot be used changes
nothing; `/healthz` names the line until it is mended. A key that is taken out goes back to its
default.
"""
_GATES = """
`--feature-gates=Name=true,...`; `AllAlpha` and `AllBeta` set those of a stage that have no value
of their own. A gate that is switched on without being in this build gets one warning
(`gates.not_built`). Installed plugins add their gates; `--qos-extension-plugins` switches those
too, and the two disagreeing is an error.
"""
_HOST = Mode(standalone=True, host_mode=True, reason="")
_ROOT = 0  # user id


def configuration_page() -> str:
    """The whole page."""
    settings = _settings()
    container = {row.name: row.default for row in settings.flags.describe()}
    settings.options.adopt_mode(_HOST, uid=_ROOT, environ={})
    rows = settings.flags.describe()
    own = [row for row in rows if not row.inert and row.owner == "koordlet"]
    plugins = [row for row in rows if row.owner != "koordlet"]
    return page(
        "Configuration",
        _INTRO,
        "## Flags",
        _FLAGS,
        _flags(own, container),
        "## Flags of plugins",
        _flags(plugins, container),
        "## Flags accepted for compatibility",
        _INERT,
        _flags((row for row in rows if row.inert), container),
        "## Config file",
        _config(settings),
        "## Environment",
        table(("Variable", "Meaning"), _ENVIRONMENT.items()),
        "## Feature gates",
        _GATES,
        _gates(settings),
    )


def _settings() -> Settings:
    argv = ["--standalone=false", "--run-dir=/host-var-run-koordlet"]
    return settings_of(argv, exposition=Exposition(FAMILIES), clock=SimulatedClock())


def _flags(rows: Iterable[FlagRow], container: dict[str, str]) -> str:
    head = ("Flag", "Kind", "Default", "Meaning")
    return table(
        head,
        ((code(f"--{r.name}"), r.kind, _default(r, container), _meaning(r)) for r in rows),
    )


def _default(row: FlagRow, container: dict[str, str]) -> str:
    both = dict.fromkeys((container[row.name], row.default))
    return codes(filter(None, both))


def _meaning(row: FlagRow) -> str:
    owner = "" if row.owner == "koordlet" else f"{row.owner.capitalize()}: "
    return owner + sentence(row.help)


def _config(settings: Settings) -> str:
    example = parse_flag_document(_EXAMPLE.encode(), Path("example"))
    settings.flags.set_from_config(example.values)  # raises when the example is wrong
    return _CONFIG.format(example=_EXAMPLE, live=codes(sorted(LIVE_KEYS)))


def _gates(settings: Settings) -> str:
    gates = settings.gates
    plugins = {
        gate: entry.name
        for entry in settings.plugins.registry
        for gate in (*entry.plugin.modes, *entry.gates)
    }
    rows = []
    for name in gates.names():
        spec = gates.spec(name)
        built = f"yes, plugin {plugins[name]}" if name in plugins else _built(name)
        rows.append((code(name), "on" if spec.default else "off", spec.stage.value, built))
    return table(("Gate", "Default", "Stage", "In this build"), rows)


def _built(gate: str) -> str:
    if gate in BUILT_GATES or gate.startswith("All"):
        return "yes"
    return "its collector only" if gate in _collector_gates() else "no"


@cache
def _collector_gates() -> frozenset[str]:
    options = CollectorOptions(node="", periods=dict.fromkeys(Cadence, 1.0))
    paths = HostPaths.below(Path("/nonexistent"))
    collectors = build_collectors(options, paths, lambda *_: None, lambda: False, lambda _: True)
    return frozenset(gate for collector in collectors for gate in collector.gates)
