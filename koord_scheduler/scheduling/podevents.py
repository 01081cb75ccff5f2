"""Events on pods, in kube-scheduler's words, under the name of the pod's profile."""

from koord.cluster.facts import ClusterPod
from koord.kube.eventobjects import Event, EventType, ObjectRef
from koord.kube.events import EventRecorder


class PodEvents:
    """Reports events on pods; never waits."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def emit(self, pod: ClusterPod, type_: EventType, reason: str, message: str) -> None:
        """Have an event written soon."""
        about = ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)
        self._recorder.emit(Event(about, type_, reason, message, pod.scheduler_name))
