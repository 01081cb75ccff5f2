"""Interfaces of plugins, and of the gate that every eviction passes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from koord.cluster.facts import ClusterNode, ClusterPod
from koord.util.errors import error_text


@dataclass(frozen=True, slots=True)
class Status:
    """Result of one round; without an error it went well."""

    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """Whether it went well."""
        return self.error is None

    def __str__(self) -> str:
        return "ok" if self.error is None else error_text(self.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Relief:
    """The usage that an eviction is expected to take off the pod's node, as measured."""

    cpu: float  # cores
    memory: float  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictOptions:
    """Circumstances of an eviction. What is empty is filled in from the plugin that runs."""

    plugin_name: str = ""  # of the initiator
    reason: str = ""  # a sentence for people
    delete_options: Mapping[str, object] | None = None  # meta/v1 DeleteOptions; None: defaults
    relief: Relief | None = None  # None: load is not why it is evicted


class Plugin:
    """A plugin of a profile, made by its factory: one instance for each profile that names it.

    Everything runs on the daemon's event loop; what takes long belongs into asyncio.to_thread.
    """

    name: str
    """The name that it was registered under, by which profiles enable it; set by the framework."""

    async def close(self) -> None:
        """Clean up; called when the profile ends. By default there is nothing to do."""


class DeschedulePlugin(Plugin, ABC):
    """Judges each pod against the constraints of now, and evicts those that violate them."""

    @abstractmethod
    async def deschedule(self, nodes: Sequence[ClusterNode]) -> Status | None:
        """Evict what should leave these nodes. None, and no exception: it went well."""


class BalancePlugin(Plugin, ABC):
    """Looks at the distribution of many pods; runs after all Deschedule plugins of all profiles."""

    @abstractmethod
    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        """Evict what should move between these nodes. None, and no exception: it went well."""


class EvictPlugin(Plugin, ABC):
    """Carries out evictions; a profile has exactly one."""

    @abstractmethod
    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        """Evict a pod, or begin to; return whether that worked. Filters were asked before."""

    def rehearse(self, pod: ClusterPod, options: EvictOptions) -> str:
        """Return, in dry-run in place of evict, why it would not evict the pod; "": it would.

        It rejects here, too, what it would have rejected because of earlier evictions in the same
        cycle. Nothing is changed. By default it would evict every pod.
        """
        return ""


class FilterPlugin(Plugin, ABC):
    """Decides which pods may be evicted at all."""

    @abstractmethod
    def filter(self, pod: ClusterPod) -> bool:
        """Whether the pod may be evicted; asked for every candidate, so it must be cheap."""

    @abstractmethod
    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        """Whether the pod may be evicted now; asked for the few that are chosen."""

    def reject_reason(self, pod: ClusterPod) -> str:
        """Why filter does not let the pod be evicted, a sentence for people; "": it does.

        Asked when people want to know. By default it names this plugin.
        """
        return "" if self.filter(pod) else f"{self.name} does not let it be evicted"

    def pre_eviction_reject_reason(self, pod: ClusterPod) -> str:
        """Why pre_eviction_filter does not let the pod go, the end of a sentence that begins with
        "but"; "": it does, or this plugin does not say.
        """
        return ""


class Evictor(EvictPlugin, FilterPlugin):
    """The combined interface of Koordinator's public guide: filter and evict.

    Without a pre_eviction_filter of its own everything passes there.
    """

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        return True


class AdmissionGate(Protocol):
    """Asked before each eviction, of a dry-run too, and notified of those that are begun.

    Times are Unix seconds. Belongs to the event loop.
    """

    def reject_reason(
        self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool
    ) -> str:
        """Return why the pod may not be evicted now, for people; "": it may."""

    def noted(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> None:
        """Note an eviction that is about to be carried out; later rejections may depend on it."""

    def undone(self, pod: ClusterPod) -> None:
        """Forget the eviction of the pod that was noted last: it did not take place."""


class OpenGate:
    """A gate that rejects nothing and keeps nothing."""

    def reject_reason(
        self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool
    ) -> str:
        return ""

    def noted(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> None:
        return

    def undone(self, pod: ClusterPod) -> None:
        return
