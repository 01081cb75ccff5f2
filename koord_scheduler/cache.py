"""The scheduler cache: the cluster, with assumed pods on their nodes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from koord.cluster.account import NO_ACCOUNT, FrozenAccount
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import ClusterPod, PodSpec
from koord.cluster.kinds import POD
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.logs import get_logger
from koord_scheduler.framework.types import Refresh

T = TypeVar("T")

OnStateChange = Callable[[ObjectKind[Any], Any, Any], None]
"""on_change(kind, old, new): an object as the API server has it; None where it is absent."""

log = get_logger("koord_scheduler.cache")

_SCHEDULED = "PodScheduled"
NO_ANNOTATIONS: Mapping[str, str | None] = MappingProxyType({})
_UPDATE_BATCH = 256  # changes: after a list of 150,000 pods the first cycle would take 0.1 s


class AssumeError(KoordError):
    """A pod cannot be assumed to be on a node."""


@dataclass(slots=True)
class _AssumedPod:
    pod: ClusterPod  # as the API server has it
    node: str
    spec: PodSpec | None  # that it is assumed with; None: its own
    annotations: Mapping[str, str | None] = field(default_factory=dict)  # to be set; None: removed
    expires: float | None = None  # monotonic seconds; None: it does not

    @property
    def placed(self) -> ClusterPod:
        """The pod as it will be in the API server once it is bound."""
        found = replace(self.pod, node=self.node, spec=self.spec or self.pod.spec)
        if self.annotations:
            merged = {**dict(found.annotations), **self.annotations}
            kept = tuple(
                [(key, value) for key, value in sorted(merged.items()) if value is not None]
            )
            found = replace(found, annotations=kept)
        return found


class SchedulerCache(ClusterState):
    """The cluster, in which assumed pods are on their nodes.

    What the API server says of a pod that is bound confirms it, or corrects it. What it says of one
    that is not bound yet does not take it from its node. A confirmation with no other news than
    the condition PodScheduled changes nothing: that comes with the next change of the pod. Belongs
    to one thread.
    """

    def __init__(self, clock: Clock, *, expiry: float = 0.0) -> None:
        """expiry: seconds from the end of a binding in which it must be confirmed; 0: for ever."""
        super().__init__()
        self._clock = clock
        self._expiry = expiry
        self._assumed: dict[str, _AssumedPod] = {}  # by uid
        self._uncounted = 0  # changes since pods were counted for spread and affinity
        self._own_pods: set[str] = set()  # keys; those that the API server does not have
        self._smaller: dict[str, ClusterPod] = {}  # by uid; as the API server has them
        self._refreshers: list[Refresh] = []
        self._refreshed: FrozenAccount = NO_ACCOUNT  # that own pods were refreshed by
        self._on_change: OnStateChange = _ignore

    def observe(self, on_change: OnStateChange) -> None:
        """Set the function to call after each change by put and remove; it replaces the one before.

        It is not called for an object that is put unchanged, nor for assumed or forgotten pods.
        An object that replaces one with another uid is a removal and an addition, in this order.
        """
        self._on_change = on_change

    @property
    def assumed_count(self) -> int:
        return len(self._assumed)

    def get(self, kind: ObjectKind[T], key: str) -> T | None:
        """An object by its key, a pod as the API server has it; None: not known."""
        found: Any = super().get(kind, key)
        if found is not None and kind is POD and (assumed := self._assumed.get(found.uid)):
            found = assumed.pod
        if found is not None and kind is POD:
            found = self._smaller.get(found.uid, found)
        return found  # type: ignore[no-any-return]

    def put(self, kind: ObjectKind[T], item: T) -> None:
        """Take an object into the state."""
        old = self.get(kind, item.key)  # type: ignore[attr-defined]
        if old == item:
            return
        super().put(kind, item)
        self._uncounted += 1
        if self._uncounted >= _UPDATE_BATCH:
            self._uncounted = 0
            self.view().count_pods()
        if old is not None and getattr(old, "uid", "") != getattr(item, "uid", ""):
            self._on_change(kind, old, None)
            old = None
        self._on_change(kind, old, item)

    def remove(self, kind: ObjectKind[Any], key: str, uid: str = "") -> None:
        """Remove an object from the state."""
        old = self.get(kind, key)
        super().remove(kind, key, uid)
        if old is not None and self.get(kind, key) is None:
            self._on_change(kind, old, None)

    def keys(self, kind: ObjectKind[Any]) -> Iterable[str]:
        """The keys of all objects of a kind that the API server has."""
        found = super().keys(kind)
        if kind is not POD or not self._own_pods:
            return found
        return (key for key in found if key not in self._own_pods)

    def put_own_pod(self, pod: ClusterPod) -> None:
        """Put a pod that the API server does not have; put again, it is changed.

        Raises:
            ValueError: the API server has a pod of this name.
        """
        if self.pod(pod.key) is not None and pod.key not in self._own_pods:
            raise ValueError(f"pod {pod.key} is the API server's")
        self.put(POD, pod)
        self._own_pods.add(pod.key)

    def remove_own_pod(self, key: str) -> None:
        """Remove such a pod; one that is none is left alone."""
        if key in self._own_pods:
            self.remove(POD, key)

    def put_smaller_pod(self, pod: ClusterPod) -> None:
        """Let a bound pod of the API server take what this one requests, until it changes there.

        Other pods have the rest of its room. A pod that is not there, is another one of its name,
        or is assumed, stays as it is.
        """
        known = self.get(POD, pod.key)
        if known is None or (known.uid, known.node) != (pod.uid, pod.node):
            return
        if pod.uid in self._assumed or pod.key in self._own_pods or known.finished:
            return
        if pod.spec == known.spec:
            self._smaller.pop(pod.uid, None)
        else:
            self._smaller[pod.uid] = known
        super()._put_pod(replace(known, spec=pod.spec))

    def is_own_pod(self, key: str) -> bool:
        """Whether the API server does not have this pod, but a plugin has put it."""
        return key in self._own_pods

    def refresh_own_pods(self, refresh: Refresh) -> None:
        """Ask for own pods that depend on the account before each view of another account.

        Those that are the API server's are put as by put_smaller_pod.
        What is put then is no event: it follows from changes of other pods, which are some.
        """
        self._refreshers.append(refresh)

    def view(self) -> View:
        """The cluster as it is now, with own pods as the account wants them."""
        if self._refreshers and (now := self.account) is not self._refreshed:
            before, self._refreshed = self._refreshed, now
            for refresh in self._refreshers:
                for pod in refresh(before, now):
                    if pod.key not in self._own_pods:
                        self.put_smaller_pod(pod)
                    elif pod.uid not in self._assumed:
                        super()._put_pod(pod)
        return super().view()

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def assume(
        self, pod: ClusterPod, node: str, annotations: Mapping[str, str | None] = NO_ANNOTATIONS
    ) -> ClusterPod:
        """Place a pod on a node, with the spec that it is given with; return it as it is there.

        annotations: that are to be set already, as by annotate.

        Raises:
            AssumeError: it is assumed or bound already, has gone, or there is no such node.
        """
        known = self.pod(pod.key)
        found = ""
        if known is None or known.uid != pod.uid:
            found = "that it has gone"
        elif pod.uid in self._assumed:
            found = f"that it is assumed to be on node {known.node}"
        elif known.node:
            found = f"that it is bound to node {known.node}"
        elif self.view().row(node) is None:
            found = "that there is no such node"
        if found or known is None:
            raise AssumeError(f"pod {pod.key}: wanted it assumed on node {node}, found {found}")
        spec = None if pod.spec is known.spec else pod.spec
        assumed = self._assumed[pod.uid] = _AssumedPod(known, node, spec, annotations)
        return self._place(assumed)

    def annotate(self, uid: str, annotations: Mapping[str, str | None]) -> ClusterPod | None:
        """Set annotations of an assumed pod; return it as it is then.

        None: it is not assumed, or has these already, so that it is not placed again.

        annotations: all that are to be set until it is bound, such as devices chosen for it; None
        removes one. So views and accounts have at once what the API server will have.
        """
        assumed = self._assumed.get(uid)
        if assumed is None or assumed.annotations == annotations:
            return None
        assumed.annotations = dict(annotations)
        return self._place(assumed)

    def _place(self, assumed: _AssumedPod) -> ClusterPod:
        placed = assumed.placed
        super()._put_pod(placed)
        return placed

    def finish_binding(self, uid: str) -> None:
        """The API server has taken the binding: from now on it must be confirmed in its time."""
        assumed = self._assumed.get(uid)
        if assumed is not None and self._expiry:
            assumed.expires = self._clock.monotonic() + self._expiry

    def forget(self, uid: str) -> bool:
        """Take an assumed pod off its node; return whether it was assumed."""
        assumed = self._assumed.pop(uid, None)
        if assumed is None:
            return False
        super()._put_pod(assumed.pod)
        return True

    def expire(self) -> int:
        """Take pods off their nodes whose binding was not confirmed in time; return how many."""
        if not self._expiry:
            return 0
        now = self._clock.monotonic()
        late = [
            uid
            for uid, assumed in self._assumed.items()
            if assumed.expires is not None and assumed.expires <= now
        ]
        for uid in late:
            pod = self._assumed[uid].pod
            log.warning("assumed_pod.expired", pod=pod.key, node=self._assumed[uid].node)
            self.forget(uid)
        return len(late)

    def _put_pod(self, pod: ClusterPod) -> None:
        self._own_pods.discard(pod.key)
        self._smaller.pop(pod.uid, None)
        known = self.pod(pod.key)
        if known is not None and known.uid != pod.uid:
            self._assumed.pop(known.uid, None)  # its name is another pod's now
            self._smaller.pop(known.uid, None)
        assumed = self._assumed.get(pod.uid)
        if assumed is None:
            super()._put_pod(pod)
            return
        if not pod.node and not pod.finished:
            if assumed.pod.spec is not pod.spec:
                assumed.spec = None  # what it requests has changed since
            assumed.pod = pod
            self._place(assumed)
            return
        del self._assumed[pod.uid]
        if known is not None and _is_confirmation(known, pod):
            return  # each row would be looked at twice for each pod: when it comes, and again here
        if pod.node not in ("", assumed.node):
            log.warning(
                "assumed_pod.node_mismatch", pod=pod.key, assumed=assumed.node, bound_to=pod.node
            )
        super()._put_pod(pod)

    def _remove_pod(self, key: str, uid: str) -> None:
        known = self.pod(key)
        self._own_pods.discard(key)
        if known is not None and uid in ("", known.uid):
            self._assumed.pop(known.uid, None)
            self._smaller.pop(known.uid, None)
        super()._remove_pod(key, uid)


def _is_confirmation(placed: ClusterPod, confirmed: ClusterPod) -> bool:
    """Whether a pod that had not been rejected is as it was placed, but for PodScheduled."""
    if any(one.type == _SCHEDULED for one in placed.conditions):
        return False
    both = zip(confirmed.conditions, confirmed.condition_times, strict=False)
    others = [each for each in both if each[0].type != _SCHEDULED]
    conditions = tuple([condition for condition, _ in others])
    times = tuple([at for _, at in others])
    return replace(confirmed, conditions=conditions, condition_times=times) == placed


def _ignore(kind: ObjectKind[Any], old: object, new: object) -> None:
    """Nothing observes the state."""
