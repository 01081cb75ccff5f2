"""The rights that a request needs by Kubernetes' RBAC, and whether a role grants them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.kube import kubelet
from tests.support.kube.apiserver import ApiServer, Place, Recorded
from tests.support.real_apiserver.recorder import Recorder

Rule = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """To do something with a kind of object; resource has the subresource: pods/eviction."""

    verb: str
    group: str
    resource: str
    name: str = ""  # of the one object; "" for all


def wanted_by(server: ApiServer | Recorder) -> Iterator[Right]:
    """What the requests to a server needed."""
    for entry in server.requests:
        yield _of_kubelet(entry) if isinstance(server, kubelet.Kubelet) else of_server(entry)


def role(objects: Iterable[Mapping[str, Any]]) -> set[Right]:
    """What the only ClusterRole among manifests allows."""
    [rules] = [each["rules"] for each in objects if each["kind"] == "ClusterRole"]
    return rights_of(rules)


def rights_of(rules: Iterable[Rule]) -> set[Right]:
    """What a role allows, one by one. Rules with wildcards are not understood."""
    return {
        Right(verb, group, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def allows(held: Right, wanted: Right) -> bool:
    """Whether a right is enough for another. A list of one name counts as that name, as in RBAC."""
    same = (held.verb, held.group, held.resource) == (wanted.verb, wanted.group, wanted.resource)
    return same and held.name in ("", wanted.name)


def of_server(entry: Recorded) -> Right:
    """What a request to the API server needs."""
    place = Place.of(entry.path)
    parts = entry.path.strip("/").split("/")
    group = parts[1] if parts[0] == "apis" else ""
    plural = place.collection.rpartition("/")[2]
    resource = f"{plural}/{place.subresource}" if place.subresource else plural
    return Right(entry.verb, group, resource, place.name or _selected(entry))


def _of_kubelet(entry: Recorded) -> Right:
    verb, resource = kubelet.rbac(entry)
    return Right(verb, "", resource)


def _selected(entry: Recorded) -> str:
    selector = entry.query.get("fieldSelector", "")
    name, _, value = selector.partition("=")
    return value if name == "metadata.name" else ""
