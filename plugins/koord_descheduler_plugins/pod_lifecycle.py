"""PodLifeTime, RemoveFailedPods, RemovePodsHavingTooManyRestarts: pods leave by age and state."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from koord.api.labelselector import LabelSelector
from koord.plugin.args import FieldError, Int32, UInt, invalid, required, takes_args
from koord_descheduler.plugin import (
    ClusterPod,
    ContainerKind,
    ContainerState,
    EvictionCandidate,
    Handle,
    Namespaces,
    PluginRegistry,
    PureDeschedulePlugin,
    View,
    check_pods,
    pods_in,
)


class RestartState(StrEnum):
    """A state of pods that restart too often."""

    RUNNING = "Running"
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerKinds:
    """Kinds of the pods' owners; without include all but those in exclude."""

    include: tuple[str, ...] = ()  # kinds; only these
    exclude: tuple[str, ...] = ()  # kinds; all but these


@dataclass(frozen=True, kw_only=True, slots=True)
class PodCondition:
    """A condition of a pod; what is not set matches any."""

    type: str = ""  # of the condition
    status: str = ""  # True, False or Unknown
    reason: str = ""  # of the condition
    min_time_since_last_transition_seconds: UInt | None = None  # it has lasted for as long


@dataclass(frozen=True, kw_only=True, slots=True)
class PodLifeTimeArgs:
    """Old pods leave; all conditions that are set must hold."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    owner_kinds: OwnerKinds | None = None  # kinds of the owners of pods that may go
    max_pod_life_time_seconds: UInt | None = None  # older pods go
    states: tuple[str, ...] = ()  # phases of pods, or reasons of their containers
    conditions: tuple[PodCondition, ...] = ()  # one of them holds
    exit_codes: tuple[Int32, ...] = ()  # of containers
    including_init_containers: bool = False  # states and exit codes of init containers count, too
    including_ephemeral_containers: bool = False  # and those of ephemeral ones

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_pods(self.namespaces, self.label_selector)
        if self.owner_kinds and self.owner_kinds.include and self.owner_kinds.exclude:
            yield invalid(("ownerKinds",), "both", "only one of include and exclude can be set")
        has_age = self.max_pod_life_time_seconds is not None
        if not (has_age or self.states or self.conditions or self.exit_codes):
            hint = "or states, conditions or exitCodes"
            yield required(("maxPodLifeTimeSeconds",), hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveFailedPodsArgs:
    """Failed pods leave."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    exclude_owner_kinds: tuple[str, ...] = ()  # pods of such owners stay
    min_pod_lifetime_seconds: UInt = 3600  # younger pods stay
    reasons: tuple[str, ...] = ()  # of the failure; none: any
    exit_codes: tuple[Int32, ...] = ()  # of containers; none: any
    including_init_containers: bool = False  # reasons and exit codes of init containers count, too

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_pods(self.namespaces, self.label_selector)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsHavingTooManyRestartsArgs:
    """Pods leave whose containers restart too often."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    pod_restart_threshold: Int32 = 0  # restarts of all containers; must be set, 1 or more
    including_init_containers: bool = False  # restarts of init containers count, too
    states: tuple[RestartState, ...] = ()  # pods that may go; none: all

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_pods(self.namespaces, self.label_selector)
        if self.pod_restart_threshold < 1:
            yield invalid(("podRestartThreshold",), self.pod_restart_threshold, "wanted 1 or more")


@takes_args(PodLifeTimeArgs, strict=False)
class PodLifeTime(PureDeschedulePlugin):
    """Names the pods for which all that is configured holds, the oldest first."""

    def __init__(self, args: PodLifeTimeArgs, handle: Handle) -> None:
        super().__init__(handle)
        self._args = args
        self._wanted = pods_in(args.namespaces, args.label_selector)
        self._owned = _owner_filter(args)

    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        found = [
            (since(pod, self._args), pod, why)
            for row in rows
            for pod in view.pods(row)
            if self._wanted(pod)
            and self._owned(pod)
            and (why := life_time_reason(pod, self._args, now))
        ]
        found.sort(key=lambda each: (each[0], each[1].key))
        for _, pod, why in found:
            yield EvictionCandidate(pod, why)


def life_time_reason(pod: ClusterPod, args: PodLifeTimeArgs, now: float) -> str:
    """Return why a pod should leave: all that is configured holds; "": something does not."""
    holds: list[str] = []
    for test in (_too_old, _in_state, _has_condition, _exited):
        text = test(pod, args, now)
        if text is None:
            return ""
        holds.append(text)
    return " and ".join(filter(None, holds))


def since(pod: ClusterPod, args: PodLifeTimeArgs) -> float:
    """Return when the state began for which a pod is evicted, in Unix seconds; it orders pods.

    The last transition that conditions with a time match; without one the pod's creation.
    """
    times = [
        at
        for wanted in args.conditions
        if wanted.min_time_since_last_transition_seconds is not None
        for at in _transitions(pod, wanted)
        if at is not None
    ]
    return max(times, default=pod.created or 0.0)


def _owner_filter(args: PodLifeTimeArgs) -> Callable[[ClusterPod], bool]:
    kinds = args.owner_kinds or OwnerKinds()
    include, exclude = frozenset(kinds.include), frozenset(kinds.exclude)

    def wanted(pod: ClusterPod) -> bool:
        owners = {owner.kind for owner in pod.owners}
        return (not include or bool(owners & include)) and not owners & exclude

    return wanted


# Each returns the end of a sentence about the pod; "" if it is not configured, None if unmet.


def _too_old(pod: ClusterPod, args: PodLifeTimeArgs, now: float) -> str | None:
    most = args.max_pod_life_time_seconds
    if most is None:
        return ""
    if pod.created is None or int(now - pod.created) <= most:
        return None
    return f"it is {int(now - pod.created)} s old, more than {most} s"


def _in_state(pod: ClusterPod, args: PodLifeTimeArgs, now: float) -> str | None:
    if not args.states:
        return ""
    found = [pod.phase, pod.status_reason]
    for one in _containers(pod, args, ephemeral=args.including_ephemeral_containers):
        found += [one.waiting or "", one.ended or ""]
    state = next((one for one in found if one and one in args.states), None)
    return None if state is None else f"it is in state {state}"


def _has_condition(pod: ClusterPod, args: PodLifeTimeArgs, now: float) -> str | None:
    if not args.conditions:
        return ""
    for wanted in args.conditions:
        least = wanted.min_time_since_last_transition_seconds
        for at in _transitions(pod, wanted):
            if least is None:
                return "it has a condition that is listed"
            if at is not None and int(now - at) >= least:
                return f"it has had a condition that is listed for {int(now - at)} s"
    return None


def _exited(pod: ClusterPod, args: PodLifeTimeArgs, now: float) -> str | None:
    if not args.exit_codes:
        return ""
    for one in _containers(pod, args, ephemeral=False):
        if one.ended is not None and one.exit_code in args.exit_codes:
            return f"a container has ended with {one.exit_code}"
    return None


def _containers(pod: ClusterPod, args: PodLifeTimeArgs, *, ephemeral: bool) -> list[ContainerState]:
    kinds = {ContainerKind.REGULAR}
    if args.including_init_containers:
        kinds.add(ContainerKind.INIT)
    if ephemeral:
        kinds.add(ContainerKind.EPHEMERAL)
    return [one for one in pod.containers if one.kind in kinds]


def _transitions(pod: ClusterPod, wanted: PodCondition) -> Iterator[float | None]:
    """Times of the conditions that match."""
    for one, at in zip(pod.conditions, pod.condition_times, strict=True):
        if (
            wanted.type in ("", one.type)
            and wanted.status in ("", one.status)
            and wanted.reason in ("", one.reason)
        ):
            yield at


def register_pod_life_time(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("PodLifeTime", PodLifeTime)


@takes_args(RemoveFailedPodsArgs, strict=False)
class RemoveFailedPods(PureDeschedulePlugin):
    """Names the pods that failed long enough ago, for a reason that counts."""

    def __init__(self, args: RemoveFailedPodsArgs, handle: Handle) -> None:
        super().__init__(handle)
        self._args = args
        self._wanted = pods_in(args.namespaces, args.label_selector)

    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        for row in rows:
            for pod in view.pods(row):
                if pod.phase == "Failed" and self._wanted(pod):
                    yield EvictionCandidate(
                        pod, "it has failed", but=protected_reason(pod, self._args, now)
                    )


def protected_reason(pod: ClusterPod, args: RemoveFailedPodsArgs, now: float) -> str:
    """Return why a failed pod stays; "": it goes."""
    age = None if pod.created is None else now - pod.created
    if age is None or age < args.min_pod_lifetime_seconds:
        least = args.min_pod_lifetime_seconds
        return f"its age of {age or 0:.0f} s is less than minPodLifetimeSeconds, {least} s"
    for owner in pod.owners:
        if owner.kind in args.exclude_owner_kinds:
            return f"excludeOwnerKinds has {owner.kind}"
    states = [
        one
        for one in pod.containers
        if one.kind is ContainerKind.REGULAR
        or (args.including_init_containers and one.kind is ContainerKind.INIT)
    ]
    if args.reasons:
        found = {
            pod.status_reason,
            *(one.waiting for one in states),
            *(one.ended for one in states),
        }
        if not found & set(args.reasons):
            names = ", ".join(sorted(filter(None, found)))
            return f"its reasons ({names or 'none'}) are not among those that count"
    if args.exit_codes:
        codes = {one.exit_code for one in states if one.ended is not None}
        if not codes & set(args.exit_codes):
            names = ", ".join(map(str, sorted(codes)))
            return f"its exit codes ({names or 'none'}) are not among those that count"
    return ""


def register_failed_pods(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemoveFailedPods", RemoveFailedPods)


@takes_args(RemovePodsHavingTooManyRestartsArgs, strict=False)
class RemovePodsHavingTooManyRestarts(PureDeschedulePlugin):
    """Names the pods with so many restarts, those with the most first."""

    def __init__(self, args: RemovePodsHavingTooManyRestartsArgs, handle: Handle) -> None:
        super().__init__(handle)
        self._args = args
        self._wanted = pods_in(args.namespaces, args.label_selector)

    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        least = self._args.pod_restart_threshold
        found = []
        for row in rows:
            for pod in view.pods(row):
                if not pod.containers or not self._wanted(pod):  # as nearly all
                    continue
                count = restarts(pod, self._args)
                if count >= least and in_state(pod, self._args):
                    found.append((-count, pod.key, pod))
        for count, _, pod in sorted(found, key=lambda each: each[:2]):
            yield EvictionCandidate(
                pod, f"its containers restarted {-count} times, {least} are too many"
            )


def restarts(pod: ClusterPod, args: RemovePodsHavingTooManyRestartsArgs) -> int:
    """Restarts of a pod's containers."""
    return sum(one.restarts for one in pod.containers if one.kind in _kinds(args))


def in_state(pod: ClusterPod, args: RemovePodsHavingTooManyRestartsArgs) -> bool:
    """Whether a pod is in one of the states that count; without any in the arguments it is."""
    waiting = {one.waiting for one in pod.containers if one.kind in _kinds(args)}
    return not args.states or any(one in (pod.phase, *waiting) for one in args.states)


def _kinds(args: RemovePodsHavingTooManyRestartsArgs) -> tuple[ContainerKind, ...]:
    regular = (ContainerKind.REGULAR,)
    return (*regular, ContainerKind.INIT) if args.including_init_containers else regular


def register_too_many_restarts(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemovePodsHavingTooManyRestarts", RemovePodsHavingTooManyRestarts)
