"""Services, and which of them select a pod."""

from collections.abc import Iterable

from koord.cluster.facts import AffinityTerm, ClusterPod, ClusterService, selects
from koord.cluster.selectorindex import TermIndex


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
