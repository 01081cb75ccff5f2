"""One cycle of one plugin on a fake cluster, and its result."""

from dataclasses import dataclass
from typing import Any

from koord_descheduler.framework.evictor import CycleDecisions, PodDecision
from koord_descheduler.framework.profile import PluginFactory
from koord_descheduler.plugin.testing import Evicted, FakeCluster, PluginHarness, ScriptedServer


@dataclass(frozen=True)
class Outcome:
    """What a plugin did, and why."""

    evicted: list[Evicted]
    decisions: CycleDecisions
    server: ScriptedServer

    @property
    def names(self) -> list[str]:
        """Names of the pods that were evicted, in that order."""
        return [one.pod.name for one in self.evicted]

    @property
    def pods(self) -> dict[str, PodDecision]:
        """Decisions about pods by their names."""
        return {one.pod.partition("/")[2]: one for one in self.decisions.pods()}

    @property
    def reasons(self) -> dict[str, str]:
        return {name: one.reason for name, one in self.pods.items()}


async def one_cycle(
    plugin: PluginFactory,
    cluster: FakeCluster,
    args: Any = None,
    *,
    patched: str = "",
    **settings: Any,
) -> Outcome:
    """Run a cycle that must go well. The server takes patches of paths that end in patched."""
    async with PluginHarness(plugin, cluster, args=args, **settings) as harness:
        harness.server.answer(
            lambda call: {} if call.method == "PATCH" and call.path.endswith(patched) else None
        )
        result = await harness.cycle()
        assert result.errors == []
        return Outcome(harness.evicted, harness.decisions, harness.server)
