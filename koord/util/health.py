"""Health of the daemon's components: working or not, and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from koord.util.errors import error_text
from koord.util.logs import LogState

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class HealthStatus(Enum):
    """The status of a part, worst last."""

    OK = "ok"
    DEGRADED = "degraded"  # works with less; /healthz stays 200 and names it
    UNHEALTHY = "unhealthy"  # does not do its work; /healthz is 503


@dataclass(frozen=True, slots=True)
class PartHealth:
    """State of one part, with the reason when it is not ok."""

    status: HealthStatus
    reason: str = ""
    detail: dict[str, object] = field(default_factory=dict)


OK = PartHealth(HealthStatus.OK)


class LastingFailure:
    """Why something does not succeed: logged at its beginning and end, in between a health."""

    def __init__(self, log: "FilteringBoundLogger") -> None:
        self._state = LogState(log)
        self._reason = ""

    def failed(self, event: str, reason: str, **facts: object) -> None:
        """Set the reason in the health; log the event unless it has failed before."""
        self._reason = reason
        self._state.failed(event, **facts)

    def ended(self, event: str, **facts: object) -> None:
        """Be well again; log the event if it had failed."""
        self._reason = ""
        self._state.ended(event, **facts)

    def health(self) -> PartHealth:
        """Degraded since it has failed, until that has ended."""
        return PartHealth(HealthStatus.DEGRADED, self._reason) if self._reason else OK


HealthCheck = Callable[[], PartHealth]
HealthGroup = Callable[[], Mapping[str, PartHealth]]


class Health:
    """Named health checks, asked on demand; a check must be cheap and must not block.

    `live` checks are what /livez and the systemd watchdog look at (event loop, sampling pass);
    `ready` checks decide /readyz; every check counts for /healthz.
    """

    def __init__(self) -> None:
        self._checks: dict[str, tuple[HealthCheck, bool, bool]] = {}
        self._groups: dict[str, HealthGroup] = {}

    def register(
        self, name: str, check: HealthCheck, *, live: bool = False, ready: bool = False
    ) -> None:
        """Add or replace the check of a part."""
        self._checks[name] = (check, live, ready)

    def register_group(self, name: str, group: HealthGroup) -> None:
        """Add parts that come and go, for example collectors; they count for /healthz only."""
        self._groups[name] = group

    def part(self, name: str) -> PartHealth | None:
        """State of one part; None: there is none of that name."""
        found = self._checks.get(name)
        return None if found is None else _ask(found[0])

    def unregister(self, name: str) -> None:
        self._checks.pop(name, None)

    def parts(self, *, live: bool = False, ready: bool = False) -> dict[str, PartHealth]:
        """State of all parts, or of those that count for /livez or /readyz only."""
        parts = {
            name: _ask(check)
            for name, (check, is_live, is_ready) in self._checks.items()
            if (not live or is_live) and (not ready or is_ready)
        }
        if not live and not ready:
            for name, group in self._groups.items():
                parts |= _ask_group(name, group)
        return dict(sorted(parts.items()))


def worst(parts: dict[str, PartHealth]) -> HealthStatus:
    """The worst status among the parts; ok when there are none."""
    order = list(HealthStatus)
    return max((part.status for part in parts.values()), key=order.index, default=HealthStatus.OK)


def _ask(check: HealthCheck) -> PartHealth:
    try:
        found = check()
        if isinstance(found, PartHealth):
            return found
        return PartHealth(HealthStatus.UNHEALTHY, f"wanted a PartHealth, found {found!r:.80}")
    except Exception as err:  # a broken check is a finding, not a crash
        return PartHealth(HealthStatus.UNHEALTHY, f"health check failed: {error_text(err)}")


def _ask_group(name: str, group: HealthGroup) -> dict[str, PartHealth]:
    try:
        return {f"{name} {part}": health for part, health in group().items()}
    except Exception as err:  # as above
        return {name: PartHealth(HealthStatus.UNHEALTHY, f"health check failed: {error_text(err)}")}
