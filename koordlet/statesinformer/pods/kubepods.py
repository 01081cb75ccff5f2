"""The pods of this node, followed on the API server by watch."""

import asyncio

from koord.api.pods.pod import Pod, PodList, distinct, parse_pod
from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.reflector import Reflector, Watched
from koord.kube.resource import PODS, field_selector
from koord.kube.store import Change, ChangeKind
from koord.util.clock import Clock
from koord.util.firstof import first_of
from koord.util.health import PartHealth, Status
from koord.util.stop import Stop
from koordlet.statesinformer.pods.podlistguard import SECOND_LOOK, PodListGuard


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
            await self._follow_until_doubt(stop)
            if self._doubt.is_set():
                self._doubt.clear()
                await stop.sleep(SECOND_LOOK)
                self._reflector = Reflector(self._client, self._watched, self._clock)

    def health(self) -> PartHealth:
        """Degraded while the server is away, a pod is not understood, or a list not believed."""
        if self._guard.doubt:
            return PartHealth(Status.DEGRADED, self._guard.doubt)
        return self._reflector.health()

    async def _follow_until_doubt(self, stop: Stop) -> None:
        end = Stop(self._clock)
        following = asyncio.create_task(self._reflector.run(end), name="pod list")
        try:
            await first_of(following, stop.wait(), self._doubt.wait())
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
