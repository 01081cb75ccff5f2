"""Settle claims: combine them into desired values, have these applied or, in dry-run, recorded."""

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextvars import Context
from dataclasses import dataclass

from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koord.util.timebudget import in_slices
from koordlet.executor.claims.claim import (
    RELEASE,
    ApplyResult,
    Change,
    ChangeListener,
    Claim,
    ClaimOutcome,
    ClaimScope,
    ClaimState,
    DesiredValue,
    Key,
    Part,
    ValueApplier,
)
from koordlet.executor.claims.table import (
    ClaimedValue,
    ClaimTable,
    ObservedValue,
    Parts,
    ValueInForce,
    claimed_value_json,
    combine,
    combined_original,
    concerns,
)
from koordlet.executor.kernel.view import Worker
from koordlet.host.resource import Level

SWEEP_INTERVAL = (
    10.0  # seconds between looks at all values, after which what did not hold is tried again
)
SETTLE_TIMEOUT = 10.0  # seconds that a plugin waits for the kernel
_SETTLED = (ClaimState.IN_FORCE, ClaimState.WOULD, ClaimState.UNSUPPORTED)

log = get_logger("koordlet.executor")


class ClaimManager:
    """Takes the claims of all plugins. All methods belong to the event loop."""

    def __init__(
        self,
        writer: ValueApplier,
        worker: Worker,
        clock: Clock,
        *,
        dry_run: Callable[[str], Awaitable[bool]],
        listeners: Sequence[ChangeListener] = (),
    ) -> None:
        """dry_run returns whether a plugin is in dry-run; it may have to find out first."""
        self._table = ClaimTable()
        self._writer = writer
        self._worker = worker
        self._clock = clock
        self._dry_run = dry_run
        self._listeners = tuple(listeners)
        self._values: dict[Key, ValueInForce] = {}
        self._unsettled: set[Key] = set()  # claimed, but not the desired value
        self._is_dry_run: dict[str, bool] = {}  # what dry_run last returned
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[set[Key]]] = set()
        self._frozen: Callable[[], bool] = lambda: False

    def declare(self, owner: str, may: tuple[ClaimScope, ...]) -> None:
        """Let a plugin claim what it declares; raises OptionError as ClaimTable.declare does."""
        self._table.declare(owner, may)

    def retract(self, owner: str) -> bool:
        """Let a plugin claim nothing any more, as ClaimTable.retract does; withdraw_all first."""
        return self._table.retract(owner)

    async def claim(self, owner: str, claim: Claim, scope: str = "") -> ClaimOutcome:
        """Add or replace one claim of a plugin, and apply it.

        Raises:
            OptionError: the plugin did not declare it, or the value cannot be used.
        """
        self._table.check(owner, claim)
        await self._refresh_dry_run(owner)
        updated = self._table.put(owner, scope, claim)
        changed = await self._reconcile({claim.key} if updated else self._due({claim.key}))
        return self._outcome(owner, claim.key, changed)

    async def claim_all(
        self, owner: str, claims: Iterable[Claim], scope: str = ""
    ) -> list[ClaimOutcome]:
        """Make these a plugin's only claims of a scope, and apply them.

        Raises:
            OptionError: as claim; nothing has changed then.
        """
        claims = list(claims)
        async for claim in in_slices(claims):
            if not self._table.has(owner, scope, claim):
                self._table.check(owner, claim)
        await self._refresh_dry_run(owner)
        updated = self._table.replace(owner, scope, claims)
        changed = await self._reconcile(updated | self._due({claim.key for claim in claims}))
        return [self._outcome(owner, claim.key, changed) for claim in claims]

    async def withdraw(self, owner: str, key: Key, part: Part) -> None:
        """Withdraw one claim, and apply the value that then results."""
        if self._table.drop(owner, key, part):
            await self._reconcile({key})

    async def withdraw_all(self, owner: str, scope: str | None = None) -> None:
        """Withdraw all claims of a plugin; scope None: of every scope."""
        await self._reconcile(self._table.drop_all(owner, scope))

    async def refresh(self) -> None:
        """Check again which plugins are in dry-run, and settle their claims accordingly."""
        for owner in {o for key in self._table.claimed() for o in self._table.owners(key).values()}:
            await self._refresh_dry_run(owner)

    def is_in_dry_run(self, owner: str) -> Awaitable[bool]:
        """Return whether a plugin is in dry-run."""
        return self._dry_run(owner)

    def freeze_when(self, is_frozen: Callable[[], bool]) -> None:
        """Change nothing from the moment is_frozen returns True: values in force stay so."""
        self._frozen = is_frozen

    async def run(self, stop: Stop) -> None:
        """Look whether what is in force still is, and try again what did not hold, until stop."""
        async for _ in stop.every(SWEEP_INTERVAL):
            await self.refresh()
            drifted = await self._worker.do(self._writer.sweep)
            await self._reconcile(self._due(self._unsettled) | self._table.only_claimed(drifted))

    def snapshot(self, level: Level | None = None) -> list[ClaimedValue]:
        """The claimed values of a level, None: of all, for any thread."""
        return [
            ClaimedValue(key, value, self._claims_of(key))
            for key, value in self._values.items()
            if level in (None, key.target.level)
        ]

    async def snapshot_in_slices(self) -> list[ClaimedValue]:
        """Return all claimed values; other tasks run in between, as there may be thousands."""
        return [
            ClaimedValue(key, value, self._claims_of(key))
            async for key, value in in_slices(list(self._values.items()))
        ]

    def in_force(self, place: str = "") -> list[dict[str, object]]:
        """Return the claimed values that concern a pod or cgroup (see concerns), as JSON.

        Nothing is read: a value is the one that was applied, or in dry-run would have been.
        """
        wall = self._clock.wall()
        about = [claimed for claimed in self.snapshot() if concerns(claimed.key, place)]
        return [
            claimed_value_json(each, ObservedValue(each.value.applied.value, wall))
            for each in about
        ]

    def last_seen(self, value: ValueInForce) -> ObservedValue:
        """Return a value as it was when it was last tried; in dry-run nothing was read then."""
        at = self._clock.wall() - (self._clock.monotonic() - value.tried)
        return ObservedValue(None if value.dry_run else value.applied.value, at)

    def count(self) -> dict[str, dict[str, int]]:
        """Claimed values by plugin and state, whether they are in force or not. On any thread."""
        counts: dict[str, dict[str, int]] = {}
        for key, value in list(self._values.items()):
            state = value.applied.state.value
            for owner in set(self._table.owners(key).values()):
                of_owner = counts.setdefault(owner, {})
                of_owner[state] = of_owner.get(state, 0) + 1
        return counts

    def any_in_force(self) -> bool:
        """Whether a claimed value is in force."""
        return any(
            value.applied.state is ClaimState.IN_FORCE and self._table.owners(key)
            for key, value in self._values.items()
        )

    async def _refresh_dry_run(self, owner: str) -> None:
        is_dry_run = await self._dry_run(owner)
        if self._is_dry_run.get(owner) is not is_dry_run:
            self._is_dry_run[owner] = is_dry_run
            keys = {k for k in self._table.claimed() if owner in self._table.owners(k).values()}
            await self._reconcile(keys)
            if is_dry_run:
                await self._reconcile(keys & self._unsettled)  # what was restored is in dry-run now

    async def _reconcile(self, keys: set[Key]) -> set[Key]:
        """Apply the desired values of these keys to the kernel; return the keys that changed.

        Returns after SETTLE_TIMEOUT seconds when a kernel file hangs; it goes on all the same.
        """
        if not keys or self._frozen():
            return set()
        # In a context of its own, so that the plugin is not charged for it, and to its end even if
        # the plugin is cancelled.
        task = asyncio.create_task(self._apply(keys), name="claims", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await first_completed(task, self._clock.sleep(SETTLE_TIMEOUT))
        if not task.done():
            log.warning("claims.timed_out", values=len(keys), after_s=SETTLE_TIMEOUT)
            return set()
        return task.result()

    async def _apply(self, keys: set[Key]) -> set[Key]:
        async with self._busy:  # what is desired is looked up inside, as it may have changed
            desired_values = [self._desired(key) async for key in in_slices(keys)]
            real = [desired for desired, dry_run_only in desired_values if not dry_run_only]
            applied = iter(await self._worker.do(lambda: self._writer.apply(real)))
            changed = set()
            async for desired, dry_run_only in in_slices(desired_values):
                if self._finish(
                    desired,
                    _dry_run_result(desired) if dry_run_only else next(applied),
                    dry_run_only,
                ):
                    changed.add(desired.key)
        return changed

    def _due(self, keys: Set[Key]) -> set[Key]:
        """Return the keys that are claimed but not in force, and were not tried lately."""
        since = self._clock.monotonic() - SWEEP_INTERVAL
        return {
            key
            for key in keys & self._unsettled
            if key not in self._values or self._values[key].tried <= since
        }

    def _desired(self, key: Key) -> tuple[DesiredValue, bool]:
        """The desired value of a key, and whether only in dry-run."""
        parts = self._table.parts(key)
        owners = self._table.owners(key)
        real: Parts = {p: c for p, c in parts.items() if not self._is_dry_run.get(owners[p], False)}
        if real:
            names = tuple(dict.fromkeys(owners[part] for part in real))
            return DesiredValue(
                key, combine(key.resource, real), combined_original(real), names
            ), False
        before = self._values.get(key)
        if parts and (before is None or before.dry_run):
            names = tuple(dict.fromkeys(owners.values()))
            return DesiredValue(
                key, combine(key.resource, parts), combined_original(parts), names
            ), True
        return DesiredValue(key, RELEASE), before is not None and before.dry_run

    def _finish(self, desired: DesiredValue, applied: ApplyResult, dry_run_only: bool) -> bool:
        """Keep and report an apply result; return whether the value is another one now."""
        key, before = desired.key, self._values.get(desired.key)
        changed = (
            applied.wrote if not dry_run_only else before is None or before.desired != desired.value
        )
        settled = applied.state in _SETTLED if self._table.parts(key) else True
        (self._unsettled.discard if settled else self._unsettled.add)(key)
        if desired.value is RELEASE:
            self._values.pop(key, None)
        else:
            now = self._clock.wall()
            since = now if changed or before is None else before.since
            tried = self._clock.monotonic()
            self._values[key] = ValueInForce(
                desired.value, applied, desired.owners, since, tried, dry_run_only
            )
        self._notify(desired, applied, before, changed=changed, dry_run_only=dry_run_only)
        return changed

    def _notify(
        self,
        desired: DesiredValue,
        applied: ApplyResult,
        before: ValueInForce | None,
        *,
        changed: bool,
        dry_run_only: bool,
    ) -> None:
        state = applied.state
        if applied.foreign_change:
            what = applied.foreign_change
        elif state is ClaimState.FAILED and (before is None or before.applied.state is not state):
            what = "failed"
        elif not changed:
            return
        elif desired.value is RELEASE:
            what = "would_restore" if dry_run_only else "restored"
        else:
            what = "would_set" if dry_run_only else "set"
        old = before.applied.value if before else applied.original
        owners = desired.owners or (before.owners if before else ())
        reason, inputs = self._reason(desired)
        change = Change(what, desired.key, owners, old, applied.value, reason, inputs)
        for listener in self._listeners:
            listener(change)

    def _reason(self, desired: DesiredValue) -> tuple[str, Mapping[str, float | str]]:
        """The rule, and its numbers."""
        claims = self._table.parts(desired.key).values()
        if desired.value is RELEASE:
            return "in dry-run from now on" if claims else "no longer claimed", {}
        inputs = {name: value for claim in claims for name, value in claim.inputs.items()}
        return "; ".join(claim.reason for claim in claims), inputs

    def _outcome(self, owner: str, key: Key, changed: set[Key]) -> ClaimOutcome:
        value = self._values.get(key)
        if value is None:
            return ClaimOutcome(ClaimState.WAITING)
        state = ClaimState.WOULD if self._is_dry_run.get(owner) else value.applied.state
        return ClaimOutcome(state, value.applied.message, key in changed)

    def _claims_of(self, key: Key) -> tuple[tuple[str, Claim], ...]:
        owners = self._table.owners(key)
        return tuple((owners[part], claim) for part, claim in self._table.parts(key).items())


def _dry_run_result(desired: DesiredValue) -> ApplyResult:
    if desired.value is RELEASE:
        return ApplyResult(ClaimState.GONE)
    return ApplyResult(ClaimState.WOULD, desired.value, desired.original)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The configured dry-run: all plugins, or those named."""

    all_plugins: bool = False
    plugins: frozenset[str] = frozenset()

    def covers(self, plugin: str) -> bool:
        """Whether this plugin is in dry-run."""
        return self.all_plugins or plugin in self.plugins


class LiveDryRun:
    """The plugins in dry-run, by --dry-run or the config file, and by hand since.

    The latter lasts until the process ends or forget is called.
    """

    def __init__(
        self, configured: Callable[[], DryRun], plugins: Callable[[], Iterable[str]]
    ) -> None:
        """configured is asked each time, as it may change; plugins are those there are."""
        self._configured = configured
        self._plugins = plugins
        self._by_hand: dict[str, bool] = {}

    def covers(self, plugin: str) -> bool:
        """Whether this plugin is in dry-run."""
        return self._by_hand.get(plugin, self._configured().covers(plugin))

    def switch(self, plugins: Iterable[str], on: bool) -> None:
        """Put plugins into dry-run, or let them act."""
        self._by_hand |= dict.fromkeys(plugins, on)

    def forget(self) -> Mapping[str, bool]:
        """Go back to what is configured; return what was switched by hand."""
        forgotten, self._by_hand = self._by_hand, {}
        return forgotten

    def by_hand(self, plugin: str) -> bool:
        """Whether it was switched by hand."""
        return plugin in self._by_hand

    def to_json(self) -> bool | list[str]:
        """The plugins in dry-run; true: all, also those to come."""
        if self._configured().all_plugins and not self._by_hand:
            return True
        return sorted(filter(self.covers, self._plugins())) or False
