"""Leader election on a Lease: of several replicas one works at a time.

Acquires the Lease, works while it is renewed, releases it in the end.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from koord.component.supervisor import Run
from koord.kube.client import LEASES
from koord.kube.errors import ApiError, BadResponse, Conflict, KubeError, NotFound, ServerError
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.leases import LeaseHolding, held_lease, new_lease, read_holding, released_lease
from koord.kube.transport import Deadline, Object
from koord.util.clock import Clock
from koord.util.errors import KoordError, OptionError
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop

JITTER = 1.2  # most that a pause between two attempts to acquire is lengthened by, as a share
MAX_DURATION = 3600.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ElectionConfig:
    """Settings of one candidate. Times in seconds.

    A leader that fails stops its work within renew_deadline after the last renewal that the server
    confirmed, and another candidate leads not before lease_duration after it saw that renewal.
    """

    namespace: str
    name: str
    identity: str
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            OptionError: a name is empty, or the times do not fit one another.
        """
        for flag, text in (
            ("leader-elect-resource-namespace", self.namespace),
            ("leader-elect-resource-name", self.name),
            ("identity", self.identity),
        ):
            if not text:
                raise OptionError(flag, text, "leader election needs a name here")
        if not 1 <= self.lease_duration <= MAX_DURATION:
            hint = f"use 1s to {MAX_DURATION / 3600:g}h"
            raise OptionError("leader-elect-lease-duration", self.lease_duration, hint)
        if not self.renew_deadline < self.lease_duration:
            hint = f"use less than the lease duration, which is {self.lease_duration:g} s"
            raise OptionError("leader-elect-renew-deadline", self.renew_deadline, hint)
        if self.retry_period <= 0:
            raise OptionError("leader-elect-retry-period", self.retry_period, "use more than 0s")
        if not self.renew_deadline > JITTER * self.retry_period:
            hint = f"use more than {JITTER:g} retry periods of {self.retry_period:g} s"
            raise OptionError("leader-elect-renew-deadline", self.renew_deadline, hint)

    @property
    def lease(self) -> str:
        """Namespace and name of the Lease, for people."""
        return f"{self.namespace}/{self.name}"


def unique_identity(hostname: str) -> str:
    """Return an identity that no other candidate has, nor this one after its next start."""
    return f"{hostname}_{uuid.uuid4()}"


class LeaderMetrics:
    """Metrics of the leader's status and of lease renewals."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.is_leader = Gauge(
            "leader_election_master_status",
            "1 while this replica leads by the lease of that name, 0 while it stands by.",
            ["name"],
            registry=registry,
        )
        self.slow_renewals = Counter(
            "leader_election_slowpath_total",
            "Renewals that had to read the lease anew, because the last version known was refused.",
            ["name"],
            registry=registry,
        )


class ObservedLease:
    """The holder of the Lease that was seen last, and the time since it has changed.

    Times in the object are those of its holder's clock and are only compared for equality. The
    clock used is boot time, which counts suspend: a machine that slept has not renewed meanwhile.
    """

    def __init__(self, clock: Clock, longest: float) -> None:
        """longest, in seconds: a lease duration above it counts as malformed."""
        self._clock = clock
        self._longest = longest
        self._spec: object = None
        self._holding: LeaseHolding | None = None
        self._changed_at = 0.0  # boot time

    @property
    def holder(self) -> str:
        """The identity of the holder; empty: there is none, or no Lease was seen yet."""
        return self._holding.holder if self._holding is not None else ""

    def observe(self, item: Object) -> None:
        """Take in the object, as it was read from the server or written to it."""
        if item.get("spec") != self._spec:
            self._spec = item.get("spec")
            self._holding = read_holding(item, longest=self._longest)
            self._changed_at = self._clock.boottime()

    def valid(self) -> bool:
        """Whether a holder has renewed within its lease duration."""
        if self._holding is None:
            return False
        return self._clock.boottime() < self._changed_at + self._holding.duration


OVERDUE = 20.0  # seconds beyond the lease duration after which a leader's health is bad
RELEASE_WITHIN = 5.0  # seconds for the release of the lease, at the end

Announce = Callable[[Event], None]

log = get_logger("koord.leaderelection")


class LeaseLost(KoordError):
    """Another replica leads, or may lead soon. The process had better end: exit status 1."""


class LeaseClient(Protocol):
    """The verbs of koord.kube.client.ApiClient that an election needs."""

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, attempts: int
    ) -> Object: ...

    async def create(self, path: str, body: Object, *, attempts: int) -> Object: ...

    async def replace(self, path: str, body: Object, *, attempts: int) -> Object: ...

    async def close(self) -> None: ...


class LeaderElector:
    """One candidate. It runs the work once, while it leads."""

    name = "leaderElection"

    def __init__(
        self,
        client: LeaseClient,
        config: ElectionConfig,
        work: Run,
        clock: Clock,
        *,
        metrics: LeaderMetrics,
        announce: Announce = lambda event: None,
        component: str,
        draw: Callable[[], float] = random.random,
        blocker: Callable[[], str] = lambda: "",
    ) -> None:
        """announce takes an event on the Lease at each change, in the name of component.

        hindrance: why this replica had better not lead any more; "": nothing.
        """
        self._client = client
        self._config = config
        self._work = work
        self._clock = clock
        self._metrics = metrics
        self._announce = announce
        self._component = component
        self._draw = draw  # a number from 0 to 1
        self._blocker = blocker
        self._observed = ObservedLease(clock, MAX_DURATION)
        self._lease: Object = {}  # as it was stored with us as its holder; empty: it was not
        self._renewed_at: float | None = None  # boot time; None: we are not the leader
        self._follows = False
        self._may_hold = False  # whether the server may have us as the holder
        self._path = LEASES.object(config.name, namespace=config.namespace)
        self._trouble = LogState(log)
        self._reason = ""  # why the last attempt failed; empty: it did not
        metrics.is_leader.labels(config.name).set(0)
        metrics.slow_renewals.labels(config.name)

    @property
    def leading(self) -> bool:
        """Whether this replica leads now: what must not happen twice asks right before it."""
        renewed = self._renewed_at
        return (
            renewed is not None and self._clock.boottime() < renewed + self._config.renew_deadline
        )

    @property
    def follows(self) -> bool:
        """Whether another replica has had the lease before: its last work may not be seen yet."""
        return self._follows

    def health(self) -> PartHealth:
        """Unhealthy: a leader that has not renewed for long. Degraded: the Lease is not reached."""
        detail: dict[str, object] = {"leading": self.leading, "holder": self._observed.holder}
        renewed = self._renewed_at
        if renewed is not None:
            late = self._clock.boottime() - renewed - self._config.lease_duration
            if late > OVERDUE:
                reason = f"failed to renew lease {self._config.lease} for {late:.0f} s too long"
                return PartHealth(HealthStatus.UNHEALTHY, reason, detail)
        if self._reason:
            reason = f"lease {self._config.lease}: {self._reason}"
            return PartHealth(HealthStatus.DEGRADED, reason, detail)
        return PartHealth(OK.status, detail=detail)

    async def run(self, stop: Stop) -> None:
        """Wait for the lead, do the work, release the lease when the work has ended.

        The work gets a stop signal of its own, which follows ours; the lease is renewed until the
        work has returned. When it raises, the lease is released and the error passed on.

        Raises:
            LeaseLost: the lease could not be renewed in time, or another replica has it. The work
                was cancelled, and had the rest of the lease duration to end.
        """
        try:
            if await self._acquire(stop):
                await self._lead(stop)
        finally:
            if self._may_hold:
                await self._release()

    async def close(self) -> None:
        """Close the connections of the client, on the event loop that they are on."""
        await self._client.close()

    async def _acquire(self, stop: Stop) -> bool:
        """Try until the lease is ours. Returns False when stop comes first."""
        awaited = ""
        while not stop.is_set():
            if await stop.bound(self._attempt(self._attempt_timeout)):
                return True
            if self._observed.holder != awaited:
                awaited = self._observed.holder
                log.info("leader.waiting", lease=self._config.lease, holder=awaited)
            await stop.sleep(self._config.retry_period * (1 + JITTER * self._draw()))
        return False

    async def _lead(self, stop: Stop) -> None:
        """Do the work while the lease is renewed."""
        self._report(is_leader=True)
        ending = Stop(self._clock)
        work = asyncio.create_task(_call(self._work, ending), name="leading")
        renewals = asyncio.create_task(self._renew(), name="lease renewals")
        asked = asyncio.create_task(stop.wait(), name="end of the lead")
        try:
            await asyncio.wait({work, renewals, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not renewals.done():
                ending.set()
                await asyncio.wait({work, renewals}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost = renewals.exception() if renewals.done() else None
            asked.cancel()
            renewals.cancel()
            await self._end(work)
            self._may_hold &= work.done() and lost is None
            self._renewed_at = None
            self._report(is_leader=False)
        if lost is not None:
            raise lost from _failure(work)
        work.result()

    async def _end(self, work: "asyncio.Task[None]") -> None:
        """Cancel the work, and wait for its end as long as no other replica can lead."""
        if work.done():
            return
        work.cancel()
        assert self._renewed_at is not None  # noqa: S101 - we led until now
        left = self._renewed_at + self._config.lease_duration - self._clock.boottime()
        timer = self._clock.timer(max(left, 0.0))
        await asyncio.wait({work, timer}, return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        if not work.done():
            log.error("leader.stop_timed_out", lease=self._config.lease)

    async def _renew(self) -> None:
        """Renew every retry period, without end.

        Raises:
            LeaseLost: the lease is another replica's, or the deadline is over.
        """
        while True:
            await self._clock.sleep(max(min(self._config.retry_period, self._left()), 0.0))
            if blocker := self._blocker():
                raise self._lost(f"found {blocker}")
            if (left := self._left()) > 0:
                await self._attempt(min(self._attempt_timeout, left))
            if self._observed.holder not in ("", self._config.identity):
                raise self._lost(f"found it held by {self._observed.holder}")
            if self._left() <= 0:
                raise self._lost(f"found {self._reason or 'this process held up'}")

    def _left(self) -> float:
        """Seconds until the lead ends unless the lease is renewed."""
        assert self._renewed_at is not None  # noqa: S101 - we lead
        return self._renewed_at + self._config.renew_deadline - self._clock.boottime()

    def _lost(self, found: str) -> LeaseLost:
        seconds = self._config.renew_deadline
        return LeaseLost(
            f"lost lease {self._config.lease}: wanted a renewal within {seconds:g} s, {found}; "
            "start again to stand by for the next turn"
        )

    @property
    def _attempt_timeout(self) -> float:
        """Seconds for the requests of one attempt, so that there is time for a second one."""
        return self._config.renew_deadline / 2

    async def _attempt(self, seconds: float) -> bool:
        """Acquire or renew, within so many seconds. Returns whether the lease is ours now."""
        try:
            async with Deadline(self._clock, f"lease {self._config.lease}") as deadline:
                deadline.enter("its renewal", seconds)
                ours = await self._acquire_or_renew()
        except KubeError as err:
            self._reason = str(err)
            self._trouble.failed("lease.unavailable", lease=self._config.lease, error=str(err))
            return False
        self._reason = ""
        self._trouble.ended("lease.available", lease=self._config.lease)
        return ours

    async def _acquire_or_renew(self) -> bool:
        if self._lease:
            try:
                return await self._hold(self._lease)
            except (Conflict, NotFound):  # changed or deleted, or a response was lost
                self._metrics.slow_renewals.labels(self._config.name).inc()
                self._lease = {}
        found = await self._read()
        if self._observed.holder not in ("", self._config.identity):
            self._may_hold = False
            if self._observed.valid():
                return False
        try:
            return await (self._create() if found is None else self._hold(found))
        except Conflict:  # another replica was faster
            return False

    async def _read(self) -> Object | None:
        """Return the Lease; None: there is none."""
        try:
            found = await self._client.get(self._path, attempts=1)
        except NotFound:
            return None
        self._observed.observe(_versioned(found, self._path))
        self._follows = self._follows or self._observed.holder != self._config.identity
        return found

    async def _create(self) -> bool:
        config = self._config
        lease = new_lease(
            config.namespace,
            config.name,
            config.identity,
            config.lease_duration,
            self._clock.wall(),
        )
        path = LEASES.collection(config.namespace)
        return await self._take(self._client.create(path, lease, attempts=1))

    async def _hold(self, item: Object) -> bool:
        config = self._config
        held = held_lease(item, config.identity, config.lease_duration, self._clock.wall())
        return await self._take(self._client.replace(self._path, held, attempts=1))

    async def _take(self, write: Awaitable[Object]) -> bool:
        """Write ourselves into the Lease. The lead counts from before the request was sent."""
        sent_at, held_before = self._clock.boottime(), self._may_hold
        self._may_hold = True
        try:
            stored = _versioned(await write, self._path)
        except ApiError as err:
            if not isinstance(err, ServerError):
                self._may_hold = held_before  # it is certain that nothing was stored
            raise
        self._observed.observe(stored)
        if self._observed.holder != self._config.identity:
            found = f"the holder {self._observed.holder!r}"
            raise BadResponse(self._path, wanted="the Lease as it was written", found=found)
        self._lease, self._renewed_at = stored, sent_at
        return True

    async def _release(self) -> None:
        """Let another replica lead at once; nothing happens when the server does not have us."""
        try:
            async with Deadline(self._clock, f"lease {self._config.lease}") as deadline:
                deadline.enter("its release", RELEASE_WITHIN)
                await self._free()
        except KubeError as err:
            log.warning("lease.release_failed", lease=self._config.lease, error=str(err))

    async def _free(self) -> None:
        if self._lease:
            try:
                return await self._write_released(self._lease)
            except Conflict:  # a renewal that was not waited for
                pass
        found = await self._read()
        if found is not None and self._observed.holder == self._config.identity:
            await self._write_released(found)
        return None

    async def _write_released(self, item: Object) -> None:
        freed = released_lease(item, self._clock.wall())
        self._observed.observe(await self._client.replace(self._path, freed, attempts=1))
        self._lease, self._may_hold = {}, False
        log.info("lease.released", lease=self._config.lease)

    def _report(self, *, is_leader: bool) -> None:
        config = self._config
        self._metrics.is_leader.labels(config.name).set(is_leader)
        log.info("leader.elected" if is_leader else "leader.ended", lease=config.lease)
        uid = str(self._lease.get("metadata", {}).get("uid", ""))
        about = ObjectRef(LEASES.api_version, "Lease", config.name, config.namespace, uid)
        message = f"{config.identity} {'became leader' if is_leader else 'stopped leading'}"
        event = Event(about, EventType.NORMAL, "LeaderElection", message, self._component)
        self._announce(event)


async def _call(work: Run, stop: Stop) -> None:
    await work(stop)


def _failure(work: "asyncio.Task[None]") -> BaseException | None:
    """Return the error of the work itself; None: there is none, or the work still runs."""
    return work.exception() if work.done() and not work.cancelled() else None


def _versioned(item: Object, path: str) -> Object:
    """Return a Lease that can be replaced.

    Raises:
        BadResponse: it has no version, by which a later one would be kept from being overwritten.
    """
    meta = item.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    if not version or not isinstance(version, str):
        raise BadResponse(path, wanted="a Lease with its resourceVersion", found=f"{version!r:.80}")
    return item
