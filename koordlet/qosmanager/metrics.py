"""Cost and state of the plugins, as Prometheus families made at scrape time."""

from collections.abc import Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from koordlet.qosmanager.outcome import PluginState
from koordlet.qosmanager.runner import PluginRunner


class PluginFamilies(Collector):
    """Collector for the daemon's registry. Rendered on any thread."""

    def __init__(self, runners: Sequence[PluginRunner]) -> None:
        self._runners = runners

    def describe(self) -> list[Metric]:
        return []  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        rounds = CounterMetricFamily(
            "koordlet_plugin_rounds",
            "Rounds of plugins by outcome: ok, failed, late, silent, blocked or memory.",
            labels=["plugin", "outcome"],
        )
        cpu = CounterMetricFamily(
            "koordlet_plugin_cpu_seconds",
            "CPU seconds that the plugin's own code spent on the event loop.",
            labels=["plugin"],
        )
        errors = CounterMetricFamily(
            "koordlet_plugin_errors", "Everything that went wrong in a plugin.", labels=["plugin"]
        )
        memory = GaugeMetricFamily(
            "koordlet_plugin_memory_growth_bytes",
            "Bytes by which the process grew while the plugin's code ran, since its run began.",
            labels=["plugin"],
        )
        state = GaugeMetricFamily(
            "koordlet_plugin_state",
            "1 for the state that the plugin is in.",
            labels=["plugin", "state"],
        )
        for runner in self._runners:
            for outcome, count in runner.rounds.items():
                rounds.add_metric([runner.name, outcome.value], count)
            cpu.add_metric([runner.name], runner.meter.cpu_seconds)
            errors.add_metric([runner.name], runner.errors)
            memory.add_metric([runner.name], runner.meter.growth)
            for known in PluginState:
                state.add_metric([runner.name, known.value], float(known is runner.state))
        yield from (rounds, cpu, errors, memory, state)
