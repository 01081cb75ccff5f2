"""Informers for what plugins follow beside the cluster state: one copy of each kind."""

import asyncio
from collections.abc import Mapping

from koord.component.tasks import supervise
from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.informer import SharedInformer
from koord.kube.listwatch import Absent
from koord.kube.reflector import Watched
from koord.kube.resource import Resource
from koord.kube.store import Change, without_managed_fields
from koord.util.clock import Clock
from koord.util.health import PartHealth
from koord.util.stop import Stop

PAGE = 500  # objects


class LiveInformers:
    """Makes an informer when the first plugin asks for its kind; it follows until the end.

    Objects are plain JSON without managedFields. Belongs to the event loop.
    """

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._informers: dict[Resource, SharedInformer[Object]] = {}
        self._added = asyncio.Event()

    def informer(
        self, resource: Resource, *, absent: Absent | None = None, without: str = ""
    ) -> SharedInformer[Object]:
        """Return the informer of a kind. It runs while these informers do.

        absent and without: for a kind that the cluster, or the role, need not have; see Collection.
        Who asks first decides.
        """
        found = self._informers.get(resource)
        if found is None:
            watched = Watched(
                name=resource.plural,
                path=resource.collection(),
                read=without_managed_fields,
                on_change=_ignore,
                page_size=PAGE,
                is_large=True,
                absent=absent,
                without=without,
            )
            found = SharedInformer(self._client, watched, self._clock)
            self._informers[resource] = found
            self._added.set()
        return found

    def health(self) -> Mapping[str, PartHealth]:
        """The health of each, by the plural of its kind."""
        return {resource.plural: one.health() for resource, one in self._informers.items()}

    async def wait_synced(self) -> None:
        """Return when all that have been asked for until now are listed, or cannot be.

        Others run them. Only kinds that need not be there are not waited for.
        """
        for one in tuple(self._informers.values()):
            await one.wait_answered()

    async def run(self, stop: Stop) -> None:
        """Run all informers, those that are asked for meanwhile too, until stop."""
        running: set[Resource] = set()
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                self._added.clear()
                for resource in self._informers.keys() - running:
                    name = f"informer {resource.plural}"
                    run = self._informers[resource].run
                    group.create_task(supervise(name, run, stop, self._clock), name=name)
                    running.add(resource)
                await stop.bound(self._added.wait())


def _ignore(change: Change[Object]) -> None:
    """Handlers are added later."""
