"""Network QoS by terway-qos, the agent of a CNI plugin, which reads rates and pods from two files.

Claims these files while the NodeSLO's netQOSPolicy is terway-qos.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from koord.api.annotations import place
from koord.api.nodeslo import NodeSLO
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import (
    ANNOTATION,
    MAX_BITS,
    NetQoSPolicy,
    PodLimits,
    Problems,
    ResourceQoS,
    bytes_per_second,
    pod_limits,
)
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject
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
from koordlet.plugin.network import NODE_FILE, PODS_FILE
from koordlet.plugin.pods import PodRoundsPlugin, PodSettings, pods_of

_OF_LABEL = {
    QoSClass.SYSTEM: 0,
    QoSClass.LSE: 1,
    QoSClass.LSR: 1,
    QoSClass.LS: 1,
    QoSClass.BE: 2,
}
_OF_STATUS = {KubeQoS.GUARANTEED: 1, KubeQoS.BURSTABLE: 1, KubeQoS.BEST_EFFORT: 2}
_CGROUPS = "/sys/fs/cgroup"
_FILES = "files"  # scope of the claims


class TerwayPod(NamedTuple):
    """A pod, the directory of its cgroup, and its limits."""

    pod: Pod
    directory: str
    limits: PodLimits


def node_file(qos: ResourceQoS, total: Quantity) -> tuple[str, Problems]:
    """Return the rates in bytes/s, a line each, and what of the NodeSLO could not be used.

    total is systemStrategy.totalNetworkBandwidth in bits/s.
    """
    problems: list[InvalidObject] = []
    bits = total.integer
    if not 0 <= bits <= MAX_BITS:
        wanted = f"a quantity of bits/s from 0 to {MAX_BITS}"
        where = "systemStrategy.totalNetworkBandwidth"
        problems.append(InvalidObject(where, wanted=wanted, found=str(total)))
        return "", tuple(problems)
    most = -(-bits // 8)
    rates = {"hw_tx_bps_max": bits // 8, "hw_rx_bps_max": bits // 8}
    for level, name, settings in (
        ("l1", "lsClass", qos.ls.network),
        ("l2", "beClass", qos.be.network),
    ):
        fields = {
            "tx_bps_min": ("egressRequest", settings.egress_request),
            "tx_bps_max": ("egressLimit", settings.egress_limit),
            "rx_bps_min": ("ingressRequest", settings.ingress_request),
            "rx_bps_max": ("ingressLimit", settings.ingress_limit),
        }
        for field, (key, value) in fields.items():
            where = f"{name}.networkQOS.{key}"
            rates[f"offline_{level}_{field}"] = (
                bytes_per_second(value, most, where, problems) if settings.enable else 0
            )
    return "".join(f"{key} {rate}\n" for key, rate in rates.items()), tuple(problems)


def pods_file(pods: Iterable[TerwayPod]) -> str:
    """Return the pods by UID, as JSON."""
    entries = {each.pod.uid: _entry(each) for each in pods}
    return json.dumps(dict(sorted(entries.items())), separators=(",", ":"))


def _entry(each: TerwayPod) -> dict[str, object]:
    pod = each.pod
    return {
        "podName": pod.name,
        "podNamespace": pod.namespace,
        "podUID": pod.uid,
        "prio": _OF_LABEL.get(pod.raw_qos_class, _OF_STATUS[pod.qos]),
        "cgroupDir": each.directory,
        "qosConfig": {
            "ingressBandwidth": each.limits.ingress,
            "egressBandwidth": each.limits.egress,
        },
    }


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
