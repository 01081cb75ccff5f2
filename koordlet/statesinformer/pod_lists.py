"""The list of this node's pods: the kubelet's or, while that is not available, the API server's."""

import asyncio
import dataclasses
import math
from collections.abc import Callable, Sequence

from koord.api.node import Node
from koord.api.pod import Pod, PodList, distinct, parse_pod
from koord.kube.client import PODS, ApiClient, field_selector
from koord.kube.errors import (
    ApiError,
    ConfigError,
    Forbidden,
    KubeError,
    NoAddress,
    TlsVerificationError,
    Unauthorized,
)
from koord.kube.reflector import Change, ChangeKind, Reflector, Watched
from koord.kube.transport import Object
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Alarm, Stop, first_completed
from koord.util.timebudget import Backoff
from koordlet.kubelet import KubeletClient

CONFIRM_DELAY = 5.0  # seconds until a list is asked for again that has lost all pods at once

log = get_logger("koordlet.statesinformer")


class PodListGuard:
    """Holds the latest accepted list of pods, from whichever source.

    A list without any pod of the API server, after one with some, is accepted only when the next
    list says the same: a kubelet that has just started lists only static pods at first, or none.
    """

    def __init__(self, changes: Alarm) -> None:
        self._changes = changes  # set whenever there is something new to poll
        self._believed: PodList | None = None
        self._handed_out: PodList | None = None
        self.unconfirmed = ""  # why the latest list is not accepted yet; the next one decides

    @property
    def is_empty(self) -> bool:
        """Whether there was no list yet."""
        return self._believed is None

    def poll(self) -> PodList | None:
        """Return the list when it has changed since the last call. For any thread."""
        believed = self._believed
        if believed is self._handed_out:
            return None
        self._handed_out = believed
        return believed

    def take(self, found: PodList, *, is_certain: bool = False) -> bool:
        """Take a list. False: it is doubted, so request another one in CONFIRM_DELAY seconds.

        is_certain: the end of each missing pod was reported, so the list is accepted as it is.
        """
        before = self._pods
        lost = "" if is_certain or self.unconfirmed else _vanished_pods(before, found[0])
        if lost:
            log.warning("pods.vanished", pods=len(before), which=lost, note="kept until seen twice")
            self.unconfirmed = f"{lost} vanished at once; looking again"
            return False
        self.unconfirmed = ""
        if found != self._believed:
            self._believed = found
            self._changes.set()
        return True

    @property
    def _pods(self) -> tuple[Pod, ...]:
        return self._believed[0] if self._believed else ()


def _vanished_pods(before: Sequence[Pod], now: Sequence[Pod]) -> str:
    """Return words for the pods that are gone, if too many are; "": the list is plausible."""
    if before and not now:
        return "all pods"
    if all(pod.static for pod in now) and not all(pod.static for pod in before):
        return "all pods but static ones"
    return ""


MIN_INTERVAL = 0.5  # seconds between two requests at least, however often cgroups come and go
# Seconds from a change of cgroups to the requests: at once, and again, for the kubelet looks at
# containers once a second and lists the id of a new one only then.
POLL_DELAYS = (0.0, 1.0, 3.0)
UNAVAILABLE_TIMEOUT = (
    30.0  # seconds without a response, as in a kubelet's restart, before the API server is used
)


class KubeletPods:
    """Feeds the pod list to a PodListGuard: every interval, and at once when ask is set.

    interval is in seconds. While the kubelet does not answer, the last list stays.
    """

    def __init__(
        self,
        kubelet: KubeletClient,
        guard: PodListGuard,
        clock: Clock,
        *,
        interval: float,
        ask: Alarm,
    ) -> None:
        self._kubelet = kubelet
        self._guard = guard
        self._clock = clock
        self._interval = interval
        self._alarm = ask
        self._pending: list[float] = []  # monotonic; requests due because cgroups changed
        self._backoff = Backoff(min(1.0, interval), interval)
        self._trouble = LogState(log)
        self._failed_at = math.inf  # monotonic; the first failure of a series
        self._error: KubeError | None = None

    async def follow(self, stop: Stop) -> KubeError | None:
        """Poll until stop (None), or until an error for which the API server is used instead."""
        while not stop.is_set():
            error = await self.ask()
            if error is not None:
                if self._is_unavailable(error):
                    return error
                self._trouble.failed("kubelet.failed", error=str(error))
            await self._until_due(stop)
        return None

    async def ask(self) -> KubeError | None:
        """Request the list once; return the error, if any."""
        try:
            found = await self._kubelet.pods()
        except KubeError as err:
            self._note(err)
            return err
        self._recovered()
        self._guard.take(found)
        return None

    def health(self) -> PartHealth:
        """Degraded while the kubelet does not answer, or its list is not believed."""
        reason = f"the last list stays: {self._error}" if self._error else self._guard.unconfirmed
        return PartHealth(HealthStatus.DEGRADED, reason) if reason else OK

    def _is_unavailable(self, error: KubeError) -> bool:
        trouble = self._clock.monotonic() - self._failed_at
        return self._guard.is_empty or trouble >= UNAVAILABLE_TIMEOUT or is_rejected(error)

    def _note(self, error: KubeError) -> None:
        self._failed_at = min(self._failed_at, self._clock.monotonic())
        self._error = error

    def _recovered(self) -> None:
        self._failed_at, self._error = math.inf, None
        self._backoff.reset()
        self._trouble.ended("kubelet.recovered")

    async def _until_due(self, stop: Stop) -> None:
        """Wait until the next request is due."""
        least, most = self._pause()
        now = asked = self._clock.monotonic()
        while not stop.is_set():
            due = max(min([asked + most, *self._pending]), asked + least)
            if due <= now:
                break
            woken = await self._alarm.wait(stop, due - now)
            now = self._clock.monotonic()
            if woken:
                self._pending = [now + lag for lag in POLL_DELAYS]
        self._pending = [moment for moment in self._pending if moment > now]

    def _pause(self) -> tuple[float, float]:
        """Seconds until the next request, at least and at most."""
        if self._error is not None:
            pause = self._backoff.next()
            return pause, pause
        return MIN_INTERVAL, CONFIRM_DELAY if self._guard.unconfirmed else self._interval


def is_rejected(error: KubeError) -> bool:
    """Whether the error lasts until an operator changes something, so that a retry is no use."""
    if isinstance(error, ApiError):
        return 400 <= error.status < 500 and error.status != 429
    return isinstance(error, TlsVerificationError | NoAddress | ConfigError)


class KubePods:
    """Keeps the list of pods. A pod that the watch reports as deleted is gone at once."""

    name = "pod list"
    problem = ""  # see health

    def __init__(
        self, client: ApiClient, node_name: str, guard: PodListGuard, clock: Clock
    ) -> None:
        self._client = client
        self._guard = guard
        self._clock = clock
        self._watched = Watched(
            name="pods",
            path=PODS.collection(),
            query={"fieldSelector": field_selector({"spec.nodeName": node_name})},
            read=_read,
            on_change=self._changed,
            component="pods-from-api-server",
        )
        self._reflector = Reflector(client, self._watched, clock)
        self._taking = False  # whether a call of _take is scheduled
        self._was_listed = False  # since _take was called last
        self._doubt = asyncio.Event()

    def poll(self) -> PodList | None:
        """Return the list when it has changed since the last call. For any thread."""
        return self._guard.poll()

    async def run(self, stop: Stop) -> None:
        """Follow the pods until stop."""
        while not stop.is_set():
            await self._watch_until_unreliable(stop)
            if self._doubt.is_set():
                self._doubt.clear()
                await stop.sleep(CONFIRM_DELAY)
                self._reflector = Reflector(self._client, self._watched, self._clock)

    def health(self) -> PartHealth:
        """Degraded while the server is away, a pod is not understood, or a list not believed."""
        if self._guard.unconfirmed:
            return PartHealth(HealthStatus.DEGRADED, self._guard.unconfirmed)
        return self._reflector.health()

    async def _watch_until_unreliable(self, stop: Stop) -> None:
        end = Stop(self._clock)
        following = asyncio.create_task(self._reflector.run(end), name="pod list")
        try:
            await first_completed(following, stop.wait(), self._doubt.wait())
            end.set()
            await following
        finally:
            following.cancel()

    def _changed(self, change: Change[Pod]) -> None:
        self._was_listed |= change.kind is ChangeKind.SYNCED
        if not self._taking and not self._reflector.listing:
            # A list comes pod by pod: take it when it is complete.
            self._taking = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        was_listed, self._was_listed, self._taking = self._was_listed, False, False
        pods = distinct(self._reflector.objects.values())
        if not self._guard.take(pods, is_certain=not was_listed):
            self._doubt.set()


def _read(item: Object) -> Pod:
    metadata = item["metadata"]
    return parse_pod(item, f"pod {metadata.get('namespace')}/{metadata.get('name')}")


NODE_INTERVAL = 0.25  # seconds between two looks for the Node, which has the kubelet's address
FIRST_RETRY, LAST_RETRY = 10.0, 300.0  # seconds between attempts with a kubelet given up


class NodePods:
    """Keeps the list of pods; PodSource joins it with the cgroup tree.

    The kubelet knows its pods first and costs the API server nothing. When it refuses, or does not
    answer for long, the API server is followed in its place, and the kubelet is tried again at
    growing intervals.
    """

    name = "pod list"
    problem = ""  # see health

    def __init__(
        self,
        kubelet: KubeletPods,
        server: Callable[[], KubePods],
        guard: PodListGuard,
        node: Callable[[], Node | None],
        clock: Clock,
    ) -> None:
        self._kubelet = kubelet
        self._make_server = server
        self._guard = guard
        self._node = node
        self._clock = clock
        self._server: KubePods | None = None  # None: the kubelet is the source
        self._reason: KubeError | None = None  # why the kubelet is not the source

    def poll(self) -> PodList | None:
        """Return the list when it has changed since the last call. For any thread."""
        return self._guard.poll()

    async def run(self, stop: Stop) -> None:
        """Keep the list until stop."""
        while self._node() is None and not stop.is_set():
            await stop.sleep(NODE_INTERVAL)
        while not stop.is_set():
            self._server = None
            self._reason = await self._kubelet.follow(stop)
            if self._reason is not None:
                log.warning("pods.source_api_server", reason=_error_sentence(self._reason))
                await self._follow_server(stop)

    def health(self) -> PartHealth:
        """Degraded while the list is old, not believed, or not from the kubelet as it should be."""
        if self._server is None:
            found = self._kubelet.health()
            return dataclasses.replace(found, detail={**found.detail, "source": "kubelet"})
        found = self._server.health()
        reason = f"pods come from the API server: {_error_sentence(self._reason)}"
        if found.reason:
            reason += f"; {found.reason}"
        return PartHealth(HealthStatus.DEGRADED, reason, {**found.detail, "source": "API server"})

    async def _follow_server(self, stop: Stop) -> None:
        """Follow the API server until the kubelet answers again, or stop."""
        end, self._server = Stop(self._clock), self._make_server()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.run(end), name="pods of the API server")
            await self._until_kubelet_responds(stop)
            end.set()

    async def _until_kubelet_responds(self, stop: Stop) -> None:
        pauses = Backoff(FIRST_RETRY, LAST_RETRY)
        while not await stop.sleep(pauses.next()):
            error = await self._kubelet.ask()
            if error is None:
                log.info("pods.source_kubelet")
                return
            self._reason = error


def _error_sentence(error: KubeError | None) -> str:
    """The reason why the kubelet is not the source, and what to do about it."""
    if isinstance(error, Unauthorized | Forbidden):
        return f"{error}; grant get on nodes/pods, which kubelets from Kubernetes 1.33 on look at"
    if error is not None and is_rejected(error):
        return f"{error}; --kubelet-sync-interval=0 chooses the API server for good"
    return str(error)
