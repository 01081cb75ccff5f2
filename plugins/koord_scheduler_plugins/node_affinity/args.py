"""Arguments of NodeAffinity: an affinity that all pods of the profile have besides their own.

Source: Kubernetes, kube-scheduler/config/v1 NodeAffinityArgs and its validation.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from koord.api.labelselector import LabelSelector, Requirement, check_selector
from koord_scheduler.plugin import (
    Fault,
    FieldPath,
    KoordError,
    NodeTerm,
    PreferredTerm,
    invalid,
    is_label_requirement,
    is_name_requirement,
    required,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """A requirement on a label, or on the node's name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def requirement(self) -> Requirement:
        """The same as pods have it."""
        return Requirement(self.key, self.operator, self.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorTerm:
    """Requirements that must all hold; without any it matches no node."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()

    def term(self) -> NodeTerm | None:
        """The same as pods have it; None: it matches nothing."""
        labels = tuple(one.requirement for one in self.match_expressions)
        names = tuple(one.requirement for one in self.match_fields)
        return NodeTerm(labels, names) if labels or names else None

    def faults(self, path: FieldPath) -> Iterator[Fault]:
        for at, one in enumerate(self.match_expressions):
            below = (*path, "matchExpressions", at)
            if not is_label_requirement(one.requirement):
                wanted = "wanted In or NotIn with values, Exists or DoesNotExist without, or Gt or "
                yield invalid(below, one.operator, wanted + "Lt with one whole number")
            elif not _is_label(one.key):
                yield invalid((*below, "key"), one.key, "wanted a label key")
        for at, one in enumerate(self.match_fields):
            if not is_name_requirement(one.requirement):
                wanted = "wanted metadata.name with In or NotIn and one value"
                yield invalid((*path, "matchFields", at), one.key, wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSelector:
    """Terms of which one must match."""

    node_selector_terms: tuple[SelectorTerm, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferredSchedulingTerm:
    """A term that is worth so much."""

    weight: int
    preference: SelectorTerm


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedAffinity:
    """A node affinity as pods have it."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAffinityArgs:
    """What is added to all pods."""

    added_affinity: AddedAffinity | None = None

    def validate(self) -> Iterator[Fault]:
        if self.added_affinity is None:
            return
        path: FieldPath = ("addedAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        selector = self.added_affinity.required_during_scheduling_ignored_during_execution
        if selector is not None:
            path = (*path, "nodeSelectorTerms")
            if not selector.node_selector_terms:
                yield required(path, "at least one term is needed")
            for at, term in enumerate(selector.node_selector_terms):
                yield from term.faults((*path, at))
        path = ("addedAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
        preferred = self.added_affinity.preferred_during_scheduling_ignored_during_execution
        for at, one in enumerate(preferred):
            if not 1 <= one.weight <= 100:
                yield invalid((*path, at, "weight"), one.weight, "wanted 1 to 100")
            yield from one.preference.faults((*path, at, "preference"))

    def terms(self) -> tuple[NodeTerm, ...] | None:
        """What nodes must match; None: there is nothing they must."""
        if self.added_affinity is None:
            return None
        selector = self.added_affinity.required_during_scheduling_ignored_during_execution
        if selector is None:
            return None
        return tuple(_there(one.term() for one in selector.node_selector_terms))

    def preferred(self) -> tuple[PreferredTerm, ...]:
        """What is preferred."""
        if self.added_affinity is None:
            return ()
        found = self.added_affinity.preferred_during_scheduling_ignored_during_execution
        return tuple(
            PreferredTerm(one.weight, term)
            for one in found
            if (term := one.preference.term()) is not None
        )


def _there(terms: Iterable[NodeTerm | None]) -> Iterator[NodeTerm]:
    return (one for one in terms if one is not None)


def _is_label(key: str) -> bool:
    try:
        check_selector(LabelSelector({key: ""}), "")
    except KoordError:
        return False
    return True
