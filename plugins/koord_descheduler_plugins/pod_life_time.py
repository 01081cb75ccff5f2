"""PodLifeTime: pods leave by their age and state. Source: sigs.k8s.io/descheduler, podlifetime."""

from collections.abc import Callable, Iterator, Sequence

from koord_descheduler.plugin import (
    Choice,
    ClusterPod,
    ContainerKind,
    ContainerState,
    Handle,
    JudgePlugin,
    PluginRegistry,
    View,
    kubernetes_args,
    pods_in,
)

Args = kubernetes_args.PodLifeTimeArgs


class PodLifeTime(JudgePlugin):
    """Names the pods for which all that is configured holds, the oldest first."""

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(handle)
        self._args = args
        self._wanted = pods_in(args.namespaces, args.label_selector)
        self._owned = _owner_filter(args)

    def judge(self, view: View, rows: Sequence[int], now: float) -> Iterator[Choice]:
        found = [
            (since(pod, self._args), pod, why)
            for row in rows
            for pod in view.pods(row)
            if self._wanted(pod) and self._owned(pod) and (why := reason(pod, self._args, now))
        ]
        found.sort(key=lambda each: (each[0], each[1].key))
        for _, pod, why in found:
            yield Choice(pod, why)


def reason(pod: ClusterPod, args: Args, now: float) -> str:
    """Return why a pod should leave: all that is configured holds; "": something does not."""
    holds: list[str] = []
    for test in (_too_old, _in_state, _has_condition, _exited):
        text = test(pod, args, now)
        if text is None:
            return ""
        holds.append(text)
    return " and ".join(filter(None, holds))


def since(pod: ClusterPod, args: Args) -> float:
    """When the state began for which a pod goes, in Unix seconds: its order among others.

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


def _owner_filter(args: Args) -> Callable[[ClusterPod], bool]:
    kinds = args.owner_kinds or kubernetes_args.OwnerKinds()
    include, exclude = frozenset(kinds.include), frozenset(kinds.exclude)

    def wanted(pod: ClusterPod) -> bool:
        owners = {owner.kind for owner in pod.owners}
        return (not include or bool(owners & include)) and not owners & exclude

    return wanted


# Each returns the end of a sentence about the pod; "" if it is not configured, None if not met.


def _too_old(pod: ClusterPod, args: Args, now: float) -> str | None:
    most = args.max_pod_life_time_seconds
    if most is None:
        return ""
    if pod.created is None or int(now - pod.created) <= most:
        return None
    return f"it is {int(now - pod.created)} s old, more than {most} s"


def _in_state(pod: ClusterPod, args: Args, now: float) -> str | None:
    if not args.states:
        return ""
    found = [pod.phase, pod.status_reason]
    for one in _containers(pod, args, ephemeral=args.including_ephemeral_containers):
        found += [one.waiting or "", one.ended or ""]
    state = next((one for one in found if one and one in args.states), None)
    return None if state is None else f"it is in state {state}"


def _has_condition(pod: ClusterPod, args: Args, now: float) -> str | None:
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


def _exited(pod: ClusterPod, args: Args, now: float) -> str | None:
    if not args.exit_codes:
        return ""
    for one in _containers(pod, args, ephemeral=False):
        if one.ended is not None and one.exit_code in args.exit_codes:
            return f"a container has ended with {one.exit_code}"
    return None


def _containers(pod: ClusterPod, args: Args, *, ephemeral: bool) -> list[ContainerState]:
    kinds = {ContainerKind.REGULAR}
    if args.including_init_containers:
        kinds.add(ContainerKind.INIT)
    if ephemeral:
        kinds.add(ContainerKind.EPHEMERAL)
    return [one for one in pod.containers if one.kind in kinds]


def _transitions(pod: ClusterPod, wanted: kubernetes_args.PodCondition) -> Iterator[float | None]:
    """Times of the conditions that match."""
    for one, at in zip(pod.conditions, pod.condition_times, strict=True):
        if (
            wanted.type in ("", one.type)
            and wanted.status in ("", one.status)
            and wanted.reason in ("", one.reason)
        ):
            yield at


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("PodLifeTime", PodLifeTime)
