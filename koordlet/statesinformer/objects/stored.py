"""One version of an object in the cluster: its identity, its spec and the writers of the spec."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from koord.api.decoding.jsonrules import JsonObject
from koord.kube.answers import Object


@dataclass(frozen=True, slots=True)
class SpecWriter:
    """A field manager that has set fields of the spec; time is that of the API server's clock."""

    name: str
    time: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object. spec is empty where it has none."""

    uid: str
    version: str
    spec: JsonObject
    owners: tuple[JsonObject, ...]
    writers: frozenset[SpecWriter]


def stored(item: Object) -> Stored:
    """Return the version of an object from the API server; malformed fields count as absent."""
    metadata = item["metadata"]
    return Stored(
        uid=str(metadata.get("uid", "")),
        version=str(metadata["resourceVersion"]),
        spec=_object(item.get("spec")),
        owners=tuple(_objects(metadata.get("ownerReferences"))),
        writers=frozenset(_spec_writers(metadata.get("managedFields"))),
    )


def _spec_writers(managed_fields: object) -> Iterator[SpecWriter]:
    for entry in _objects(managed_fields):
        if "f:spec" in _object(entry.get("fieldsV1")) and not entry.get("subresource"):
            yield SpecWriter(str(entry.get("manager", "")), str(entry.get("time", "")))


def _object(value: object) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> Iterator[JsonObject]:
    return (item for item in (value if isinstance(value, list) else ()) if _object(item))
