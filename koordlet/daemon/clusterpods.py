"""The pods of a node in a cluster: who lists them, and what tells that they come and go."""

from dataclasses import dataclass

from koordlet.daemon.settings import Settings
from koordlet.host.dirwatch import DirectoryWatch
from koordlet.kube.client import ApiClient
from koordlet.kube.kubelet import KubeletClient
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kubeletpods import KubeletPods
from koordlet.statesinformer.kubepods import KubePods
from koordlet.statesinformer.nodepods import NodePods
from koordlet.statesinformer.podalarms import PodAlarms
from koordlet.statesinformer.podbelief import PodBelief
from koordlet.util.clock import Clock


@dataclass(frozen=True, slots=True)
class ClusterPods:
    """What a PodSource needs in a cluster."""

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
    belief = PodBelief(alarms.look)

    def of_server() -> KubePods:
        return KubePods(client, settings.node_name, belief, clock)

    listing: NodePods | KubePods
    if interval := settings.options.kubelet_sync_interval.value:
        of_kubelet = KubeletPods(kubelet, belief, clock, interval=interval, ask=alarms.ask)
        listing = NodePods(of_kubelet, of_server, belief, states.node, clock)
    else:
        listing = of_server()
    return ClusterPods(listing, alarms, DirectoryWatch(alarms.look.set))
