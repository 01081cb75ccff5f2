"""What the arguments of one profile mean for pods and their jobs. Filters, gates, quotas, pace.

Source: Koordinator, pkg/descheduler/controllers/migration: filters.
"""

from dataclasses import replace

from koord.api.labelselector import LabelSelector
from koord.api.podmigrationjob import EVICT_POLICY, FORCED, PodMigrationJob
from koord.api.selectortext import parse_selector_text
from koord_descheduler.plugin import (
    ClusterPod,
    ClusterState,
    EvictionGate,
    EvictionPolicy,
    EvictorRules,
    MigrationControllerArgs,
    NodeFit,
    Owner,
    controller_of,
    evictor_filter,
    nodes_matching,
)
from koord_descheduler_plugins.migration.amounts import most_of
from koord_descheduler_plugins.migration.jobtable import JobTable
from koord_descheduler_plugins.migration.limiters import Pace
from koord_descheduler_plugins.migration.quotas import QuotaLimits, Quotas
from koord_descheduler_plugins.migration.steps import RESERVATION_FIRST

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
    ) -> None:
        self.profile = profile
        self.args = args
        self._effective = effective = without_gates(args)
        self._jobs = jobs
        self._cluster = cluster
        self._quotas = Quotas(quota_limits(args), jobs, cluster)
        self._fit = NodeFit()
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

    def refusal(self, pod: ClusterPod) -> str:
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

    def homeless(self, pod: ClusterPod) -> str:
        """Why a pod would fit no other node, if that is asked for; "": it would."""
        if not self._effective.node_fit:
            return ""
        view = self._cluster.view()
        return self._fit.elsewhere(pod, view, nodes_matching(view, self._nodes)).reason

    def paces(self, pod: ClusterPod) -> tuple[Pace, ...]:
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
                    most = most_of(self._quotas.replicas(pod) or 0, setting)
            elif isinstance(limiter.max_migrating, int):
                name, most = pod.namespace, limiter.max_migrating
            if name and most > 0 and limiter.duration > 0:
                rate = most / limiter.duration
                found.append(Pace(kind, name, rate, limiter.burst or 1, limiter.duration))
        return tuple(found)

    def policy(self, job: PodMigrationJob, pod: ClusterPod) -> EvictionPolicy:
        """The way in which a pod leaves: its label, else its job's, else the default."""
        text = pod.labels.get(EVICT_POLICY, job.policy)
        return EvictionPolicy(text) if text in list(EvictionPolicy) else self.args.eviction_policy

    def _has_job(self, pod: ClusterPod) -> str:
        return "it has a PodMigrationJob already" if self._jobs.has(pod, begun=False) else ""

    def _cannot_reserve(self, pod: ClusterPod) -> str:
        if self.args.default_job_mode != RESERVATION_FIRST:
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
