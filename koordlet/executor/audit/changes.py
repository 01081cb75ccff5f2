"""Changes of kernel values as audit events: Koordinator's words, then owner and reason."""

from collections.abc import Callable
from typing import Any

from koord.util.cpulist import format_cpulist
from koordlet.executor.audit.event import AuditEvent, Subject
from koordlet.executor.audit.wording import ANY_CGROUP, ANY_FILE, Wording
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.desired import Change
from koordlet.executor.claims.target import Level

_SUBJECTS = {Level.NODE: Subject.NODE, Level.QOS: Subject.NODE, Level.POD: Subject.POD}
_DRY_RUN = "would_"


class ChangeAudit:
    """A listener to changes of claimed values; see koordlet.executor.claims.desired."""

    def __init__(
        self,
        note: Callable[[AuditEvent], None],
        path: Callable[[Key], str],
        wording: Callable[[Change], Wording | None],
    ) -> None:
        """path is the kernel file of a value. wording is a plugin's own for a change, if any."""
        self._note = note
        self._path = path
        self._wording = wording

    def __call__(self, change: Change) -> None:
        target = change.key.target
        namespace, _, name = target.pod.partition("/")
        in_container = target.level is Level.CONTAINER
        reason, message = self._words(change)
        self._note(
            AuditEvent(
                type=_SUBJECTS.get(target.level, Subject.NONE),
                namespace=namespace,
                name=name,
                container=target.place.rpartition("/")[2] if in_container else "",
                reason=reason,
                message=f"{message}, {', '.join(change.owners)}: {_reason(change)}",
            )
        )

    def _words(self, change: Change) -> tuple[str, str]:
        """Reason and message; those of dry-run are marked so."""
        in_cgroup = change.key.target.level.is_cgroup
        words = self._wording(change) or (ANY_CGROUP if in_cgroup else ANY_FILE)
        what = change.what.removeprefix(_DRY_RUN)
        prefix = _DRY_RUN if what != change.what else ""
        path, value = self._path(change.key), _text(change.new)
        if what == "set":
            return prefix + words.reason, words.message.format(path=path, value=value)
        return prefix + words.reason, f"{what} {path}: {_text(change.old)}, now {value}"


def _text(value: Any) -> str:
    return format_cpulist(value) if isinstance(value, set | frozenset) else str(value)


def _reason(change: Change) -> str:
    """The rule and its numbers."""
    numbers = ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in change.inputs.items()
    )
    return f"{change.reason} ({numbers})" if numbers else change.reason
