"""The pods of this node, polled from its kubelet."""

import math

from koord.kube.errors import ApiError, ConfigError, KubeError, NoAddress, NotTrusted
from koord.util.alarm import Alarm
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koordlet.kubelet.client import KubeletClient
from koordlet.statesinformer.pods.podlistguard import SECOND_LOOK, PodListGuard

GAP = 0.5  # seconds between two requests at least, however often cgroups come and go
# Seconds from a change of cgroups to the requests: at once, and again, for the kubelet looks at
# containers once a second and lists the id of a new one only then.
LAGS = (0.0, 1.0, 3.0)
PATIENCE = (
    30.0  # seconds without an answer, as in a kubelet's restart, before the API server is used
)

log = get_logger("koordlet.statesinformer")


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
                if self._is_hopeless(error):
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
        self._works()
        self._guard.take(found)
        return None

    def health(self) -> PartHealth:
        """Degraded while the kubelet does not answer, or its list is not believed."""
        reason = f"the last list stays: {self._error}" if self._error else self._guard.doubt
        return PartHealth(Status.DEGRADED, reason) if reason else OK

    def _is_hopeless(self, error: KubeError) -> bool:
        trouble = self._clock.monotonic() - self._failed_at
        return self._guard.is_empty or trouble >= PATIENCE or is_refusal(error)

    def _note(self, error: KubeError) -> None:
        self._failed_at = min(self._failed_at, self._clock.monotonic())
        self._error = error

    def _works(self) -> None:
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
                self._pending = [now + lag for lag in LAGS]
        self._pending = [moment for moment in self._pending if moment > now]

    def _pause(self) -> tuple[float, float]:
        """Seconds until the next request, at least and at most."""
        if self._error is not None:
            pause = self._backoff.next()
            return pause, pause
        return GAP, SECOND_LOOK if self._guard.doubt else self._interval


def is_refusal(error: KubeError) -> bool:
    """Whether the error lasts until an operator changes something, so that a retry is no use."""
    if isinstance(error, ApiError):
        return 400 <= error.status < 500 and error.status != 429
    return isinstance(error, NotTrusted | NoAddress | ConfigError)
