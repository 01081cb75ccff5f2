"""Plan what to do about each desired value, order the writes, and meet values of other agents."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from koord.util.clock import Clock
from koord.util.timebudget import Backoff
from koordlet.executor.claims.claim import RELEASE, ApplyResult, ClaimState, DesiredValue, Key
from koordlet.executor.journal import JournalRecord, Ledger
from koordlet.executor.kernel.values import FoundValue, KernelValues
from koordlet.host.errors import KernelFileError
from koordlet.host.kernelfile import definition_of
from koordlet.host.resource import ABSENT, Resource
from koordlet.host.resources import CPU_BURST, CPU_IDLE, CPU_QUOTA, CPU_SHARES, OOM_SCORE_ADJ

RETAKE_WINDOW = 3600.0  # seconds
RETAKE_BACKOFF = 10.0  # seconds before a value is retaken; doubled each time within an hour
MAX_RETAKES = 5  # of one value within an hour


class OnForeignChange(StrEnum):
    """The values of --on-foreign-change."""

    RETAKE = "retake"
    YIELD = "yield"


class ConflictDecision(NamedTuple):
    """The result instead of a write. foreign_change: what to report; empty: reported before."""

    state: ClaimState
    message: str
    foreign_change: str


@dataclass(slots=True)
class _Conflict:
    """The conflict about one value. Times are monotonic seconds."""

    retakes: list[float] = field(default_factory=list)  # when, of the past hour
    seen: float | None = None  # when the foreign value was found; None: there is none
    reported: str = ""


class ConflictPolicy:
    """Retakes a value after a while, less and less eagerly, or leaves it to the other agent."""

    def __init__(self, clock: Clock, policy: Callable[[], OnForeignChange]) -> None:
        self._clock = clock
        self._policy = policy
        self._conflicts: dict[Key, _Conflict] = {}

    def judge(self, key: Key, found: str) -> ConflictDecision | None:
        """Decide about a foreign value that was found. None: write over it."""
        now = self._clock.monotonic()
        conflict = self._conflicts.setdefault(key, _Conflict())
        conflict.retakes = [at for at in conflict.retakes if at > now - RETAKE_WINDOW]
        conflict.seen = now if conflict.seen is None else conflict.seen
        what = f"another agent has set it to {found or 'nothing'}"
        if self._policy() is OnForeignChange.YIELD:
            message = f"{what}; it is left so (--on-foreign-change=yield)"
            return self._verdict(conflict, ClaimState.YIELDED, message)
        if len(conflict.retakes) >= MAX_RETAKES:
            wait = conflict.retakes[0] + RETAKE_WINDOW - now
            message = f"{what} {MAX_RETAKES + 1} times in an hour; it is left so for {wait:.0f} s"
            return self._verdict(conflict, ClaimState.YIELDED, message)
        wait = conflict.seen + RETAKE_BACKOFF * 2 ** len(conflict.retakes) - now
        if wait > 0:
            message = f"{what}; it is retaken in {wait:.0f} s"
            return self._verdict(conflict, ClaimState.WAITING, message)
        return None

    def retaken(self, key: Key) -> None:
        """Our value has been written over the foreign one."""
        self._conflicts[key].retakes.append(self._clock.monotonic())
        self.ended(key)

    def ended(self, key: Key) -> None:
        """No foreign value is there any more."""
        if conflict := self._conflicts.get(key):
            conflict.seen, conflict.reported = None, ""

    def forget(self, key: Key) -> None:
        """The value is not claimed any more."""
        self._conflicts.pop(key, None)

    def _verdict(self, conflict: _Conflict, state: ClaimState, message: str) -> ConflictDecision:
        foreign_change = "yielded" if state is ClaimState.YIELDED else "foreign"
        if foreign_change == conflict.reported:
            foreign_change = ""
        else:
            conflict.reported = foreign_change
        return ConflictDecision(state, message, foreign_change)


INITIAL_BACKOFF, MAX_BACKOFF = 10.0, 600.0  # seconds; doubled with each refusal in a row


@dataclass(slots=True)
class _RejectedWrite:
    text: str
    applied: ApplyResult
    backoff: Backoff
    until: float  # monotonic


class RejectedWrites:
    """At most one per value: of the text that was tried last. Another text may be tried at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rejected_writes: dict[Key, _RejectedWrite] = {}

    def record(self, key: Key, text: str, applied: ApplyResult) -> None:
        """The kernel did not take this text."""
        before = self._rejected_writes.get(key)
        same = before is not None and before.text == text
        backoff = before.backoff if before and same else Backoff(INITIAL_BACKOFF, MAX_BACKOFF)
        until = self._clock.monotonic() + backoff.next()
        self._rejected_writes[key] = _RejectedWrite(text, applied, backoff, until)

    def find(self, key: Key, text: str) -> ApplyResult | None:
        """The answer that still holds; None: try."""
        reject_reason = self._rejected_writes.get(key)
        if (
            reject_reason
            and reject_reason.text == text
            and reject_reason.until > self._clock.monotonic()
        ):
            return reject_reason.applied
        return None

    def over(self, key: Key) -> None:
        """The value is what it should be, or not claimed any more."""
        self._rejected_writes.pop(key, None)


@dataclass(slots=True)
class AppliedValues:
    """The applied values, by key. Texts are those of koordlet.host.resource."""

    # The latest of each claimed value.
    desired_values: dict[Key, DesiredValue] = field(default_factory=dict)
    in_force: dict[Key, str] = field(default_factory=dict)
    _rounded: dict[Key, tuple[str, str]] = field(default_factory=dict)

    def round(self, key: Key, written: str, made: str) -> None:
        """The kernel has made something else of what was written."""
        self._rounded[key] = (written, made)

    def is_of(self, key: Key, found: str, target: str) -> bool:
        """Whether a text is what comes of writing the target."""
        return found == target or self._rounded.get(key) == (target, found)

    def forget(self, key: Key) -> None:
        """The value is not in force any more."""
        self.in_force.pop(key, None)
        self._rounded.pop(key, None)


class ValueChange(NamedTuple):
    """A value that shall change; None: not known. Numbers of -1 are no limit."""

    resource: Resource[Any]
    place: str  # the cgroup's path
    old: Any
    new: Any


class WriteStep(NamedTuple):
    """One write: the new value of a move, given by its index, or an intermediate one."""

    move: int
    via: Any = None


class _Phase(IntEnum):
    LESS_BURST = 0
    LOOSEN = 1  # parents first
    TIGHTEN = 2  # children first
    MORE_BURST = 3
    SHARES = 4  # behind the end of idleness


def ordered_steps(moves: Iterable[ValueChange]) -> list[WriteStep]:
    """Return the writes for all moves. Most moves take one step; see above."""
    ranked = []
    for index, move in enumerate(moves):
        depth = move.place.count("/")
        for phase, via in _phases(move):
            rank = -depth if phase is _Phase.TIGHTEN else depth
            ranked.append((phase, rank, index, WriteStep(index, via)))
    return [step for *_, step in sorted(ranked, key=lambda entry: entry[:3])]


def _phases(move: ValueChange) -> list[tuple[_Phase, Any]]:
    resource, old, new = move.resource, move.old, move.new
    if resource is CPU_SHARES:
        return [(_Phase.SHARES, None)]
    if resource.is_object:  # what is made may stand on what is above it
        return [(_Phase.TIGHTEN if new == ABSENT else _Phase.LOOSEN, None)]
    if resource in (CPU_IDLE, OOM_SCORE_ADJ) or old is None or new is None:
        return [(_Phase.LOOSEN, None)]
    if resource is CPU_BURST:
        return [(_Phase.MORE_BURST if new > old else _Phase.LESS_BURST, None)]
    if isinstance(new, Mapping):
        return [(_Phase.LOOSEN, via) for via in (*_by_device(old, new), None)]
    if isinstance(new, frozenset):
        return _cpuset_phases(old, new)
    return [(_Phase.LOOSEN if _limit(new) >= _limit(old) else _Phase.TIGHTEN, None)]


def _by_device(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The value after the write for each device that changes, but the last."""
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    now: dict[str, Any] = dict(old)
    found: list[Mapping[str, Any]] = []
    for name in changed[:-1]:
        now.pop(name, None)
        now |= {name: new[name]} if name in new else {}
        found.append(dict(now))
    return found


def _cpuset_phases(old: frozenset[int], new: frozenset[int]) -> list[tuple[_Phase, Any]]:
    """An empty set has the CPUs of the group above: from it is to tighten, to it to loosen."""
    if not new or (old and old <= new):
        return [(_Phase.LOOSEN, None)]
    if not old or new <= old:
        return [(_Phase.TIGHTEN, None)]
    return [(_Phase.LOOSEN, old | new), (_Phase.TIGHTEN, None)]


def _limit(value: int) -> float:
    return math.inf if value == -1 else value


_GROUP_IS_IDLE = "the group is idle (cpu.idle), which sets its shares aside; they come back after"
_PLANNED_LAST = (CPU_BURST, CPU_SHARES)  # planned when quota and idleness beside them are


@dataclass(slots=True)
class Plan:
    """The plan for one desired value. Texts are those of koordlet.host.resource."""

    desired: DesiredValue
    found: FoundValue = FoundValue("", 0)  # noqa: RUF009 - frozen
    before: str = ""  # what was found at first
    target: str = ""  # to bring about
    original: str = ""  # to restore one day
    applied: ApplyResult | None = None  # the result; None: there is something to write
    wrote: bool = False
    begun: bool = False  # with a record of its own that was not there before
    foreign_change: str = ""

    @property
    def key(self) -> Key:
        return self.desired.key

    @property
    def result(self) -> ApplyResult:
        """The result; a desired value that is not settled waits."""
        return self.applied or ApplyResult(ClaimState.WAITING)

    @property
    def releases(self) -> bool:
        return self.desired.value is RELEASE

    @property
    def by_device(self) -> bool:
        """Whether the value takes a write for each block device."""
        return isinstance(self.desired.value, Mapping)

    @property
    def in_force(self) -> bool:
        """Whether the desired value is in force."""
        return self.applied is not None and self.applied.state is ClaimState.IN_FORCE

    @property
    def restored(self) -> bool:
        """Whether it is over: restored, another agent's by now, or gone."""
        return self.releases and self.applied is not None and self.applied.state is ClaimState.GONE

    def record(self, intended: str) -> JournalRecord:
        """The journal's record before the first write."""
        target = self.key.target
        return JournalRecord(
            resource=self.key.resource.name,
            level=target.level.value,
            place=target.place,
            start_time=target.start_time,
            inode=self.found.inode,
            owners=self.desired.owners,
            original=self.original,
            confirmed=self.found.text,
            intended=intended,
            definition=definition_of(self.key.resource),
        )


Plans = Mapping[Key, Plan]


class Planner:
    """Decides; changes nothing."""

    def __init__(
        self,
        values: KernelValues,
        ledger: Ledger,
        applied_values: AppliedValues,
        policy: ConflictPolicy,
        rejected_writes: RejectedWrites,
    ) -> None:
        self._values = values
        self._ledger = ledger
        self._applied_values = applied_values
        self._policy = policy
        self._rejected_writes = rejected_writes

    def decision_order(self, plans: Sequence[Plan]) -> list[Plan]:
        """The order to decide in: bursts look at the quotas decided on."""
        return sorted(plans, key=lambda plan: plan.key.resource in _PLANNED_LAST)

    def decide(self, plan: Plan, plans: Plans) -> None:
        """Fill in a plan whose value was found, one of some for the same moment.

        Raises:
            KernelFileError: the desired value cannot be written here.
        """
        if plan.releases:
            self._decide_release(plan, plans)
        else:
            self._decide_value(plan, plans)

    def sibling(self, key: Key, resource: Resource[Any]) -> DesiredValue | None:
        """The desired value of another resource of the group; RELEASE if it is only ours."""
        other = Key(key.target, resource)
        if desired := self._applied_values.desired_values.get(other):
            return desired
        return DesiredValue(other, RELEASE) if self._ledger.get(other) else None

    def applied(self, plan: Plan, state: ClaimState, message: str = "") -> ApplyResult:
        """The result of a plan, with the value now in the kernel."""
        texts = (plan.found.text, plan.original)
        value, original = (self._values.value_of(plan.key, text) for text in texts)
        return ApplyResult(state, value, original, message, plan.wrote, plan.foreign_change)

    def _decide_release(self, plan: Plan, plans: Plans) -> None:
        record = self._ledger.get(plan.key)
        if record is None:
            plan.applied = ApplyResult(ClaimState.GONE)
            return
        plan.target = plan.original = record.original
        if self._is_overridden_by_idle(plan.key, plans):
            plan.applied = self.applied(plan, ClaimState.WAITING, _GROUP_IS_IDLE)
        elif plan.found.text == plan.target or not self._is_ours(plan.key, plan.found.text, record):
            plan.applied = self.applied(plan, ClaimState.GONE)
        else:
            plan.applied = self._rejected_writes.find(plan.key, plan.target)

    def _decide_value(self, plan: Plan, plans: Plans) -> None:
        key, found, record = plan.key, plan.found.text, self._ledger.get(plan.key)
        plan.target = self._values.text_of(key, plan.desired.value)
        if key.resource is CPU_BURST:
            plan.target = self._within_quota(plan.target, key, plans)
        stated = plan.desired.original
        stated_text = None if stated is None else self._values.text_of(key, stated)
        if stated_text is not None:
            plan.original = stated_text
        else:
            plan.original = record.original if record else self._inherited(plan)
        if self._is_overridden_by_idle(key, plans):
            self._applied_values.forget(key)
            plan.applied = self.applied(plan, ClaimState.WAITING, _GROUP_IS_IDLE)
        elif self._applied_values.is_of(key, found, plan.target):
            plan.applied = self.applied(plan, ClaimState.IN_FORCE)
        elif self._is_foreign(key, found, record):
            self._conflict(plan, stated_text)
        else:
            plan.applied = self._rejected_writes.find(key, plan.target)

    def _conflict(self, plan: Plan, stated: str | None) -> None:
        decision = self._policy.judge(plan.key, plan.found.text)
        if decision is None:
            plan.foreign_change, plan.original = (
                "retaken",
                plan.found.text if stated is None else stated,
            )
        else:
            plan.foreign_change = decision.foreign_change
            plan.applied = self.applied(plan, decision.state, decision.message)

    def _is_foreign(self, key: Key, found: str, record: JournalRecord | None) -> bool:
        """Whether another agent changed a value of ours, or one that was as desired."""
        if record is not None:
            return not self._is_ours(key, found, record)
        return self._applied_values.in_force.get(key, found) != found

    def _is_ours(self, key: Key, found: str, record: JournalRecord) -> bool:
        """Whether we made a value what it is.

        A record of a text for which the kernel makes up another one is of a crash in between.
        """
        return found in record.ours or record.intended == self._values.made(key)

    def _inherited(self, plan: Plan) -> str:
        """Return the text to restore later, of a value that was not ours until now."""
        key, found = plan.key, plan.found.text
        return self._ledger.original_of_copy(key, found) if self._values.is_copied(key) else found

    def _within_quota(self, burst: str, key: Key, plans: Plans) -> str:
        """Return the largest part of a burst that the kernel accepts with the planned quota."""
        sibling = Key(key.target, CPU_QUOTA)
        plan = plans.get(sibling)
        try:
            text = plan.target if plan and plan.target else self._values.read(sibling).text
        except KernelFileError:
            return burst
        quota = self._values.value_of(sibling, text)
        return burst if quota in (None, -1) else str(min(int(burst), quota))

    def _is_overridden_by_idle(self, key: Key, plans: Plans) -> bool:
        """Whether these are the shares of a group that is idle, or about to be."""
        if key.resource is not CPU_SHARES:
            return False
        sibling = Key(key.target, CPU_IDLE)
        if sibling in plans and plans[sibling].target == "1":
            return True
        try:
            return self._values.read(sibling).text == "1"
        except KernelFileError:
            return False
