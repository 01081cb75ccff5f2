"""The sources of states: files that the user names, else the cluster, else the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from koord.component.components import ComponentSet, Part
from koord.util.clock import Clock
from koord.util.health import PartHealth
from koordlet.daemon.settings.settings import Settings
from koordlet.host.cgroups.cgrouptree import CgroupTree
from koordlet.host.host import Host
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.objects.filesources import node_file, node_slo_file
from koordlet.statesinformer.objects.hostnode import HostNode
from koordlet.statesinformer.pods.podsource import PodSource

if TYPE_CHECKING:
    from koordlet.daemon.cluster.cluster import Cluster


class Source(Part, Protocol):
    """A part that publishes states of one kind."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSources:
    """The source of pods, and those of the other states."""

    pods: PodSource
    others: Sequence[Source]

    def add_to(self, components: ComponentSet) -> None:
        """Have every source run, and register the health of all."""
        components.health.register_group("source", self._health)
        components.runs |= {f"source {source.name}": source.run for source in self._all()}

    def driver(self) -> str:
        """The cgroup driver, as pods' cgroups show it now."""
        return self.pods.layout.driver.value

    def _all(self) -> Iterator[Source]:
        yield self.pods
        yield from self.others

    def _health(self) -> dict[str, PartHealth]:
        return {source.name: source.health() for source in self._all()}


def build_sources(
    settings: Settings,
    states: StatesInformer,
    host: Host,
    clock: Clock,
    cluster: "Cluster | None",
) -> StateSources:
    """Make the sources that flags and mode ask for."""
    return StateSources(
        pods=_pod_source(settings, states, host, clock, cluster),
        others=_other_sources(settings, states, clock, cluster),
    )


def _pod_source(
    settings: Settings,
    states: StatesInformer,
    host: Host,
    clock: Clock,
    cluster: "Cluster | None",
) -> PodSource:
    """Return the source of pods: a file of the user's, else the cluster, else the cgroup tree."""
    tree = CgroupTree(host.cgroups.hierarchy("cpu", host.cgroups.version("cpu")), clock)
    file, live = settings.options.pods_file.value, cluster.pods if cluster else None
    return PodSource(
        tree,
        states,
        clock,
        pods_file=Path(file) if file else None,
        listing=live.listing if live else None,
        default_layout=host.layout,
        alarms=live.alarms if live else None,
        events=live.cgroup_events if live else None,
    )


def _other_sources(
    settings: Settings, states: StatesInformer, clock: Clock, cluster: "Cluster | None"
) -> Sequence[Source]:
    """Return the other sources: files that the user names, else the cluster, else the host."""
    sources = [_node_source(settings, states, clock, cluster)]
    if cluster is not None:
        sources += [cluster.node_metric, cluster.topology.source]
        if not settings.options.pods_file.value:
            sources.append(cluster.pods.listing)
    if settings.options.nodeslo_file.value:
        sources.append(node_slo_file(Path(settings.options.nodeslo_file.value), states, clock))
    elif cluster is not None:
        sources.append(cluster.node_slo)
    else:
        states.set_node_slo(None)
    return sources


def _node_source(
    settings: Settings, states: StatesInformer, clock: Clock, cluster: "Cluster | None"
) -> Source:
    if settings.options.node_file.value:
        return node_file(Path(settings.options.node_file.value), states, clock)
    if cluster is not None:
        return cluster.node
    return HostNode(settings.node_name, settings.paths.proc, states, clock)
