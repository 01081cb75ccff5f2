"""What plugins are handed that look at a cluster without a server."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from koord.kube.errors import Unreachable
from koord.kube.eventobjects import Event
from koord.kube.events import EventRecorder
from koord.kube.informer import Handler, SharedInformer
from koord.kube.listwatch import Absent
from koord.kube.resource import Resource
from koord.kube.store import Change, ChangeKind
from koord.kube.transport import Call, Transport
from koord.util.clock import SystemClock
from koord.util.health import OK, PartHealth
from koord.util.stop import Stop


class FixedTime(SystemClock):
    """The wall clock stands still, so that a dump does not get older; deadlines are real."""

    def __init__(self, wall: float) -> None:
        """wall is in Unix seconds."""
        self._wall = wall

    def wall(self) -> float:
        return self._wall


class NoServer(Transport):
    """Every request fails as when the API server cannot be reached."""

    def __init__(self) -> None:
        """There is nothing to connect to."""

    async def exchange(self, call: Call) -> bytes:
        self._refuse(call)

    def stream(self, call: Call, silence: object) -> Any:
        self._refuse(call)

    async def close(self) -> None:
        """There are no connections."""

    def _refuse(self, call: Call) -> NoReturn:
        raise Unreachable(f"{call.where}: nothing is asked of an API server here")


class NoEvents(EventRecorder):
    """Events are dropped."""

    def __init__(self) -> None:
        """There is nothing to keep."""

    def emit(self, event: Event) -> None:
        """Drop it."""


class EmptyInformer(SharedInformer[Any]):
    """A collection that is known, and has no objects."""

    def __init__(self) -> None:
        """There is nothing to follow."""

    @property
    def objects(self) -> Mapping[str, Any]:
        return {}

    def indexed(self, index: str, name: str) -> Mapping[str, Any]:
        return {}

    def add_handler(self, handler: Handler[Any]) -> Callable[[], None]:
        handler(Change(ChangeKind.SYNCED, "", None, None))
        return lambda: None

    async def wait_synced(self) -> None:
        """It is."""

    async def wait_answered(self) -> None:
        """It is."""

    def health(self) -> PartHealth:
        return OK

    async def run(self, stop: Stop) -> None:
        """There is nothing to follow."""


class EmptyInformers:
    """What a dump has is in the cluster's state; of other kinds there is nothing."""

    def informer(
        self, resource: Resource, *, absent: Absent | None = None, without: str = ""
    ) -> SharedInformer[Any]:
        return EmptyInformer()
