"""The rules of one profile for pods and their jobs: filters, gates, quotas and rate limits."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from koord.api.labelselector import LabelSelector, parse_selector_text
from koord.api.podmigrationjob import EVICT_POLICY, FORCED, PodMigrationJob
from koord.plugin import Clock
from koord_descheduler.plugin import (
    ClusterPod,
    ClusterState,
    EvictorRules,
    Mask,
    NodeFit,
    Owner,
    View,
    controller_of,
    evictor_filter,
    nodes_matching,
)
from koord_descheduler_plugins.migration.args import (
    EvictionGate,
    EvictionPolicy,
    JobMode,
    MigrationControllerArgs,
)
from koord_descheduler_plugins.migration.jobs import JobTable, has_begun

_LARGE, _SMALL = 10, 4  # replicas


def max_pods_of(replicas: int, setting: int | str | None) -> int:
    """Return how many of so many replicas a setting allows: a number, a text like "10%", or None.

    At least 1, at most all. A percentage is rounded down.
    """
    if isinstance(setting, str):
        most = replicas * int(setting[:-1]) // 100
    elif setting is not None:
        most = setting
    elif replicas > _LARGE:
        most = replicas // 10
    else:
        most = 2 if replicas >= _SMALL else 1
    return min(max(most, 1), replicas)


def has_enough_replicas(
    replicas: int, migrating: int | str | None, unavailable: int | str | None
) -> bool:
    """Whether a workload may lose pods at all: some of its replicas must be left."""
    if replicas <= 1:
        return False
    return replicas not in (max_pods_of(replicas, migrating), max_pods_of(replicas, unavailable))


_KEPT = 1.5  # durations that an idle bucket is kept


@dataclass(slots=True)
class Bucket:
    """Fills at rate tokens a second up to burst; full at the beginning."""

    rate: float
    burst: int
    tokens: float
    filled: float  # monotonic seconds; when tokens was true
    kept_until: float = 0.0  # monotonic seconds

    def pause(self, now: float) -> float:
        """Seconds until there is a token; 0: there is one."""
        self._fill(now)
        return 0.0 if self.tokens >= 1 - 1e-9 else (1 - self.tokens) / self.rate

    def take(self, now: float) -> None:
        """Take a token, or what there is of one."""
        self._fill(now)
        self.tokens = max(self.tokens - 1, 0.0)

    def give_back(self) -> None:
        """Return a token that was not used."""
        self.tokens = min(self.tokens + 1, self.burst)

    def change(self, rate: float, now: float) -> None:
        """Fill at another rate from now on."""
        self._fill(now)
        self.rate = rate

    def _fill(self, now: float) -> None:
        self.tokens = min(self.tokens + (now - self.filled) * self.rate, self.burst)
        self.filled = now


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How often pods of one object may be evicted."""

    kind: str  # "workload" or "namespace"
    name: str  # uid of the workload's controller, or name of the namespace
    rate: float  # evictions a second
    burst: int
    duration: float  # seconds, which rate was computed for


class ObjectLimiters:
    """Buckets of the objects of which pods were evicted lately. Belongs to the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def pause(self, rate_limits: Iterable[RateLimit]) -> float:
        """Seconds until an eviction under these paces may begin; 0: now."""
        now = self._clock.monotonic()
        return max((self._pause(rate_limit, now) for rate_limit in rate_limits), default=0.0)

    def take(self, rate_limits: Sequence[RateLimit], *, force: bool = False) -> float:
        """Take a token of each, or of none; return the seconds to wait, 0: they are taken.

        force: there is no wait, though what is there is taken.
        """
        now = self._clock.monotonic()
        if not force and (wait := self.pause(rate_limits)):
            return wait
        for rate_limit in rate_limits:
            bucket = self._find(rate_limit, now)
            if bucket is None:
                bucket = Bucket(rate_limit.rate, rate_limit.burst, rate_limit.burst, now)
                self._buckets[rate_limit.kind, rate_limit.name] = bucket
            bucket.change(rate_limit.rate, now)
            bucket.take(now)
            bucket.kept_until = now + _KEPT * rate_limit.duration
        return 0.0

    def give_back(self, rate_limits: Iterable[RateLimit]) -> None:
        """Return the tokens of an eviction that did not happen."""
        for rate_limit in rate_limits:
            bucket = self._buckets.get((rate_limit.kind, rate_limit.name))
            if bucket is not None:
                bucket.give_back()

    def forget_idle(self) -> None:
        """Drop the buckets that nothing was taken of for long."""
        now = self._clock.monotonic()
        idle = [key for key, bucket in self._buckets.items() if bucket.kept_until <= now]
        for key in idle:
            del self._buckets[key]

    def _pause(self, rate_limit: RateLimit, now: float) -> float:
        bucket = self._find(rate_limit, now)
        return 0.0 if bucket is None else bucket.pause(now)

    def _find(self, rate_limit: RateLimit, now: float) -> Bucket | None:
        bucket = self._buckets.get((rate_limit.kind, rate_limit.name))
        return None if bucket is None or bucket.kept_until <= now else bucket


class EvictionRate:
    """Evictions of the whole process. Belongs to the event loop."""

    def __init__(self, clock: Clock, rate: float, burst: int) -> None:
        self._clock = clock
        self._bucket = Bucket(rate, burst, burst, clock.monotonic())

    def take(self) -> float:
        """Take a turn; return the seconds to wait, 0: it is taken."""
        now = self._clock.monotonic()
        wait = self._bucket.pause(now)
        if not wait:
            self._bucket.take(now)
        return wait


Amount = int | str | None

_KNOWN_CONTROLLERS = frozenset({"ReplicationController", "ReplicaSet", "Deployment", "CloneSet"})
"""Controllers of which none can be there without being known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaLimits:
    """Most pods at a time. None: no limit; see max_pods_of for the limits per workload."""

    globally: int | None = None
    per_node: int | None = None
    per_namespace: int | None = None
    per_workload: Amount = None
    unavailable: Amount = None
    check_migrating: bool = True  # of a workload
    check_unavailable: bool = True  # of a workload
    check_replicas: bool = True  # a workload must have replicas left


class Quotas:
    """Counts jobs against limits. Belongs to the event loop."""

    def __init__(self, limits: QuotaLimits, jobs: JobTable, cluster: ClusterState) -> None:
        self.limits = limits
        self._jobs = jobs
        self._cluster = cluster

    def replicas(self, pod: ClusterPod) -> int | None:
        """Replicas of a pod's workload; None: no controller owns it.

        A controller of a kind that is not followed has as many as it has pods that have not ended.
        A ReplicaSet whose Deployment is gone has none, as its pods go with it.
        """
        controller = controller_of(pod.owners)
        if controller is None:
            return None
        workload = self._cluster.workloads.of(pod)
        if workload is not None:
            owner = workload.controller
            return 0 if owner is not None and owner.kind == "Deployment" else workload.replicas
        if controller.kind in _KNOWN_CONTROLLERS:
            return 0
        return sum(not one.finished for one in self._cluster.workloads.siblings(pod))

    def few_replicas(self, pod: ClusterPod) -> str:
        """Why the workload of a pod cannot do without it, as the end of a sentence; "": it can."""
        limits, replicas = self.limits, self.replicas(pod)
        if replicas is None or not limits.check_replicas:
            return ""
        if has_enough_replicas(replicas, limits.per_workload, limits.unavailable):
            return ""
        return f"its workload has {replicas} replicas, of which none could stay"

    def exceeded(self, pod: ClusterPod, *, arbitrating: bool) -> str:
        """Return the quota that does not let a pod leave now, as the end of a sentence; "": none.

        arbitrating: only jobs that have begun count, else also those that wait. The pod itself
        never counts.
        """
        if not self._jobs.active and not self.limits.check_unavailable:
            return ""
        return (
            self._globally(pod, arbitrating)
            or self._on_node(pod, arbitrating)
            or self._in_namespace(pod, arbitrating)
            or self._of_workload(pod, arbitrating)
        )

    def _globally(self, pod: ClusterPod, begun: bool) -> str:
        most = self.limits.globally
        if not most or most < 0:
            return ""
        count = self._jobs.count(begun=begun) - self._own(pod, begun)
        return (
            f"{count} pods are migrating, maxMigratingGlobally is {most}" if count >= most else ""
        )

    def _on_node(self, pod: ClusterPod, begun: bool) -> str:
        most = self.limits.per_node
        if not most or most < 0 or not pod.node or self._jobs.count(begun=begun) < most:
            return ""
        count = sum(
            self._jobs.has(other, begun=begun)
            for other in self._cluster.pods_of_node(pod.node)
            if other.uid != pod.uid
        )
        text = f"{count} pods of node {pod.node} are migrating, maxMigratingPerNode is {most}"
        return text if count >= most else ""

    def _in_namespace(self, pod: ClusterPod, begun: bool) -> str:
        most = self.limits.per_namespace
        if not most or most < 0:
            return ""
        own = self._own(pod, begun, in_namespace=True)
        count = self._jobs.count(begun=begun, namespace=pod.namespace) - own
        text = f"{count} pods of namespace {pod.namespace} are migrating"
        return f"{text}, maxMigratingPerNamespace is {most}" if count >= most else ""

    def _of_workload(self, pod: ClusterPod, begun: bool) -> str:
        limits = self.limits
        if not limits.check_migrating and not limits.check_unavailable:
            return ""
        replicas = self.replicas(pod)
        if replicas is None:
            return ""
        jobs = self._jobs.count(begun=begun, namespace=pod.namespace)
        missing = [one for one in self._cluster.workloads.unavailable(pod) if one.uid != pod.uid]
        most_migrating = max_pods_of(replicas, limits.per_workload)
        most_missing = max_pods_of(replicas, limits.unavailable)
        if jobs < most_migrating and jobs + len(missing) < most_missing:
            return ""  # whichever pods the jobs are for
        migrating = {one.key for one in self._migrating(pod, begun)}
        if limits.check_migrating and migrating and len(migrating) >= most_migrating:
            return (
                f"{len(migrating)} pods of its workload are migrating, at most {most_migrating} may"
            )
        count = len(migrating | {one.key for one in missing})
        if not limits.check_unavailable or count < most_missing:
            return ""
        text = f"{count} pods of its workload are migrating or not ready"
        return f"{text}, at most {most_missing} may be"

    def _migrating(self, pod: ClusterPod, begun: bool) -> Iterator[ClusterPod]:
        """The other pods of the same controller that are on their way and still there."""
        controller = controller_of(pod.owners)
        jobs = self._jobs.of_namespace(pod.namespace)
        if controller is None or not jobs:
            return
        siblings = self._cluster.workloads.siblings(pod)
        if len(siblings) <= len(jobs):
            for one in siblings:
                if one.uid != pod.uid and self._jobs.has(one, begun=begun):
                    yield one
            return
        for job in jobs:
            other = self._cluster.pod(job.pod.key)
            if other is None or other.uid == pod.uid or not (has_begun(job) or not begun):
                continue
            owner = controller_of(other.owners)
            if owner is not None and owner.uid == controller.uid:
                yield other

    def _own(self, pod: ClusterPod, begun: bool, *, in_namespace: bool = False) -> int:
        """How many jobs that are counted are the pod's own."""
        return sum(
            (has_begun(job) or not begun)
            and (not in_namespace or job.pod.namespace == pod.namespace)
            for job in self._jobs.of_pod(pod.uid, pod.key)
        )


EVICTION_COST = "scheduling.koordinator.sh/eviction-cost"
NEVER = "2147483647"  # the eviction cost of a pod that must stay


def without_gates(args: MigrationControllerArgs) -> MigrationControllerArgs:
    """Return the arguments in which the checks that skipEvictionGates names have no effect.

    Those of quotas per workload and of replicas are in quota_limits.
    """
    gates = frozenset(args.skip_eviction_gates)
    changes: dict[EvictionGate, dict[str, object]] = {
        EvictionGate.MAX_MIGRATING_GLOBALLY: {"max_migrating_globally": None},
        EvictionGate.MAX_MIGRATING_PER_NODE: {"max_migrating_per_node": 0},
        EvictionGate.MAX_MIGRATING_PER_NAMESPACE: {"max_migrating_per_namespace": None},
        EvictionGate.PVC: {"ignore_pvc_pods": False},
        EvictionGate.BARE_PODS: {"evict_failed_bare_pods": True, "evict_all_bare_pods": True},
        EvictionGate.LOCAL_STORAGE: {"evict_local_storage_pods": True},
        EvictionGate.SYSTEM_CRITICAL: {"evict_system_critical_pods": True},
        EvictionGate.PRIORITY_THRESHOLD: {"priority_threshold": None},
        EvictionGate.LABEL_SELECTOR: {"label_selector": None},
        EvictionGate.NAMESPACES: {"namespaces": None},
        EvictionGate.NODE_FIT: {"node_fit": False},
    }
    for gate, change in changes.items():
        if gate in gates:
            args = replace(args, **change)  # type: ignore[arg-type]
    return args


def quota_limits(args: MigrationControllerArgs) -> QuotaLimits:
    """Return the limits of arguments."""
    gates = frozenset(args.skip_eviction_gates)
    effective = without_gates(args)
    return QuotaLimits(
        globally=effective.max_migrating_globally,
        per_node=effective.max_migrating_per_node,
        per_namespace=effective.max_migrating_per_namespace,
        per_workload=args.max_migrating_per_workload,
        unavailable=args.max_unavailable_per_workload,
        check_migrating=EvictionGate.MAX_MIGRATING_PER_WORKLOAD not in gates,
        check_unavailable=EvictionGate.MAX_UNAVAILABLE_PER_WORKLOAD not in gates,
        check_replicas=not args.skip_check_expected_replicas
        and EvictionGate.EXPECTED_REPLICAS not in gates,
    )


class ProfileRules:
    """The rules of one profile."""

    def __init__(
        self,
        profile: str,
        args: MigrationControllerArgs,
        jobs: JobTable,
        cluster: ClusterState,
        hardware: Callable[[ClusterPod, View], Mask | None] | None = None,
    ) -> None:
        """hardware: see NodeFit."""
        self.profile = profile
        self.args = args
        self._effective = effective = without_gates(args)
        self._jobs = jobs
        self._cluster = cluster
        self._quotas = Quotas(quota_limits(args), jobs, cluster)
        self._fit = NodeFit(hardware)
        self._nodes: LabelSelector | None = None
        if effective.node_selector:
            self._nodes = parse_selector_text(effective.node_selector, "nodeSelector")
        self._evictor = evictor_filter(
            EvictorRules(
                evict_failed_bare_pods=effective.evict_failed_bare_pods,
                evict_all_bare_pods=effective.evict_all_bare_pods,
                evict_local_storage_pods=effective.evict_local_storage_pods,
                evict_system_critical_pods=effective.evict_system_critical_pods,
                ignore_pvc_pods=effective.ignore_pvc_pods,
                priority_threshold=effective.priority_threshold,
                label_selector=effective.label_selector,
            ),
            cluster.priority_classes,
        )

    def reject_reason(self, pod: ClusterPod) -> str:
        """Why a pod may not leave now, as the end of a sentence about it; "": it may."""
        return (
            self._has_job(pod)
            or self._cannot_reserve(pod)
            or self.lasting(pod)
            or self.passing(pod, arbitrating=False)
        )

    def lasting(self, pod: ClusterPod) -> str:
        """Why a pod may not leave at all, likewise: a job for it has no chance."""
        if text := self._evictor.reason(pod):
            return text
        return "" if _is_forced(pod) else self._elsewhere(pod) or self._quotas.few_replicas(pod)

    def passing(self, pod: ClusterPod, *, arbitrating: bool) -> str:
        """Why a pod has to wait, likewise; see Quotas.exceeded."""
        return "" if _is_forced(pod) else self._quotas.exceeded(pod, arbitrating=arbitrating)

    def unschedulable(self, pod: ClusterPod) -> str:
        """Why a pod would fit no other node, if that is asked for; "": it would."""
        if not self._effective.node_fit:
            return ""
        view = self._cluster.view()
        return self._fit.elsewhere(pod, view, nodes_matching(view, self._nodes)).reason

    def rate_limits(self, pod: ClusterPod) -> tuple[RateLimit, ...]:
        """How often pods like this one may be evicted; of a kind without limit there is none."""
        found = []
        for kind, limiter in self.args.object_limiters.items():
            name, most = "", 0
            if kind == "workload":
                controller: Owner | None = controller_of(pod.owners)
                setting = limiter.max_migrating
                if setting is None:
                    setting = self.args.max_migrating_per_workload
                if controller is not None:
                    name = controller.uid
                    most = max_pods_of(self._quotas.replicas(pod) or 0, setting)
            elif isinstance(limiter.max_migrating, int):
                name, most = pod.namespace, limiter.max_migrating
            if name and most > 0 and limiter.duration > 0:
                rate = most / limiter.duration
                found.append(RateLimit(kind, name, rate, limiter.burst or 1, limiter.duration))
        return tuple(found)

    def policy(self, job: PodMigrationJob, pod: ClusterPod) -> EvictionPolicy:
        """The way in which a pod leaves: its label, else its job's, else the default."""
        text = pod.labels.get(EVICT_POLICY, job.policy)
        return EvictionPolicy(text) if text in list(EvictionPolicy) else self.args.eviction_policy

    def _has_job(self, pod: ClusterPod) -> str:
        return "it has a PodMigrationJob already" if self._jobs.has(pod, begun=False) else ""

    def _cannot_reserve(self, pod: ClusterPod) -> str:
        if self.args.default_job_mode != JobMode.RESERVATION_FIRST:
            return ""
        if pod.scheduler_name not in self.args.scheduler_names:
            return f"its scheduler {pod.scheduler_name} does not know Reservations"
        if pod.node and controller_of(pod.owners) is None:
            return "no controller would make a pod that could take its Reservation"
        return ""

    def _elsewhere(self, pod: ClusterPod) -> str:
        namespaces = self._effective.namespaces
        if namespaces is not None:
            included = not namespaces.include or pod.namespace in namespaces.include
            if not included or pod.namespace in namespaces.exclude:
                return f"its namespace {pod.namespace} is left alone"
        if _annotation(pod, EVICTION_COST) == NEVER:
            return "its eviction cost is the highest there is"
        return ""


def _is_forced(pod: ClusterPod) -> bool:
    return _annotation(pod, FORCED) is not None


def _annotation(pod: ClusterPod, key: str) -> str | None:
    return next((text for name, text in pod.annotations if name == key), None)
