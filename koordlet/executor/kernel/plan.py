"""Plans what to do about each desired value, given what the kernel has now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koordlet.executor.claims.claim import ClaimState, Key
from koordlet.executor.claims.desired import RELEASE, ApplyResult, DesiredValue
from koordlet.executor.journal.ledger import Ledger, copied
from koordlet.executor.journal.records import Record
from koordlet.executor.kernel.applied import AppliedValues
from koordlet.executor.kernel.conflicts import ConflictPolicy
from koordlet.executor.kernel.kernelvalues import Found, KernelValues
from koordlet.executor.kernel.refusals import Refusals
from koordlet.host.errors import KernelFileError
from koordlet.host.kernelfile import definition_of
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_BURST, CPU_IDLE, CPU_QUOTA, CPU_SHARES

_IDLE = "the group is idle (cpu.idle), which sets its shares aside; they come back after"
_LATER = (CPU_BURST, CPU_SHARES)  # planned when quota and idleness beside them are


@dataclass(slots=True)
class Plan:
    """The plan for one desired value. Texts are those of koordlet.host.kerneltext."""

    desired: DesiredValue
    found: Found = Found("", 0)  # noqa: RUF009 - frozen
    before: str = ""  # what was found at first
    target: str = ""  # to bring about
    original: str = ""  # to restore one day
    applied: ApplyResult | None = None  # what came of it; None: there is something to write
    wrote: bool = False
    begun: bool = False  # with a record of its own that was not there before
    news: str = ""

    @property
    def key(self) -> Key:
        return self.desired.key

    @property
    def answer(self) -> ApplyResult:
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

    def record(self, intended: str) -> Record:
        """The journal's record before the first write."""
        target = self.key.target
        return Record(
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
        refusals: Refusals,
    ) -> None:
        self._values = values
        self._ledger = ledger
        self._applied_values = applied_values
        self._policy = policy
        self._refusals = refusals

    def in_turn(self, plans: Sequence[Plan]) -> list[Plan]:
        """The order to decide in: bursts look at the quotas decided on."""
        return sorted(plans, key=lambda plan: plan.key.resource in _LATER)

    def decide(self, plan: Plan, plans: Plans) -> None:
        """Fill in a plan whose value was found, one of some for the same moment.

        Raises:
            KernelFileError: the desired value cannot be written here.
        """
        if plan.releases:
            self._decide_release(plan, plans)
        else:
            self._decide_value(plan, plans)

    def beside(self, key: Key, resource: Resource[Any]) -> DesiredValue | None:
        """The desired value of another resource of the group; RELEASE if it is only ours."""
        other = Key(key.target, resource)
        if desired := self._applied_values.desired_values.get(other):
            return desired
        return DesiredValue(other, RELEASE) if self._ledger.get(other) else None

    def applied(self, plan: Plan, state: ClaimState, message: str = "") -> ApplyResult:
        """The result of a plan, with the value now in the kernel."""
        texts = (plan.found.text, plan.original)
        value, original = (self._values.value_of(plan.key, text) for text in texts)
        return ApplyResult(state, value, original, message, plan.wrote, plan.news)

    def _decide_release(self, plan: Plan, plans: Plans) -> None:
        record = self._ledger.get(plan.key)
        if record is None:
            plan.applied = ApplyResult(ClaimState.GONE)
            return
        plan.target = plan.original = record.original
        if self._is_set_aside(plan.key, plans):
            plan.applied = self.applied(plan, ClaimState.WAITING, _IDLE)
        elif plan.found.text == plan.target or not self._is_ours(plan.key, plan.found.text, record):
            plan.applied = self.applied(plan, ClaimState.GONE)
        else:
            plan.applied = self._refusals.find(plan.key, plan.target)

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
        if self._is_set_aside(key, plans):
            self._applied_values.forget(key)
            plan.applied = self.applied(plan, ClaimState.WAITING, _IDLE)
        elif self._applied_values.is_of(key, found, plan.target):
            plan.applied = self.applied(plan, ClaimState.IN_FORCE)
        elif self._is_foreign(key, found, record):
            self._conflict(plan, stated_text)
        else:
            plan.applied = self._refusals.find(key, plan.target)

    def _conflict(self, plan: Plan, stated: str | None) -> None:
        verdict = self._policy.judge(plan.key, plan.found.text)
        if verdict is None:
            plan.news, plan.original = "retaken", plan.found.text if stated is None else stated
        else:
            plan.news = verdict.news
            plan.applied = self.applied(plan, verdict.state, verdict.message)

    def _is_foreign(self, key: Key, found: str, record: Record | None) -> bool:
        """Whether another agent changed a value of ours, or one that was as desired."""
        if record is not None:
            return not self._is_ours(key, found, record)
        return self._applied_values.in_force.get(key, found) != found

    def _is_ours(self, key: Key, found: str, record: Record) -> bool:
        """Whether we made a value what it is.

        A record of a text for which the kernel makes up another one is of a crash in between.
        """
        return found in record.ours or record.intended == self._values.made(key)

    def _inherited(self, plan: Plan) -> str:
        """Return the text to restore one day of a value that was not ours so far.

        A value that was copied from a squeezed group above has that one's original.
        """
        found = plan.found.text
        if self._values.is_copied(plan.key):
            above = self._ledger.above(plan.key)
            if above is not None and found in copied(above):
                return above.original
        return found

    def _within_quota(self, burst: str, key: Key, plans: Plans) -> str:
        """As much of a burst as the kernel takes beside the quota that there will be."""
        beside = Key(key.target, CPU_QUOTA)
        plan = plans.get(beside)
        try:
            text = plan.target if plan and plan.target else self._values.read(beside).text
        except KernelFileError:
            return burst
        quota = self._values.value_of(beside, text)
        return burst if quota in (None, -1) else str(min(int(burst), quota))

    def _is_set_aside(self, key: Key, plans: Plans) -> bool:
        """Whether these are the shares of a group that is idle, or about to be."""
        if key.resource is not CPU_SHARES:
            return False
        beside = Key(key.target, CPU_IDLE)
        if beside in plans and plans[beside].target == "1":
            return True
        try:
            return self._values.read(beside).text == "1"
        except KernelFileError:
            return False
