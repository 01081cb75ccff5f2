"""Parts that the arguments of several plugins share, and their rules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from koord.api.labelselector import LabelSelector, check_selector, parse_selector_text
from koord.component.config.componentconfig import Int32, to_json
from koord.component.config.field_errors import FieldError, FieldPath, Key, duplicate, invalid
from koord.util.errors import InvalidObject

Percents = Mapping[str, float]
"""Percent by name of resource."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Namespaces:
    """Names of namespaces; without include all but those in exclude."""

    include: tuple[str, ...] = ()  # names; only these
    exclude: tuple[str, ...] = ()  # names; all but these


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorityThreshold:
    """Pods of this priority and above stay."""

    value: Int32 | None = None  # priority
    name: str = ""  # of the PriorityClass; used when value is not set


@dataclass(frozen=True, kw_only=True, slots=True)
class PodSelector:
    """A selector of pods, with a name for people."""

    name: str = ""  # for people
    selector: LabelSelector | None = None  # not set: the entry is ignored


def check_namespaces(path: FieldPath, namespaces: Namespaces | None) -> Iterator[FieldError]:
    """Check that at most one of the two lists has names."""
    if namespaces is not None and namespaces.include and namespaces.exclude:
        wanted = "only one of Include/Exclude namespaces can be set"
        yield invalid(path, to_json(namespaces), wanted)


def check_label_selector(path: FieldPath, selector: LabelSelector | None) -> Iterator[FieldError]:
    """Kubernetes must accept it."""
    if selector is None:
        return
    try:
        check_selector(selector, "selector")
    except InvalidObject as err:
        yield invalid(path, to_json(selector), str(err))


def check_selector_text(path: FieldPath, text: str) -> Iterator[FieldError]:
    """A selector as kubectl has it; empty: everything."""
    try:
        parse_selector_text(text, "selector")
    except InvalidObject as err:
        yield invalid(path, text, str(err))


def check_pod_selectors(selectors: Sequence[PodSelector]) -> Iterator[FieldError]:
    """Each selector must be valid."""
    for index, one in enumerate(selectors):
        yield from check_label_selector(("podSelectors", index, "selector"), one.selector)


def check_percents(path: FieldPath, percents: Percents) -> Iterator[FieldError]:
    """Shares of something that cannot exceed 100 percent."""
    for name, percent in percents.items():
        if not 0 <= percent <= 100:
            yield invalid((*path, Key(name)), percent, "wanted 0 to 100 percent")


def check_unique(path: FieldPath, names: Sequence[str], key: str = "") -> Iterator[FieldError]:
    """No item of a list may repeat another one; key: the field of the item that has the name."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name and name in seen:
            yield duplicate((*path, index, key) if key else (*path, index), name)
        seen.add(name)


@runtime_checkable
class IntervalDependent(Protocol):
    """Arguments that depend on how often the descheduler runs."""

    def for_interval(self, interval: float) -> Self:
        """Return the arguments for an interval in seconds; 0: there is a single cycle."""
        ...


@runtime_checkable
class HistoryDependent(Protocol):
    """Arguments that wait for what is seen in several cycles."""

    def as_if_lasting(self) -> Self:
        """Return the arguments for a plan, whose only cycle counts as if it had lasted."""
        ...


def check_pods(
    namespaces: Namespaces | None, selector: LabelSelector | None
) -> Iterator[FieldError]:
    yield from check_namespaces(("namespaces",), namespaces)
    yield from check_label_selector(("labelSelector",), selector)


@runtime_checkable
class HotThresholds(Protocol):
    """Arguments with thresholds above which nodes are hot."""

    def hot_thresholds(self) -> Iterator[tuple[Percents, LabelSelector | None]]:
        """Yield thresholds in percent of allocatable, and the nodes they are for; None: all."""
        ...
