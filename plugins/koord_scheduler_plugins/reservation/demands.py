"""What a pod wants of reservations, as its annotations and labels say it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.reservation import AFFINITY, EXACT_MATCH, IGNORED
from koord.plugin import InvalidObject
from koord_scheduler.plugin import (
    ClusterNode,
    ClusterPod,
    NodeTerm,
    is_label_requirement,
    is_name_requirement,
    node_matches_terms,
)
from koord_scheduler.plugin.koordinator import Toleration
from koord_scheduler_plugins.reservation import lists
from koord_scheduler_plugins.reservation.amounts import Amounts

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
    """What a pod wants of reservations."""

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
        found = lists.objects(fields.nested(_TERMS), "reservationSelectorTerms")
        terms = tuple(filter(None, map(_term, found)))
    selector = fields.texts("reservationSelector")
    if len(selector) > lists.MAX_ITEMS:
        raise InvalidObject(
            AFFINITY, wanted=f"at most {lists.MAX_ITEMS} labels", found=len(selector)
        )
    return Affinity(
        name=fields.text("name"),
        terms=terms,
        selector=selector,
        tolerations=tuple(
            Toleration(one.text("key"), one.text("operator"), one.text("value"), one.text("effect"))
            for one in lists.objects(fields, "tolerations")
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
    labels = lists.requirements(fields, "matchExpressions")
    names = lists.requirements(fields, "matchFields")
    for good, some in ((is_label_requirement, labels), (is_name_requirement, names)):
        for one in some:
            if not good(one):
                wanted = "a requirement as in a node selector"
                raise InvalidObject(fields.where, wanted=wanted, found=one)
    return NodeTerm(labels, names) if labels or names else None


def _exact(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lists.texts(_parsed(text, EXACT_MATCH), "resourceNames")))


def _parsed(text: str, key: str) -> Fields:
    if len(text) > _MAX_TEXT:
        raise InvalidObject(key, wanted=f"at most {_MAX_TEXT} characters", found=len(text))
    value = parse_json(text, key)
    return Fields({} if value is None else value, key, fold_case=True)
