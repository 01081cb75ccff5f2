"""RemovePodsViolatingNodeTaints: pods leave nodes with taints that they do not tolerate.

Source: sigs.k8s.io/descheduler, removepodsviolatingnodetaints.
"""

from collections.abc import Callable, Iterator, Sequence

from koord_descheduler.plugin import (
    Choice,
    Handle,
    JudgePlugin,
    PluginRegistry,
    PodSpec,
    Taint,
    View,
    kubernetes_args,
    pods_in,
)

Args = kubernetes_args.RemovePodsViolatingNodeTaintsArgs


class RemovePodsViolatingNodeTaints(JudgePlugin):
    """Names the pods that do not tolerate a taint of their node, node by node.

    NoExecute is left to Kubernetes itself, which evicts by it. A pod that could not be read in full
    stays: its tolerations may be what is missing.
    """

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(handle)
        self._wanted = pods_in(args.namespaces, args.label_selector)
        self._counts = counting(args)

    def judge(self, view: View, rows: Sequence[int], now: float) -> Iterator[Choice]:
        known: dict[tuple[tuple[Taint, ...], PodSpec], Taint | None] = {}
        for row in rows:
            taints = tuple(filter(self._counts, view.node(row).taints))
            if not taints:
                continue
            for pod in view.pods(row):
                if pod.finished or pod.spec.unread or not self._wanted(pod):
                    continue
                key = taints, pod.spec
                if key not in known:
                    known[key] = untolerated(taints, pod.spec)
                taint = known[key]
                if taint is not None:
                    text = f"{taint.key}={taint.value}:{taint.effect}"
                    yield Choice(pod, f"it does not tolerate the taint {text} of its node")


def untolerated(taints: Sequence[Taint], spec: PodSpec) -> Taint | None:
    """Return the first taint that a pod does not tolerate; None: it tolerates all."""
    for taint in taints:
        if not any(one.tolerates(taint) for one in spec.tolerations):
            return taint
    return None


def counting(args: Args) -> Callable[[Taint], bool]:
    """Return which taints count."""
    effects = {"NoSchedule"}
    if args.include_prefer_no_schedule:
        effects.add("PreferNoSchedule")

    def counts(taint: Taint) -> bool:
        names = {taint.key, f"{taint.key}={taint.value}"}
        return (
            taint.effect in effects
            and not names & set(args.excluded_taints)
            and (not args.included_taints or bool(names & set(args.included_taints)))
        )

    return counts


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemovePodsViolatingNodeTaints", RemovePodsViolatingNodeTaints)
