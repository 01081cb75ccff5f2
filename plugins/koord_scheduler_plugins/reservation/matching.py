"""Matching of pods and reservations, and why a pod cannot have others."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.reservation import AFFINITY, EXACT_MATCH, IGNORED
from koord.plugin import InvalidObject
from koord_scheduler.plugin import (
    UNSCHEDULABLE_TAINT,
    ClusterNode,
    ClusterPod,
    NodeTerm,
    is_label_requirement,
    is_name_requirement,
    node_matches_terms,
)
from koord_scheduler.plugin.koordinator import Taint, Toleration
from koord_scheduler_plugins.reservation.amounts import Amounts
from koord_scheduler_plugins.reservation.consumers import ReservationInfo
from koord_scheduler_plugins.reservation.owners import (
    MAX_ITEMS,
    bounded_objects,
    bounded_texts,
    owners_match,
    requirements,
)

_MAX_TEXT = 256 * 1024  # characters of an annotation
_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True, slots=True)
class Affinity:
    """Which reservation a pod must have. Beside a name, nothing else counts."""

    name: str = ""
    terms: tuple[NodeTerm, ...] | None = None  # one must match; None: any does
    selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...] = ()

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether selector and terms match a reservation."""
        if any(labels.get(key) != value for key, value in self.selector.items()):
            return False
        if self.terms is None:
            return True
        return node_matches_terms(self.terms, ClusterNode(name=name, labels=labels))


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """The demands of a pod on reservations."""

    requests: Amounts
    affinity: Affinity | None = None  # None: it need not have any
    exact: tuple[str, ...] = ()  # resources of which the reservation has as much as it requests
    ignored: bool = False  # it may use what is reserved without owning it

    @property
    def required(self) -> bool:
        return self.affinity is not None

    @property
    def name(self) -> str:
        """The one reservation that it names; "": none."""
        return "" if self.affinity is None else self.affinity.name

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        return () if self.affinity is None else self.affinity.tolerations


def read_demands(pod: ClusterPod) -> Demands:
    """Return what a pod wants of reservations.

    Raises:
        InvalidObject: one of its annotations is malformed.
    """
    annotations = dict(pod.annotations)
    affinity = annotations.get(AFFINITY)
    exact = annotations.get(EXACT_MATCH)
    return Demands(
        requests=dict(pod.spec.requests),
        affinity=None if affinity is None else read_affinity(affinity),
        exact=_exact(exact) if exact else (),
        ignored=pod.labels.get(IGNORED) == "true",
    )


def read_affinity(text: str) -> Affinity:
    """Return an affinity. Raises InvalidObject."""
    if not text:
        return Affinity(selector={})
    fields = _parsed(text, AFFINITY)
    terms = None
    if fields.get(_TERMS) is not None:
        found = bounded_objects(fields.nested(_TERMS), "reservationSelectorTerms")
        terms = tuple(filter(None, map(_term, found)))
    selector = fields.texts("reservationSelector")
    if len(selector) > MAX_ITEMS:
        raise InvalidObject(AFFINITY, wanted=f"at most {MAX_ITEMS} labels", found=len(selector))
    return Affinity(
        name=fields.text("name"),
        terms=terms,
        selector=selector,
        tolerations=tuple(
            Toleration(one.text("key"), one.text("operator"), one.text("value"), one.text("effect"))
            for one in bounded_objects(fields, "tolerations")
        ),
    )


class ConflictingTerms(Exception):
    """A term of a node affinity names nodes that cannot all be the node."""


def specific_nodes(terms: Iterable[NodeTerm] | None) -> frozenset[str] | None:
    """Return the nodes that a required node affinity names; None: it does not restrict them so.

    Raises:
        ConflictingTerms: one term names no node at all.
    """
    if terms is None:
        return None
    found: set[str] = set()
    restricted = True
    for term in terms:
        named = [set(one.values) for one in term.names if one.operator == "In"]
        if not named:
            restricted = False
            continue
        common = set.intersection(*named)
        if not common:
            raise ConflictingTerms("pod affinity terms conflict")
        found |= common
    return frozenset(found) if restricted and found else None


def _term(fields: Fields) -> NodeTerm | None:
    """A term; None: it is empty, and matches nothing."""
    labels = requirements(fields, "matchExpressions")
    names = requirements(fields, "matchFields")
    for good, some in ((is_label_requirement, labels), (is_name_requirement, names)):
        for one in some:
            if not good(one):
                wanted = "a requirement as in a node selector"
                raise InvalidObject(fields.where, wanted=wanted, found=one)
    return NodeTerm(labels, names) if labels or names else None


def _exact(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(bounded_texts(_parsed(text, EXACT_MATCH), "resourceNames")))


def _parsed(text: str, key: str) -> Fields:
    if len(text) > _MAX_TEXT:
        raise InvalidObject(key, wanted=f"at most {_MAX_TEXT} characters", found=len(text))
    value = parse_json(text, key)
    return Fields({} if value is None else value, key, fold_case=True)


_REPELLING = ("NoSchedule", "NoExecute")


class Verdict(Enum):
    """Whether a reservation matches a pod, or the first rule that speaks against it."""

    MATCHED = auto()
    IGNORED = auto()  # the pod may use all of them
    NOT_OWNER = auto()
    NAME_UNMATCHED = auto()
    UNSCHEDULABLE = auto()
    TAINTED = auto()
    AFFINITY_UNMATCHED = auto()
    NOT_EXACT = auto()

    @property
    def matches(self) -> bool:
        return self in (Verdict.MATCHED, Verdict.IGNORED)


@dataclass(frozen=True, slots=True)
class Match:
    """A verdict with its details."""

    verdict: Verdict
    taint: Taint | None = None  # that is not tolerated
    bypasses: bool = False  # it is matched by its name although it is unschedulable or tainted


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchOptions:
    """Switches of the rules."""

    omit_node_labels: bool = False  # the gate OmitNodeLabelsForReservation
    spare_without_affinity: bool = False  # as Koordinator: taints repel pods with affinity only


_DEFAULTS = MatchOptions()


def match(
    pod: ClusterPod,
    demands: Demands,
    info: ReservationInfo,
    node_labels: Mapping[str, str],
    options: MatchOptions = _DEFAULTS,
) -> Match:
    """Return whether a pod can have a matchable reservation on its node.

    As in Koordinator a name bypasses unschedulable and taints. A reservation that is being deleted
    is never matched.

    Source: Koordinator, plugins/reservation transformer.go.
    """
    if demands.ignored:
        return Match(Verdict.IGNORED)
    reservation, spec = info.reservation, info.reservation.spec
    if spec is None or not owners_match(spec.owners, pod):
        return Match(Verdict.NOT_OWNER)
    cordoned = spec.unschedulable and not any(
        one.tolerates(UNSCHEDULABLE_TAINT) for one in demands.tolerations
    )
    taint = None
    if demands.affinity is not None or not options.spare_without_affinity:
        taint = untolerated(demands, spec.taints)
    if demands.name:
        if demands.name != reservation.name:
            return Match(Verdict.NAME_UNMATCHED)
        if reservation.deleting:
            return Match(Verdict.UNSCHEDULABLE)
        if not is_exact(demands.exact, demands.requests, info.allocatable):
            return Match(Verdict.NOT_EXACT)
        return Match(Verdict.MATCHED, bypasses=cordoned or taint is not None)
    if reservation.deleting or cordoned:
        return Match(Verdict.UNSCHEDULABLE)
    if taint is not None:
        return Match(Verdict.TAINTED, taint)
    if demands.affinity is not None:
        labels = dict(reservation.labels)
        if not options.omit_node_labels:
            labels = {**node_labels, **labels}
        if not demands.affinity.selects(reservation.name, labels):
            return Match(Verdict.AFFINITY_UNMATCHED)
    if not is_exact(demands.exact, demands.requests, info.allocatable):
        return Match(Verdict.NOT_EXACT)
    return Match(Verdict.MATCHED)


def untolerated(demands: Demands, taints: tuple[Taint, ...]) -> Taint | None:
    """Return the first taint of a reservation that repels a pod; None: none does."""
    for taint in taints:
        if taint.effect in _REPELLING and not any(
            one.tolerates(taint) for one in demands.tolerations
        ):
            return taint
    return None


def is_exact(names: tuple[str, ...], requests: Amounts, allocatable: Amounts) -> bool:
    """Whether a reservation has exactly what a pod requests of all the names."""
    return all(requests.get(name, 0) == allocatable.get(name, 0) for name in names)


@dataclass(slots=True)
class NodeDiagnosis:
    """How many reservations of a node matched or failed, and why."""

    owner_matched: int = 0
    ignored: int = 0
    name_matched: int = 0
    name_unmatched: int = 0
    unschedulable: int = 0
    affinity_unmatched: int = 0
    not_exact: int = 0
    tainted: Counter[str] = field(default_factory=Counter)  # by the text of the taint

    def add(self, found: Match, *, named: bool) -> None:
        """Count a reservation; named: the pod names one."""
        verdict = found.verdict
        if verdict is Verdict.IGNORED:
            self.ignored += 1
        if verdict in (Verdict.IGNORED, Verdict.NOT_OWNER):
            return
        self.owner_matched += 1
        if verdict is Verdict.NAME_UNMATCHED:
            self.name_unmatched += 1
        elif named:
            self.name_matched += 1
        if verdict is Verdict.UNSCHEDULABLE:
            self.unschedulable += 1
        elif verdict is Verdict.AFFINITY_UNMATCHED:
            self.affinity_unmatched += 1
        elif verdict is Verdict.NOT_EXACT:
            self.not_exact += 1
        elif found.taint is not None:
            self.tainted[f"{{{found.taint.key}: {found.taint.value}}}"] += 1

    @property
    def left(self) -> int:
        """How many matched."""
        failed = self.name_unmatched + self.unschedulable + self.affinity_unmatched + self.not_exact
        return self.owner_matched - failed - self.tainted.total()
