"""Decides on claims: combines them, has them written, and keeps what came of it for people."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextvars import Context

from koordlet.executor.claim import Claim, ClaimOutcome, ClaimState, Key, MayClaim, Part
from koordlet.executor.claimtable import ClaimTable
from koordlet.executor.combine import Parts, combine, original
from koordlet.executor.inforce import ClaimedValue, Seen, ValueInForce, as_json, is_about
from koordlet.executor.target import Level
from koordlet.executor.wish import RELEASE, Applies, Change, Landed, Listener, Wish
from koordlet.executor.worker import Worker
from koordlet.util.clock import Clock
from koordlet.util.firstof import first_of
from koordlet.util.logs import get_logger
from koordlet.util.stop import Stop

SLICE = 200  # values that are looked at without a pause
SWEEP = 10.0  # seconds between looks at all values, after which what did not hold is tried again
PATIENCE = 10.0  # seconds that a plugin waits for the kernel
_SETTLED = (ClaimState.IN_FORCE, ClaimState.WOULD, ClaimState.UNSUPPORTED)

log = get_logger("koordlet.executor")


class ClaimDesk:
    """Takes the claims of all plugins. All methods belong to the event loop."""

    def __init__(
        self,
        writer: Applies,
        worker: Worker,
        clock: Clock,
        *,
        dry_run: Callable[[str], Awaitable[bool]],
        listeners: Sequence[Listener] = (),
    ) -> None:
        """dry_run tells of a plugin whether it only pretends; it may have to find out first."""
        self._table = ClaimTable()
        self._writer = writer
        self._worker = worker
        self._clock = clock
        self._dry_run = dry_run
        self._listeners = tuple(listeners)
        self._values: dict[Key, ValueInForce] = {}
        self._unsettled: set[Key] = set()  # claimed, but not what is wished
        self._pretends: dict[str, bool] = {}  # what dry_run last said
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[set[Key]]] = set()
        self._leaves: Callable[[], bool] = lambda: False

    def declare(self, owner: str, may: tuple[MayClaim, ...]) -> None:
        """Let a plugin claim what it declares; raises OptionError as ClaimTable.declare does."""
        self._table.declare(owner, may)

    def retract(self, owner: str) -> bool:
        """Let a plugin claim nothing any more, as ClaimTable.retract does; withdraw_all first."""
        return self._table.retract(owner)

    async def claim(self, owner: str, claim: Claim, scope: str = "") -> ClaimOutcome:
        """As Claims.claim."""
        self._table.check(owner, claim)
        await self._learn_dry_run(owner)
        news = self._table.put(owner, scope, claim)
        changed = await self._settle({claim.key} if news else self._due({claim.key}))
        return self._outcome(owner, claim.key, changed)

    async def claim_all(
        self, owner: str, claims: Iterable[Claim], scope: str = ""
    ) -> list[ClaimOutcome]:
        """As Claims.claim_all."""
        claims = list(claims)
        for claim in claims:
            if not self._table.has(owner, scope, claim):
                self._table.check(owner, claim)
        await self._learn_dry_run(owner)
        news = self._table.replace(owner, scope, claims)
        changed = await self._settle(news | self._due({claim.key for claim in claims}))
        return [self._outcome(owner, claim.key, changed) for claim in claims]

    async def withdraw(self, owner: str, key: Key, part: Part) -> None:
        """As Claims.withdraw."""
        if self._table.drop(owner, key, part):
            await self._settle({key})

    async def withdraw_all(self, owner: str, scope: str | None = None) -> None:
        """As Claims.withdraw_all."""
        await self._settle(self._table.drop_all(owner, scope))

    async def refresh(self) -> None:
        """Ask again who only pretends, and bring everything in line with it."""
        for owner in {o for key in self._table.claimed() for o in self._table.owners(key).values()}:
            await self._learn_dry_run(owner)

    def leave_when(self, leaves: Callable[[], bool]) -> None:
        """From the moment this says so, nothing changes any more: what is in force stays so."""
        self._leaves = leaves

    async def run(self, stop: Stop) -> None:
        """Look whether what is in force still is, and try again what did not hold, until stop."""
        async for _ in stop.every(SWEEP):
            await self.refresh()
            strays = await self._worker.do(self._writer.sweep)
            await self._settle(self._due(self._unsettled) | self._table.only_claimed(strays))

    def snapshot(self, level: Level | None = None) -> list[ClaimedValue]:
        """The claimed values of a level, None: of all, for any thread."""
        return [
            ClaimedValue(key, value, self._claims_on(key))
            for key, value in self._values.items()
            if level in (None, key.target.level)
        ]

    async def slow_snapshot(self) -> list[ClaimedValue]:
        """As snapshot, but others get the event loop in between: there may be thousands."""
        found: list[ClaimedValue] = []
        for key, value in list(self._values.items()):
            found.append(ClaimedValue(key, value, self._claims_on(key)))
            if len(found) % SLICE == 0:
                await asyncio.sleep(0)
        return found

    def in_force(self, place: str = "") -> list[dict[str, object]]:
        """The claimed values that concern a pod or cgroup (see is_about), as JSON.

        Nothing is read: a value is the one that was brought about, in dry-run that would have been.
        """
        wall = self._clock.wall()
        about = [claimed for claimed in self.snapshot() if is_about(claimed.key, place)]
        return [as_json(each, Seen(each.value.landed.value, wall)) for each in about]

    def last_seen(self, value: ValueInForce) -> Seen:
        """What a value was when it was last tried; in dry-run nothing was read then."""
        at = self._clock.wall() - (self._clock.monotonic() - value.tried)
        return Seen(None if value.dry_run else value.landed.value, at)

    def count(self) -> dict[str, dict[str, int]]:
        """Claimed values by plugin and state, whether they are in force or not. On any thread."""
        counts: dict[str, dict[str, int]] = {}
        for key, value in list(self._values.items()):
            state = value.landed.state.value
            for owner in set(self._table.owners(key).values()):
                of_owner = counts.setdefault(owner, {})
                of_owner[state] = of_owner.get(state, 0) + 1
        return counts

    async def _learn_dry_run(self, owner: str) -> None:
        pretends = await self._dry_run(owner)
        if self._pretends.get(owner) is not pretends:
            self._pretends[owner] = pretends
            keys = {k for k in self._table.claimed() if owner in self._table.owners(k).values()}
            await self._settle(keys)
            if pretends:
                await self._settle(keys & self._unsettled)  # what was put back is pretended now

    async def _settle(self, keys: set[Key]) -> set[Key]:
        """Have the kernel follow the claims on these values; return those that changed.

        Returns after PATIENCE seconds when a kernel file hangs; it goes on all the same.
        """
        if not keys or self._leaves():
            return set()
        # In a context of its own, so that the plugin is not charged for it, and to its end even if
        # the plugin is cancelled.
        task = asyncio.create_task(self._bring_into_force(keys), name="claims", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await first_of(task, self._clock.sleep(PATIENCE))
        if not task.done():
            log.warning("claims.slow", values=len(keys), after_s=PATIENCE)
            return set()
        return task.result()

    async def _bring_into_force(self, keys: set[Key]) -> set[Key]:
        async with self._busy:  # what is wished is looked up inside: it may have changed meanwhile
            wishes = [self._wish(key) for key in keys]
            real = [wish for wish, pretended in wishes if not pretended]
            landed = iter(await self._worker.do(lambda: self._writer.apply(real)))
            changed = set()
            for wish, pretended in wishes:
                if self._conclude(wish, _would(wish) if pretended else next(landed), pretended):
                    changed.add(wish.key)
        return changed

    def _due(self, keys: Set[Key]) -> set[Key]:
        """Those that are claimed but not in force, and were not tried lately."""
        since = self._clock.monotonic() - SWEEP
        return {
            key
            for key in keys & self._unsettled
            if key not in self._values or self._values[key].tried <= since
        }

    def _wish(self, key: Key) -> tuple[Wish, bool]:
        """What is wished of a value, and whether only as a pretence."""
        parts = self._table.parts(key)
        owners = self._table.owners(key)
        real: Parts = {p: c for p, c in parts.items() if not self._pretends.get(owners[p], False)}
        if real:
            names = tuple(dict.fromkeys(owners[part] for part in real))
            return Wish(key, combine(key.resource, real), original(real), names), False
        before = self._values.get(key)
        if parts and (before is None or before.dry_run):
            names = tuple(dict.fromkeys(owners.values()))
            return Wish(key, combine(key.resource, parts), original(parts), names), True
        return Wish(key, RELEASE), before is not None and before.dry_run

    def _conclude(self, wish: Wish, landed: Landed, pretended: bool) -> bool:
        """Keep and tell what came of a wish; return whether the value is another one now."""
        key, before = wish.key, self._values.get(wish.key)
        changed = landed.wrote if not pretended else before is None or before.wish != wish.value
        settled = landed.state in _SETTLED if self._table.parts(key) else True
        (self._unsettled.discard if settled else self._unsettled.add)(key)
        if wish.value is RELEASE:
            self._values.pop(key, None)
        else:
            now = self._clock.wall()
            since = now if changed or before is None else before.since
            tried = self._clock.monotonic()
            self._values[key] = ValueInForce(
                wish.value, landed, wish.owners, since, tried, pretended
            )
        self._tell(wish, landed, before, changed=changed, pretended=pretended)
        return changed

    def _tell(
        self,
        wish: Wish,
        landed: Landed,
        before: ValueInForce | None,
        *,
        changed: bool,
        pretended: bool,
    ) -> None:
        state = landed.state
        if landed.news:
            what = landed.news
        elif state is ClaimState.FAILED and (before is None or before.landed.state is not state):
            what = "failed"
        elif not changed:
            return
        elif wish.value is RELEASE:
            what = "would_restore" if pretended else "restored"
        else:
            what = "would_set" if pretended else "set"
        old = before.landed.value if before else landed.original
        owners = wish.owners or (before.owners if before else ())
        reason, inputs = self._why(wish)
        change = Change(what, wish.key, owners, old, landed.value, reason, inputs)
        for listener in self._listeners:
            listener(change)

    def _why(self, wish: Wish) -> tuple[str, Mapping[str, float | str]]:
        """The rule, and its numbers."""
        claims = self._table.parts(wish.key).values()
        if wish.value is RELEASE:
            return "only pretended from now on" if claims else "no longer claimed", {}
        inputs = {name: value for claim in claims for name, value in claim.inputs.items()}
        return "; ".join(claim.reason for claim in claims), inputs

    def _outcome(self, owner: str, key: Key, changed: set[Key]) -> ClaimOutcome:
        value = self._values.get(key)
        if value is None:
            return ClaimOutcome(ClaimState.WAITING)
        state = ClaimState.WOULD if self._pretends.get(owner) else value.landed.state
        return ClaimOutcome(state, value.landed.message, key in changed)

    def _claims_on(self, key: Key) -> tuple[tuple[str, Claim], ...]:
        owners = self._table.owners(key)
        return tuple((owners[part], claim) for part, claim in self._table.parts(key).items())


def _would(wish: Wish) -> Landed:
    if wish.value is RELEASE:
        return Landed(ClaimState.GONE)
    return Landed(ClaimState.WOULD, wish.value, wish.original)
