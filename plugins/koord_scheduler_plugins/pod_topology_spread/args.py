"""Arguments of PodTopologySpread.

Source: Kubernetes, k8s.io/kube-scheduler/config/v1 PodTopologySpreadArgs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from koord.api.labelselector import LabelSelector, Requirement, check_selector
from koord_scheduler.plugin import Fault, KoordError, duplicate, invalid, required


class DefaultingType(StrEnum):
    """The constraints of pods that have none themselves."""

    SYSTEM = "System"
    """Zones with maxSkew 5 and nodes with maxSkew 3, both ScheduleAnyway."""
    LIST = "List"
    """Those of defaultConstraints."""


class WhenUnsatisfiable(StrEnum):
    """What a constraint does to a node that exceeds its skew."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class Policy(StrEnum):
    """Whether nodes that the pod's affinity or tolerations rule out are left out of the counts."""

    HONOR = "Honor"
    IGNORE = "Ignore"


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultConstraint:
    """A constraint; it is about the pods of the services and the controller of a pod."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: WhenUnsatisfiable
    min_domains: int | None = None  # not set: 1; only with DoNotSchedule
    node_affinity_policy: Policy = Policy.HONOR
    node_taints_policy: Policy = Policy.IGNORE
    label_selector: object = None  # must not be set: it is made of services and controller
    match_label_keys: tuple[str, ...] = ()  # likewise


@dataclass(frozen=True, kw_only=True, slots=True)
class PodTopologySpreadArgs:
    """What is done about pods without topology spread constraints."""

    default_constraints: tuple[DefaultConstraint, ...] = ()
    defaulting_type: DefaultingType = DefaultingType.SYSTEM

    def validate(self) -> Iterator[Fault]:
        if self.default_constraints and self.defaulting_type is DefaultingType.SYSTEM:
            wanted = 'wanted "List", because there are defaultConstraints'
            yield invalid(("defaultingType",), self.defaulting_type, wanted)
        seen = set()
        for at, one in enumerate(self.default_constraints):
            for fault in _faults(one):
                yield fault.below(("defaultConstraints", at))
            pair = one.topology_key, one.when_unsatisfiable
            if pair in seen:
                yield duplicate(("defaultConstraints", at), f"{{{', '.join(pair)}}}")
            seen.add(pair)


def _faults(one: DefaultConstraint) -> Iterator[Fault]:
    if one.max_skew < 1:
        yield invalid(("maxSkew",), one.max_skew, "wanted 1 or more")
    if not one.topology_key:
        yield required(("topologyKey",))
    elif not _is_label_key(one.topology_key):
        yield invalid(("topologyKey",), one.topology_key, "wanted a label key")
    if one.min_domains is not None:
        if one.min_domains < 1:
            yield invalid(("minDomains",), one.min_domains, "wanted 1 or more")
        if one.when_unsatisfiable is not WhenUnsatisfiable.DO_NOT_SCHEDULE:
            yield invalid(("minDomains",), one.min_domains, "wanted only with DoNotSchedule")
    for key, value in (
        ("labelSelector", one.label_selector),
        ("matchLabelKeys", one.match_label_keys or None),
    ):
        if value is not None:
            wanted = "wanted none: pods are those of the pod's services and controller"
            yield invalid((key,), value, wanted)


def _is_label_key(text: str) -> bool:
    try:
        check_selector(LabelSelector(match_expressions=(Requirement(text, "Exists"),)), "")
    except KoordError:
        return False
    return True
