"""Desired values: what claims ask of the kernel, and the results of applying them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from koordlet.executor.claims.claim import ClaimState, Key

RELEASE: Final = object()  # restore what was there before the first write


class DesiredValue(NamedTuple):
    """One value that shall be in force; RELEASE: no plugin claims it any more.

    original: what is restored later when that is not what is found; None: what is found.
    """

    key: Key
    value: Any
    original: Any = None
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result for one desired value. value is in force now, as far as known; original is kept.

    news: foreign, retaken or yielded, when another agent wrote and that was not reported before.
    """

    state: ClaimState
    value: Any = None
    original: Any = None
    message: str = ""
    wrote: bool = False
    news: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """A value that a container's cgroup will be made with, or changed to, by its runtime.

    original is what the runtime was asked for.
    """

    key: Key
    value: Any
    original: Any
    owners: tuple[str, ...]


class Applies(Protocol):
    """Brings desired values into force."""

    def apply(self, desired_values: Sequence[DesiredValue]) -> list[ApplyResult]:
        """Return what became of each. Never raises for what a kernel does."""

    def sweep(self) -> list[Key]:
        """Return values in force that are not any more what they should be."""


class Change(NamedTuple):
    """Something that happened to a value, for logs, metrics and the audit log.

    what: set, restored, foreign, retaken, yielded, failed; with dry-run would_set, would_restore.
    inputs are the numbers of the decision.
    """

    what: str
    key: Key
    owners: tuple[str, ...]
    old: Any
    new: Any
    reason: str
    inputs: Mapping[str, float | str] = MappingProxyType({})


Listener = Callable[[Change], None]
