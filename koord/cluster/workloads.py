"""Workloads and Services, and the pods that belong to them."""

from collections.abc import Collection, Iterable
from typing import TypeVar

from koord.cluster.facts import AffinityTerm, ClusterPod, ClusterService, Owner, Workload, selects
from koord.cluster.selectors import TermIndex

T = TypeVar("T")


def controller_of(owners: Iterable[Owner]) -> Owner | None:
    """The owner that controls an object; None: it is bare."""
    return next((owner for owner in owners if owner.controller), None)


class Workloads:
    """Controllers by uid, and pods by the uid of their controller. Belongs to one thread."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Workload] = {}
        self._uids: dict[tuple[str, str], str] = {}  # by kind and key
        self._children: dict[str, dict[str, None]] = {}  # uids of those that a workload controls
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # by uid of the controller, then by key
        self._missing: dict[str, dict[str, ClusterPod]] = {}  # likewise, those that do not serve

    def __len__(self) -> int:
        return len(self._by_uid)

    def keys(self, kind: str) -> list[str]:
        """namespace/name of all workloads of a kind."""
        return [key for known, key in self._uids if known == kind]

    def get(self, kind: str, key: str) -> Workload | None:
        """A workload by kind and namespace/name; None: not known."""
        return self._by_uid.get(self._uids.get((kind, key), ""))

    def all(self) -> Collection[Workload]:
        """All workloads, in no given order."""
        return self._by_uid.values()

    def put(self, workload: Workload) -> None:
        """Take over a workload that was added or modified."""
        self.remove(workload.kind, workload.key)
        self._by_uid[workload.uid] = workload
        self._uids[workload.kind, workload.key] = workload.uid
        if workload.controller is not None:
            self._children.setdefault(workload.controller.uid, {})[workload.uid] = None

    def remove(self, kind: str, key: str) -> None:
        """Forget a workload; one that is not known is none."""
        old = self._by_uid.pop(self._uids.pop((kind, key), ""), None)
        if old is not None and old.controller is not None:
            _drop(self._children, old.controller.uid, old.uid)

    def put_pod(self, pod: ClusterPod, key: str) -> None:
        """Count a pod to its controller. key: the pod's, one string for all tables that have it."""
        controller = controller_of(pod.owners)
        if controller is not None:
            self._pods.setdefault(controller.uid, {})[key] = pod
            if not pod.ready or pod.deleting or pod.finished:
                self._missing.setdefault(controller.uid, {})[key] = pod
            elif controller.uid in self._missing:
                _drop(self._missing, controller.uid, key)

    def remove_pod(self, pod: ClusterPod) -> None:
        """Forget a pod."""
        controller = controller_of(pod.owners)
        if controller is not None:
            _drop(self._pods, controller.uid, pod.key)
            if controller.uid in self._missing:
                _drop(self._missing, controller.uid, pod.key)

    def controlling(self, pod: ClusterPod) -> Workload | None:
        """The workload that controls a pod itself; None: as of().

        Of a Deployment's pod that is a ReplicaSet.
        """
        controller = controller_of(pod.owners)
        return None if controller is None else self._by_uid.get(controller.uid)

    def of(self, pod: ClusterPod) -> Workload | None:
        """The workload of a pod: of a ReplicaSet that a Deployment controls, that Deployment.

        None: the pod is bare, or its controller is not known, or another of that name is.
        """
        found = self.controlling(pod)
        if found is None or found.controller is None:
            return found
        return self._by_uid.get(found.controller.uid, found)

    def pods(self, workload: Workload) -> list[ClusterPod]:
        """The pods of a workload and of all that it controls, bound or not, in no given order."""
        uids = (workload.uid, *self._children.get(workload.uid, ()))
        return [pod for uid in uids for pod in self._pods.get(uid, {}).values()]

    def unavailable(self, pod: ClusterPod) -> list[ClusterPod]:
        """The pods of a pod's workload that are ending, have ended or are not ready.

        Of a workload that is not known those with the same controller; of a bare pod none.
        """
        workload, controller = self.of(pod), controller_of(pod.owners)
        if workload is not None:
            uids = (workload.uid, *self._children.get(workload.uid, ()))
        else:
            uids = () if controller is None else (controller.uid,)
        return [one for uid in uids for one in self._missing.get(uid, {}).values()]

    def siblings(self, pod: ClusterPod) -> Collection[ClusterPod]:
        """The pods with the same controller, this one too; of a bare pod none."""
        controller = controller_of(pod.owners)
        return () if controller is None else self._pods.get(controller.uid, {}).values()


def _drop(table: dict[str, dict[str, T]], name: str, key: str) -> None:
    bucket = table.get(name, {})
    bucket.pop(key, None)
    if not bucket:
        table.pop(name, None)


class ServiceTable:
    """Services by namespace/name. Belongs to one thread."""

    def __init__(self) -> None:
        self._services: dict[str, ClusterService] = {}
        self._index: TermIndex[str] = TermIndex()  # of their keys

    def get(self, key: str) -> ClusterService | None:
        return self._services.get(key)

    def keys(self) -> Iterable[str]:
        """namespace/name of all services."""
        return self._services.keys()

    def put(self, service: ClusterService) -> None:
        """Take over a service that was added or modified."""
        self.remove(service.key)
        self._services[service.key] = service
        self._index.put(_term(service), service.key)

    def remove(self, key: str) -> None:
        """Forget a service; one that is not known is none."""
        old = self._services.pop(key, None)
        if old is not None:
            self._index.drop(_term(old), key)

    def selecting(self, pod: ClusterPod) -> list[ClusterService]:
        """The services of which a pod is an endpoint, by name."""
        if not self._services:
            return []
        found = (self._services[key] for key in sorted(self._index.candidates(pod.label_set)))
        return [service for service in found if selects(service.selector, pod.labels)]


def _term(service: ClusterService) -> AffinityTerm:
    return AffinityTerm("", service.selector, (service.namespace,))
