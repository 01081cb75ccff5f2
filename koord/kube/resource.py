"""Paths of the Kubernetes API."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object, for example Resource("slo.koordinator.sh/v1alpha1", "nodemetrics")."""

    api_version: str
    plural: str

    def collection(self, namespace: str = "") -> str:
        """The path of all objects: of one namespace, of all, or of a kind that has none."""
        root = "/apis" if "/" in self.api_version else "/api"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{root}/{self.api_version}{scope}/{self.plural}"

    def object(self, name: str, *, namespace: str = "", subresource: str = "") -> str:
        """The path of one object, or of a part of it such as status or eviction."""
        path = f"{self.collection(namespace)}/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path


CONFIG_MAPS = Resource("v1", "configmaps")
EVENTS = Resource("v1", "events")
NODES = Resource("v1", "nodes")
PODS = Resource("v1", "pods")
PERSISTENT_CLAIMS = Resource("v1", "persistentvolumeclaims")
PERSISTENT_VOLUMES = Resource("v1", "persistentvolumes")
LEASES = Resource("coordination.k8s.io/v1", "leases")
TOKEN_REVIEWS = Resource("authentication.k8s.io/v1", "tokenreviews")
ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
NODE_METRICS = Resource("slo.koordinator.sh/v1alpha1", "nodemetrics")
NODE_SLOS = Resource("slo.koordinator.sh/v1alpha1", "nodeslos")
NODE_TOPOLOGIES = Resource("topology.node.k8s.io/v1alpha1", "noderesourcetopologies")
DEVICES = Resource("scheduling.koordinator.sh/v1alpha1", "devices")


def field_selector(fields: Mapping[str, str]) -> str:
    """The text of a field selector, for example of {"spec.nodeName": "worker-1"}."""
    return ",".join(f"{name}={_escaped(value)}" for name, value in fields.items())


def _escaped(value: str) -> str:
    for letter in "\\,=":
        value = value.replace(letter, f"\\{letter}")
    return value
