"""What people and other components see of reservations: an endpoint, metrics, advice."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from koord_scheduler.plugin import ClusterPod, Services, View
from koord_scheduler.plugin.koordinator import PluginRequest
from koord_scheduler_plugins.reservation.amounts import Amounts, amount_texts
from koord_scheduler_plugins.reservation.consumers import CONSUMERS, pool_name
from koord_scheduler_plugins.reservation.info import ReservationInfo
from koord_scheduler_plugins.reservation.lifetime import utilization
from koord_scheduler_plugins.reservation.matching import NodeDiagnosis
from koord_scheduler_plugins.reservation.objects import Phase, Policy, Reservation
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

MAX_MEASURED = 2000  # reservations that metrics show
MAX_SHOWN = 1000  # consumers of one reservation in an answer
MAX_NAMED = 3  # reservations in one sentence
_PHASES = ("Pending", Phase.AVAILABLE, Phase.SUCCEEDED, Phase.FAILED)
_GIB = 1 << 30


class ReservationServing:
    """Answers questions about the reservations of nodes."""

    def __init__(self, services: Services, tracker: ReservationTracker) -> None:
        self._cluster = services.cluster
        self._tracker = tracker

    async def answer_node(self, request: PluginRequest) -> object:
        """Return the reservations of a node, as Koordinator's endpoint does."""
        found = self._tracker.on_node(request.parameters["node"])
        return {"items": [self._item(one) for one in found]} if found else {}

    def _item(self, found: Reservation) -> Mapping[str, Any]:
        account = self._cluster.account
        info = self._tracker.info(found, account)
        pool = account.pool(CONSUMERS, pool_name(found.uid, found.node))
        item = {
            "name": found.name,
            "namespace": "" if found.raw else self._namespace(found.uid),
            "uid": found.uid,
            "kind": "Reservation" if found.raw else "Pod",
            "available": found.available,
            "allocateOnce": found.spec is not None and found.spec.allocate_once,
            "allocatePolicy": str(info.policy),
            "allocatable": amount_texts(info.allocatable),
            "reserved": amount_texts(info.inner),
            "allocated": amount_texts(info.used),
            "availableResource": _resource(info.remaining),
            "allocatedResource": _resource(info.used),
            "owners": _owners(found),
            "assignedPods": list(self._consumers(tuple(pool.members))),
        }
        return {key: value for key, value in item.items() if value not in ("", {}, [], None)}

    def _namespace(self, uid: str) -> str:
        return (self._tracker.pod_key(uid) or "").partition("/")[0]

    def _consumers(self, keys: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for key in sorted(keys)[:MAX_SHOWN]:
            pod = self._cluster.pod(key)
            if pod is not None:
                requests = amount_texts(dict(pod.spec.requests))
                yield {
                    "Namespace": pod.namespace,
                    "Name": pod.name,
                    "UID": pod.uid,
                    "Requests": requests,
                }


def _resource(amounts: Amounts) -> Mapping[str, Any]:
    """Amounts as kube-scheduler's Resource has them."""
    scalars = {
        name: value
        for name, value in amounts.items()
        if name not in ("cpu", "memory", "ephemeral-storage")
    }
    return {
        "MilliCPU": amounts.get("cpu", 0),
        "Memory": amounts.get("memory", 0),
        "EphemeralStorage": amounts.get("ephemeral-storage", 0),
        "AllowedPodNumber": 0,
        **({"ScalarResources": scalars} if scalars else {}),
    }


def _owners(found: Reservation) -> object:
    spec = found.raw.get("spec")
    return spec.get("owners") if isinstance(spec, Mapping) else None


def advice(
    pod: ClusterPod,
    found: Sequence[tuple[Reservation, NodeDiagnosis]],
    infos: Mapping[str, ReservationInfo],
    nodes: View,
    *,
    required: bool,
) -> Iterator[str]:
    """Yield why the reservations of a pod do not help it, the most frequent reason first.

    found: those of its owners, each with its diagnosis; infos: those that match, by uid.
    """
    if not found:
        if required:
            yield "it must have a reservation, and no available one has an owner that matches it"
        return
    groups: dict[str, list[str]] = {}
    for reservation, one in found:
        info = infos.get(reservation.uid)
        reason = _mismatch(one) if info is None else _shortage(pod, info, nodes)
        if reason:
            groups.setdefault(reason, []).append(reservation.name)
    for reason, names in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0])):
        names.sort()
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        yield f"reservations {', '.join(names[:MAX_NAMED])}{more}: {reason}"


def _mismatch(one: NodeDiagnosis) -> str:
    if one.name_unmatched:
        return "the pod names another one"
    if one.unschedulable:
        return "unschedulable, or being deleted"
    if one.tainted:
        return f"taint {next(iter(one.tainted))} is not tolerated"
    if one.affinity_unmatched:
        return "the pod's reservation affinity does not match"
    if one.not_exact:
        return "they do not reserve exactly what the pod requests"
    return ""


def _shortage(pod: ClusterPod, info: ReservationInfo, nodes: View) -> str:
    """The resources that are short with what is left of a reservation and free on its node."""
    row = nodes.row(info.reservation.node)
    if row is None:
        return "their node is not there"
    short = []
    for name, wanted in pod.spec.requests:
        left = info.remaining.get(name)
        if left is None:
            continue
        column = nodes.resources.get(name)
        free = 0
        if column is not None:
            free = nodes.allocatable_of(row, column) - nodes.requested_of(row, column)
        if info.policy is Policy.RESTRICTED:
            free = 0
        if wanted > left + max(0, free):
            short.append(name)
    return f"too little {', '.join(short)} is left" if short else ""


class ReservationMetrics:
    """Gauges of Reservations, with Koordinator's names and labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._phase = Gauge(
            "scheduler_reservation_status_phase",
            "1 for the phase of a Reservation, 0 for the others, of at most 2,000 Reservations.",
            ["name", "phase"],
            registry=registry,
        )
        self._resource = Gauge(
            "scheduler_reservation_resource",
            "Amounts of a Reservation: CPU in cores, memory in GiB, others as they are; "
            "utilization as a ratio. Of at most 2,000 Reservations.",
            ["type", "name", "resource", "unit"],
            registry=registry,
        )

    def show(self, reservations: Mapping[str, Reservation]) -> None:
        """Show these Reservations, and no others."""
        self._phase.clear()
        self._resource.clear()
        for number, found in enumerate(reservations.values()):
            if number >= MAX_MEASURED:
                break
            present = found.phase or "Pending"
            for phase in _PHASES:
                self._phase.labels(found.name, str(phase)).set(float(phase == present))
            amounts = {"allocatable": found.allocatable or {}, "allocated": found.allocated}
            for kind, each in amounts.items():
                for name, value in each.items():
                    unit, amount = _measured(name, value)
                    self._resource.labels(kind, found.name, name, unit).set(amount)
            for name, share in utilization(found).items():
                self._resource.labels("utilization", found.name, name, "ratio").set(share)


def _measured(name: str, value: int) -> tuple[str, float]:
    """The unit and the amount that the gauge has."""
    if name == "cpu":
        return "core", value / 1000
    if name == "memory":
        return "Gi", value / _GIB
    return "raw", float(value)
