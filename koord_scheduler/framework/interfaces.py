"""Interfaces of plugins, one for each extension point, and what plugins claim to handle in pods."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, TypeVar

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.registry import PluginError
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.status import (
    NodeScore,
    NodeStatuses,
    PostFilterResult,
    PreFilterResult,
    Scores,
    Status,
    Verdicts,
    Wait,
)
from koord_scheduler.framework.types import HintedEvent, NodeInfo, QueuedPod


class Plugin:
    """A plugin of a profile, made by its factory: one instance for each profile that names it."""

    name: str
    """The name that it was registered under, by which profiles enable it; set by the framework."""

    comes_before: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """By extension point the plugin that would do this one's work if it came first.

    A profile that has both at that point, and in the other order, is refused at the start."""

    named_only_at: Collection[str] = frozenset()
    """Extension points at which profiles name the plugin, and it does nothing: it is not called."""

    async def close(self) -> None:
        """Clean up; called when the profile ends. By default there is nothing to do."""


class EnqueueExtensions(Plugin, ABC):
    """Says what may help the pods that the plugin rejects. Without it everything may help."""

    @abstractmethod
    def events_to_register(self) -> Iterable[HintedEvent]:
        """Events after which such a pod is tried again; without any, none helps. Asked once."""


class PreEnqueuePlugin(Plugin, ABC):
    """Decides whether a pod may be tried at all."""

    @abstractmethod
    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        """Let the pod into the active queue, or reject it. Cheap, and without the snapshot."""


class QueueSortPlugin(Plugin, ABC):
    """Decides which pod is tried next; all profiles have the same one."""

    @abstractmethod
    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether the first one is tried before the second."""


class PreFilterPlugin(Plugin, ABC):
    """Prepares Filter for one pod."""

    @abstractmethod
    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        """Compute what Filter needs; reject the pod, skip Filter, or name the nodes to look at."""

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Return a key of all that the answer and the written state depend on, beyond the pod.

        For pods that are equal, but in name and uid, and while the key is equal, PreFilter is not
        called: the answer is used again, and the state has the same values, which must not be
        changed but in a clone. None, the default: it is called in each cycle.
        """
        return None


class PreFilterExtensions(Plugin, ABC):
    """Keeps what PreFilter has computed right while pods come and go in a what-if."""

    @abstractmethod
    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, node: NodeInfo
    ) -> Status | None:
        """Count a pod that was added to a node, which has it."""

    @abstractmethod
    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, node: NodeInfo
    ) -> Status | None:
        """Count off a pod that was removed from a node, which does not have it any more."""


class Filtering(Plugin):
    """A plugin that rejects nodes, in whichever form."""

    rejection: Status = Status.unschedulable("node(s) were rejected by a plugin")
    """Why a node is rejected where only a mask says that it is."""

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Return a key of all that the result depends on, beyond the node's row and the pod.

        The pod's name and uid do not count. For pods that are equal, and while the key is equal,
        results are cached, and only rows that have changed are computed again. Where nominated pods
        are imagined on other nodes and the key stays the same, one pass over all nodes is enough.
        None, the default: nothing is cached.
        """
        return None

    def victim_groups(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Iterable[Collection[str]]:
        """Return the pods of a node that hold what lies together, by key, for preemption.

        Such as all that have CPUs of one NUMA node: that they leave, and no others, may cost less.
        Of all plugins together the first MAX_VICTIM_GROUPS groups are tried.
        """
        return ()


MAX_VICTIM_GROUPS = 32  # of a node


class FilterPlugin(Filtering, ABC):
    """Rejects nodes for a pod, one by one."""

    @abstractmethod
    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        """Let the node pass, or reject it."""


class VectorFilterPlugin(Filtering, ABC):
    """Rejects nodes for a pod, all at once."""

    @abstractmethod
    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        """Return which nodes pass; shape (nodes,)."""

    def filter_among(
        self, state: CycleState, pod: ClusterPod, nodes: View, among: Mask
    ) -> Mask | Verdicts:
        """Return the same where only some nodes matter: no plugin before has rejected them.

        For plugins to which a node costs much. By default filter_all looks at all nodes.
        """
        return self.filter_all(state, pod, nodes)


class PostFilterPlugin(Plugin, ABC):
    """Frees resources for a pod that no node is feasible for."""

    @abstractmethod
    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        """Find a node on which the pod could be placed later, or reject it."""

    async def post_filter_dry_run(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        """Return what post_filter would, with the victims, and have nothing done: for plans.

        By default Skip: it is not known.
        """
        return Status.skip()


class PreScorePlugin(Plugin, ABC):
    """Prepares Score for one pod."""

    @abstractmethod
    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Compute what Score needs, or skip it; feasible has at least two nodes."""

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Return a key as pre_filter_reuse_key does; None also where feasible nodes matter."""
        return None


class Scoring(Plugin):
    """A plugin that scores nodes, in whichever form."""

    def scores_pod(self, state: CycleState, pod: ClusterPod) -> bool:
        """Return whether Score may give nodes different scores; False: it is skipped in this cycle.

        Asked after PreScore. For profiles that enable Score of a plugin without its PreScore.
        """
        return True

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Return a key of all that a score depends on, beyond the node's row and the pod.

        The pod's name and uid do not count. Scores are cached like the results of
        Filtering.filter_reuse_key; NormalizeScore is called in each cycle.
        """
        return None


class ScorePlugin(Scoring, ABC):
    """Scores feasible nodes, one by one."""

    @abstractmethod
    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        """Return the score: 0 to 100, unless the plugin normalizes it. Fractions are cut off."""


class VectorScorePlugin(Scoring, ABC):
    """Scores all nodes at once."""

    @abstractmethod
    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        """Return a score for each node; shape (nodes,). Those of nodes not feasible do not count.

        A column of floats will do; fractions are cut off.
        """


class NormalizeScorePlugin(Plugin, ABC):
    """Brings the scores of one plugin into the range from 0 to 100."""

    @abstractmethod
    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        """Change the scores of the feasible nodes."""


class VectorNormalizeScorePlugin(Plugin, ABC):
    """Brings the scores of one plugin into the range from 0 to 100, all at once."""

    @abstractmethod
    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        """Return the scores of the feasible nodes, normalized; shape (feasible nodes,)."""


class ReservePlugin(Plugin, ABC):
    """Keeps its own account of the node that was chosen."""

    @abstractmethod
    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Reserve what the pod needs on the node, or reject it."""

    @abstractmethod
    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Release it, also what was not reserved or is released already."""


class PermitPlugin(Plugin, ABC):
    """Decides whether a pod may be bound now, later, or not."""

    @abstractmethod
    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        """Let the pod be bound, have it wait, or reject it."""


class PreBindPlugin(Plugin, ABC):
    """Prepares what the pod needs before it is bound."""

    pre_bind_timeout: float = 0.0
    """Seconds that pre_bind may take beyond those that each plugin has."""

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        """Success: pre_bind has something to do; Skip: it has not, and is not called."""
        return None

    @abstractmethod
    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Prepare it; anything but success ends the binding."""


class BindPlugin(Plugin, ABC):
    """Binds a pod to its node."""

    @abstractmethod
    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Bind it, fail, or skip it: then the next plugin's turn comes."""


class PostBindPlugin(Plugin, ABC):
    """Learns that a pod was bound."""

    @abstractmethod
    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Clean up."""


class NextPodPlugin(Plugin, ABC):
    """Says which pod is tried next; one plugin name for all profiles."""

    @abstractmethod
    def next_pod(self) -> str | None:
        """Return the uid of a pod that waits in the queue; None: the queue's own order."""


class ResizePodPlugin(Plugin, ABC):
    """Changes what a pod requests, once its node is known. Needs the feature gate ResizePod."""

    @abstractmethod
    def resize_pod(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> ClusterPod | Status | None:
        """Return the pod with other requests, as it is assumed on the node; None: as it is."""


_KEY = "scheduling.koordinator.sh/pod-changes"


@dataclass(slots=True)
class PodChanges:
    """Labels and annotations to set on a pod before it is bound; None: to remove."""

    labels: dict[str, str | None] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)

    def clone(self) -> "PodChanges":
        return PodChanges(dict(self.labels), dict(self.annotations))

    @property
    def metadata(self) -> Mapping[str, object]:
        """The fields of a merge patch's metadata; empty: nothing is changed."""
        both = {"labels": self.labels, "annotations": self.annotations}
        return {name: dict(values) for name, values in both.items() if values}


class PreBindExtensions(Plugin, ABC):
    """Applies what PreBind plugins have changed; active where its plugin is enabled at preBind."""

    @abstractmethod
    async def apply_patch(
        self, state: CycleState, pod: ClusterPod, changes: PodChanges
    ) -> Status | None:
        """Apply it, fail, or skip it: then the next plugin's turn comes."""


def pod_changes(state: CycleState) -> PodChanges:
    """Return what is changed about the pod of this cycle, to be added to in PreBind or before."""
    found = state.find(_KEY, PodChanges)
    if found is None:
        found = PodChanges()
        state.write(_KEY, found)
    return found


MAX_KEYS = 256  # that one plugin claims
MAX_KEY_LENGTH = 317  # characters: a prefix of 253, a slash, a name of 63

_DECLARED = "__plugin_claims__"

F = TypeVar("F", bound=Callable[..., object])


def claims_pods_with(*keys: str) -> Callable[[F], F]:
    """Declare that a plugin does what pods ask for by these annotations, labels or resources.

    While no plugin of its profile claims what a pod asks for, MissingPlugins refuses the pod. It
    knows the keys of Koordinator's gangs, quotas, reservations, NUMA nodes and devices. A derived
    class also claims what its bases do:

    @claims_pods_with("pod-group.scheduling.sigs.k8s.io")
    class Gangs(PermitPlugin, ...): ...

    Raises:
        PluginError: a key cannot be one.
    """
    if len(keys) > MAX_KEYS:
        raise PluginError(f"claims_pods_with: wanted at most {MAX_KEYS} keys, found {len(keys)}")
    for key in keys:
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            wanted = "wanted keys of annotations or labels, or names of resources"
            raise PluginError(f"claims_pods_with: {wanted}, found {key!r:.80}")

    def declare(factory: F) -> F:
        setattr(factory, _DECLARED, claims_of(factory) | frozenset(keys))
        return factory

    return declare


def claims_of(factory: object) -> frozenset[str]:
    """Return what a factory, or the class of a plugin, declares to claim."""
    found: object = getattr(factory, _DECLARED, None)
    return found if isinstance(found, frozenset) else frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class PodClaims:
    """Claims of the plugins of one profile, and of those that it lacks."""

    profile: str  # its scheduler name
    enabled: frozenset[str] = frozenset()
    """The keys that plugins of the profile claim."""
    registered: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Plugins of this process by what they claim, whether the profile enables them or not."""

    def remedy(self, key: str, example: str) -> str:
        """Return the hint for a key without a claim. example: a plugin that has one."""
        names = sorted(self.registered.get(key, ()))
        if names:
            return f"enable {' or '.join(names)} in profile {self.profile}"
        return (
            f"install a plugin that claims {key}, such as Koordinator's {example}, and enable it "
            f"in profile {self.profile}, or have another scheduler place the pod"
        )


def pod_claims(
    profile: str, enabled: Collection[str], factories: Iterable[tuple[str, object]]
) -> PodClaims:
    """Return the claims of a profile that enables plugins by name. factories: all, by name."""
    registered: dict[str, list[str]] = {}
    claimed: set[str] = set()
    for name, factory in factories:
        keys = claims_of(factory)
        for key in keys:
            registered.setdefault(key, []).append(name)
        if name in enabled:
            claimed |= keys
    return PodClaims(profile=profile, enabled=frozenset(claimed), registered=registered)
