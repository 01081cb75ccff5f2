"""Pods of manifests: what would be created of a file, before it is."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koord.cluster import decoding
from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod, PriorityClass
from koord.util.documents import decode
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded

LARGEST_FILE = 16 << 20  # bytes
MOST_PODS = 200_000  # of all files

TEMPLATED = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Job", "DaemonSet")
"""Kinds with a pod template, of which as many pods are made as they want; of a DaemonSet one."""

_NEXT_DOCUMENT = re.compile(rb"^---(?:[ \t].*)?$", re.MULTILINE)
_SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


def read_pods(path: Path, classes: Mapping[str, PriorityClass]) -> list[ClusterPod]:
    """Return the pods of a file of manifests, YAML or JSON, in their order; bound to no node.

    Lists are read item by item, and workloads pod by pod. Without a priority a pod has that of its
    class, as admission would give it. What is there of a pod's status is left out.

    Raises:
        OptionError: the file cannot be read, or has no pod.
        InvalidObject: a document is malformed; the message names it.
    """
    try:
        data = read_bounded(path, LARGEST_FILE)
    except FileReadError as err:
        hint = "name a file with the manifest of a pod, or of a workload"
        raise OptionError(str(path), err.found, hint) from err
    decoder = Decoder()
    found: list[ClusterPod] = []
    for where, manifest in _objects(data, path.name):
        for one in _pods_of(manifest, where):
            if len(found) == MOST_PODS:
                raise OptionError(str(path), f"more than {MOST_PODS} pods", "name fewer")
            found.append(_read(decoder, one, classes))
    if not found:
        kinds = ", ".join(("Pod", *TEMPLATED))
        raise OptionError(str(path), "no pod", f"wanted manifests of {kinds}")
    return found


def _objects(data: bytes, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    parts = [part for part in _NEXT_DOCUMENT.split(data) if _has_content(part)]
    for number, part in enumerate(parts, 1):
        place = where if len(parts) == 1 else f"{where}, document {number}"
        yield from _items(decode(part, place), place)


def _items(value: object, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(value, dict):
        raise InvalidObject(where, wanted="an object with a kind", found=value)
    items = value.get("items")
    if str(value.get("kind", "")).endswith("List") and isinstance(items, list):
        for number, item in enumerate(items, 1):
            yield from _items(item, f"{where}, item {number}")
    else:
        yield where, value


def _has_content(part: bytes) -> bool:
    lines = (line.strip() for line in part.splitlines())
    return any(line and not line.startswith(b"#") for line in lines)


def _pods_of(manifest: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The manifests of its pods: of the pod itself, or of the template."""
    kind = manifest.get("kind")
    if kind == "Pod":
        yield dict(manifest)
        return
    if kind not in TEMPLATED:
        return
    spec = _mapping(manifest.get("spec"), f"{where}: spec")
    template = _mapping(spec.get("template"), f"{where}: spec.template")
    count = spec.get("parallelism" if kind == "Job" else "replicas")
    count = 1 if count is None or kind == "DaemonSet" else count
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_PODS:
        wanted = f"a number of pods, at most {MOST_PODS}"
        raise InvalidObject(f"{where}: spec.replicas", wanted=wanted, found=count)
    own = _mapping(manifest.get("metadata"), f"{where}: metadata")
    name, meta = str(own.get("name", "")), _mapping(template.get("metadata"), where)
    owner = {"kind": kind, "name": name, "uid": f"planned-{kind}-{name}", "controller": True}
    for number in range(count):
        yield {
            "metadata": {
                **meta,
                "name": f"{name}-{number}",
                "namespace": own.get("namespace"),
                "ownerReferences": [owner],
            },
            "spec": template.get("spec"),
        }


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidObject(where, wanted="an object", found=value)
    return value


def _read(
    decoder: Decoder, manifest: dict[str, Any], classes: Mapping[str, PriorityClass]
) -> ClusterPod:
    pod = decoder.object(decoding.POD, json.dumps({**manifest, "status": {}}).encode())
    pod = replace(pod, node="", phase="Pending", uid=pod.uid or f"planned-{pod.key}")
    if pod.priority is not None:
        return pod
    spec = manifest.get("spec")
    name = spec.get("priorityClassName") if isinstance(spec, dict) else None
    return replace(pod, priority=_priority(name, classes, pod.key))


def _priority(name: object, classes: Mapping[str, PriorityClass], pod: str) -> int:
    """Source: Kubernetes, admission plugin Priority."""
    if not name:
        return next((one.value for one in classes.values() if one.is_default), 0)
    if isinstance(name, str) and name in classes:
        return classes[name].value
    if isinstance(name, str) and name in _SYSTEM_PRIORITIES:
        return _SYSTEM_PRIORITIES[name]
    known = ", ".join(sorted(classes)) or "none"
    raise InvalidObject(
        f"pod {pod}: priorityClassName", wanted=f"a class of the cluster: {known}", found=name
    )
