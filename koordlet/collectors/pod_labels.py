"""The labels that name a pod in Prometheus families."""

from koordlet.statesinformer.model import PodMeta

POD_NAME_LABELS = ("node", "pod_uid", "pod_namespace", "pod_name")  # as Koordinator spells them
POD_LABELS = (*POD_NAME_LABELS, "qos")


def pod_name_labels(node: str, pod: PodMeta) -> tuple[str, ...]:
    """Values of POD_NAME_LABELS."""
    return node, pod.uid, pod.pod.namespace, pod.pod.name


def pod_labels(node: str, pod: PodMeta) -> tuple[str, ...]:
    """Values of POD_LABELS; qos is Koordinator's class: LSE, LSR, LS, BE or SYSTEM."""
    return *pod_name_labels(node, pod), pod.qos.value
