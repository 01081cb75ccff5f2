"""A node with pods for the tests of plugins that evict."""

import dataclasses
from pathlib import Path
from typing import Any

from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container
from koord.api.qos import KubeQoS
from koordlet.executor.evictions.eviction import KillResult
from koordlet.metriccache.kinds import Kind
from koordlet.plugin import ExtensionPlugin, PodMeta
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod

OFFERED = {"koordinator.sh/eviction-enabled": "true"}
BEST_EFFORT = {"koordinator.sh/qosClass": "BE"}


def be_pod(name: str, priority: int | None = None, **more: Any) -> PodMeta:
    """A pod of Koordinator's class BE."""
    labels = {**BEST_EFFORT, **more.pop("labels", {})}
    qos = more.pop("qos", KubeQoS.BEST_EFFORT)
    return make_pod(name, labels=labels, qos=qos, priority=priority, **more)


def batch(name: str, **requests: str) -> tuple[Container, ...]:
    """A container that asks for batch resources: cpu in milli-cores, memory."""
    asked = {f"kubernetes.io/batch-{each}": amount for each, amount in requests.items()}
    return (Container(name, asked),)


class EvictionBench(PluginHarness):
    """A harness whose node has capacity, thresholds and pods that use something."""

    def __init__(
        self, plugin: ExtensionPlugin, root: Path, *args: str, use: Kind, **options: Any
    ) -> None:
        """use: the metric that says what a pod uses."""
        self.host = FakeHost(root)
        self._use = use
        super().__init__(plugin, host=self.host, args=args, **options)

    def configure(self, *, enable: bool = True, **thresholds: int | str) -> None:
        """Set resourceUsedThresholdWithBE."""
        strategy = {"enable": enable, **thresholds}
        slo, _ = merge_nodeslo({"spec": {"resourceUsedThresholdWithBE": strategy}})
        self.set_node_slo(slo)

    def size(self, *, allocatable: dict[str, str] | None = None, **capacity: str) -> None:
        """Set what the node has."""
        self.states.set_node(Node("test-node", capacity=capacity, allocatable=allocatable or {}))

    def run_pods(self, **used: tuple[PodMeta, float] | PodMeta) -> None:
        """Let these pods, by name, run and use so much."""
        pods = []
        for found in used.values():
            meta = found if isinstance(found, PodMeta) else found[0]
            pods.append(meta)
            if not isinstance(found, PodMeta):
                self.hold(self._use, found[1], meta.uid)
        self.set_pods(*pods)

    def end(self, name: str) -> None:
        """Let a pod be gone."""
        self.drop(self._use, name)
        self.set_pods(*(meta for meta in self.states.pods() if meta.pod.name != name))

    def mark(self, name: str, **fields: Any) -> None:
        """Change a pod's object."""
        self.set_pods(
            *(
                dataclasses.replace(meta, pod=dataclasses.replace(meta.pod, **fields))
                if meta.pod.name == name
                else meta
                for meta in self.states.pods()
            )
        )

    @property
    def asked(self) -> list[str]:
        """The names of the pods whose eviction was asked for, oldest first."""
        return [asked.pod.name for asked in self.evictions.asked]

    def outcomes(self) -> dict[str, str]:
        """The last outcome of evictions, by pod; "" for those without a request."""
        decisions = reversed(self.explain())
        return {each["pod"].rpartition("/")[2]: each["outcome"] for each in decisions}


class ScriptedKiller:
    """Kills whatever it is asked for."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    async def kill(self, group: str, uid: str) -> KillResult:
        """As koordlet.executor's Kills."""
        self.killed.append(uid)
        return KillResult(3)
