"""Reservations as others see them: reasons, events, endpoint, metrics.

Source: Koordinator, plugins/reservation plugin.go and error_handler.go.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from msgspec.structs import replace as change
from prometheus_client import CollectorRegistry, Gauge

from koord.api.labelselector import LabelSelector
from koord.api.reservation import AFFINITY
from koord_scheduler.plugin import POD_COUNT, ClusterPod, Services, View
from koord_scheduler.plugin.koordinator import PluginRequest
from koord_scheduler_plugins.reservation.amounts import Amounts, amount_text, amount_texts
from koord_scheduler_plugins.reservation.consumers import CONSUMERS, ReservationInfo, pool_name
from koord_scheduler_plugins.reservation.fit import PREFIX
from koord_scheduler_plugins.reservation.matching import (
    Match,
    MatchOptions,
    NodeDiagnosis,
    Verdict,
    match,
    read_demands,
)
from koord_scheduler_plugins.reservation.objects import AllocatePolicy, Phase, Reservation
from koord_scheduler_plugins.reservation.owners import Owner
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

MAX_MESSAGE = 1024  # characters of an event
_CUT = " ..."
_HEAD = re.compile(r"0/[0-9]+ nodes are available: ")
_ITEM = re.compile(r"(?P<count>[0-9]+) Reservation\(s\) ")
_TOTAL = "matched owner total"
_NAME = "exactly matches the requested reservation name"
_NODE_REASON = "for node reason that"


def reasons(
    nodes: Iterable[tuple[NodeDiagnosis, Sequence[str]]], *, required: bool
) -> tuple[str, ...]:
    """Return the reasons for a pod that found no node; none, if it has no reservations.

    nodes: each with the reasons for which the filters rejected it. required: the pod must have a
    reservation.
    """
    every = list(nodes)
    diagnoses = [found for found, _ in every]
    owner_matched = sum(one.owner_matched for one in diagnoses)
    if not owner_matched and not required:
        return ()
    taints: Counter[str] = Counter()
    node_reasons: Counter[str] = Counter()
    for found, rejected in every:
        taints.update(found.tainted)
        others = Counter(one for one in rejected if not one.startswith(PREFIX))
        left = found.left - (len(rejected) - others.total())
        if left > 0:
            node_reasons.update({one: left * times for one, times in others.items()})
    counted = [
        (sum(one.name_matched for one in diagnoses), _NAME),
        (
            sum(one.name_unmatched for one in diagnoses),
            "didn't match the requested reservation name",
        ),
        (sum(one.affinity_unmatched for one in diagnoses), "didn't match affinity rules"),
        (sum(one.unschedulable for one in diagnoses), "is unschedulable"),
        (sum(one.not_exact for one in diagnoses), "is not exact matched"),
        *((taints[one], f"had untolerated taint {one}") for one in sorted(taints)),
        *((node_reasons[one], f"{_NODE_REASON} {one}") for one in sorted(node_reasons)),
    ]
    lines = [f"{count} {PREFIX}{text}" for count, text in counted if count > 0]
    return (*lines, f"{owner_matched} {PREFIX}{_TOTAL}")


def event_message(text: str) -> str | None:
    """Return the message of the event about reservations; None: there is nothing to say.

    text: the message of the attempt that found no node.
    """
    head = _HEAD.match(text)
    if head is None:
        return None
    total = None
    ranked: list[tuple[int, str]] = []
    for each in text[head.end() :].replace(". ", ", ").split(","):
        item = each.strip().removesuffix(".")
        match = _ITEM.match(item)
        if match is None:
            continue
        rest = item[match.end() :]
        if rest == _TOTAL:
            total = match["count"]
        else:
            ranked.append((_rank(rest), item))
    if total is None or not ranked:
        return None
    items = ", ".join(item for _, item in sorted(ranked, key=lambda one: one[0]))
    message = f"0/{total} reservations are available: {items}."
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - len(_CUT)] + _CUT
    return message


def _rank(item: str) -> int:
    if item == _NAME:
        return 0
    return 2 if item.startswith(_NODE_REASON) else 1


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
        reason = _mismatch(one) if info is None else _insufficient(pod, info, nodes)
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


def _insufficient(pod: ClusterPod, info: ReservationInfo, nodes: View) -> str:
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
        if info.policy is AllocatePolicy.RESTRICTED:
            free = 0
        if wanted > left + max(0, free):
            short.append(name)
    return f"too little {', '.join(short)} is left" if short else ""


def why_unused(
    pod: ClusterPod,
    node: str,
    found: Sequence[tuple[Reservation, NodeDiagnosis]],
    by_node: Mapping[str, Sequence[ReservationInfo]],
    nodes: View,
) -> str:
    """Return why a pod that has a node has none of its reservations; "": there are none.

    found: the diagnoses of some of them; by_node: those that match. nodes: before it had the node.
    """
    mine = [(each, one) for each, one in found if one.owner_matched]
    infos = {info.uid: info for each, _ in mine for info in by_node.get(each.node, ())}
    whys = list(advice(pod, mine, infos, nodes, required=False))
    elsewhere = sorted(each.name for each, _ in mine if each.uid in infos and each.node != node)
    if elsewhere and not whys:
        whys = [f"reservations {', '.join(elsewhere[:MAX_NAMED])}: another node was chosen"]
    text = f"placed on {node} beside available reservations of its owners: {'; '.join(whys)}"
    return text[:MAX_MESSAGE] if mine and whys else ""


MAX_ADVISED = 64  # reservations that are looked at for a change that would help
_MAX_STEPS = 6
_ANNOTATION = AFFINITY.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ReservationAdvice:
    """The changes by which a pod would be given a reservation."""

    reservation: str
    pod: ClusterPod  # with other annotations or requests
    becomes_owner: bool = False  # the reservation has an owner with the labels of the pod
    uncordoned: bool = False  # it is not unschedulable any more
    changes: tuple[str, ...] = ()  # the same in words

    def __str__(self) -> str:
        return f"reservation {self.reservation} would help with {', and '.join(self.changes)}"


def smallest_advice(
    pod: ClusterPod, infos: Iterable[ReservationInfo], nodes: View, options: MatchOptions
) -> ReservationAdvice | None:
    """Return the fewest changes by which a pod would fit one of some reservations; None: unknown.

    nodes: with the pods of all reservations. What other plugins say is not looked at.
    """
    found = [_advice(pod, info, nodes, options) for info in islice(infos, MAX_ADVISED)]
    advised = [one for one in found if one is not None]
    return min(advised, key=lambda one: (len(one.changes), one.reservation), default=None)


def _advice(
    pod: ClusterPod, info: ReservationInfo, nodes: View, options: MatchOptions
) -> ReservationAdvice | None:
    name, row = info.name, nodes.row(info.reservation.node)
    if row is None:
        return None
    advice = ReservationAdvice(name, pod)
    for _ in range(_MAX_STEPS):
        demands = read_demands(advice.pod)
        found = match(advice.pod, demands, info, nodes.node(row).labels, options)
        if found.verdict.matches:
            return _with_room(advice, info, demands.exact, nodes, row)
        step = _step(advice, info, found, demands.exact)
        if step is None:
            return None
        advice, info = step
    return None


def _step(
    advice: ReservationAdvice, info: ReservationInfo, found: Match, exact: Sequence[str]
) -> tuple[ReservationAdvice, ReservationInfo] | None:
    """Change what speaks against a reservation first; None: nothing can be changed about it."""
    reservation, spec, pod = info.reservation, info.reservation.spec, advice.pod
    if spec is None or reservation.deleting:
        return None
    match found.verdict:
        case Verdict.NOT_OWNER if pod.labels:
            owner = Owner(selector=LabelSelector(dict(pod.labels), ()))
            spec = replace(spec, owners=(*spec.owners, owner))
            advice = replace(advice, becomes_owner=True)
            text = "an owner that matches the pod"
        case Verdict.UNSCHEDULABLE:
            spec, advice = replace(spec, unschedulable=False), replace(advice, uncordoned=True)
            text = "spec.unschedulable: false"
        case Verdict.NAME_UNMATCHED | Verdict.AFFINITY_UNMATCHED:
            said = json.dumps({"name": info.name})
            advice = replace(advice, pod=_annotated(pod, said))
            text = f"annotation {_ANNOTATION} of the pod: {said}"
        case Verdict.TAINTED if found.taint is not None:
            known = json.loads(dict(pod.annotations).get(AFFINITY) or "{}") or {}
            toleration = {"key": found.taint.key, "operator": "Exists"}
            more = [*(known.get("tolerations") or ()), toleration]
            advice = replace(
                advice, pod=_annotated(pod, json.dumps({**known, "tolerations": more}))
            )
            text = f"a toleration of taint {found.taint.key} in annotation {_ANNOTATION} of the pod"
        case Verdict.NOT_EXACT:
            amounts = {name: info.allocatable.get(name, 0) for name in exact}
            advice, text = replace(advice, pod=_requesting(pod, amounts)), _text(pod, amounts)
        case _:
            return None
    advice = replace(advice, changes=(*advice.changes, text))
    return advice, replace(info, reservation=replace(reservation, spec=spec))


def _with_room(
    advice: ReservationAdvice, info: ReservationInfo, exact: Sequence[str], nodes: View, row: int
) -> ReservationAdvice | None:
    """Let the pod request no more than is left of a reservation that matches it, and on its node.

    None: that would be nothing, or not what must be exact.
    """
    limits, requests = {}, dict(advice.pod.spec.requests)
    free = {
        name: nodes.allocatable_of(row, column) - nodes.requested_of(row, column)
        for name, column in nodes.resources.items()
    }
    pods = info.allocatable.get(POD_COUNT)
    if (pods is not None and info.consumers >= pods) or free.get(POD_COUNT, 0) < 0:
        return None
    is_restricted = info.policy is AllocatePolicy.RESTRICTED
    for name, wanted in requests.items():
        left = info.remaining.get(name)
        limit = (left or 0) + free.get(name, 0)
        if is_restricted and left is not None:
            limit = min(limit, left)
        if wanted > limit:
            limits[name] = limit
    if any(limit <= 0 or name in exact for name, limit in limits.items()):
        return None
    if not limits:
        return advice
    changes = (*advice.changes, _text(advice.pod, limits))
    return replace(advice, pod=_requesting(advice.pod, limits), changes=changes)


def _annotated(pod: ClusterPod, affinity: str) -> ClusterPod:
    others = tuple(one for one in pod.annotations if one[0] != AFFINITY)
    return change(pod, annotations=tuple(sorted((*others, (AFFINITY, affinity)))))


def _requesting(pod: ClusterPod, amounts: Amounts) -> ClusterPod:
    requests = {**dict(pod.spec.requests), **amounts}
    left = tuple(sorted((name, amount) for name, amount in requests.items() if amount > 0))
    return change(pod, spec=change(pod.spec, requests=left))


def _text(pod: ClusterPod, amounts: Amounts) -> str:
    before = dict(pod.spec.requests)
    parts = (
        f"{name}: {amount_text(name, amount)} instead of {amount_text(name, before.get(name, 0))}"
        for name, amount in sorted(amounts.items())
        if amount != before.get(name, 0)
    )
    return f"requests of the pod of {', '.join(parts)}"


def utilization(reservation: Reservation) -> dict[str, float]:
    """Return the shares of allocatable that are allocated, by resource."""
    return {
        name: reservation.allocated.get(name, 0) / amount
        for name, amount in (reservation.allocatable or {}).items()
        if amount > 0
    }


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
