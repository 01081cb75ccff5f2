"""Traffic control whose changes are on probation, and rolled back when they cut the node off."""

import errno
from datetime import UTC, datetime
from typing import Protocol

import structlog

from koord.util.clock import Clock
from koord.util.errors import KoordError
from koordlet.host.errors import KernelFileError
from koordlet.host.kerneltext import ABSENT
from koordlet.host.net.guard.probation import (
    LIMIT,
    GuardState,
    Note,
    Verdict,
    probation_of,
    shape,
)
from koordlet.host.net.tc import TrafficControl, TrafficRefused, no_such_interface
from koordlet.host.net.tc.tree import is_tree

CHECK_EVERY = 1.0  # seconds between looks at what is on probation
_LOOK_BEFORE = 2.0  # seconds that a look may take before a change,
_LOOK_AFTER = 1.0  # and after it

log = structlog.get_logger("koordlet.network")


class Reach(Protocol):
    """Looks whether the control plane can be reached from this network namespace."""

    name: str  # what is looked at, for people

    def reachable(self, limit: float) -> bool:
        """Whether it answers within that many seconds. Blocking."""


class Record(Protocol):
    """Where the state outlives this process; RecordFile is the real one."""

    def hold(self) -> bool: ...

    def load(self, now: float) -> GuardState: ...

    def save(self, state: GuardState) -> None: ...


class GuardedTraffic:
    """A TrafficControl; see there. Its owner calls check as often as pause says."""

    def __init__(self, control: TrafficControl, reach: Reach, record: Record, clock: Clock) -> None:
        self._control = control
        self._reach = reach
        self._record = record
        self._clock = clock
        self._state: GuardState | None = None  # None: another helper still has it
        self._next = clock.monotonic()

    @property
    def pending(self) -> bool:
        """Whether a change is on probation."""
        return bool(self._state and self._state.probations)

    @property
    def pause(self) -> float | None:
        """Seconds until the next check; None: nothing is to be checked."""
        if self._state is not None and not self._state.probations:
            return None
        return max(0.0, self._next - self._clock.monotonic())

    def read(self, interface: str) -> bytes | None:
        """As TrafficControl.read."""
        return self._control.read(interface)

    def identity(self, interface: str) -> int:
        """As TrafficControl.identity."""
        return self._control.identity(interface)

    def end_of(self, pid: int) -> str:
        """As TrafficControl.end_of."""
        return self._control.end_of(pid)

    def knows_sockets(self) -> bool:
        """As TrafficControl.knows_sockets."""
        return self._control.knows_sockets()

    def write(self, interface: str, identity: int, content: bytes) -> None:
        """As TrafficControl.write; refuses what was rolled back before."""
        state, wanted = self._held(interface), content.decode("ascii").removesuffix("\n")
        if wanted != ABSENT and not is_tree(wanted):
            raise ValueError(f"wanted traffic classes or {ABSENT}, found {wanted[:60]!r}")
        if note := state.refusal(interface, wanted):
            raise _refused(interface, note)
        if self._control.identity(interface) != identity:
            raise no_such_interface(interface)
        running = state.probations.get(interface)
        if running and running.identity != identity:
            running = None
        probation = probation_of(
            running,
            identity=identity,
            wanted=wanted,
            judged=not running and self._is_judged(interface, wanted),
            now=self._clock.monotonic(),
        )
        after = state.with_probation(interface, probation)
        if probation is not None:
            self._keep(interface, after)  # before the change: this process may be killed in between
        try:
            self._control.write(interface, identity, content)
        except (KernelFileError, OSError):
            if probation is not None:
                self._keep(interface, state)
            raise
        self._keep(interface, after if wanted == ABSENT else after.without_note(interface))
        if probation is not None:
            self._next = self._clock.monotonic() + CHECK_EVERY

    def _is_judged(self, interface: str, wanted: str) -> bool:
        """Whether a change is to be taken for the cause if nothing can be reached after it."""
        if wanted == ABSENT:
            return False
        before = (self._control.read(interface) or b"").decode("ascii").removesuffix("\n")
        return shape(before) != shape(wanted) and self._reach.reachable(_LOOK_BEFORE)

    def check(self) -> None:
        """Confirm or roll back what is due."""
        if self.pause != 0.0:
            return
        self._next = self._clock.monotonic() + CHECK_EVERY
        state = self._take()
        if state is None or not state.probations:
            return
        reachable = self._reach.reachable(_LOOK_AFTER)
        now = self._clock.monotonic()
        for interface, probation in state.probations.items():
            match probation.verdict(reachable=reachable, now=now):
                case Verdict.CONFIRM:
                    self._settle(interface, self._now().with_probation(interface, None))
                    log.info("network.change_confirmed", interface=interface)
                case Verdict.ROLL_BACK:
                    self._roll_back(interface, probation.identity)

    def _roll_back(self, interface: str, identity: int) -> None:
        try:
            self._control.write(interface, identity, f"{ABSENT}\n".encode())
        except (KernelFileError, OSError) as err:
            if isinstance(err, OSError) and err.errno == errno.ENODEV:
                self._settle(interface, self._now().with_probation(interface, None))
                return
            # Tried again with the next check.
            log.warning("network.rollback_failed", interface=interface, error=str(err))
            return
        at = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="seconds")
        why = f"{self._reach.name} could not be reached for {LIMIT:g} s after the change"
        self._settle(interface, self._now().rolled_back(interface, at, why))
        log.error("network.rolled_back", interface=interface, reason=why)

    def _held(self, interface: str) -> GuardState:
        state = self._take()
        if state is None:
            raise KernelFileError(
                f"traffic classes of {interface}",
                wanted="to be the only one who changes them",
                found="a helper of an earlier run, which looks whether its last change is good",
                hint=f"it ends within {LIMIT:g} s; the change is tried again",
            )
        return state

    def _take(self) -> GuardState | None:
        if self._state is None and self._record.hold():
            self._state = self._record.load(self._clock.monotonic())
        return self._state

    def _now(self) -> GuardState:
        assert self._state is not None  # noqa: S101 - for the type checker: held before
        return self._state

    def _keep(self, interface: str, state: GuardState) -> None:
        """Record a state. Raises KernelFileError: then nothing may be changed."""
        if state == self._state:
            return
        try:
            self._record.save(state)
        except (KoordError, OSError) as err:
            raise KernelFileError(
                f"traffic classes of {interface}",
                wanted="to record the change, for a rollback by the next start",
                found=str(err),
                hint="make room, or the directory writable for root",
            ) from err
        self._state = state

    def _settle(self, interface: str, state: GuardState) -> None:
        """Record what has happened; a record that fails is not worth another rollback."""
        try:
            self._keep(interface, state)
        except KernelFileError as err:
            log.warning("network.not_recorded", error=str(err))
            self._state = state


def _refused(interface: str, note: Note) -> TrafficRefused:
    return TrafficRefused(
        f"traffic classes of {interface}",
        wanted="a change that keeps this node reachable",
        found=f"the same one was rolled back at {note.at}, because {note.why}",
        hint="it is not tried again until the NodeSLO asks for other classes",
    )
