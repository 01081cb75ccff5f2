"""Network QoS by terway-qos, the agent of a CNI plugin, which reads rates and pods from two files.

Claims these files while the NodeSLO's netQOSPolicy is terway-qos.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from koord.api.annotations import place
from koord.api.nodeslo import NodeSLO
from koord.api.pod import Pod
from koord.api.qos import KubeQoS
from koord.api.qosstrategy import NetQoSPolicy
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.network import (
    ANNOTATION,
    NODE_FILE,
    PODS_FILE,
    PodLimits,
    TerwayPod,
    node_file,
    pod_limits,
    pods_file,
)
from koordlet.plugin.pods import PodRoundsPlugin, PodSettings, pods_of

_CGROUPS = "/sys/fs/cgroup"
_FILES = "files"  # scope of the claims


class TerwayQoS(PodRoundsPlugin[PodLimits]):
    """Reconciles the files with the NodeSLO, and with labels and annotations of pods."""

    gates = ("TerwayQoS",)
    follows = (StateType.NODE_SLO_SPEC,)
    may_claim: ClassVar[tuple[ClaimScope, ...]] = (ClaimScope(resources.TERWAY_FILE, Level.TERWAY),)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self.settings = PodSettings(self.pod_settings, self.rejections, otherwise=PodLimits())

    def begin(self) -> None:
        super().begin()
        self._slo: NodeSLO | None = None
        self._rates = ""  # the last good ones
        self._problems = 0  # of the NodeSLO's settings

    def pod_settings(self, pod: Pod) -> PodLimits:
        return pod_limits(pod.annotations, place(pod, ANNOTATION), least=1)

    async def reconcile(self) -> None:
        """Bring the files up to the present states."""
        slo = self.states.node_slo()
        self._slo = slo if slo is not None else self._slo
        if self._slo is None:
            return
        pods = list(pods_of(self.states))
        self.settings.keep([meta.uid for meta in pods])
        if self._slo.resource_qos.policies.network is not NetQoSPolicy.TERWAY:
            await self.keep(_FILES, ())
            return
        self._look_at_rates(self._slo)
        if not self._rates:
            return
        why = "netQOSPolicy of the NodeSLO is terway-qos"
        content = {
            NODE_FILE: self._rates,
            PODS_FILE: pods_file(self._entries(pods, await self._directory())),
        }
        await self.keep(
            _FILES,
            [
                Claim(
                    target=Target.terway(name),
                    resource=resources.TERWAY_FILE,
                    value=text,
                    reason=why,
                    inputs={"pods": len(pods)},
                )
                for name, text in content.items()
            ],
        )

    def _look_at_rates(self, slo: NodeSLO) -> None:
        """Take the rates of a NodeSLO; of one that cannot be used none."""
        rates, problems = node_file(slo.resource_qos, slo.system.total_network_bandwidth)
        for at, err in enumerate(problems):
            self.rejections.reject(f"rates/{at}", err)
        for at in range(len(problems), self._problems):
            self.rejections.accept(f"rates/{at}")
        self._problems = len(problems)
        if not problems:
            self._rates = rates

    async def _directory(self) -> str:
        """Return the directory in which terway-qos finds the cgroups of pods."""
        group = self.kernel.layout.qos_dir(KubeQoS.GUARANTEED)
        v1 = await self.kernel.supports(resources.NET_CLASS_ID, group)
        return f"{_CGROUPS}/net_cls" if v1 else _CGROUPS

    def _entries(self, pods: Sequence[PodMeta], above: str) -> Iterator[TerwayPod]:
        for meta in pods:
            limits = self.settings.of(meta.pod) or PodLimits()
            yield TerwayPod(meta.pod, f"{above}/{meta.cgroup}", limits)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("TerwayQoS", None, TerwayQoS())
