"""Interfaces of plugins, one for each extension point, and the handlers that they register."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from koord.cluster.columns import Mask
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.plugins.execution import FailureLog, PluginCode, PluginTimeout, running_plugin
from koord.component.plugins.registry import PluginError, is_coroutine_function
from koord.component.plugins.shared import READY_TIMEOUT, STEP
from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord_scheduler.framework.status import (
    CycleState,
    NodeScore,
    NodeStatuses,
    PostFilterResult,
    PreFilterResult,
    Scores,
    Status,
    Verdicts,
    Wait,
)
from koord_scheduler.framework.types import ChangedRows, HintedEvent, NodeInfo, QueuedPod


class Plugin:
    """A plugin of a profile, made by its factory: one instance for each profile that names it."""

    name: str
    """The name that it was registered under, by which profiles enable it; set by the framework."""

    comes_before: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """By extension point the plugin that would do this one's work if it came first.

    A profile that has both at that point, and in the other order, is refused at the start."""

    named_only_at: Collection[str] = frozenset()
    """Extension points at which profiles name the plugin, and it does nothing: it is not called."""

    def active_at(self, pod: ClusterPod) -> Collection[str] | None:
        """Return the extension points at which the plugin has something to do for a pod.

        At the others, named as in profiles, it is not called for the pod, as if it had nothing to
        say there. None, the default: at all. QueueSort and PostFilter are always called.

        The answer is kept for equal pods. It may depend on the namespace, labels, spec,
        annotations, priority and workload group of the pod, and on what the plugin knows: when that
        changes, the plugin calls handle.reconsider() in the same turn of the event loop.
        """
        return None

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

    filter_changes: ChangedRows | None = None
    """Rows of which the verdicts have changed, but neither the row nor the key; None: no such rows.

    Set when the plugin is made."""

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

    score_changes: ChangedRows | None = None
    """Rows of which the scores have changed, as filter_changes has those of verdicts."""

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

    scales_to_highest: bool = False
    """Whether normalize_scores is default_normalize: then only what has changed is scaled again."""

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

    @property
    def has_next(self) -> bool:
        """Whether to ask for the next pod at all: before each cycle, so it must cost nothing."""
        return True

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


T = TypeVar("T")

OnChange = Callable[[T | None, T | None], None]
"""on_change(old, new): an object before and after; None where it is absent."""

log = get_logger("koord_scheduler.framework")


class Changes:
    """Calls plugins when an object was added, changed or removed. One event loop."""

    def __init__(self, clock: Clock) -> None:
        self._handlers: dict[str, list[_Handler]] = {}  # by kind
        self._labelled: set[str] = set()  # kinds of which some want objects with labels alone
        self._failures = FailureLog(log, clock)

    def subscribe(
        self,
        kind: ObjectKind[T],
        on_change: OnChange[T],
        *,
        labels: frozenset[str] | None = None,
    ) -> None:
        """Call a function after each change of a kind, when the cluster state has it already.

        The function must be fast, as it blocks all else; an exception from it is logged. A plugin
        subscribes when it is made, before the first list comes, so it sees every object.

        labels: of pods. It is not called for a pod that has none of them, no annotations and no
        workload group, and had none before the change.
        """
        handler = running_plugin(), on_change, labels
        self._handlers.setdefault(kind.name, []).append(handler)
        if labels is not None:
            self._labelled.add(kind.name)

    def notify(self, kind: ObjectKind[T], old: T | None, new: T | None) -> None:
        """Call all functions for this kind."""
        found = _labels_of(old, new) if kind.name in self._labelled else None
        for plugin, on_change, labels in self._handlers.get(kind.name, ()):
            if labels is not None and found is not None and labels.isdisjoint(found):
                continue
            try:
                on_change(old, new)
            except Exception as err:
                facts = {"watched": kind.name, "handler": getattr(on_change, "__qualname__", "")}
                self._failures.failed("change.failed", plugin, err, **facts)


_Handler = tuple[str, OnChange[Any], frozenset[str] | None]  # plugin, function, labels


def _labels_of(*pods: object) -> Collection[str] | None:
    """Return the labels of a pod before and after a change; None: it has more than labels."""
    found: Mapping[str, str] = {}
    for pod in pods:
        if not isinstance(pod, ClusterPod):
            continue
        if pod.annotations or pod.workload_group:
            return None
        labels = pod.label_set.labels
        found = labels if found is labels or not found else {**found, **labels}
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedPod:
    """A pod whose attempt failed."""

    profile: str
    pod: ClusterPod  # as it was tried
    queued: QueuedPod
    status: Status  # the plugin that rejected it is in it
    plugins: frozenset[str]  # all that have rejected it, or another pod of its group
    nominated_node: str | None  # "": a nomination that there was is void; None: as it was


FailureFilter = Callable[[FailedPod], bool]
"""Return whether the failure is handled, and others need not be asked."""


class FailureFilters:
    """Filters of plugins for failed pods, before and after they are requeued."""

    def __init__(self, clock: Clock) -> None:
        self._before: list[tuple[str, FailureFilter]] = []  # with the plugin that it is from
        self._after: list[tuple[str, FailureFilter]] = []
        self._failures = FailureLog(log, clock)

    def register(
        self, before: FailureFilter | None = None, after: FailureFilter | None = None
    ) -> None:
        """Add filters; they are asked in the order in which they were added.

        before: where it returns True, the pod is neither requeued nor reported: the plugin has
        handled it completely. after: asked whatever the filters before returned.
        """
        if before is not None:
            self._before.append((running_plugin(), before))
        if after is not None:
            self._after.append((running_plugin(), after))

    def before(self, failed: FailedPod) -> bool:
        """Whether one of them has handled the failure."""
        return self._any(self._before, failed)

    def after(self, failed: FailedPod) -> None:
        """Ask until one has handled it."""
        self._any(self._after, failed)

    def _any(self, filters: Iterable[tuple[str, FailureFilter]], failed: FailedPod) -> bool:
        for plugin, each in filters:
            try:
                if each(failed):
                    return True
            except Exception as err:  # of a plugin; the pod must not be lost for it
                name = getattr(each, "__qualname__", "")
                facts = {"handler": name, "pod": failed.pod.key}
                self._failures.failed("failure_filter.failed", plugin, err, **facts)
        return False


class ForgetHandlers:
    """Called when a plugin has a pod taken off its node that was assumed there."""

    def __init__(self, clock: Clock) -> None:
        self._handlers: list[tuple[str, Callable[[ClusterPod], None]]] = []
        self._failures = FailureLog(log, clock)

    def register(self, handler: Callable[[ClusterPod], None]) -> None:
        """Add a function that drops what its plugin keeps about a pod."""
        self._handlers.append((running_plugin(), handler))

    def forgotten(self, pod: ClusterPod) -> None:
        """Call all of them, whatever becomes of each."""
        for plugin, each in self._handlers:
            try:
                each(pod)
            except Exception as err:
                name = getattr(each, "__qualname__", "")
                facts = {"handler": name, "pod": pod.key}
                self._failures.failed("forget_handler.failed", plugin, err, **facts)


StartHook = Callable[[], Awaitable[None]]


class HookFailed(KoordError):
    """A start-up hook of a plugin has failed; the daemon cannot start."""


class StartHooks:
    """Hooks of plugins, run once when the cluster is known, before the first pod is tried."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hooks: list[tuple[str, StartHook]] = []
        self._running: tuple[str, float] | None = None  # the plugin, and since when
        self._late: list[str] = []

    def add(self, plugin: str, hook: StartHook) -> None:
        """Add a coroutine function: it finds in the cluster's state every object there is.

        It has a minute; then it is cancelled, and scheduling begins without it.

        Raises:
            PluginError: it is no coroutine function.
        """
        if not is_coroutine_function(hook):
            wanted = "wanted a start-up hook that is async def and takes nothing"
            raise PluginError(f"plugin {plugin}: {wanted}, found {hook!r:.80}", plugin)
        self._hooks.append((plugin, hook))

    def health(self) -> PartHealth:
        """Unhealthy while one runs; degraded when one was cancelled."""
        if self._running is not None:
            plugin, began = self._running
            seconds = self._clock.monotonic() - began
            reason = f"plugin {plugin}: its start-up hook runs for {seconds:.0f} s"
            return PartHealth(HealthStatus.UNHEALTHY, reason)
        if self._late:
            late = [f"plugin {plugin}: its start-up hook did not end" for plugin in self._late]
            return PartHealth(
                HealthStatus.DEGRADED, f"{'; '.join(late)} within {READY_TIMEOUT:g} s"
            )
        return OK

    async def run(self) -> None:
        """Run all, one after the other.

        Raises:
            HookFailed: one has raised, or held the event loop.
        """
        try:
            for plugin, hook in self._hooks:
                self._running = plugin, self._clock.monotonic()
                await self._run(plugin, hook)
        finally:
            self._running = None

    async def _run(self, plugin: str, hook: StartHook) -> None:
        code = PluginCode(plugin, self._clock, step_seconds=STEP)
        try:
            await code.run(hook, READY_TIMEOUT)
        except PluginTimeout as err:
            self._late.append(plugin)
            log.error("start_hook.timed_out", plugin=plugin, error=str(err))  # noqa: TRY400 - it says it all
        except Exception as err:
            text = error_text(err)
            raise HookFailed(f"plugin {plugin}: its start-up hook failed: {text}") from err
