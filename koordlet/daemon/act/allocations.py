"""Reports the allocations in pods' annotations that do not count: log, event on the pod, metric."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from koord.api.pods.pod import Pod
from koord.util.logs import get_logger
from koordlet.rules.allocations import ALLOCATIONS, RefusedAllocation
from koordlet.statesinformer.callbacks import StateType
from koordlet.statesinformer.informer import StatesInformer

REASON = "AllocationRefused"  # of the Kubernetes event
_LONGEST = 300  # characters of a reason

log = get_logger("koordlet.statesinformer")


class Announces(Protocol):
    """What records events on pods; koordlet.executor.evictions.evictor.Evictor."""

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None: ...


class RefusedAllocations:
    """Reports each refusal once, and again when its reason is another one."""

    def __init__(
        self, states: StatesInformer, announces: Announces, registry: CollectorRegistry
    ) -> None:
        self._states = states
        self._announces = announces
        self._reported: Mapping[str, tuple[RefusedAllocation, ...]] = {}  # by UID
        self._count = Counter(
            "koordlet_allocations_refused_total",
            "Annotations of pods that give them what they do not request or an older pod has.",
            ["annotation"],
            registry=registry,
        )
        for annotation in ALLOCATIONS:
            self._count.labels(_short(annotation))
        states.register_callbacks(
            StateType.ALL_PODS, "allocations", "report refused allocations", lambda *_: self.look()
        )

    def look(self) -> None:
        """Report what is new."""
        refused = self._states.refused_allocations()
        earlier, self._reported = self._reported, refused
        for uid, found in refused.items():
            meta = self._states.pod(uid)
            for each in found:
                if meta is not None and each not in earlier.get(uid, ()):
                    self._report(meta.pod, each)

    def explain(self, place: str) -> list[dict[str, str]]:
        """The refusals of a pod, by namespace/name, name or UID, as JSON; "": of all."""
        return list(self._explained(place))

    def _explained(self, place: str) -> Iterator[dict[str, str]]:
        for uid, found in self._states.refused_allocations().items():
            meta = self._states.pod(uid)
            if meta is None:
                continue
            name = f"{meta.pod.namespace}/{meta.pod.name}"
            if place in ("", uid, meta.pod.name, name):
                for each in found:
                    yield {
                        "pod": name,
                        "uid": uid,
                        "annotation": each.annotation,
                        "reason": each.reason[:_LONGEST],
                    }

    def _report(self, pod: Pod, refused: RefusedAllocation) -> None:
        self._count.labels(_short(refused.annotation)).inc()
        reason = refused.reason[:_LONGEST]
        name = f"{pod.namespace}/{pod.name}"
        log.warning("allocation.refused", pod=name, annotation=refused.annotation, reason=reason)
        message = f"The pod runs as without its annotation {refused.annotation}: it gives {reason}"
        self._announces.announce(pod, warning=True, reason=REASON, message=message)


def _short(annotation: str) -> str:
    return annotation.rpartition("/")[2]
