"""Informers for what plugins follow beside the cluster state: one copy of each kind."""

import asyncio
from collections.abc import Mapping

from koord.component.plugins.meter import running_plugin
from koord.component.tasks import supervise
from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.informer import SharedInformer
from koord.kube.listwatch import Absent
from koord.kube.reflector import Watched
from koord.kube.resource import Resource
from koord.kube.store import Change, without_managed_fields
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.stop import Stop

PAGE = 500  # objects
PATIENCE = 30.0  # seconds of refusals (403, 404) that the start waits for a kind


class LiveInformers:
    """Makes an informer when the first plugin asks for its kind; it follows until the end.

    Objects are plain JSON without managedFields. Belongs to the event loop.
    """

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._informers: dict[Resource, SharedInformer[Object]] = {}
        self._askers: dict[Resource, str] = {}  # the plugin that has asked first; "": none
        self._added = asyncio.Event()
        self._awaited = False  # the start waits for lists

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
                patience=PATIENCE,
            )
            self._askers[resource] = running_plugin()
            found = SharedInformer(self._client, watched, self._clock)
            self._informers[resource] = found
            self._added.set()
        return found

    def health(self) -> Mapping[str, PartHealth]:
        """The health of each, by the plural of its kind."""
        return {resource.plural: one.health() for resource, one in self._informers.items()}

    def start_health(self) -> PartHealth:
        """Unhealthy while the start waits for a list; degraded where it goes on without one."""
        waits = [one for one, informer in self._informers.items() if not informer.answered]
        lacks = [
            one
            for one, informer in self._informers.items()
            if informer.answered and not informer.synced and informer.health() != OK
        ]
        if not waits and not lacks:
            return OK
        status = Status.UNHEALTHY if self._awaited else Status.DEGRADED
        return PartHealth(status, f"not listed: {'; '.join(map(self._text, (*waits, *lacks)))}")

    def _text(self, resource: Resource) -> str:
        asker, reason = self._askers[resource], self._informers[resource].health().reason
        plugin = f" of plugin {asker}" if asker else ""
        return f"{resource.plural}{plugin}" + (f": {reason}" if reason else "")

    async def wait_synced(self) -> None:
        """Return when all that have been asked for until now are listed, or cannot be.

        Others run them. Kinds that need not be there are not waited for, and any other kind not
        for long when the server refuses it.
        """
        self._awaited = True
        try:
            for one in tuple(self._informers.values()):
                await one.wait_answered()
        finally:
            self._awaited = False

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
