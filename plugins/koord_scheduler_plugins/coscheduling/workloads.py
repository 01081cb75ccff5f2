"""Gangs that Kubernetes' own Workloads declare: the groups of pods with a workloadRef."""

from collections.abc import Callable, Mapping

from koord.api.podgroup import GangSpec, MatchPolicy
from koord.api.workload import API_VERSION, PLURAL, WAIT, Workload, read_workload
from koord.plugin.kube import ApiResource
from koord_scheduler.plugin import ClusterPod, Services

WORKLOADS = ApiResource(API_VERSION, PLURAL)
WITHOUT = "pods with a workloadRef wait"


class Workloads:
    """The Workloads of a cluster, and the gangs of theirs that have pods. One event loop."""

    def __init__(self, services: Services, on_change: Callable[[str], None]) -> None:
        """on_change: called with each gang, namespace/name, whose parameters may have changed."""
        self._gangs: dict[str, set[str]] = {}  # with pods, by namespace/name of the Workload
        self._on_change = on_change
        followed = services.custom_resources.follow(
            WORKLOADS, read_workload, self._changed, without=WITHOUT, optional=True
        )
        self._objects: Mapping[str, Workload] = followed.objects

    def pod_changed(self, gang: str, pod: ClusterPod, *, known: bool) -> None:
        """Note which gangs have pods. known: any pod is of this gang still."""
        key = f"{pod.namespace}/{pod.workload_group.partition(':')[0]}"
        gangs = self._gangs.setdefault(key, set())
        if known:
            gangs.add(gang)
        else:
            gangs.discard(gang)
        if not gangs:
            del self._gangs[key]

    def spec(self, gang: str) -> GangSpec | None:
        """The parameters of a gang; None: there is no such group."""
        namespace, _, name = gang.partition("/")
        workload, _, rest = name.partition(":")
        found = self._objects.get(f"{namespace}/{workload}")
        group = rest.partition(":")[0]
        if found is None or group not in found.minimums:
            return None
        minimum = found.minimums[group]
        return GangSpec(
            gang=gang,
            min_members=minimum or 0,
            total=minimum or 0,
            policy=MatchPolicy.WAITING_AND_RUNNING,
            wait=WAIT,
            group=(gang,),
            from_pod_group=True,
            is_basic=minimum is None,
        )

    def _changed(self, old: Workload | None, new: Workload | None) -> None:
        found = old if new is None else new
        if found is not None:
            for gang in sorted(self._gangs.get(found.key, ())):
                self._on_change(gang)
