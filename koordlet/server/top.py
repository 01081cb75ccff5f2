"""The present usage of node, QoS classes and pods: the rows of `koordletctl top`."""

from collections.abc import Iterable, Mapping

from koord.api.nodemetric import time_text
from koord.api.quantity import Quantity
from koordlet.host.cgroups.layout import qos_of
from koordlet.metriccache.aggregate import Aggregate
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_NETWORK_RECEIVE,
    NODE_NETWORK_TRANSMIT,
    NODE_PSI,
    POD_CPU_THROTTLED,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    POD_NETWORK_RECEIVE,
    POD_NETWORK_TRANSMIT,
    POD_PSI,
    QOS_CPU_USAGE,
    QOS_MEMORY_USAGE,
    QOS_PSI,
    AnyKind,
)
from koordlet.metriccache.ring import SeriesKey
from koordlet.statesinformer.podmeta import PodMeta

TopRow = dict[str, object]
"""name and figures of one subject. A pod's name is namespace/name, and it has uid and qos.

cpu_history: the mean cores of each SLOT of the last HISTORY seconds, None where there is no sample.
"""

HISTORY, SLOT = 60.0, 5.0  # seconds

# What a row says: cores; bytes; percent of the last 10 s in which some task waited; share of the
# CFS periods that were throttled, 0 to 1; bytes per second. None: not measured.
FIGURES = (
    "cpu_cores",
    "memory_bytes",
    "cpu_pressure",
    "memory_pressure",
    "io_pressure",
    "throttled_ratio",
    "receive_bytes_per_second",
    "transmit_bytes_per_second",
)

_CPU_PSI, _MEMORY_PSI, _IO_PSI = (
    ("cpu", "10", "some"),
    ("mem", "10", "some"),
    ("io", "10", "some"),
)

_SLOTS = int(HISTORY / SLOT)

_Source = Mapping[str, tuple[AnyKind, SeriesKey]]
"""Figure to kind, and what follows the subject in its key."""

_NODE: _Source = {
    "cpu_cores": (NODE_CPU_USAGE, ()),
    "memory_bytes": (NODE_MEMORY_USAGE, ()),
    "cpu_pressure": (NODE_PSI, _CPU_PSI),
    "memory_pressure": (NODE_PSI, _MEMORY_PSI),
    "io_pressure": (NODE_PSI, _IO_PSI),
}
_QOS: _Source = {
    "cpu_cores": (QOS_CPU_USAGE, ()),
    "memory_bytes": (QOS_MEMORY_USAGE, ()),
    "cpu_pressure": (QOS_PSI, _CPU_PSI),
    "memory_pressure": (QOS_PSI, _MEMORY_PSI),
    "io_pressure": (QOS_PSI, _IO_PSI),
}
_POD: _Source = {
    "cpu_cores": (POD_CPU_USAGE, ()),
    "memory_bytes": (POD_MEMORY_USAGE, ()),
    "cpu_pressure": (POD_PSI, _CPU_PSI),
    "memory_pressure": (POD_PSI, _MEMORY_PSI),
    "io_pressure": (POD_PSI, _IO_PSI),
    "throttled_ratio": (POD_CPU_THROTTLED, ()),
    "receive_bytes_per_second": (POD_NETWORK_RECEIVE, ()),
    "transmit_bytes_per_second": (POD_NETWORK_TRANSMIT, ()),
}

# Interfaces whose traffic also passes another one, where it is counted.
CARRIED = (
    *("lo", "dummy", "ifb", "bond", "team", "docker", "br-", "virbr"),
    *("cni", "flannel", "vxlan", "geneve", "tunl", "wg", "cilium", "kube-"),
)


def top(
    cache: MetricCache,
    node: str,
    capacity: Mapping[str, str],
    pods: Iterable[PodMeta],
    limits: Mapping[str, float],
    *,
    histories: bool = True,
) -> dict[str, object]:
    """Rows of the node, of the QoS classes and of the pods that run.

    capacity is the node's, as in its Node object. "measured" is the time of the newest sample of
    node CPU, None before the first. limits: cores that plugins hold cgroups to; a pod's or QoS
    class's cpu_limit_cores is the least of those it is in, None when there is none.
    histories: whether rows have cpu_history, which is more than half of the work.
    """
    pods = sorted(
        (pod for pod in pods if not pod.pod.finished),
        key=lambda pod: (pod.pod.namespace, pod.pod.name),
    )
    newest = cache.newest(NODE_CPU_USAGE)
    return {
        "measured": None if newest is None else time_text(newest.wall),
        "capacity": {
            "cpu_cores": _amount(capacity.get("cpu")),
            "memory_bytes": _amount(capacity.get("memory")),
        },
        "node": _node(_LatestValues(cache, _NODE, histories), cache, node),
        "qos": _qos(_LatestValues(cache, _QOS, histories), cache, pods, limits),
        "pods": _pods(_LatestValues(cache, _POD, histories), pods, limits),
    }


class _LatestValues:
    """The latest value of each figure of a table, by subject."""

    def __init__(self, cache: MetricCache, source: _Source, histories: bool) -> None:
        self._source = [(figure, kind.name, rest) for figure, (kind, rest) in source.items()]
        self._values = {kind.name: cache.last_values(kind) for kind, _ in source.values()}
        newest = cache.newest(NODE_CPU_USAGE)
        end = None if newest is None else newest.boot
        cpu, _ = source["cpu_cores"]
        self._histories = cache.aggregate_all(cpu, HISTORY, end) if histories else None
        self._begin = 0.0 if end is None else end - HISTORY

    def of(self, *subject: str) -> TopRow:
        found = {
            figure: self._values[kind].get((*subject, *rest)) for figure, kind, rest in self._source
        }
        row: TopRow = {figure: found.get(figure) for figure in FIGURES}
        if self._histories is not None:
            row["cpu_history"] = self._history(self._histories.get(subject))
        return row

    def _history(self, series: Aggregate | None) -> list[float | None]:
        sums, counts = [0.0] * _SLOTS, [0] * _SLOTS
        for boot, value in series.points() if series else ():
            slot = min(int((boot - self._begin) / SLOT), _SLOTS - 1)
            if slot >= 0:
                sums[slot] += value
                counts[slot] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def _node(latest: _LatestValues, cache: MetricCache, name: str) -> TopRow:
    return {
        "name": name,
        **latest.of(),
        "receive_bytes_per_second": _node_traffic(cache, NODE_NETWORK_RECEIVE),
        "transmit_bytes_per_second": _node_traffic(cache, NODE_NETWORK_TRANSMIT),
    }


def _node_traffic(cache: MetricCache, kind: AnyKind) -> float | None:
    rates = cache.last_values(kind)
    return _sum(rate for (device,), rate in rates.items() if not device.startswith(CARRIED))


def _qos(
    latest: _LatestValues, cache: MetricCache, pods: list[PodMeta], limits: Mapping[str, float]
) -> list[TopRow]:
    received = cache.last_values(POD_NETWORK_RECEIVE)
    sent = cache.last_values(POD_NETWORK_TRANSMIT)
    classes = {name for (name,) in cache.last_values(QOS_CPU_USAGE)}
    rows: list[TopRow] = []
    for name in sorted(classes):
        keys = [(pod.uid,) for pod in pods if pod.kube_qos.value.lower() == name]
        rows.append(
            {
                "name": name,
                "cpu_limit_cores": _least(
                    cores for place, cores in limits.items() if qos_of(place).value.lower() == name
                ),
                **latest.of(name),
                "receive_bytes_per_second": _sum(received[key] for key in keys if key in received),
                "transmit_bytes_per_second": _sum(sent[key] for key in keys if key in sent),
            }
        )
    return rows


def _pods(latest: _LatestValues, pods: list[PodMeta], limits: Mapping[str, float]) -> list[TopRow]:
    return [
        {
            "name": f"{pod.pod.namespace}/{pod.pod.name}",
            "uid": pod.uid,
            "qos": pod.qos.value,
            "cpu_limit_cores": _least(
                cores for place, cores in limits.items() if pod.cgroup.startswith(f"{place}/")
            ),
            **latest.of(pod.uid),
        }
        for pod in pods
    ]


def _least(values: Iterable[float]) -> float | None:
    return min(values, default=None)


def _amount(quantity: str | None) -> float | None:
    return None if quantity is None else Quantity.parse(quantity).milli / 1000


def _sum(values: Iterable[float]) -> float | None:
    """The sum; None of nothing, because nothing measured is not 0."""
    known = list(values)
    return sum(known) if known else None
