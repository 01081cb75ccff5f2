"""RemoveFailedPods: failed pods leave. Source: sigs.k8s.io/descheduler, removefailedpods."""

from collections.abc import Iterator, Sequence

from koord_descheduler.plugin import (
    Choice,
    ClusterPod,
    ContainerKind,
    Handle,
    JudgePlugin,
    PluginRegistry,
    View,
    kubernetes_args,
    pods_in,
)

Args = kubernetes_args.RemoveFailedPodsArgs


class RemoveFailedPods(JudgePlugin):
    """Names the pods that failed long enough ago, for a reason that counts."""

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(handle)
        self._args = args
        self._wanted = pods_in(args.namespaces, args.label_selector)

    def judge(self, view: View, rows: Sequence[int], now: float) -> Iterator[Choice]:
        for row in rows:
            for pod in view.pods(row):
                if pod.phase == "Failed" and self._wanted(pod):
                    yield Choice(pod, "it has failed", but=kept(pod, self._args, now))


def kept(pod: ClusterPod, args: Args, now: float) -> str:
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


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemoveFailedPods", RemoveFailedPods)
