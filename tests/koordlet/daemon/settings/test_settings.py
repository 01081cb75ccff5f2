"""Command line, environment and config file become one checked whole."""

import socket

import pytest
from prometheus_client import CollectorRegistry

from koord.util.errors import OptionError
from koordlet.daemon.settings import load_settings
from koordlet.plugin import ExtensionPlugin, FeatureSpec
from koordlet.plugin.testing import SimulatedClock

TOKENLESS = {"HOME": "/nonexistent"}  # nothing that leads to an API server


class Plugin(ExtensionPlugin):
    def init_flags(self, flags):
        flags.int("my-level", 3, "a level")

    def setup(self, client, metric_cache, states_informer):
        pass

    async def run(self, stop):
        await stop.wait()


def discover(registry):
    view = registry.from_source("test", "1.0")
    view.register_qos_ext_plugin("MyPlugin", FeatureSpec(), Plugin())
    return ["one that does not load"]


def load(*args, **environ):
    return load_settings(
        args,
        TOKENLESS | environ,
        clock=SimulatedClock(),
        metrics=CollectorRegistry(),
        discover=discover,
    )


@pytest.mark.parametrize(
    ("args", "environ", "name"),
    [
        ([], {}, socket.gethostname()),
        ([], {"NODE_NAME": "from-env"}, "from-env"),
        (["--node-name=given"], {}, "given"),
        (["--node-name=given"], {"NODE_NAME": "from-env"}, "given"),
        (["--node-name="], {"NODE_NAME": ""}, socket.gethostname()),
    ],
)
def test_the_node_has_a_name_in_any_case(args, environ, name):
    """What is written on the command line wins; an empty name is none."""
    assert load(*args, **environ).node_name == name


@pytest.mark.parametrize(
    ("args", "environ", "standalone", "addr", "cgroup"),
    [
        ([], {}, True, "127.0.0.1:9316", "/sys/fs/cgroup"),
        (["--kubeconfig=/k"], {}, False, ":9316", "/host-cgroup"),
        (["--kubeconfig=/k", "--standalone"], {}, True, "127.0.0.1:9316", "/sys/fs/cgroup"),
        (["--standalone=false"], {}, False, ":9316", "/host-cgroup"),
        ([], {"agent_mode": "dsMode"}, True, "127.0.0.1:9316", "/host-cgroup"),
        ([], {"KUBECONFIG": "/k", "agent_mode": "hostMode"}, False, ":9316", "/sys/fs/cgroup"),
        (["--addr=:80", "--cgroup-root-dir=/cg"], {}, True, ":80", "/cg"),
    ],
)
def test_defaults_follow_from_where_the_daemon_runs(args, environ, standalone, addr, cgroup):
    """Alone it listens on loopback and reads the host's own paths, unless flags say otherwise."""
    settings = load(*args, **environ)

    assert settings.mode.standalone is standalone
    assert settings.options.addr.value == addr
    assert str(settings.paths.cgroup) == cgroup
    assert str(settings.paths.proc) == "/proc"


def test_all_roots_reach_the_host_paths():
    names = ("cgroup", "proc", "sys", "sys-fs", "var-run")
    settings = load(*(f"-{name}-root-dir=/r/{name}/" for name in names), "--run-dir=/r/run")

    found = settings.paths
    assert [str(p) for p in (found.cgroup, found.proc, found.sys, found.sysfs, found.var_run)] == [
        f"/r/{name}" for name in names
    ]
    assert str(settings.run_dir) == "/r/run"


def test_the_command_line_wins_over_the_config_file_per_key(tmp_path):
    """Also for single gates, flags of plugins included."""
    config = tmp_path / "koordlet.yaml"
    config.write_text("my-level: 7\nnode-name: from-file\nfeature-gates: {PSICollector: true}\n")

    settings = load(f"--config={config}", "--node-name=given")

    assert settings.node_name == "given"
    assert settings.flags["my-level"].value == 7
    assert settings.gates.enabled("PSICollector")
    assert settings.config is not None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--feature-gate=X=true"], "feature-gates"),
        (["--feature-gates=PSICollectr=true"], "PSICollector"),
        (["--feature-gates=MyPlugn=true"], "MyPlugin"),
        (["--feature-gates=PSICollector=maybe"], "feature-gates"),
        (["--qos-extension-plugins=MyPlugn=true"], "MyPlugin"),
        (["--feature-gates=MyPlugin=true", "--qos-extension-plugins=MyPlugin=false"], "MyPlugin"),
        (["--my-levle=1"], "my-level"),
        (["--my-level=high"], "my-level"),
        (["run"], "only flags are expected"),
        (["--config=/nonexistent/file"], "/nonexistent/file"),
        (["--collect-res-used-interval=1"], "collect-res-used-interval"),
        (["--addr=nowhere"], "addr"),
        (["--run-dir=here"], "absolute"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_nearest_name(args, message):
    """Before anything is started."""
    with pytest.raises(OptionError) as caught:
        load(*args)
    assert message in str(caught.value)


def test_what_has_no_effect_is_logged_once_at_the_start():
    """Inert flags, and gates that are not built."""
    settings = load("--metric-gc-interval-seconds=1", "--feature-gates=CPUBurst=true")
    found = dict(settings.warnings())

    assert found["flags.without_effect"]["flags"] == ["metric-gc-interval-seconds"]
    assert found["gates.not_built"]["gates"] == ["CPUBurst"]
    assert load().warnings() == []


def test_an_interval_of_reports_that_the_cluster_overrules_is_logged():
    """Standalone the flag decides, and without it there is nothing to say."""
    interval = "--report-interval=5s"
    [(event, facts)] = load(interval, "--standalone=false").warnings()

    assert (event, facts["interval_s"]) == ("report_interval.overruled", 5.0)
    assert "metricReportIntervalSeconds" in str(facts["hint"])
    assert load(interval, "--standalone").warnings() == []
    assert load("--standalone=false").warnings() == []


def test_what_discovery_could_not_register_is_passed_on():
    assert load().plugin_problems == ("one that does not load",)


def test_dry_run_of_a_plugin_that_is_not_installed_ends_the_start():
    """It would not be in dry-run, whatever it is really called."""
    assert load("--dry-run=MyPlugin").options.dry_run.value.covers("MyPlugin")
    with pytest.raises(OptionError, match="no plugin of this name; the nearest is 'MyPlugin'"):
        load("--dry-run=MyPlugn")
