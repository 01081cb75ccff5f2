"""Claims and volumes of a soak, and the volume controller and the provisioner behind them.

Nodes reach the volumes of their zone. Each attaches few of those that the one driver makes; those
that people make are no driver's.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from koord.controlplane.testing import api_error_response
from koord.kube.transport import Call
from tests.support.scheduler.loop import Json

CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
DRIVER, ZONE = "csi.soak", "zone"
KEPT, MADE = "kept", "made"  # classes; of the first one people make the volumes
ONCE_POD = "ReadWriteOncePod"
_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
_COMPLETED = "pv.kubernetes.io/bind-completed"
_SELECTED = "volume.kubernetes.io/selected-node"

Record = Callable[[str, str, str, Json], None]  # collection, type of the event, key, object


def claims_of(pod: Json) -> list[str]:
    """Keys of a pod's claims."""
    named = (each["persistentVolumeClaim"]["claimName"] for each in pod["spec"].get("volumes", ()))
    return [f"default/{name}" for name in named]


def zone_of(node: Json) -> str:
    return str(node["metadata"]["labels"][ZONE])


class SoakStorage:
    """The objects by key; record notes each change of one."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.claims: dict[str, Json] = {}
        self.volumes: dict[str, Json] = {}
        self.limits: dict[str, int] = {}  # volumes, by node
        self._names = 0
        for name, provisioner in ((KEPT, "kubernetes.io/no-provisioner"), (MADE, DRIVER)):
            made = {"metadata": {"name": name, "uid": name}, "provisioner": provisioner}
            record(CLASSES, "ADDED", name, made | {"volumeBindingMode": "WaitForFirstConsumer"})

    def limit(self, node: str, most: int) -> None:
        """A node attaches so many volumes, which never become fewer."""
        kind = "MODIFIED" if node in self.limits else "ADDED"
        self.limits[node] = max(most, self.limits.get(node, 0))
        driver = {"name": DRIVER, "nodeID": node, "allocatable": {"count": self.limits[node]}}
        made = {"metadata": {"name": node, "uid": node}, "spec": {"drivers": [driver]}}
        self._record(CSI_NODES, kind, node, made)

    def add_volume(self, zone: str, *, claim: str = "") -> str:
        """A volume in a zone, kept for a claim; return its name."""
        self._names += 1
        name = f"v{self._names}"
        expression = {"key": ZONE, "operator": "In", "values": [zone]}
        terms = [{"matchExpressions": [expression]}]
        spec: Json = {
            "storageClassName": MADE if claim else KEPT,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", ONCE_POD],
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }
        if claim:
            spec |= {"csi": {"driver": DRIVER, "volumeHandle": name}}
            spec["claimRef"] = self._reference(claim)
        self.volumes[name] = {
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": spec,
            "status": {"phase": "Available"},
        }
        self._record(VOLUMES, "ADDED", name, self.volumes[name])
        return name

    def add_claim(self, name: str, *, cls: str, mode: str, zone: str = "") -> None:
        """A claim; in a zone: it is bound to a volume there."""
        key = f"default/{name}"
        self._names += 1
        requests = {"requests": {"storage": "1Gi"}}
        self.claims[key] = {
            "metadata": {"name": name, "namespace": "default", "uid": f"{name}-{self._names}"},
            "spec": {"storageClassName": cls, "accessModes": [mode], "resources": requests},
            "status": {"phase": "Pending"},
        }
        self._record(CLAIMS, "ADDED", key, self.claims[key])
        if zone:
            self._bind(key, self.add_volume(zone, claim=key))

    def delete_claim(self, key: str) -> None:
        """With the volume that it is bound to."""
        self._record(CLAIMS, "DELETED", key, self.claims.pop(key))
        for name, volume in tuple(self.volumes.items()):
            if volume["spec"].get("claimRef", {}).get("name") == key.partition("/")[2]:
                self._record(VOLUMES, "DELETED", name, self.volumes.pop(name))

    def work(self, nodes: Mapping[str, Json], fails: Callable[[], bool]) -> None:
        """What waits for the controllers is done; making a volume may fail."""
        for name, volume in tuple(self.volumes.items()):
            reference = volume["spec"].get("claimRef")
            key = f"default/{reference['name']}" if reference else ""
            if key and self._owns(key, reference) and not self.is_bound(key):
                self._bind(key, name)
        for key, claim in self.claims.items():
            node = claim["metadata"].get("annotations", {}).get(_SELECTED)
            if node is None or self.is_bound(key):
                continue
            if fails() or node not in nodes:
                del claim["metadata"]["annotations"][_SELECTED]
                self._record(CLAIMS, "MODIFIED", key, claim)
            else:
                self._bind(key, self.add_volume(zone_of(nodes[node]), claim=key))

    def is_bound(self, key: str) -> bool:
        """Whether nothing is left to be done."""
        return _COMPLETED in self.claims[key]["metadata"].get("annotations", {})

    def carry_out(self, call: Call) -> Json:
        """A patch of a claim or a volume, as its client had it."""
        match call.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace, "persistentvolumeclaims", name]:
                return self._patch(call, CLAIMS, self.claims, f"{namespace}/{name}")
            case ["api", "v1", "persistentvolumes", name]:
                return self._patch(call, VOLUMES, self.volumes, name)
        raise api_error_response(call, 404, "NotFound", f"no {call.path}")

    def volumes_of(self, pod: Json) -> frozenset[str]:
        """What the driver attaches for a pod: volumes, and claims that have none yet."""
        specs = {key: self.claims[key]["spec"] for key in claims_of(pod) if key in self.claims}
        return frozenset(
            spec.get("volumeName", key)
            for key, spec in specs.items()
            if spec["storageClassName"] == MADE
        )

    def wrong(self, pod: Json, name: str, node: Json, others: list[Json]) -> Iterator[str]:
        """Why the storage of a pod keeps it off a node with others."""
        for key in claims_of(pod):
            claim = self.claims.get(key)
            if claim is None:
                yield f"{key} does not exist"
            elif self.is_bound(key):
                volume = self.volumes[claim["spec"]["volumeName"]]
                if _zone(volume) != zone_of(node):
                    yield f"{key} is in another zone"
            elif claim["spec"]["storageClassName"] == KEPT and not self._free(node):
                yield f"there is no volume for {key}"
        there = frozenset[str]().union(*map(self.volumes_of, others))
        wanted = self.volumes_of(pod) - there
        if wanted and len(there | wanted) > self.limits[name]:
            yield f"volumes: {sorted(there | wanted)}"

    def exclusive(self, pod: Json) -> set[str]:
        """Keys of claims that no other pod may use."""
        known = (key for key in claims_of(pod) if key in self.claims)
        return {key for key in known if ONCE_POD in self.claims[key]["spec"]["accessModes"]}

    def _free(self, node: Json) -> bool:
        return any(
            _zone(each) == zone_of(node) and "claimRef" not in each["spec"]
            for each in self.volumes.values()
        )

    def _bind(self, key: str, name: str) -> None:
        claim, volume = self.claims[key], self.volumes[name]
        notes = claim["metadata"].get("annotations", {})
        claim["metadata"]["annotations"] = {**notes, _COMPLETED: "yes", _BY_CONTROLLER: "yes"}
        claim["spec"]["volumeName"] = name
        claim["status"] = volume["status"] = {"phase": "Bound"}
        volume["spec"]["claimRef"] = self._reference(key)
        self._record(VOLUMES, "MODIFIED", name, volume)
        self._record(CLAIMS, "MODIFIED", key, claim)

    def _reference(self, key: str) -> Json:
        namespace, _, name = key.partition("/")
        uid = self.claims[key]["metadata"]["uid"]
        return {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": name, "uid": uid}

    def _owns(self, key: str, reference: Json) -> bool:
        return key in self.claims and self.claims[key]["metadata"]["uid"] == reference["uid"]

    def _patch(self, call: Call, collection: str, known: dict[str, Json], key: str) -> Json:
        found, body = known.get(key), json.loads(call.body or b"{}")
        if found is None:
            raise api_error_response(call, 404, "NotFound", f"{key} not found")
        for field in ("uid", "resourceVersion"):
            if body["metadata"][field] != found["metadata"][field]:
                raise api_error_response(
                    call, 409, "Conflict", f"the {field} of {key} is another one"
                )
        notes = {
            **found["metadata"].get("annotations", {}),
            **body["metadata"].get("annotations", {}),
        }
        found["metadata"]["annotations"] = notes
        found["spec"] |= body.get("spec", {})
        self._record(collection, "MODIFIED", key, found)
        return found


def _zone(volume: Json) -> str:
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    value: Any = term["matchExpressions"][0]["values"][0]
    return str(value)
