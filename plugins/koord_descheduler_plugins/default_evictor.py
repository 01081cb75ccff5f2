"""DefaultEvictor: protects pods as the Kubernetes descheduler does, and evicts by the eviction API.

Source: sigs.k8s.io/descheduler, defaultevictor; Koordinator, pkg/descheduler/evictions PodEvictor.
"""

from collections import Counter

from koord_descheduler.plugin import (
    ClusterPod,
    EvictionOutcome,
    EvictOptions,
    EvictorFilter,
    EvictPlugin,
    FilterPlugin,
    Handle,
    LimitedLog,
    NodeFit,
    PluginRegistry,
    PodEvictions,
    controller_of,
    evictorfilter,
    get_logger,
    kubernetes_args,
    nodes_matching,
    parse_selector_text,
)

Args = kubernetes_args.DefaultEvictorArgs
Protection = kubernetes_args.PodProtection

COMPONENT = "koord-descheduler"  # the reporter of its events
PAUSE = 5.0  # seconds without a request after the API server was busy and named no time

log = get_logger("koord_descheduler.default_evictor")


class DefaultEvictor(EvictPlugin, FilterPlugin):
    """Lets unprotected pods go, and evicts them at once, within their PodDisruptionBudgets."""

    def __init__(self, args: Args, handle: Handle) -> None:
        services = handle.services
        self._args = args
        self._cluster = services.cluster
        self._clock = services.clock
        self._evicted = services.metrics.evicted
        self._failures = LimitedLog(log, services.clock)
        self._evictions = PodEvictions(services.client, services.events, services.clock, COMPONENT)
        self._busy_until = 0.0  # monotonic: no request before
        self._decisions = services.decisions
        self._rehearsed: Counter[str] = Counter()  # evictions of a dry-run, by budget
        self._rehearsed_at = 0.0  # when their cycle began; Unix seconds
        self._node_fit = NodeFit()
        self._nodes = parse_selector_text(args.node_selector, "nodeSelector")
        self._filter = EvictorFilter(
            (evictorfilter.is_mirror, evictorfilter.is_static, evictorfilter.is_deleting),
            self._constraints(),
        )

    def filter(self, pod: ClusterPod) -> bool:
        return not self._filter.reason(pod)

    def refusal(self, pod: ClusterPod) -> str:
        return self._filter.reason(pod)

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        """Whether another node can take the pod, and its namespace is one of those that count."""
        return not self.pre_eviction_refusal(pod)

    def pre_eviction_refusal(self, pod: ClusterPod) -> str:
        view, args = self._cluster.view(), self._args
        if args.node_fit:
            reason = self._node_fit.elsewhere(pod, view, nodes_matching(view, self._nodes)).reason
            if reason:
                return reason
        selector = args.namespace_label_selector
        if selector is None or selector.matches(view.namespace_labels(pod.namespace)):
            return ""
        return f"namespace {pod.namespace} is not among those of namespaceLabelSelector"

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        """Ask the API server once; a pod whose eviction it refuses has its chance in a later cycle.

        While the API server is too busy nothing is asked.
        """
        if self._clock.monotonic() < self._busy_until:
            return False
        answer = await self._evictions.evict(pod, options=options.delete_options)
        done = answer.outcome is EvictionOutcome.EVICTED
        if answer.busy:
            pause = PAUSE if answer.retry_after is None else answer.retry_after
            self._busy_until = self._clock.monotonic() + pause
        self._evicted.count(
            result="success" if done else "error",
            strategy=options.plugin_name,
            namespace=pod.namespace,
            node=pod.node,
        )
        if done:
            why = (
                f"{options.plugin_name}: {options.reason}"
                if options.reason
                else options.plugin_name
            )
            message = f"pod evicted from node {pod.node} by koord-descheduler ({why})"
            self._evictions.announce(pod, warning=False, reason="Descheduled", message=message)
            log.info("pod.evicted", pod=pod.key, node=pod.node, plugin=options.plugin_name)
        else:
            facts = {"pod": pod.key, "outcome": answer.outcome.value, "error": answer.message}
            self._failures.warning("eviction.refused", **facts)
        return done

    def rehearse(self, pod: ClusterPod, options: EvictOptions) -> str:
        """As the API server would: by PodDisruptionBudgets, and evictions of the same cycle.

        Source: Kubernetes, registry/core/pod EvictionREST.
        """
        cycles = self._decisions.cycles
        began = cycles[-1].began if cycles else 0.0
        if began != self._rehearsed_at:
            self._rehearsed_at = began
            self._rehearsed.clear()
        if pod.phase != "Running":  # it is evicted without asking
            return ""
        budgets = [budget for budget in self._cluster.budgets.values() if budget.covers(pod)]
        if len(budgets) > 1:
            return "it has more than one PodDisruptionBudget"
        for budget in budgets:
            if self._rehearsed[budget.key] >= budget.allowed:
                return f"PodDisruptionBudget {budget.key} does not allow it"
            self._rehearsed[budget.key] += 1
        return ""

    def _constraints(self) -> list[evictorfilter.Constraint]:
        args, protected = self._args, self._args.protections
        found: list[evictorfilter.Constraint] = []
        if args.no_eviction_policy is kubernetes_args.NoEvictionPolicy.MANDATORY:
            found.append(evictorfilter.asks_to_stay)
        if Protection.SYSTEM_CRITICAL in protected:
            classes = self._cluster.priority_classes
            found.append(evictorfilter.is_system_critical)
            found.append(evictorfilter.reaches_priority(args.priority_threshold, classes))
        if Protection.FAILED_BARE in protected:
            found.append(evictorfilter.is_bare)
        else:
            found.append(evictorfilter.is_bare_and_not_failed)
        for protection, constraint in (
            (Protection.LOCAL_STORAGE, evictorfilter.has_local_storage),
            (Protection.DAEMON_SET, evictorfilter.is_of_daemon_set),
            (Protection.PVC, self._has_protected_claim),
            (Protection.WITHOUT_PDB, self._lacks_budget),
            (Protection.RESOURCE_CLAIMS, _has_resource_claims),
        ):
            if protection in protected:
                found.append(constraint)
        if args.label_selector is not None:
            found.append(evictorfilter.lacks_labels(args.label_selector))
        if args.min_replicas > 1:
            found.append(self._has_few_siblings)
        if args.min_pod_age:
            found.append(self._is_young)
        return found

    def _has_protected_claim(self, pod: ClusterPod) -> str:
        """As in Kubernetes, an unknown class is protected, too."""
        named = self._args.pod_protections and self._args.pod_protections.config
        settings = named and named.pods_with_pvc
        if not settings or not settings.protected_storage_classes:
            return evictorfilter.has_claim(pod)
        names = {one.name for one in settings.protected_storage_classes}
        view = self._cluster.view()
        for name in pod.claims:
            claim = view.claim(pod.namespace, name)
            if claim is None or not claim.storage_class:
                return f"the storage class of its claim {name} is not known"
            if claim.storage_class in names:
                return f"its claim {name} has the protected storage class {claim.storage_class}"
        return ""

    def _lacks_budget(self, pod: ClusterPod) -> str:
        covered = any(budget.covers(pod) for budget in self._cluster.budgets.values())
        return "" if covered else "it has no PodDisruptionBudget"

    def _has_few_siblings(self, pod: ClusterPod) -> str:
        """As in Kubernetes, only pods with a single owner are counted."""
        if len(pod.owners) != 1 or controller_of(pod.owners) is None:
            return ""
        count, least = len(self._cluster.workloads.siblings(pod)), self._args.min_replicas
        return f"its owner has {count} pods, fewer than {least}" if count < least else ""

    def _is_young(self, pod: ClusterPod) -> str:
        least = self._args.min_pod_age or 0.0
        if pod.started is None:
            return "it has not started yet"
        age = self._clock.wall() - pod.started
        return f"it started {age:.0f} s ago, less than {least:.0f} s" if age < least else ""


def _has_resource_claims(pod: ClusterPod) -> str:
    return "it has ResourceClaims" if pod.spec.resource_claims else ""


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("DefaultEvictor", DefaultEvictor)
