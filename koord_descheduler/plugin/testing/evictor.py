"""An evict and filter plugin that only records: the counterpart of the plugins under test."""

from collections.abc import Callable
from dataclasses import dataclass

from koord.cluster.facts import ClusterPod
from koord_descheduler.framework.handle import Handle
from koord_descheduler.framework.interfaces import EvictOptions, Evictor


@dataclass(frozen=True, slots=True)
class Evicted:
    """One eviction, and its circumstances."""

    pod: ClusterPod
    options: EvictOptions

    @property
    def key(self) -> str:
        """namespace/name of the pod."""
        return self.pod.key


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingEvictorArgs:
    """Pods that stay, by namespace/name."""

    protected: tuple[str, ...] = ()  # the filter does not let them go
    refused: tuple[str, ...] = ()  # their eviction fails


class RecordingEvictor(Evictor):
    """Evicts by recording it, unless its args say otherwise."""

    def __init__(
        self,
        args: RecordingEvictorArgs | None,
        handle: Handle,
        leave: Callable[[ClusterPod], None] = lambda pod: None,
    ) -> None:
        """leave is called with each pod that was evicted."""
        self._args = args or RecordingEvictorArgs()
        self._handle = handle
        self._leave = leave
        self.evicted: list[Evicted] = []

    def filter(self, pod: ClusterPod) -> bool:
        return pod.key not in self._args.protected

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        done = pod.key not in self._args.refused
        self._handle.services.metrics.evicted.count(
            result="success" if done else "error",
            strategy=options.plugin_name,
            namespace=pod.namespace,
            node=pod.node,
        )
        if done:
            self.evicted.append(Evicted(pod, options))
            self._leave(pod)
        return done
