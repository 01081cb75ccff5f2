"""Commit-confirm for traffic control: roll a change back unless the control plane stays reachable.

Changes that are not confirmed are on record, so that the next helper continues.
"""

import errno
import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol

import structlog

from koord.api.fields import Fields
from koord.util.clock import Clock
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject, KoordError
from koord.util.ownedfiles import OwnedDirectory
from koordlet.host.errors import KernelFileError
from koordlet.host.net.netfiles import is_interface_name
from koordlet.host.net.tc.tree import TrafficControl, TrafficRefused, is_tree, no_such_interface
from koordlet.host.resource import ABSENT

CONFIRM_TIMEOUT = 10.0  # seconds
_MATCHES = ("from ", "to ", "socket ")
_CLASS = re.compile(r"class (\d+) below (\d+) ", re.ASCII)


class CommitDecision(Enum):
    """The decision about a pending change."""

    WAIT = "wait"
    CONFIRM = "confirm"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that is not confirmed. identity: the interface's number."""

    identity: int
    wanted: str
    until: float  # monotonic seconds

    def decision(self, *, reachable: bool, now: float) -> CommitDecision:
        """Return what follows from a look at the control plane."""
        if reachable:
            return CommitDecision.CONFIRM
        return CommitDecision.ROLL_BACK if now >= self.until else CommitDecision.WAIT


@dataclass(frozen=True, slots=True)
class RolledBackChange:
    """A change that was rolled back, and is rejected from then on."""

    wanted: str
    at: str  # UTC, ISO 8601
    reason: str


@dataclass(frozen=True, slots=True)
class CommitConfirmState:
    """All that outlives a helper, by interface."""

    pending_changes: Mapping[str, PendingChange] = field(default_factory=dict)
    rolled_back_changes: Mapping[str, RolledBackChange] = field(default_factory=dict)

    def with_pending_change(
        self, interface: str, pending_change: PendingChange | None
    ) -> "CommitConfirmState":
        """Return the state after a change; None: there is nothing to confirm."""
        others = {name: each for name, each in self.pending_changes.items() if name != interface}
        added = {} if pending_change is None else {interface: pending_change}
        return CommitConfirmState({**others, **added}, self.rolled_back_changes)

    def without_rolled_back(self, interface: str) -> "CommitConfirmState":
        """Return the state when another change is made than the one that was rolled back."""
        kept = {name: each for name, each in self.rolled_back_changes.items() if name != interface}
        return CommitConfirmState(self.pending_changes, kept)

    def rolled_back(self, interface: str, at: str, reason: str) -> "CommitConfirmState":
        """Return the state after the rollback of a pending change."""
        wanted = self.pending_changes[interface].wanted
        after = self.with_pending_change(interface, None)
        return CommitConfirmState(
            after.pending_changes,
            {**after.rolled_back_changes, interface: RolledBackChange(wanted, at, reason)},
        )

    def reject_reason(self, interface: str, wanted: str) -> RolledBackChange | None:
        """Return the rolled-back change for which this one is rejected; None: it is not."""
        rolled_back_change = self.rolled_back_changes.get(interface)
        return (
            rolled_back_change
            if rolled_back_change
            and wanted != ABSENT
            and stable_part(wanted) == stable_part(rolled_back_change.wanted)
            else None
        )


def pending_change_of(
    running: PendingChange | None,
    *,
    identity: int,
    wanted: str,
    needs_confirmation: bool,
    now: float,
) -> PendingChange | None:
    """Return the pending change for a change that is about to be made; None: no confirmation.

    running: the earlier pending change of this interface; the control plane was reachable before
    it. Its time goes on when the stable part stays. needs_confirmation: the control plane could be
    reached, and the change is not of pods only. The kernel's own default (ABSENT) needs no
    confirmation: it cannot cut a node off.
    """
    if wanted == ABSENT or not (needs_confirmation or running):
        return None
    until = now + CONFIRM_TIMEOUT
    if running and stable_part(running.wanted) == stable_part(wanted):
        until = running.until
    return PendingChange(identity, wanted, until)


def stable_part(text: str) -> str:
    """Return what of a tree does not change with each pod, but by the spec.

    Not its addresses and sockets, nor classes from the third level on, which share what one above
    them has.
    """
    found = []
    upper = {"0"}  # numbers of the root, and of classes right below it
    for part in text.split("; "):
        if match := _CLASS.match(part):
            if match[2] not in upper:
                continue
            if match[2] == "0":
                upper.add(match[1])
        if not part.startswith(_MATCHES):
            found.append(part)
    return "; ".join(found)


CHECK_INTERVAL = 1.0  # seconds between checks of pending changes
_PROBE_BEFORE = 2.0  # seconds that a look may take before a change,
_PROBE_AFTER = 1.0  # and after it

log = structlog.get_logger("koordlet.network")


class ReachabilityProbe(Protocol):
    """Looks whether the control plane can be reached from this network namespace."""

    name: str  # what is looked at, for people

    def reachable(self, limit: float) -> bool:
        """Whether it answers within that many seconds. Blocking."""


class PendingChangesStore(Protocol):
    """Keeps the state longer than this process lives; PendingChangesFile is the real one."""

    def hold(self) -> bool: ...

    def load(self, now: float) -> CommitConfirmState: ...

    def save(self, state: CommitConfirmState) -> None: ...


class CommitConfirmTraffic:
    """A TrafficControl; see there. Its owner calls check as often as pause says."""

    def __init__(
        self,
        control: TrafficControl,
        reach: ReachabilityProbe,
        record: PendingChangesStore,
        clock: Clock,
    ) -> None:
        self._control = control
        self._reach = reach
        self._record = record
        self._clock = clock
        self._state: CommitConfirmState | None = None  # None: another helper still has it
        self._next = clock.monotonic()

    @property
    def pending(self) -> bool:
        """Whether a change is pending."""
        return bool(self._state and self._state.pending_changes)

    @property
    def pause(self) -> float | None:
        """Seconds until the next check; None: nothing is to be checked."""
        if self._state is not None and not self._state.pending_changes:
            return None
        return max(0.0, self._next - self._clock.monotonic())

    def read(self, interface: str) -> bytes | None:
        """Return the state of an interface; None: there is no interface of that name."""
        return self._control.read(interface)

    def identity(self, interface: str) -> int:
        """Return the ifindex of an interface."""
        return self._control.identity(interface)

    def veth_peer(self, pid: int) -> str:
        """Return the node's end of a process's veth; "": it has none."""
        return self._control.veth_peer(pid)

    def supports_cgroup_map(self) -> bool:
        """Whether packets of the node's own sockets can be classified by cgroups of v2."""
        return self._control.supports_cgroup_map()

    def write(self, interface: str, identity: int, content: bytes) -> None:
        """Set a traffic tree, pending if it needs confirmation; reject one that was rolled back.

        Raises as TrafficControl.write does.
        """
        state, wanted = self._state_to_change(interface), content.decode("ascii").removesuffix("\n")
        if wanted != ABSENT and not is_tree(wanted):
            raise ValueError(f"wanted traffic classes or {ABSENT}, found {wanted[:60]!r}")
        if rolled_back_change := state.reject_reason(interface, wanted):
            raise _rolled_back_before(interface, rolled_back_change)
        if self._control.identity(interface) != identity:
            raise no_such_interface(interface)
        running = state.pending_changes.get(interface)
        if running and running.identity != identity:
            running = None
        pending_change = pending_change_of(
            running,
            identity=identity,
            wanted=wanted,
            needs_confirmation=not running and self._needs_confirmation(interface, wanted),
            now=self._clock.monotonic(),
        )
        after = state.with_pending_change(interface, pending_change)
        if pending_change is not None:
            self._save(interface, after)  # before the change: this process may be killed in between
        try:
            self._control.write(interface, identity, content)
        except (KernelFileError, OSError):
            if pending_change is not None:
                self._save(interface, state)
            raise
        self._save(interface, after if wanted == ABSENT else after.without_rolled_back(interface))
        if pending_change is not None:
            self._next = self._clock.monotonic() + CHECK_INTERVAL

    def _needs_confirmation(self, interface: str, wanted: str) -> bool:
        """Whether a change is to be taken for the cause if nothing can be reached after it."""
        if wanted == ABSENT:
            return False
        before = (self._control.read(interface) or b"").decode("ascii").removesuffix("\n")
        return stable_part(before) != stable_part(wanted) and self._reach.reachable(_PROBE_BEFORE)

    def check(self) -> None:
        """Confirm or roll back what is due."""
        if self.pause != 0.0:
            return
        self._next = self._clock.monotonic() + CHECK_INTERVAL
        state = self._load_state()
        if state is None or not state.pending_changes:
            return
        reachable = self._reach.reachable(_PROBE_AFTER)
        now = self._clock.monotonic()
        for interface, pending_change in state.pending_changes.items():
            match pending_change.decision(reachable=reachable, now=now):
                case CommitDecision.CONFIRM:
                    self._save_outcome(interface, self._now().with_pending_change(interface, None))
                    log.info("network.change_confirmed", interface=interface)
                case CommitDecision.ROLL_BACK:
                    self._roll_back(interface, pending_change.identity)

    def _roll_back(self, interface: str, identity: int) -> None:
        try:
            self._control.write(interface, identity, f"{ABSENT}\n".encode())
        except (KernelFileError, OSError) as err:
            if isinstance(err, OSError) and err.errno == errno.ENODEV:
                self._save_outcome(interface, self._now().with_pending_change(interface, None))
                return
            # Tried again with the next check.
            log.warning("network.rollback_failed", interface=interface, error=str(err))
            return
        at = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="seconds")
        reason = (
            f"{self._reach.name} could not be reached for {CONFIRM_TIMEOUT:g} s after the change"
        )
        self._save_outcome(interface, self._now().rolled_back(interface, at, reason))
        log.error("network.change_rolled_back", interface=interface, reason=reason)

    def _state_to_change(self, interface: str) -> CommitConfirmState:
        state = self._load_state()
        if state is None:
            raise KernelFileError(
                f"traffic classes of {interface}",
                wanted="to be the only process that changes them",
                found="a helper of an earlier run, which looks whether its last change is good",
                hint=f"it ends within {CONFIRM_TIMEOUT:g} s; the change is tried again",
            )
        return state

    def _load_state(self) -> CommitConfirmState | None:
        if self._state is None and self._record.hold():
            self._state = self._record.load(self._clock.monotonic())
        return self._state

    def _now(self) -> CommitConfirmState:
        assert self._state is not None  # noqa: S101 - for the type checker: held before
        return self._state

    def _save(self, interface: str, state: CommitConfirmState) -> None:
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
                hint="free disk space, or make the directory writable for root",
            ) from err
        self._state = state

    def _save_outcome(self, interface: str, state: CommitConfirmState) -> None:
        """Record the outcome; a record that fails is not worth another rollback."""
        try:
            self._save(interface, state)
        except KernelFileError as err:
            log.warning("network.record_failed", error=str(err))
            self._state = state


def _rolled_back_before(interface: str, rolled_back_change: RolledBackChange) -> TrafficRefused:
    return TrafficRefused(
        f"traffic classes of {interface}",
        wanted="a change that keeps this node reachable",
        found=f"the same one was rolled back at {rolled_back_change.at}, "
        f"because {rolled_back_change.reason}",
        hint="it is not tried again until the NodeSLO asks for other classes",
    )


VERSION = 1
MAX_RECORD_BYTES = 16 << 20
_FILE, _LOCK = "changes.json", "lock"
_MAX_TEXT_LENGTH = 400


def encode_state(state: CommitConfirmState, boot: str) -> bytes:
    """Return the content of the file."""
    document = {
        "version": VERSION,
        "boot": boot,
        "changes": [
            {"interface": k, **_encode_pending_change(v)}
            for k, v in sorted(state.pending_changes.items())
        ],
        "notes": [
            {"interface": k, "wanted": v.wanted, "at": v.at, "why": v.reason}
            for k, v in sorted(state.rolled_back_changes.items())
        ],
    }
    return json.dumps(document).encode() + b"\n"


def _encode_pending_change(pending_change: PendingChange) -> dict[str, object]:
    return {
        "identity": pending_change.identity,
        "wanted": pending_change.wanted,
    }


def decode_state(data: bytes, boot: str, now: float) -> CommitConfirmState:
    """Return the state in a file; the time of its pending changes starts again, now.

    Raises:
        InvalidObject: it is no such file, or of another version.
    """
    fields = Fields(decode_line(data, _FILE), _FILE)
    if fields.raw.get("version") != VERSION:
        raise InvalidObject(_FILE, wanted=f"version {VERSION}", found=fields.raw.get("version"))
    rolled_back_changes = dict(_decode_rolled_back(each) for each in fields.objects("notes"))
    if fields.text("boot") != boot:
        return CommitConfirmState({}, rolled_back_changes)
    return CommitConfirmState(
        dict(_decode_pending_change(each, now) for each in fields.objects("changes")),
        rolled_back_changes,
    )


def _decode_pending_change(fields: Fields, now: float) -> tuple[str, PendingChange]:
    identity = fields.raw.get("identity")
    wanted = fields.required_text("wanted")
    if isinstance(identity, bool) or not isinstance(identity, int) or identity < 1:
        raise InvalidObject(fields.path("identity"), wanted="a number from 1", found=identity)
    if not is_tree(wanted):
        raise InvalidObject(fields.path("wanted"), wanted="a tree", found=wanted[:60])
    return _interface(fields), PendingChange(identity, wanted, now + CONFIRM_TIMEOUT)


def _decode_rolled_back(fields: Fields) -> tuple[str, RolledBackChange]:
    wanted, at, reason = (fields.required_text(key) for key in ("wanted", "at", "why"))
    if not is_tree(wanted) or max(len(at), len(reason)) > _MAX_TEXT_LENGTH or not at.isascii():
        raise InvalidObject(fields.path("wanted"), wanted="a tree and its end", found=wanted[:60])
    return _interface(fields), RolledBackChange(wanted, at, reason)


def _interface(fields: Fields) -> str:
    name = fields.required_text("interface")
    if not is_interface_name(name):
        raise InvalidObject(fields.path("interface"), wanted="a network interface", found=name)
    return name


class PendingChangesFile:
    """The file, for one helper at a time."""

    def __init__(self, directory: OwnedDirectory, boot: str) -> None:
        self._file = directory / _FILE
        self._boot = boot
        self._lock = (directory / _LOCK).open(os.O_RDWR | os.O_CREAT)

    def hold(self) -> bool:
        """Take the file for this process, until it ends; False: another helper has it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def load(self, now: float) -> CommitConfirmState:
        """Return what the last helper left."""
        try:
            data = self._file.read(MAX_RECORD_BYTES)
            return CommitConfirmState() if data is None else decode_state(data, self._boot, now)
        except (KoordError, OSError) as err:
            log.warning("network.record_rejected", error=str(err))
            return CommitConfirmState()

    def save(self, state: CommitConfirmState) -> None:
        """Replace the file. Raises KoordError, OSError."""
        self._file.write(encode_state(state, self._boot))
