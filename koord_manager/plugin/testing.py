"""The kit for testing plugins; needs no daemon and no Kubernetes."""

import json
from collections.abc import Mapping
from typing import Any

from koord.controlplane.testing import FakeCluster, make_node, make_pod, make_report
from koord.util.simulatedclock import SimulatedClock
from koord_manager.config import feature_gates
from koord_manager.framework.calculator import Calculator, History, NodeResult, OfferedResource
from koord_manager.framework.facts import (
    ClusterConfig,
    NodeDevices,
    NodeFacts,
    NodeTopology,
    gather_facts,
    load_cluster_config,
    read_devices,
    read_topology,
)
from koord_manager.framework.interfaces import PluginFactory, PluginRegistry
from koord_manager.framework.loading import Plugins, fields_read, known_plugins
from koord_manager.framework.writing import node_patch

__all__ = [
    "FakeCluster",
    "NodeResult",
    "OfferedResource",
    "PluginHarness",
    "SimulatedClock",
    "make_node",
    "make_pod",
    "make_report",
]

Json = dict[str, Any]
COLOCATION = "colocation-config"


class PluginHarness:
    """One NodeResourcePlugin and a made-up cluster: what it says of a node, and what is written.

    The plugin sees what its class declares with reads, as in the daemon. What a node has offered is
    remembered from one call to the next, so that decreases are bounded as in the daemon.
    """

    def __init__(
        self,
        plugin: PluginFactory,
        cluster: FakeCluster,
        *,
        args: object = None,
        gates: Mapping[str, bool] | None = None,
        config: Mapping[str, str] | None = None,
        max_decrease_percent: int = 30,
    ) -> None:
        """args: as in the file of --config. gates: that differ from their defaults.

        config: the data of slo-controller-config; None: colocation is enabled with all defaults.

        Raises:
            ValueError: the arguments or the configuration are rejected, or the plugin is not made.
        """
        name = getattr(plugin, "__name__", "plugin")
        registry = PluginRegistry()
        registry.register(name, plugin)
        switches = feature_gates([name])
        switches.replace_map(dict(gates or {}))
        args_type = known_plugins(registry)[name]
        if args_type is not None:
            args, faults = args_type.read(args, ("args",))
            if faults:
                raise ValueError("; ".join(map(str, faults)))
        self.name = name
        self.cluster = cluster
        self.errors: list[str] = []
        """Exceptions that the plugin raised."""
        self._plugins = Plugins(registry, [name], {name: args}, switches, cluster.clock)
        if self._plugins.broken:
            raise ValueError(self._plugins.broken[name])
        kept = fields_read(registry, [name])
        cluster.keep(kept)
        self._calculator = Calculator(
            self._plugins.node_resource,
            declared=kept.node_annotations,
            max_decrease_percent=max_decrease_percent,
            call=self._plugins.calculate,
            limits=self._plugins.limits,
            failed=lambda plugin, node, error: self.errors.append(f"{node}: {error}"),
        )
        self._config = ClusterConfig()
        self.configure({COLOCATION: json.dumps({"enable": True})} if config is None else config)
        self._histories: dict[str, History] = {}
        self._topologies: dict[str, NodeTopology] = {}
        self._devices: dict[str, NodeDevices] = {}

    def configure(self, data: Mapping[str, str]) -> None:
        """Change slo-controller-config. Raises ValueError: a key is rejected."""
        found, problems = load_cluster_config(data, self._config)
        if problems:
            raise ValueError("; ".join(map(str, problems)))
        self._config = found

    def topology(self, manifest: Json) -> None:
        """Add a NodeResourceTopology, or change it. Raises InvalidObject."""
        self._topologies[manifest["metadata"]["name"]] = read_topology(manifest)

    def devices(self, manifest: Json) -> None:
        """Add a Device object, or change it. Raises InvalidObject."""
        self._devices[manifest["metadata"]["name"]] = read_devices(manifest)

    def facts(self, name: str) -> NodeFacts:
        """Return a node as the plugin sees it now.

        Raises:
            LookupError: the cluster has no such node.
        """
        state = self.cluster.state
        node = state.snapshot.node(name)
        if node is None:
            raise LookupError(f"wanted a node of the cluster, found {name!r}")
        facts, _ = gather_facts(
            node,
            self._config,
            now=self.cluster.clock.wall(),
            report=state.reports.get(name),
            pods=state.pods_of_node(name),
            topology=self._topologies.get(name),
            devices=self._devices.get(name),
        )
        return facts

    def calculate(self, name: str) -> NodeResult:
        """Return what a node is to have by the plugin. Raises as facts."""
        history = self._histories.setdefault(name, History())
        return self._calculator.calculate(self.facts(name), history)

    def offered(self, name: str) -> Mapping[str, int | None]:
        """Return what a node is to offer, by resource; None: nothing of it. Raises as facts."""
        return {key: one.amount for key, one in self.calculate(name).resources.items()}

    def patch(self, name: str) -> Json | None:
        """Return the patch of the node's status that the daemon sends; None: none. Raises as facts.

        As for a node that the daemon has not written yet.
        """
        facts, result = self.facts(name), self.calculate(name)
        found = node_patch(facts.node, result, facts.strategy, written=None, now=facts.now)
        return None if found is None else found.body
