"""What pods ask for and what the node has for them."""

from collections.abc import Mapping

from koord.api.amounts import Amounts
from koord.api.decoding.fields import Fields
from koord.api.decoding.jsonrules import parse_json
from koord.api.nodes.node import Node
from koord.api.pods.pod import Pod
from koord.api.pods.requests import amount, pod_request
from koord.util.errors import InvalidObject

RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"  # an annotation: before amplification


def request_of(pod: Pod) -> Amounts:
    """Return the CPU and memory that a pod asks for."""
    return Amounts(pod_request(pod, "cpu"), pod_request(pod, "memory"))


def allocatable_of(node: Node) -> Amounts | None:
    """Return CPU and memory for pods; None: not known.

    Those of the annotation if it can be read and has both, for allocatable may be amplified.
    """
    for resources in (_raw_allocatable(node), node.allocatable):
        if "cpu" in resources and "memory" in resources:
            return Amounts(amount("cpu", resources["cpu"]), amount("memory", resources["memory"]))
    return None


def _raw_allocatable(node: Node) -> Mapping[str, str]:
    text = node.annotations.get(RAW_ALLOCATABLE)
    if text is None:
        return {}
    try:
        return Fields({"raw": parse_json(text, RAW_ALLOCATABLE)}, "annotations").quantities("raw")
    except InvalidObject:
        return {}
