"""New cgroups: originals recorded before they are made, and inherited cpusets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from koord.util.clock import Clock
from koord.util.logs import get_logger
from koordlet.executor.claims.claim import InitialValue, Key
from koordlet.executor.claims.target import Target
from koordlet.executor.journal import JournalError, JournalRecord
from koordlet.executor.kernel.values import KernelValues
from koordlet.executor.ledger import Ledger, copied_texts
from koordlet.host.errors import KernelFileError, Vanished
from koordlet.host.host import Host
from koordlet.host.kernelfile import definition_of
from koordlet.host.resource import Level

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
            self._set_by |= {key: now + RUNTIME_TIMEOUT for key, _ in new}
        return problems

    def seen(self, key: Key) -> None:
        """It is claimed now, or over."""
        self._until.pop(key, None)
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
        now = self.clock.monotonic()
        return [key for key, until in self._set_by.items() if until > now and self.may_be_made(key)]

    def is_being_set(self, key: Key, found: str) -> bool:
        """Whether the runtime has made a cgroup, but not set the value yet."""
        record = self.ledger.get(key)
        in_time = self._set_by.get(key, 0.0) > self.clock.monotonic()
        return in_time and record is not None and found != record.intended

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
                original=original,
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
        if one.original or not self.values.is_copied(one.key):
            return self.values.text_of(one.key, one.original)
        found = self.values.read(_of_pod(one.key)).text
        above = self.ledger.above(one.key)
        return above.original if above is not None and found in copied_texts(above) else found


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
