"""RemovePodsHavingTooManyRestarts: pods leave whose containers restart again and again.

Source: sigs.k8s.io/descheduler, removepodshavingtoomanyrestarts.
"""

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

Args = kubernetes_args.RemovePodsHavingTooManyRestartsArgs


class RemovePodsHavingTooManyRestarts(JudgePlugin):
    """Names the pods with so many restarts, those with the most first."""

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(handle)
        self._args = args
        self._wanted = pods_in(args.namespaces, args.label_selector)

    def judge(self, view: View, rows: Sequence[int], now: float) -> Iterator[Choice]:
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
            yield Choice(pod, f"its containers restarted {-count} times, {least} are too many")


def restarts(pod: ClusterPod, args: Args) -> int:
    """Restarts of a pod's containers."""
    return sum(one.restarts for one in pod.containers if one.kind in _kinds(args))


def in_state(pod: ClusterPod, args: Args) -> bool:
    """Whether a pod is in one of the states that count; without any in the arguments it is."""
    waiting = {one.waiting for one in pod.containers if one.kind in _kinds(args)}
    return not args.states or any(one in (pod.phase, *waiting) for one in args.states)


def _kinds(args: Args) -> tuple[ContainerKind, ...]:
    regular = (ContainerKind.REGULAR,)
    return (*regular, ContainerKind.INIT) if args.including_init_containers else regular


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemovePodsHavingTooManyRestarts", RemovePodsHavingTooManyRestarts)
