"""What daemons hand to plugins beside the cluster, for tests."""

from typing import Any

from koord.kube.eventobjects import Event
from koord.kube.events import EventRecorder
from koord.kube.informer import SharedInformer
from koord.kube.listwatch import Absent
from koord.kube.resource import Resource


class CapturedEvents(EventRecorder):
    """Events that plugins have reported, the latest one last."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


class NoInformers:
    """No collections are followed but those of the cluster's state."""

    def informer(
        self, resource: Resource, *, absent: Absent | None = None, without: str = ""
    ) -> SharedInformer[Any]:
        raise NotImplementedError(f"the kit follows no {resource.plural}: give informers yourself")
