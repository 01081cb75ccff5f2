"""A cluster from what `kubectl get … -A -o json` has printed: the same state as of a live one.

Everything in a dump is from outside: sizes are bounded, and a malformed object costs only itself.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from koord.cluster import decoding, wire
from koord.cluster.decoder import Decoder, Kind
from koord.cluster.parts import Faults
from koord.cluster.state import ClusterState
from koord.cluster.storage import kinds as storage
from koord.util.documents import decode
from koord.util.errors import InvalidObject

MOST_NAMED = 100  # malformed objects and kinds that are not read; more are only counted
BEYOND = "others"

KINDS: Mapping[tuple[str, str], Kind[Any]] = {
    ("", "Node"): decoding.NODE,
    ("", "Pod"): decoding.POD,
    ("", "Namespace"): decoding.NAMESPACE,
    ("", "Service"): decoding.SERVICE,
    ("", "PersistentVolumeClaim"): storage.CLAIM,
    ("", "PersistentVolume"): storage.VOLUME,
    ("", "ReplicationController"): decoding.REPLICATION_CONTROLLER,
    ("apps", "ReplicaSet"): decoding.REPLICA_SET,
    ("apps", "Deployment"): decoding.DEPLOYMENT,
    ("apps", "StatefulSet"): decoding.STATEFUL_SET,
    ("apps.kruise.io", "CloneSet"): decoding.CLONE_SET,
    ("policy", "PodDisruptionBudget"): decoding.BUDGET,
    ("scheduling.k8s.io", "PriorityClass"): decoding.PRIORITY_CLASS,
    ("storage.k8s.io", "StorageClass"): storage.STORAGE_CLASS,
    ("storage.k8s.io", "CSINode"): storage.CSI_NODE,
    ("storage.k8s.io", "CSIDriver"): storage.CSI_DRIVER,
    ("storage.k8s.io", "CSIStorageCapacity"): storage.STORAGE_CAPACITY,
    ("storage.k8s.io", "VolumeAttachment"): storage.VOLUME_ATTACHMENT,
    ("slo.koordinator.sh", "NodeMetric"): decoding.NODE_METRIC,
}
"""The kinds that are read, by API group and kind."""

# Between two objects of one document is a comma, and no string has a line break: so this is the end
# of a document, and the begin of the next one.
_NEXT_DOCUMENT = re.compile(rb"\}[ \t\r]*\n[ \t\r\n]*\{")


class _Head(wire.Wire):
    """What says how an object is read."""

    api_version: str | None = None
    kind: str | None = None


class _Document(_Head):
    """A list; without items it is one object."""

    metadata: wire.PageMeta | None = None
    items: list[Raw] | None = None


_HEAD = msgspec.json.Decoder(_Head)
_DOCUMENT = msgspec.json.Decoder(_Document)


@dataclass(slots=True)
class Dump:
    """A cluster, and what became of the objects of its dump."""

    cluster: ClusterState = field(default_factory=ClusterState)
    objects: Counter[str] = field(default_factory=Counter)  # that were read, by kind
    skipped: Counter[str] = field(default_factory=Counter)  # of kinds that are not read, by kind
    rejected: list[InvalidObject] = field(default_factory=list)  # the first MOST_NAMED
    rejections: int = 0  # all of them
    cut: list[str] = field(default_factory=list)  # what was left out, of the first MOST_NAMED
    cuts: int = 0  # objects of which something was left out

    @property
    def newest_report(self) -> float | None:
        """When the newest NodeMetric was written, in Unix seconds; None: there is none."""
        reports = self.cluster.reports.values()
        return max(
            (one.update_time for one in reports if one.update_time is not None), default=None
        )


class DumpReader:
    """Reads documents, in any order, into one cluster. The same object twice is one, the last."""

    def __init__(self) -> None:
        self.dump = Dump()
        self._decoder = Decoder()

    def read(self, data: bytes, where: str) -> None:
        """Take over the objects of a file: JSON documents one after the other, or one of YAML.

        where names it in messages. What is wrong is in the dump's rejections; nothing is raised.
        """
        if not data.strip():
            return
        try:
            documents = list(_documents(data, where))
        except InvalidObject as err:
            self.reject(err)
            return
        for number, document in enumerate(documents, 1):
            place = where if len(documents) == 1 else f"{where}, document {number}"
            self._read_document(document, place)

    def reject(self, error: InvalidObject) -> None:
        """Count something that cannot be read."""
        self.dump.rejections += 1
        if len(self.dump.rejected) < MOST_NAMED:
            self.dump.rejected.append(error)

    def _read_document(self, data: bytes, where: str) -> None:
        try:
            found = _DOCUMENT.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as err:
            self.reject(InvalidObject(where, wanted="an object or a list", found=str(err)))
            return
        if found.items is None:
            self._read_object(found, data, where)
            return
        if (found.metadata or wire.PageMeta()).continue_:
            self.reject(InvalidObject(where, wanted="a whole list", found="its first part only"))
        of_list = _Head(found.api_version, (found.kind or "").removesuffix("List"))
        for number, item in enumerate(found.items, 1):
            self._read_item(of_list, bytes(item), f"{where}, item {number}")

    def _read_item(self, of_list: _Head, data: bytes, where: str) -> None:
        try:
            head = _HEAD.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as err:
            self.reject(InvalidObject(where, wanted="an object", found=str(err)))
            return
        # A list of one kind, as the API server answers it, does not repeat the kind.
        self._read_object(head if head.kind else of_list, data, where)

    def _read_object(self, head: _Head, data: bytes, where: str) -> None:
        group = (head.api_version or "").rpartition("/")[0]
        kind = KINDS.get((group, head.kind or ""))
        if kind is None:
            self._skip(head, group, where)
            return
        faults = Faults()
        try:
            item = self._decoder.object(kind, data, faults)
        except InvalidObject as err:
            self.reject(err)
            return
        self.dump.cluster.put(kind, item)
        self.dump.objects[kind.name] += 1
        faults.take(self.dump.cluster.left_out(item))
        if faults:
            self._note_cut(f"{kind.name} {item.key}: {'; '.join(faults)}")

    def _note_cut(self, text: str) -> None:
        self.dump.cuts += 1
        if len(self.dump.cut) < MOST_NAMED:
            self.dump.cut.append(text)

    def _skip(self, head: _Head, group: str, where: str) -> None:
        if not head.kind:
            self.reject(InvalidObject(where, wanted="an object with a kind", found="none"))
            return
        skipped = self.dump.skipped
        name = f"{head.kind}.{group}" if group else head.kind
        skipped[name if name in skipped or len(skipped) < MOST_NAMED else BEYOND] += 1


def _documents(data: bytes, where: str) -> Iterator[bytes]:
    """The JSON documents of a file. Raises InvalidObject for YAML that is none."""
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
        yield json.dumps(decode(data, where)).encode()
        return
    begin = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    for end in _NEXT_DOCUMENT.finditer(data):
        yield data[begin : end.start() + 1]
        begin = end.end() - 1
    yield data[begin:]
