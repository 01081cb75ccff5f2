"""DefaultEvictor: protects pods as the Kubernetes descheduler does, and evicts by the eviction API.

Source: sigs.k8s.io/descheduler, defaultevictor; Koordinator, pkg/descheduler/evictions PodEvictor.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from koord.api.eviction import EvictionOutcome
from koord.api.gojson import wire
from koord.api.labelselector import LabelSelector, parse_selector_text
from koord.plugin import LimitedLog, get_logger
from koord.plugin.args import (
    FieldError,
    FieldPath,
    Seconds,
    UInt,
    invalid_duration,
    takes_args,
    unsupported,
)
from koord_descheduler.plugin import (
    EVICTOR_FILTER_FIELDS,
    ClusterPod,
    EvictOptions,
    EvictorFilter,
    EvictPlugin,
    FilterPlugin,
    Handle,
    NodeFit,
    PluginRegistry,
    PodEvictions,
    PriorityThreshold,
    check_label_selector,
    check_selector_text,
    controller_of,
    evictorfilter,
    nodes_matching,
    reads,
)


class NoEvictionPolicy(StrEnum):
    """The weight of a pod's annotation against its eviction."""

    PREFERRED = "Preferred"
    MANDATORY = "Mandatory"


class PodProtection(StrEnum):
    """A kind of pods that DefaultEvictor keeps."""

    LOCAL_STORAGE = "PodsWithLocalStorage"  # by default
    DAEMON_SET = "DaemonSetPods"  # by default
    SYSTEM_CRITICAL = "SystemCriticalPods"  # by default
    FAILED_BARE = "FailedBarePods"  # by default
    PVC = "PodsWithPVC"
    WITHOUT_PDB = "PodsWithoutPDB"
    RESOURCE_CLAIMS = "PodsWithResourceClaims"


DEFAULT_PROTECTIONS = (
    PodProtection.LOCAL_STORAGE,
    PodProtection.DAEMON_SET,
    PodProtection.SYSTEM_CRITICAL,
    PodProtection.FAILED_BARE,
)


EXTRA_PROTECTIONS = tuple(one for one in PodProtection if one not in DEFAULT_PROTECTIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageClass:
    """A storage class."""

    name: str = ""  # of the class


@dataclass(frozen=True, kw_only=True, slots=True)
class PVCProtection:
    """The protection PodsWithPVC."""

    protected_storage_classes: tuple[StorageClass, ...] = ()  # only these; none: all


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtectionConfig:
    """Settings of single protections."""

    pods_with_pvc: PVCProtection | None = wire("PodsWithPVC", None)  # what it protects


@dataclass(frozen=True, kw_only=True, slots=True)
class PodProtections:
    """Protections of pods beyond the defaults, by name."""

    extra_enabled: tuple[str, ...] = ()  # PodsWithPVC, PodsWithoutPDB, PodsWithResourceClaims
    default_disabled: tuple[str, ...] = ()  # PodsWithLocalStorage, DaemonSetPods and so on
    config: ProtectionConfig | None = None  # of single protections


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultEvictorArgs:
    """The pods that DefaultEvictor allows to be evicted."""

    node_selector: str = ""  # nodes that nodeFit looks at, as a text like "a=b,c in (d,e)"
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    namespace_label_selector: LabelSelector | None = None  # namespaces of such pods; not set: all
    priority_threshold: PriorityThreshold | None = None  # pods of this priority and above stay
    node_fit: bool = False  # a pod goes only if another node can take it
    min_replicas: UInt = 0  # pods of an owner with fewer stay
    min_pod_age: Seconds | None = None  # seconds; younger pods stay
    no_eviction_policy: NoEvictionPolicy = NoEvictionPolicy.PREFERRED  # a pod's annotation
    pod_protections: PodProtections | None = None  # which pods stay
    evict_local_storage_pods: bool = False  # pods with hostPath or emptyDir volumes may go
    evict_daemon_set_pods: bool = False  # pods of DaemonSets may go
    evict_system_critical_pods: bool = False  # pods of any priority may go
    ignore_pvc_pods: bool = False  # pods with a PersistentVolumeClaim stay
    ignore_pods_without_pdb: bool = wire(  # pods without PodDisruptionBudget stay
        "ignorePodsWithoutPDB", False
    )
    evict_failed_bare_pods: bool = False  # failed pods without owner may go

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_selector_text(("nodeSelector",), self.node_selector)
        yield from check_label_selector(("labelSelector",), self.label_selector)
        path: FieldPath = ("namespaceLabelSelector",)
        yield from check_label_selector(path, self.namespace_label_selector)
        if self.min_pod_age is not None and self.min_pod_age < 0:
            yield invalid_duration(("minPodAge",), self.min_pod_age, "wanted 0s or more")
        named = self.pod_protections or PodProtections()
        for key, names, known in (
            ("extraEnabled", named.extra_enabled, EXTRA_PROTECTIONS),
            ("defaultDisabled", named.default_disabled, DEFAULT_PROTECTIONS),
        ):
            for index, name in enumerate(names):
                if name not in known:
                    yield unsupported(("podProtections", key, index), name, known)

    @property
    def protections(self) -> frozenset[PodProtection]:
        """The protections that count; podProtections with any name wins over the older fields."""
        named = self.pod_protections or PodProtections()
        if named.extra_enabled or named.default_disabled:
            kept = set(DEFAULT_PROTECTIONS) - {PodProtection(one) for one in named.default_disabled}
            return frozenset(kept | {PodProtection(one) for one in named.extra_enabled})
        older = {
            PodProtection.LOCAL_STORAGE: not self.evict_local_storage_pods,
            PodProtection.DAEMON_SET: not self.evict_daemon_set_pods,
            PodProtection.SYSTEM_CRITICAL: not self.evict_system_critical_pods,
            PodProtection.FAILED_BARE: not self.evict_failed_bare_pods,
            PodProtection.PVC: self.ignore_pvc_pods,
            PodProtection.WITHOUT_PDB: self.ignore_pods_without_pdb,
        }
        return frozenset(one for one, counts in older.items() if counts)


COMPONENT = "koord-descheduler"  # the reporter of its events
PAUSE = 5.0  # seconds without a request after the API server was busy and named no time

log = get_logger("koord_descheduler.default_evictor")


@takes_args(DefaultEvictorArgs, strict=False)
@reads(EVICTOR_FILTER_FIELDS)
class DefaultEvictor(EvictPlugin, FilterPlugin):
    """Lets unprotected pods go, and evicts them at once, within their PodDisruptionBudgets."""

    def __init__(self, args: DefaultEvictorArgs, handle: Handle) -> None:
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
        self._node_fit = NodeFit(services.hardware.fits)
        self._nodes = parse_selector_text(args.node_selector, "nodeSelector")
        self._filter = EvictorFilter(
            (evictorfilter.is_mirror, evictorfilter.is_static, evictorfilter.is_deleting),
            self._constraints(),
        )

    def filter(self, pod: ClusterPod) -> bool:
        return not self._filter.reason(pod)

    def reject_reason(self, pod: ClusterPod) -> str:
        return self._filter.reason(pod)

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        """Whether another node can take the pod, and its namespace is one of those that count."""
        return not self.pre_eviction_reject_reason(pod)

    def pre_eviction_reject_reason(self, pod: ClusterPod) -> str:
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
        """Ask the API server once; a pod whose eviction it rejects is tried in a later cycle.

        While the API server is too busy nothing is asked.
        """
        if self._clock.monotonic() < self._busy_until:
            return False
        response = await self._evictions.evict(pod, options=options.delete_options)
        done = response.outcome is EvictionOutcome.EVICTED
        if response.busy:
            pause = PAUSE if response.retry_after is None else response.retry_after
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
            facts = {"pod": pod.key, "outcome": response.outcome.value, "error": response.message}
            self._failures.warning("eviction.refused", **facts)
        return done

    def rehearse(self, pod: ClusterPod, options: EvictOptions) -> str:
        """Return why the API server would reject the eviction, for people; "": it would not.

        The check covers PodDisruptionBudgets and evictions of the same cycle.

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
        if args.no_eviction_policy is NoEvictionPolicy.MANDATORY:
            found.append(evictorfilter.asks_to_stay)
        if PodProtection.SYSTEM_CRITICAL in protected:
            classes = self._cluster.priority_classes
            found.append(evictorfilter.is_system_critical)
            found.append(evictorfilter.reaches_priority(args.priority_threshold, classes))
        if PodProtection.FAILED_BARE in protected:
            found.append(evictorfilter.is_bare)
        else:
            found.append(evictorfilter.is_bare_and_not_failed)
        for protection, constraint in (
            (PodProtection.LOCAL_STORAGE, evictorfilter.has_local_storage),
            (PodProtection.DAEMON_SET, evictorfilter.is_of_daemon_set),
            (PodProtection.PVC, self._has_protected_claim),
            (PodProtection.WITHOUT_PDB, self._lacks_budget),
            (PodProtection.RESOURCE_CLAIMS, _has_resource_claims),
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
        """Return why a claim protects the pod; "": none does.

        An unknown storage class is protected, too, as in Kubernetes.
        """
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
        """Return why minReplicas protects the pod; "": it does not.

        Only pods with a single owner are counted, as in Kubernetes.
        """
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
