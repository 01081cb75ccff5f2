"""Arguments of MigrationController. Source: Koordinator, MigrationControllerArgs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Self

from koord.api.gojson import NUMBER, Scalar, wire
from koord.api.labelselector import LabelSelector
from koord.plugin.args import (
    FieldError,
    FieldPath,
    Int32,
    Key,
    Seconds,
    invalid,
    invalid_duration,
    parse_float,
    unsupported,
    warning,
)
from koord_descheduler.plugin import (
    Namespaces,
    PriorityThreshold,
    check_label_selector,
    check_namespaces,
    check_selector_text,
)


class EvictionGate(StrEnum):
    """A check of pods that can be left out."""

    MAX_MIGRATING_GLOBALLY = "MaxMigratingGlobally"
    MAX_MIGRATING_PER_NODE = "MaxMigratingPerNode"
    MAX_MIGRATING_PER_NAMESPACE = "MaxMigratingPerNamespace"
    MAX_MIGRATING_PER_WORKLOAD = "MaxMigratingPerWorkload"
    MAX_UNAVAILABLE_PER_WORKLOAD = "MaxUnavailablePerWorkload"
    EXPECTED_REPLICAS = "ExpectedReplicas"
    PVC = "PVC"
    BARE_PODS = "BarePods"
    LOCAL_STORAGE = "LocalStorage"
    SYSTEM_CRITICAL = "SystemCritical"
    PRIORITY_THRESHOLD = "PriorityThreshold"
    LABEL_SELECTOR = "LabelSelector"
    NAMESPACES = "Namespaces"
    NODE_FIT = "NodeFit"


class JobMode(StrEnum):
    """The order of a migration."""

    RESERVATION_FIRST = "ReservationFirst"  # resources elsewhere, then the eviction
    EVICT_DIRECTLY = "EvictDirectly"


class EvictionPolicy(StrEnum):
    """The way in which a pod leaves its node."""

    EVICTION = "Eviction"  # the eviction API, which respects PodDisruptionBudgets
    DELETE = "Delete"
    SOFT_EVICTION = "SoftEviction"  # an annotation, which another controller acts on


def _accept_rate(value: object) -> object:
    return NUMBER.accept(parse_float(value) if isinstance(value, str) else value)


Rate = Annotated[float, Scalar("a number, or a text with one", _accept_rate, zero=0.0)]
"""A number per second; in JSON a number or a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectLimiter:
    """A rate of evictions for each object of a kind."""

    duration: Seconds = 0.0  # seconds; 0: no limit
    max_migrating: int | str | None = None  # evictions in duration; a number or percent of replicas
    burst: Int32 = 0  # evictions at once; 0: 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ArbitrationArgs:
    """How waiting jobs are chosen."""

    enabled: bool = False  # has no effect, in Koordinator neither
    interval: Seconds = 0.5  # seconds between two rounds


_DEFAULT_LIMITERS = {"workload": ObjectLimiter(duration=300.0)}


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrationControllerArgs:
    """Percent of replicas are rounded down; see maxMigratingPerWorkload."""

    dry_run: bool = False  # report an eviction as done without a job for it
    max_concurrent_reconciles: Int32 = 1  # jobs that are worked on at once
    evict_failed_bare_pods: bool = False  # failed pods without owner may go
    evict_all_bare_pods: bool = False  # all pods without owner may go
    evict_local_storage_pods: bool = False  # pods with hostPath or emptyDir volumes may go
    evict_system_critical_pods: bool = False  # pods of any priority may go
    ignore_pvc_pods: bool = False  # pods with a PersistentVolumeClaim stay
    priority_threshold: PriorityThreshold | None = None  # pods of this priority and above stay
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    namespaces: Namespaces | None = None  # pods that may go; not set: all
    node_fit: bool = False  # a pod goes only if another node can take it
    node_selector: str = ""  # nodes that nodeFit looks at, as a text like "a=b,c in (d,e)"
    skip_eviction_gates: tuple[str, ...] = ()  # checks that are left out
    max_migrating_globally: Int32 | None = None  # pods at a time; not set or 0: no limit
    max_migrating_per_node: Int32 = 2  # pods of one node at a time
    max_migrating_per_namespace: Int32 | None = None  # pods of one namespace; not set: no limit
    max_migrating_per_workload: int | str | None = None  # a number or percent of its replicas
    max_unavailable_per_workload: int | str | None = None  # a number or percent of its replicas
    skip_check_expected_replicas: bool = False  # also pods of a workload that would have none left
    object_limiters: Mapping[str, ObjectLimiter] = wire(  # of "workload" and "namespace"
        "objectLimiters", factory=lambda: dict(_DEFAULT_LIMITERS)
    )
    default_job_mode: str = JobMode.RESERVATION_FIRST.value  # or EvictDirectly
    default_job_ttl: Seconds = wire("defaultJobTTL", 300.0)  # seconds; 0: a job has no end
    scheduler_names: tuple[str, ...] = ("koord-scheduler",)  # those that handle Reservations
    evict_qps: Rate = wire("evictQPS", 10.0)  # evictions per second
    evict_burst: Int32 = 1  # evictions at once
    eviction_policy: EvictionPolicy = EvictionPolicy.EVICTION  # the way in which pods leave
    default_delete_options: Mapping[str, object] | None = None  # DeleteOptions of Kubernetes
    arbitration_args: ArbitrationArgs | None = None  # how waiting jobs are chosen

    def complete(self) -> Self:
        """Fill in what an empty value stands for."""
        return replace(
            self,
            object_limiters=self.object_limiters or dict(_DEFAULT_LIMITERS),
            scheduler_names=self.scheduler_names or ("koord-scheduler",),
            default_job_mode=self.default_job_mode or JobMode.RESERVATION_FIRST.value,
            arbitration_args=self.arbitration_args or ArbitrationArgs(enabled=True),
        )

    def validate(self) -> Iterator[FieldError]:
        """Return the faults, and warnings."""
        for index, name in enumerate(self.skip_eviction_gates):
            if name not in list(EvictionGate):
                yield invalid(("skipEvictionGates", index), name, "unknown eviction gate")
        for key, most in (
            ("maxMigratingGlobally", self.max_migrating_globally),
            ("maxMigratingPerNamespace", self.max_migrating_per_namespace),
            ("maxMigratingPerNode", self.max_migrating_per_node),
        ):
            if most is not None and most < 0:
                yield invalid((key,), most, f"{key} should be greater or equal 0")
        for key, amount in (
            ("maxMigratingPerWorkload", self.max_migrating_per_workload),
            ("maxUnavailablePerWorkload", self.max_unavailable_per_workload),
        ):
            yield from _check_amount((key,), amount)
        yield from self._check_limiters()
        yield from self._check_rates()
        yield from check_selector_text(("nodeSelector",), self.node_selector)
        yield from check_label_selector(("labelSelector",), self.label_selector)
        yield from check_namespaces(("namespaces",), self.namespaces)
        if self.max_concurrent_reconciles < 1:
            wanted = "maxConcurrentReconciles should be greater than or equal to 1"
            yield invalid(("maxConcurrentReconciles",), self.max_concurrent_reconciles, wanted)
        if self.default_job_mode not in list(JobMode):
            wanted = "defaultJobMode must be ReservationFirst or EvictDirectly"
            yield invalid(("defaultJobMode",), self.default_job_mode, wanted)

    def _check_rates(self) -> Iterator[FieldError]:
        if self.evict_qps <= 0:
            yield invalid(("evictQPS",), self.evict_qps, "evictQPS must be greater than 0")
        if self.evict_burst <= 0:
            yield invalid(("evictBurst",), self.evict_burst, "evictBurst must be greater than 0")
        if self.default_job_ttl < 0:
            wanted = "defaultJobTTL should be positive or zero"
            yield invalid_duration(("defaultJobTTL",), self.default_job_ttl, wanted)
        if self.arbitration_args is not None and self.arbitration_args.interval <= 0:
            found = self.arbitration_args.interval
            yield invalid_duration(("arbitrationArgs", "interval"), found, "wanted more than 0s")

    def _check_limiters(self) -> Iterator[FieldError]:
        for kind, limiter in self.object_limiters.items():
            path: FieldPath = ("objectLimiters", Key(kind))
            if kind not in ("workload", "namespace"):
                yield unsupported(path, kind, ("workload", "namespace"))
            if limiter.duration < 0:
                yield invalid_duration((*path, "duration"), limiter.duration, "wanted 0s or more")
            if limiter.burst < 0:
                yield invalid((*path, "burst"), limiter.burst, "wanted 0 or more")
            yield from _check_amount((*path, "maxMigrating"), limiter.max_migrating)
            if kind == "namespace" and isinstance(limiter.max_migrating, str):
                text = "a namespace has no replicas; a percentage limits nothing, use a number"
                yield warning((*path, "maxMigrating"), text)


def _check_amount(path: FieldPath, amount: int | str | None) -> Iterator[FieldError]:
    """A text must be a whole number of percent."""
    if isinstance(amount, str):
        number = amount[:-1].removeprefix("-").removeprefix("+")
        digits = number.isascii() and number.isdigit() and len(number) <= 9
        if not (amount.endswith("%") and digits):
            yield invalid(path, amount, "wanted a number, or a text like 10%")
