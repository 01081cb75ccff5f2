"""Builds what lists the pods of a node in a cluster, and what notices new and removed ones."""

from dataclasses import dataclass

from koord.kube.client import ApiClient
from koord.util.clock import Clock
from koord.util.dirwatch import DirectoryWatch
from koordlet.daemon.settings.settings import Settings
from koordlet.kubelet.client import KubeletClient
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.pods.kubeletpods import KubeletPods
from koordlet.statesinformer.pods.kubepods import KubePods
from koordlet.statesinformer.pods.nodepods import NodePods
from koordlet.statesinformer.pods.podalarms import PodAlarms
from koordlet.statesinformer.pods.podlistguard import PodListGuard


@dataclass(frozen=True, slots=True)
class ClusterPods:
    """The parts that a PodSource needs in a cluster."""

    listing: NodePods | KubePods
    alarms: PodAlarms
    cgroup_events: DirectoryWatch


def build_pods(
    settings: Settings,
    states: StatesInformer,
    clock: Clock,
    *,
    client: ApiClient,
    kubelet: KubeletClient,
) -> ClusterPods:
    """Make the parts; without an interval for the kubelet the API server alone lists pods."""
    alarms = PodAlarms()
    guard = PodListGuard(alarms.look)

    def of_server() -> KubePods:
        return KubePods(client, settings.node_name, guard, clock)

    listing: NodePods | KubePods
    if interval := settings.options.kubelet_sync_interval.value:
        of_kubelet = KubeletPods(kubelet, guard, clock, interval=interval, ask=alarms.ask)
        listing = NodePods(of_kubelet, of_server, guard, states.node, clock)
    else:
        listing = of_server()
    return ClusterPods(listing, alarms, DirectoryWatch(alarms.look.set))
