"""Files of the agent terway-qos: rates of the node and its classes, and pods. Pure.

Source: Koordinator, runtimehooks terwayqos.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from koord.api.pods.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.quantity import Quantity
from koord.api.slo.resourceqos import ResourceQoS
from koord.util.errors import InvalidObject
from koordlet.rules.networkqos import MOST_BITS, PodLimits, Problems, bytes_per_second

_OF_LABEL = {
    QoSClass.SYSTEM: 0,
    QoSClass.LSE: 1,
    QoSClass.LSR: 1,
    QoSClass.LS: 1,
    QoSClass.BE: 2,
}
_OF_STATUS = {KubeQoS.GUARANTEED: 1, KubeQoS.BURSTABLE: 1, KubeQoS.BEST_EFFORT: 2}


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
    if not 0 <= bits <= MOST_BITS:
        wanted = f"a quantity of bits/s from 0 to {MOST_BITS}"
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
