"""Gangs: their parameters, and their members as the account of the cluster has them.

Parameters come from PodGroups, from annotations, and from the Workloads of Kubernetes' own API.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from koord.api.podgroup import (
    GROUP_LABEL,
    LIGHTWEIGHT_NAME_LABEL,
    TOPOLOGY_INDEX,
    GangSpec,
    MatchPolicy,
    Mode,
    PodGroup,
    gang_of,
    is_of_pod_group,
    spec_of_pod,
)
from koord.api.workload import API_VERSION, PLURAL, WAIT, Workload, read_workload
from koord.plugin.kube import ApiResource
from koord_scheduler.plugin import ClusterPod, ClusterState, Services
from koord_scheduler.plugin.koordinator import AccountKind, Holding

MEMBERS = "members"  # the amount that each member holds of its gang
GANG_LABELS = frozenset((GROUP_LABEL, LIGHTWEIGHT_NAME_LABEL))


def gang_id(pod: ClusterPod) -> str:
    """Return the gang of a pod as namespace/name; "": it has none."""
    labels = pod.label_set.labels
    if not (pod.annotations or pod.workload_group) and GANG_LABELS.isdisjoint(labels):
        return ""  # as most pods, and it is asked often
    found = gang_of(labels, dict(pod.annotations), pod.namespace)
    return found or (f"{pod.namespace}/{pod.workload_group}" if pod.workload_group else "")


def _holdings(pod: ClusterPod) -> Sequence[Holding]:
    gang = gang_id(pod)
    return (Holding(gang, ((MEMBERS, 1),)),) if gang else ()


GANGS = AccountKind("gang", _holdings, members=True, labels=GANG_LABELS, of_spec=True)
"""Pods by gang, those that have not finished."""


@dataclass(frozen=True, slots=True)
class GangDefaults:
    """The parameters of gangs that do not say them."""

    policy: MatchPolicy = MatchPolicy.ONCE_SATISFIED
    wait: float = 600.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """A gang at one moment."""

    id: str  # namespace/name
    spec: GangSpec | None  # None: its parameters are not known yet
    policy: MatchPolicy
    wait: float  # seconds
    members: Mapping[str, str]  # nodes by namespace/name; "": on none
    placed: int  # members on nodes, those that wait for a permit too

    @property
    def complete(self) -> bool:
        """Whether there are as many members as it needs."""
        return self.spec is not None and len(self.members) >= self.spec.min_members

    @property
    def strict(self) -> bool:
        return self.spec is None or self.spec.mode is Mode.STRICT

    @property
    def group(self) -> tuple[str, ...]:
        """The gangs that must be satisfied together; this one among them."""
        return (self.id,) if self.spec is None else self.spec.group


class Gangs:
    """The gangs of a cluster. Belongs to one thread."""

    def __init__(self, cluster: ClusterState, defaults: GangDefaults) -> None:
        cluster.keep_account(GANGS)
        self._cluster = cluster
        self._defaults = defaults
        self.pod_groups: Mapping[str, PodGroup] = {}
        """All PodGroups by namespace/name, as they are at any moment."""
        self.workload_spec: Callable[[str], GangSpec | None] = lambda gang: None
        """Returns the parameters of a gang of a Workload; None: no Workload has it."""
        self._declared: dict[str, tuple[ClusterPod, GangSpec]] = {}  # by the first legal member
        self._known: dict[str, tuple[tuple[object, ...], Gang]] = {}  # with what they are made of

    def known(self) -> list[str]:
        """All gangs, by namespace/name: those of pods, and those of PodGroups."""
        named = self._cluster.account.other_pools(GANGS, None)
        return sorted({*self.pod_groups, *named})

    def gang(self, gang: str) -> Gang | None:
        """Return a gang by namespace/name.

        None: nothing names it, or it is a group of a Workload whose pods are placed one by one.
        """
        pool = self._cluster.account.pool(GANGS, gang)
        facts = pool, self.pod_groups.get(gang), self.workload_spec(gang)
        known = self._known.get(gang)
        if known is not None and all(map(is_, known[0], facts)):
            return known[1]
        spec = self._spec(gang, pool.members)
        if not pool.pods and spec is None:
            self._declared.pop(gang, None)
            self._known.pop(gang, None)
            return None
        if spec is not None and spec.is_basic:
            return None
        default = self._defaults
        found = Gang(
            id=gang,
            spec=spec,
            policy=default.policy if spec is None or spec.policy is None else spec.policy,
            wait=default.wait if spec is None or spec.wait is None else spec.wait,
            members=pool.members,
            placed=pool.allocated.get(MEMBERS, 0),
        )
        if spec is not None:  # else any change of a member may give it one
            self._known[gang] = facts, found
        return found

    def members(self, gang: str) -> Mapping[str, str]:
        """The nodes of a gang's pods, by namespace/name; "": on none."""
        return self._cluster.account.pool(GANGS, gang).members

    def group(self, gang: Gang) -> dict[str, Gang | None]:
        """The gangs of a gang's group by id; None: there is none of that name."""
        return {one: gang if one == gang.id else self.gang(one) for one in gang.group}

    def pods(self, gangs: Iterable[Gang]) -> Iterator[ClusterPod]:
        """All members of some gangs."""
        for gang in gangs:
            for key in gang.members:
                pod = self._cluster.pod(key)
                if pod is not None:
                    yield pod

    def _spec(self, gang: str, members: Mapping[str, str]) -> GangSpec | None:
        """The parameters: of the PodGroup, else of the first member that says legal ones.

        They stay while that member lives, whatever later ones say.
        """
        group = self.pod_groups.get(gang)
        if group is not None:
            return group.spec
        spec = self.workload_spec(gang)
        if spec is not None:
            return spec
        known = self._declared.get(gang)
        if known is not None:
            pod = self._cluster.pod(known[0].key)
            if pod is not None and pod.uid == known[0].uid and not pod.finished:
                return known[1]
            del self._declared[gang]
        found = [pod for key in members if (pod := self._cluster.pod(key)) is not None]
        for pod in sorted(found, key=lambda one: (one.created or 0.0, one.key)):
            if not is_of_pod_group(pod.labels):
                spec = spec_of_pod(gang, pod.labels, dict(pod.annotations))
                if spec is not None:
                    self._declared[gang] = pod, spec
                    return spec
        return None


def topology_index(pod: ClusterPod) -> int | None:
    """The place of a pod in the order in which its gang is laid out; None: it says none."""
    text = dict(pod.annotations).get(TOPOLOGY_INDEX, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def in_order(pods: Iterable[ClusterPod]) -> list[ClusterPod]:
    """Members in the order in which they are placed: by index, creation, then name."""

    def place(pod: ClusterPod) -> tuple[bool, int, float, str]:
        index = topology_index(pod)
        return index is None, index or 0, pod.created or 0.0, pod.key

    return sorted(pods, key=place)


def basic_check(gangs: Mapping[str, Gang | None]) -> str:
    """Return why a gang group cannot be tried, in Koordinator's words; "": it can."""
    absent = [one for one, gang in gangs.items() if gang is None]
    uninitialised = [one for one, gang in gangs.items() if gang is not None and gang.spec is None]
    incomplete = any(
        gang is not None and gang.spec is not None and not gang.complete for gang in gangs.values()
    )
    parts = []
    if absent:
        parts.append(f"memberGangs {_list(absent)} doesn't exists")
    if uninitialised:
        parts.append(f"memberGangs {_list(uninitialised)} has not init")
    if incomplete:
        parts.append(f"memberGangs {_list(gangs)} child pod not collect enough")
    return f"gangGroup {_list(gangs)} basic check: {', '.join(parts)}" if parts else ""


def what_is_missing(gangs: Mapping[str, Gang | None]) -> Iterator[str]:
    """Yield what a gang group lacks before it can be tried, a sentence for each of its gangs."""
    for name, gang in gangs.items():
        if gang is None:
            yield f"gang {name} of its group is missing: there is no pod and no PodGroup of it"
        elif gang.spec is None:
            why = "its PodGroup is missing, or none of its pods has one"
            yield f"gang {name} has no legal minimum: {why}"
        elif not gang.complete:
            count, minimum = len(gang.members), gang.spec.min_members
            yield f"gang {name} needs more pods: {count} of {minimum} are there"


def _list(names: Iterable[str]) -> str:
    """As Go prints a list of texts."""
    return f"[{' '.join(names)}]"


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
        if not self._objects:
            return None  # as in most clusters, and it is asked often
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
