"""SchedulingHint: a pod names the only nodes to look at, and those that it prefers.

Source: Koordinator, pkg/scheduler/plugins/schedulinghint.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from koord.api.annotations import (
    MAX_HINT_BYTES,
    NO_HINT,
    SCHEDULING_HINTS,
    NodeHint,
    scheduling_hint,
)
from koord.plugin import KoordError
from koord.plugin.args import FieldError, invalid, takes_args
from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    PreFilterPlugin,
    PreFilterResult,
    Status,
    View,
    reads,
)
from koord_scheduler.plugin.koordinator import PreferNodesPlugin

_KEY = "SchedulingHint/hint"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulingHintArgs:
    """Bounds."""

    max_hint_nodes: int = 100  # preferred nodes of a pod that are tried

    def validate(self) -> Iterator[FieldError]:
        if self.max_hint_nodes <= 0:
            yield invalid(("maxHintNodes",), self.max_hint_nodes, "wanted more than 0")


@dataclass(frozen=True, slots=True)
class HintState:
    """The hint of the pod of a cycle."""

    hint: NodeHint

    def clone(self) -> "HintState":
        return self


@takes_args(SchedulingHintArgs)
@reads(pod_annotations=dict.fromkeys(SCHEDULING_HINTS, MAX_HINT_BYTES))
class SchedulingHint(PreFilterPlugin, PreferNodesPlugin, EnqueueExtensions):
    """Restricts the nodes, and has those tried first that a pod's annotation names."""

    def __init__(self, args: SchedulingHintArgs, handle: Handle) -> None:
        self._most = args.max_hint_nodes

    def events_to_register(self) -> Iterable[HintedEvent]:
        """A node that is named may come. Another annotation makes another pod of it."""
        return (HintedEvent(ClusterEvent(EventResource.NODE, Action.ADD)),)

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        try:
            hint = _hint_of(pod)
        except KoordError as err:
            return Status.failed(err)
        state.write(_KEY, HintState(hint))
        return PreFilterResult(frozenset(hint.nodes)) if hint.nodes else None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def prefer_nodes(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> Sequence[str] | Status:
        """The preferred nodes that there are, as many as are allowed, in the order of the pod."""
        found = state.find(_KEY, HintState)
        preferred = () if found is None else found.hint.preferred[: self._most]
        names = [
            name
            for name in preferred
            if nodes.row(name) is not None and (result is None or name in result.node_names)
        ]
        return names or Status.skip()


def _hint_of(pod: ClusterPod) -> NodeHint:
    annotations = dict(pod.annotations)
    for name in SCHEDULING_HINTS:
        if name in annotations:
            return scheduling_hint(annotations[name])
    return NO_HINT
