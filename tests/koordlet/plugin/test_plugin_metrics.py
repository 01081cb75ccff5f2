"""A plugin's metrics are named after it, and no input can add series without end."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from koord.component.plugins.registry import PluginError
from koord.plugin import KoordError
from koord.util.text import snake_case
from koordlet.plugin.metrics import PluginMetrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("PressureWatch", "pressure_watch"),
        ("CPUBurst", "cpu_burst"),
        ("my-plugin.v2", "my_plugin_v2"),
        ("Already_snake", "already_snake"),
        ("HTTP2Server", "http2_server"),
        ("TCNetworkQoS", "tc_network_qos"),
    ],
)
def test_snake_case(name, snake):
    """Feature names become metric names."""
    assert snake_case(name) == snake


def test_names_and_values(registry):
    """Counter, gauge and histogram carry the plugin's prefix, with or without labels."""
    metrics = PluginMetrics("MyPlugin", registry)
    metrics.counter("kills_total", "Kills.").inc()
    metrics.counter("moves_total", "Moves.", {"way": ("up", "down")}).inc(2, way="up")
    metrics.gauge("level_ratio", "Level.").set(0.5)
    metrics.gauge("koordlet_plugin_my_plugin_temp_celsius", "T.", {"at": ("in",)}).set(3, at="in")
    metrics.histogram("wait_seconds", "Wait.", (1, 10)).observe(3)
    metrics.histogram("work_seconds", "Work.", (1,), {"at": ("in",)}).observe(3, at="in")

    def value(name, **labels):
        return registry.get_sample_value(f"koordlet_plugin_my_plugin_{name}", labels)

    assert value("kills_total") == 1
    assert (value("moves_total", way="up"), value("moves_total", way="down")) == (2, 0)
    assert value("level_ratio") == 0.5
    assert value("temp_celsius", at="in") == 3
    assert value("wait_seconds_bucket", le="10.0") == 1
    assert value("work_seconds_count", at="in") == 1


def test_undeclared_values_are_other(registry):
    """A thousand pod names make one series."""
    counter = PluginMetrics("P", registry).counter("seen_total", "Seen.", {"pod": ("a",)})
    for number in range(1000):
        counter.inc(pod=f"pod-{number}")
    assert registry.get_sample_value("koordlet_plugin_p_seen_total", {"pod": "other"}) == 1000
    assert generate_latest(registry).count(b"koordlet_plugin_p_seen_total{") == 2


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("Bad", None, "lower_snake_case"),
        ("2x", None, "lower_snake_case"),
        ("x", {"a": map(str, range(30)), "b": map(str, range(30))}, "at most 500 series"),
    ],
)
def test_bad_declarations(registry, name, labels, message):
    """What a metric may not be called or grow to is said when it is made."""
    labels = {label: tuple(values) for label, values in labels.items()} if labels else None
    with pytest.raises(PluginError, match=message):
        PluginMetrics("P", registry).gauge(name, "help", labels)


def test_wrong_labels(registry):
    """A forgotten or invented label is named."""
    gauge = PluginMetrics("P", registry).gauge("x", "help", {"a": ("1",)})
    with pytest.raises(PluginError, match=r"labels \['a'\]"):
        gauge.set(1, b="1")


def test_upstream_gauge_has_koordinators_name(registry):
    """A family of Koordinator's keeps its name and labels, and loses the series that are gone."""
    gauge = PluginMetrics("P", registry).upstream_gauge("koordlet_x_cores", "X.", ("node", "type"))

    def value(kind):
        return registry.get_sample_value("koordlet_x_cores", {"node": "n", "type": kind})

    gauge.set(2, node="n", type="cpuset")
    gauge.set(3, node="n", type="cpuset")
    assert value("cpuset") == 3
    gauge.replace({("n", "cfsQuota"): 0.5})
    assert (value("cpuset"), value("cfsQuota")) == (None, 0.5)
    gauge.clear()
    assert value("cfsQuota") is None
    assert b"# TYPE koordlet_x_cores gauge" in generate_latest(registry)


def test_upstream_gauge_is_bounded(registry):
    """A thousand containers do not make a thousand series where ten are allowed."""
    gauge = PluginMetrics("P", registry).upstream_gauge("koordlet_x", "X.", ("c",), most=10)
    for number in range(1000):
        gauge.set(number, c=f"c{number}")
    assert generate_latest(registry).count(b"koordlet_x{") == 10
    gauge.replace({(f"c{number}",): 1.0 for number in range(1000)})
    assert generate_latest(registry).count(b"koordlet_x{") == 10


def test_upstream_gauge_refuses_misuse(registry):
    """Another name, a name twice and other labels are mistakes in the plugin."""
    metrics = PluginMetrics("P", registry)
    gauge = metrics.upstream_gauge("koordlet_x", "X.", ("node",))
    with pytest.raises(PluginError, match="name of Koordinator"):
        metrics.upstream_gauge("koordlet_plugin_p_x", "X.", ())
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.upstream_gauge("koordlet_x", "X.", ())
    with pytest.raises(KoordError, match="wanted the labels"):
        gauge.set(1, pod="a")
