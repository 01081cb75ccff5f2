"""Signs of another QoS agent on this node that a cluster has; see OtherAgent."""

from collections.abc import Collection

from koord.kube.config import ApiConfig
from koordlet.kubelet.ownpod import own_pod_uid
from koordlet.rules.other_agent import image_of, other_agent_pod
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.statuswriters import StatusWriters


def pod_sign(config: ApiConfig, states: StatesInformer, namespaces: Collection[str]) -> str:
    """Another koordlet among the pods of this node; "" when there is none."""
    pods = (meta.pod for meta in states.pods())
    found = other_agent_pod(pods, own_pod_uid(config), namespaces)
    if found is None:
        return ""
    return f"pod {found.namespace}/{found.name} runs another koordlet ({image_of(found)})"


def writer_sign(others: StatusWriters) -> str:
    """Another writer of the reports that are ours to write; "" when there is none."""
    name = others.present
    return f"{name} writes the status of this node's NodeMetric, too" if name else ""
