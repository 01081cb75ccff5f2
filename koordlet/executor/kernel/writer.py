"""Apply desired values, never without a record of the original, and restore that."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from koord.util.clock import Clock
from koord.util.logs import get_logger
from koordlet.executor.claims.claim import (
    RELEASE,
    ApplyResult,
    ClaimState,
    DesiredValue,
    InitialValue,
    Key,
    Target,
)
from koordlet.executor.journal import Journal, JournalError, JournalRecord, Ledger, copied_texts
from koordlet.executor.kernel.plan import (
    AppliedValues,
    ConflictPolicy,
    OnForeignChange,
    Plan,
    Planner,
    Plans,
    RejectedWrites,
    ValueChange,
    ordered_steps,
)
from koordlet.executor.kernel.values import FoundValue, KernelValues
from koordlet.host.errors import KernelFileError, NoSuchDevice, Unsupported, Vanished
from koordlet.host.host import Host
from koordlet.host.kernelfile import definition_of
from koordlet.host.resource import Level, Resource, Root
from koordlet.host.resources import CPU_BURST, CPU_IDLE, CPU_QUOTA, CPU_SHARES

CLAIM_TIMEOUT = 120.0  # seconds from the announcement until a plugin must have claimed the value
RUNTIME_TIMEOUT = 5.0  # seconds from the announcement that a runtime takes to set it, when busy


@dataclass(slots=True)
class InitialValues:
    """The values of one writer that are recorded but not seen yet. For its thread."""

    values: KernelValues
    ledger: Ledger
    clock: Clock
    _until: dict[Key, float] = field(default_factory=dict)  # monotonic
    _set_by: dict[Key, float] = field(default_factory=dict)  # monotonic; announced by this process

    def __post_init__(self) -> None:
        """Wait again for what an earlier process announced."""
        for key in self.ledger:
            record = self.ledger.get(key)
            if record is not None and precedes_cgroup(key, record):
                self._until[key] = self.clock.monotonic() + CLAIM_TIMEOUT

    def add(self, expected: Sequence[InitialValue]) -> list[str]:
        """Record the originals; return for each why it must not be so, "" where it may.

        The records outlive the process on return. The disk is not waited for, as the runtime waits:
        a reboot that takes the records takes the containers as well.
        """
        new: list[tuple[Key, JournalRecord]] = []
        problems = []
        for one in expected:
            try:
                problems.append(self._record(one, new))
            except (KernelFileError, JournalError) as err:
                problems.append(str(err))
        try:
            self.ledger.begin(new, sync=False)
        except JournalError as err:
            fresh = {key for key, _ in new}
            problems = [
                why or (str(err) if one.key in fresh else "")
                for one, why in zip(expected, problems, strict=True)
            ]
        else:
            now = self.clock.monotonic()
            self._until |= {key: now + CLAIM_TIMEOUT for key, _ in new}
            announced = (one.key for one, why in zip(expected, problems, strict=True) if not why)
            pending = {key: until for key, until in self._set_by.items() if until > now}
            self._set_by = pending | dict.fromkeys(announced, now + RUNTIME_TIMEOUT)
        return problems

    def claimed(self, key: Key) -> None:
        """A plugin claims it now. The runtime may still be about to set it."""
        self._until.pop(key, None)

    def over(self, key: Key) -> None:
        """It is restored or gone."""
        self._until.pop(key, None)
        self._set_by.pop(key, None)

    def made(self, key: Key, found: str) -> None:
        """Note that the cgroup of a record is there. With its value, the runtime is done."""
        record = self.ledger.get(key)
        if record is not None and found == record.intended:
            self._set_by.pop(key, None)

    def is_pending(self, key: Key) -> bool:
        """Whether a value is still expected to be claimed."""
        return self._until.get(key, 0.0) > self.clock.monotonic()

    def may_be_made(self, key: Key) -> bool:
        """Whether the cgroup of a pending value, which is not there, may still be made.

        Not in a pod that is gone: the kubelet makes the pod's cgroup first, and removes it last.
        """
        if not self.is_pending(key):
            return False
        try:
            self.values.read(_of_pod(key))
        except Vanished:
            return False
        except KernelFileError:
            return True
        return True

    def being_set(self) -> list[Key]:
        """The values that the runtime was announced just now and that may come yet."""
        return [key for key in self._set_by if self.is_being_set(key) and self._may_be_set(key)]

    def is_being_set(self, key: Key) -> bool:
        """Whether the runtime may set it yet."""
        return self._set_by.get(key, 0.0) > self.clock.monotonic()

    def _may_be_set(self, key: Key) -> bool:
        record = self.ledger.get(key)
        return record is not None and (record.inode != 0 or self.may_be_made(key))

    def _record(self, one: InitialValue, new: list[tuple[Key, JournalRecord]]) -> str:
        """Raises KernelFileError, JournalError."""
        key, target = one.key, one.key.target
        if target.level is not Level.CONTAINER:
            return f"{key} is not of a container"
        intended, original = self.values.text_of(key, one.value), self._original(one)
        if self.values.reject_reason(key, original):
            return self.values.reject_reason(key, original)
        record = self.ledger.get(key)
        if record is not None:
            self.ledger.record(
                key,
                original=record.original if one.runs else original,
                confirmed=record.confirmed,
                intended=intended,
                owners=one.owners,
            )
            return ""
        record = JournalRecord(
            resource=key.resource.name,
            level=target.level.value,
            place=target.place,
            start_time=target.start_time,
            inode=0,
            owners=one.owners,
            original=original,
            confirmed=intended,
            intended=intended,
            definition=definition_of(key.resource),
        )
        new.append((key, record))
        return ""

    def _original(self, one: InitialValue) -> str:
        """The text to restore; what nobody asked for may come from the pod. Raises as read."""
        is_copied = self.values.is_copied(one.key)
        if not one.runs and (one.original or not is_copied):
            return self.values.text_of(one.key, one.original)
        found = self.values.read(one.key if one.runs else _of_pod(one.key)).text
        return self.ledger.original_of_copy(one.key, found) if is_copied else found


def _of_pod(key: Key) -> Key:
    """The same value of the group above a container's."""
    return Key(Target(Level.POD, key.target.place.rpartition("/")[0]), key.resource)


def precedes_cgroup(key: Key, record: JournalRecord) -> bool:
    """Whether the record was made before its cgroup."""
    return key.target.level is Level.CONTAINER and record.inode == 0


log = get_logger("koordlet.executor")


class InheritedCpusets:
    """Finds and widens them when a group is restored. For the thread of the writer."""

    def __init__(self, host: Host, values: KernelValues, ledger: Ledger) -> None:
        self._host = host
        self._values = values
        self._ledger = ledger

    def widen(self, keys: Iterable[Key]) -> None:
        """Give those below what the groups of these values have now, where children copy them.

        The records of the groups must still be there: they hold what may have been copied.
        """
        for key in filter(self._values.is_copied, keys):
            record = self._ledger.get(key)
            if record is not None and (inherited := copied_texts(record)):
                self._widen_below(key, inherited)

    def _widen_below(self, key: Key, inherited: frozenset[str]) -> None:
        try:
            wanted = self._values.read(key).text
        except KernelFileError:
            return  # it has ended, and all below it
        for child in self._below(key):
            try:
                found = self._values.read(child)
                if found.text in inherited and found.text != wanted:
                    self._values.write(child, found.inode, wanted)
            except KernelFileError as err:
                log.warning("cpuset.widen_failed", cgroup=child.target.place, error=str(err))
            self._values.forget(child)

    def _below(self, key: Key) -> Iterator[Key]:
        """The same value of the groups below that are not ours, parents first."""
        below = partial(self._host.groups_below, key.resource)
        level = [key.target.place]
        while level:
            level = [child for group in level for child in below(group)]
            found = [Key(Target(Level.CONTAINER, group), key.resource) for group in level]
            unclaimed = [child for child in found if self._ledger.get(child) is None]
            yield from unclaimed
            level = [child.target.place for child in unclaimed]


CGROUP, OTHER = "cgroup", "default"  # Koordinator's names of kinds of files

Observe = Callable[[str, bool, float], None]  # kind, whether it was accepted, milliseconds


def _ignore(kind: str, accepted: bool, milliseconds: float) -> None:
    """Observe nothing."""


class WriterStats:
    """Counts since the start. Changed by the writer's thread, read by any."""

    def __init__(self, observe: Observe = _ignore) -> None:
        self.writes: Counter[tuple[str, bool]] = Counter()  # by resource and whether accepted
        self.skips = 0  # desired values that were in force already
        self._observe = observe

    @contextmanager
    def timing(self, resource: Resource[Any]) -> Iterator[None]:
        """Measure one write; count it as rejected if it raises."""
        start, accepted = time.perf_counter(), False
        try:
            yield
            accepted = True
        finally:
            self.writes[resource.name, accepted] += 1
            root = next(iter(resource.files.values())).root
            kind = CGROUP if root is Root.CGROUP else OTHER
            self._observe(kind, accepted, 1000 * (time.perf_counter() - start))


class Writer:
    """Brings the desired values of one host into force."""

    def __init__(
        self,
        host: Host,
        journal: Journal,
        clock: Clock,
        *,
        policy: Callable[[], OnForeignChange] = lambda: OnForeignChange.RETAKE,
        stats: WriterStats | None = None,
        values: KernelValues | None = None,
    ) -> None:
        """policy: what to do about foreign writes to values of ours. host is this thread's only."""
        self._host = host
        self._values = values or KernelValues(host)
        self._ledger = Ledger(journal, self._values.reject_reason)
        self._stats = stats or WriterStats()
        self._applied_values = AppliedValues()
        self._policy = ConflictPolicy(clock, policy)
        self._rejected_writes = RejectedWrites(clock)
        self._initial_values = InitialValues(self._values, self._ledger, clock)
        self._inherited = InheritedCpusets(host, self._values, self._ledger)
        self._planner = Planner(
            self._values, self._ledger, self._applied_values, self._policy, self._rejected_writes
        )

    @property
    def ledger(self) -> Ledger:
        """The record of the values that are ours; none may be forgotten."""
        return self._ledger

    def apply(
        self,
        desired_values: Sequence[DesiredValue],
        progress: Callable[[float], None] = lambda share: None,
    ) -> list[ApplyResult]:
        """Return what became of each. progress is given the share that is done, from 0 to 1."""
        for desired in desired_values:
            if desired.value is RELEASE:
                self._applied_values.desired_values.pop(desired.key, None)
            else:
                self._applied_values.desired_values[desired.key] = desired
                self._initial_values.claimed(desired.key)
        plans = [
            Plan(desired) for desired in (*desired_values, *self._bursts_of_quotas(desired_values))
        ]
        by_key = {plan.key: plan for plan in plans}
        for number, plan in enumerate(self._planner.decision_order(plans), 1):
            self._read_and_plan(plan, by_key)
            progress(number / len(plans) / 2)
        self._execute(
            [plan for plan in plans if plan.applied is None],
            lambda share: progress((1 + share) / 2),
        )
        for plan in plans:
            self._record_applied(plan)
        self._forget_restored(
            [plan.key for plan in plans if plan.restored and not self._awaits_runtime(plan)]
        )
        self._reapply_shares(plans)
        self._stats.skips += sum(plan.in_force and not plan.wrote for plan in plans)
        return [plan.result for plan in plans[: len(desired_values)]]

    def expect(self, expected: Sequence[InitialValue]) -> list[str]:
        """Record values that a runtime will set for us; return for each why it must not, or ""."""
        return self._initial_values.add(expected)

    def sweep(self) -> list[Key]:
        """Look at all values in force; return those that are not any more what they should be."""
        self._host.descriptors.begin_tick()
        self._values.forget_all_but(self._applied_values.in_force)
        return [key for key in list(self._applied_values.in_force) if not self._is_in_force(key)]

    def unclaimed(self) -> list[Key]:
        """Values of ours that no plugin claims: of an earlier process, or not restored yet.

        The shares of a group that is idle because of a claim come back when that ends.
        """
        desired_values = self._applied_values.desired_values
        return [
            key
            for key in self._ledger
            if key not in desired_values
            and not self._initial_values.is_pending(key)
            and not (key.resource is CPU_SHARES and Key(key.target, CPU_IDLE) in desired_values)
        ]

    def awaited(self) -> list[Key]:
        """Values that the runtime may set after all, as it was asked for them just now."""
        return self._initial_values.being_set()

    def restore(
        self,
        keys: Iterable[Key],
        *,
        at_once: bool = False,
        progress: Callable[[float], None] = lambda share: None,
    ) -> list[ApplyResult]:
        """Restore values, as far as they are still ours; at_once: also what failed just now.

        progress: as for apply.
        """
        keys = list(keys)
        if at_once:
            for key in keys:
                self._rejected_writes.over(key)
        return self.apply([DesiredValue(key, RELEASE) for key in keys], progress)

    # --- what is to be done ---

    def _read_and_plan(self, plan: Plan, plans: Plans) -> None:
        """Read the value, and decide."""
        try:
            plan.found = self._values.read(plan.key)
            plan.before = plan.found.text
            record = self._ledger.get(plan.key)
            if record is not None and precedes_cgroup(plan.key, record):
                self._initial_values.made(plan.key, plan.before)
                if plan.releases and self._initial_values.is_being_set(plan.key):
                    self._wait_for_runtime(plan)
                    return
                self._ledger.adopt(plan.key, plan.found.inode, plan.found.text)
            elif record is not None and record.inode != plan.found.inode:
                self._forget(plan.key)  # another group of that name; ours has ended
            self._planner.decide(plan, plans)
        except Unsupported as err:
            self._fail_absent(plan, ClaimState.UNSUPPORTED, err)
        except Vanished as err:
            self._fail_absent(plan, ClaimState.GONE, err)
        except (KernelFileError, JournalError) as err:
            self._fail(plan, err)

    def _bursts_of_quotas(self, desired_values: Sequence[DesiredValue]) -> list[DesiredValue]:
        """Bursts of ours to go along with quotas that change."""
        asked = {desired.key for desired in desired_values}
        quotas = [desired.key for desired in desired_values if desired.key.resource is CPU_QUOTA]
        bursts = [self._planner.sibling(key, CPU_BURST) for key in quotas]
        return [desired for desired in bursts if desired is not None and desired.key not in asked]

    # --- doing it ---

    def _execute(self, plans: Sequence[Plan], progress: Callable[[float], None]) -> None:
        """Write, in an order that the kernel accepts, behind the records."""
        steps = [
            (plans[step.move], step.via)
            for step in ordered_steps([self._move(plan) for plan in plans])
        ]
        writes = [
            (plan, plan.target if via is None else self._values.text_of(plan.key, via))
            for plan, via in steps
        ]
        first: dict[Key, tuple[Plan, str]] = {}
        for plan, text in writes:
            first.setdefault(plan.key, (plan, text))
        self._begin_records(list(first.values()))
        for number, (plan, text) in enumerate(writes, 1):
            if plan.applied is None:
                self._write(plan, text)
            progress(number / len(writes))

    def _move(self, plan: Plan) -> ValueChange:
        key, texts = plan.key, (plan.found.text, plan.target)
        old, new = (self._values.value_of(key, text) for text in texts)
        return ValueChange(key.resource, key.target.place, old, new)

    def _begin_records(self, writes: Sequence[tuple[Plan, str]]) -> None:
        """Record the original values on disk, before the first write to a value."""
        new = []
        for plan, text in writes:
            if not plan.releases and self._ledger.get(plan.key) is None:
                plan.begun = True
                new.append((plan, plan, text))
            if plan.key.resource is CPU_IDLE and plan.target == "1":
                new += [(plan, *shares) for shares in self._shares_of_idle_group(plan)]
        try:
            self._ledger.begin([(one.key, one.record(text)) for _, one, text in new])
        except JournalError as err:
            for plan, _, _ in new:
                plan.begun = False
                self._fail(plan, err)

    def _shares_of_idle_group(self, plan: Plan) -> list[tuple[Plan, str]]:
        """The shares that idleness sets aside and its end resets: ours, too, from now on."""
        key = Key(plan.key.target, CPU_SHARES)
        shares = Plan(DesiredValue(key, None, owners=plan.desired.owners))
        default = self._host.file(CPU_SHARES).initial  # what the end of idleness leaves
        try:
            shares.found = self._values.read(key)
            record = self._ledger.get(key)
            shares.original = record.original if record else shares.found.text
            if record is None:
                return [(shares, default)]
            self._note(shares, default)
        except (KernelFileError, JournalError) as err:
            self._fail(plan, err)
        return []

    def _note(self, plan: Plan, intended: str) -> None:
        """Record what the kernel may have from now on. Raises JournalError."""
        self._ledger.record(
            plan.key,
            original=plan.original,
            confirmed=plan.found.text,
            intended=intended,
            owners=plan.desired.owners,
        )

    def _write(self, plan: Plan, text: str) -> None:
        """One write. A restore needs no record; intermediate CPU sets should have one."""
        try:
            if not plan.releases or text != plan.target:
                self._note(plan, text)
        except JournalError as err:
            if not plan.releases:
                self._fail(plan, err)
                return
        try:
            with self._stats.timing(plan.key.resource):
                found = self._values.write(plan.key, plan.found.inode, text)
        except Vanished as err:
            self._fail_absent(plan, ClaimState.GONE, err)
        except NoSuchDevice as err:
            if not plan.releases:  # else what there was of that device has ended
                self._refused(plan, err)
        except KernelFileError as err:
            self._refused(plan, err)
        else:
            plan.found, plan.wrote = FoundValue(found, plan.found.inode), True

    # --- results ---

    def _record_applied(self, plan: Plan) -> None:
        """Conclude what was written, and keep the applied value."""
        if plan.applied is None:
            self._result(plan)
        if not plan.in_force:
            return
        try:
            self._record_in_force(plan)
        except JournalError as err:
            self._fail(plan, err)
        else:
            self._applied_values.in_force[plan.key] = plan.found.text
            self._rejected_writes.over(plan.key)
            self._policy.ended(plan.key)

    def _result(self, plan: Plan) -> None:
        found, target = plan.found.text, plan.target
        if plan.releases:
            plan.applied = self._planner.applied(plan, ClaimState.GONE)
            return
        if plan.foreign_change == "retaken":
            self._policy.retaken(plan.key)
        message = ""
        if found != target:
            self._applied_values.round(plan.key, target, found)
            message = f"the kernel has made {found} of {target}"
        plan.applied = self._planner.applied(plan, ClaimState.IN_FORCE, message)

    def _record_in_force(self, plan: Plan) -> None:
        """Record that a value is in force.

        One that was found in force is ours if we made it so, or if the claim states its original.
        """
        key, found, record = plan.key, plan.found.text, self._ledger.get(plan.key)
        stated = plan.desired.original is not None
        if record is None:
            if stated and plan.original != found:
                self._ledger.begin([(key, plan.record(found))])
        elif plan.wrote and found in record.ours:
            self._ledger.confirm(key, found)
        elif plan.wrote or stated or found in record.ours:
            self._note(plan, found)
        else:
            self._ledger.drop([key])

    def _fail(self, plan: Plan, err: Exception) -> None:
        plan.applied = self._planner.applied(plan, ClaimState.FAILED, str(err))

    def _refused(self, plan: Plan, err: KernelFileError) -> None:
        """The kernel did not take it. A value that did not become ours needs no record."""
        if not plan.releases and plan.wrote and plan.by_device:
            self._undo(plan)
        self._fail(plan, err)
        self._rejected_writes.record(plan.key, plan.target, plan.result)
        if plan.begun and not plan.wrote:
            self._ledger.drop([plan.key])

    def _undo(self, plan: Plan) -> None:
        """Take back what was set of other devices: a value is in force as a whole or not at all."""
        try:
            old, new = (self._values.value_of(plan.key, t) for t in (plan.found.text, plan.before))
            for step in ordered_steps(
                [ValueChange(plan.key.resource, plan.key.target.place, old, new)]
            ):
                via = step.via
                text = plan.before if via is None else self._values.text_of(plan.key, via)
                self._note(plan, text)
                found = self._values.write(plan.key, plan.found.inode, text)
                plan.found = FoundValue(found, plan.found.inode)
        except (KernelFileError, JournalError):
            return  # the record has the value already
        plan.wrote = False

    def _fail_absent(self, plan: Plan, state: ClaimState, err: KernelFileError) -> None:
        """The value is not there any more, unless its group is still to be made."""
        plan.applied = ApplyResult(state, message=str(err))
        if not self._awaits_cgroup(plan):
            self._forget(plan.key)

    def _wait_for_runtime(self, plan: Plan) -> None:
        """Leave a value as if its cgroup was not there: the runtime has not set it yet."""
        plan.found = FoundValue("", 0)
        plan.applied = ApplyResult(ClaimState.GONE, message="the runtime has not set it so far")

    def _awaits_runtime(self, plan: Plan) -> bool:
        """Whether its runtime may set it once more, or is still to make its cgroup."""
        if plan.found.inode:
            return self._initial_values.is_being_set(plan.key)
        return self._awaits_cgroup(plan)

    def _awaits_cgroup(self, plan: Plan) -> bool:
        """Whether its cgroup is not there because it is still to be made."""
        return not plan.found.inode and self._initial_values.may_be_made(plan.key)

    # --- afterwards ---

    def _forget_restored(self, keys: Sequence[Key]) -> None:
        """Widen what was born meanwhile while it is known what that may have copied; forget."""
        self._inherited.widen(keys)
        self._forget(*keys)

    def _forget(self, *keys: Key) -> None:
        self._ledger.drop(keys)
        for key in keys:
            self._initial_values.over(key)
            self._values.forget(key)
            self._applied_values.forget(key)
            self._rejected_writes.over(key)
            self._policy.forget(key)

    def _reapply_shares(self, plans: Sequence[Plan]) -> None:
        """The end of idleness has reset the shares."""
        for plan in plans:
            if plan.key.resource is CPU_IDLE and plan.wrote and plan.target == "0":
                desired = self._planner.sibling(plan.key, CPU_SHARES)
                if desired is not None:
                    [applied] = self.apply([desired])
                    for other in plans:
                        if other.key == desired.key:
                            other.applied = applied

    def _is_in_force(self, key: Key) -> bool:
        try:
            found = self._values.read(key)
        except KernelFileError:
            return False
        record = self._ledger.get(key)
        same_group = record is None or record.inode == found.inode
        return same_group and found.text == self._applied_values.in_force[key]
