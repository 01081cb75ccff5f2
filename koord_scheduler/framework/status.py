"""Result of a plugin at an extension point.

Source: Kubernetes, k8s.io/kube-scheduler/framework Status.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Self

from koord.util.errors import error_text


class Code(IntEnum):
    """Codes with Kubernetes' numbers."""

    SUCCESS = 0
    ERROR = 1
    """Unexpected; ends the whole cycle, and the pod is tried again soon."""
    UNSCHEDULABLE = 2
    """Rejected; it may help to remove pods."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 3
    """Rejected; it does not help to remove pods."""
    WAIT = 4
    """Only of Permit."""
    SKIP = 5
    """Only of PreFilter, PreScore, Bind and PreBindPreFlight."""
    PENDING = 6
    """Rejected until something outside has happened; then tried again without backoff."""

    @property
    def title(self) -> str:
        """As Kubernetes spells it, in metrics and logs."""
        return _TITLES[self]


_TITLES = {
    Code.SUCCESS: "Success",
    Code.ERROR: "Error",
    Code.UNSCHEDULABLE: "Unschedulable",
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE: "UnschedulableAndUnresolvable",
    Code.WAIT: "Wait",
    Code.SKIP: "Skip",
    Code.PENDING: "Pending",
}
_REJECTED = (Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING)


UNREAD = "UnreadParts"
"""The name, in place of a plugin's, of what rejects pods that could not be read in full."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a plugin says. Where a plugin may return None, that is Success."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()  # for people; events count nodes by them
    plugin: str = ""  # that it comes from; set by the framework
    error: BaseException | None = None  # of Code.ERROR, if an exception was the cause

    @classmethod
    def unschedulable(cls, *reasons: str) -> Self:
        """Rejected; it may help to remove pods."""
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Self:
        """Rejected; it does not help to remove pods."""
        return cls(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)

    @classmethod
    def pending(cls, *reasons: str) -> Self:
        """Rejected until something outside has happened."""
        return cls(Code.PENDING, reasons)

    @staticmethod
    def skip(*reasons: str) -> "Status":
        """There is nothing for this plugin to do."""
        return Status(Code.SKIP, reasons) if reasons else _SKIP

    @classmethod
    def failed(cls, cause: BaseException | str) -> Self:
        """Something unexpected happened; a text is the reason."""
        if isinstance(cause, str):
            return cls(Code.ERROR, (cause,))
        return cls(Code.ERROR, error=cause)

    @property
    def ok(self) -> bool:
        """Whether it is Success."""
        return self.code is Code.SUCCESS

    @property
    def rejected(self) -> bool:
        """Whether the pod, or the pod on this node, is rejected."""
        return self.code in _REJECTED

    @property
    def message(self) -> str:
        """The error, then the reasons."""
        texts = () if self.error is None else (error_text(self.error),)
        return ", ".join((*texts, *self.reasons))

    def of(self, plugin: str) -> "Status":
        """The same, coming from a plugin, unless it says which one already."""
        if self.plugin:
            return self
        if self is _SKIP:  # most plugins skip most pods
            return _skip_of(plugin)
        return Status(self.code, self.reasons, plugin, self.error)

    def __str__(self) -> str:
        return self.message or self.code.title


SUCCESS = Status()
_SKIP = Status(Code.SKIP)


@lru_cache(maxsize=256)
def _skip_of(plugin: str) -> Status:
    return Status(Code.SKIP, plugin=plugin)
