"""A cluster from the files that `kubectl get … -A -o json` has written."""

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from koord.cluster import kinds, storage, wire
from koord.cluster.decoder import Decoder, ObjectKind
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.lenient_decoding import DecodingFaults
from koord.cluster.state import ClusterState
from koord.util.documents import decode
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded

MAX_NAMED = 100  # malformed objects and kinds that are not read; more are only counted
MAX_CUSTOM_BYTES = 256 << 20  # bytes of custom resources that are kept for plugins
BEYOND = "others"

KINDS: Mapping[tuple[str, str], ObjectKind[Any]] = {
    ("", "Node"): kinds.NODE,
    ("", "Pod"): kinds.POD,
    ("", "Namespace"): kinds.NAMESPACE,
    ("", "Service"): kinds.SERVICE,
    ("", "PersistentVolumeClaim"): storage.CLAIM,
    ("", "PersistentVolume"): storage.VOLUME,
    ("", "ReplicationController"): kinds.REPLICATION_CONTROLLER,
    ("apps", "ReplicaSet"): kinds.REPLICA_SET,
    ("apps", "Deployment"): kinds.DEPLOYMENT,
    ("apps", "StatefulSet"): kinds.STATEFUL_SET,
    ("apps.kruise.io", "CloneSet"): kinds.CLONE_SET,
    ("policy", "PodDisruptionBudget"): kinds.BUDGET,
    ("scheduling.k8s.io", "PriorityClass"): kinds.PRIORITY_CLASS,
    ("storage.k8s.io", "StorageClass"): storage.STORAGE_CLASS,
    ("storage.k8s.io", "CSINode"): storage.CSI_NODE,
    ("storage.k8s.io", "CSIDriver"): storage.CSI_DRIVER,
    ("storage.k8s.io", "CSIStorageCapacity"): storage.STORAGE_CAPACITY,
    ("storage.k8s.io", "VolumeAttachment"): storage.VOLUME_ATTACHMENT,
    ("slo.koordinator.sh", "NodeMetric"): kinds.NODE_METRIC,
}
"""The kinds that are read, by API group and kind."""

# Between two objects of one document is a comma, and no string has a line break: so this is the end
# of a document, and the begin of the next one.
_NEXT_DOCUMENT = re.compile(rb"\}[ \t\r]*\n[ \t\r\n]*\{")


class _Head(wire.Wire):
    """The two fields that decide how an object is read."""

    api_version: str | None = None
    kind: str | None = None


class _Document(_Head):
    """A list; without items it is one object."""

    metadata: wire.PageMeta | None = None
    items: list[Raw] | None = None


class _Name(wire.Wire):
    name: str = ""
    namespace: str = ""


class _Named(wire.Wire):
    metadata: _Name


class _ConfigMap(_Named):
    data: dict[str, Any] | None = None


_CONFIG_MAP = msgspec.json.Decoder(_ConfigMap)
_HEAD = msgspec.json.Decoder(_Head)
_NAMED = msgspec.json.Decoder(_Named)
_DOCUMENT = msgspec.json.Decoder(_Document)


@dataclass(slots=True)
class Dump:
    """A cluster, and what became of the objects of its dump."""

    cluster: ClusterState = field(default_factory=ClusterState)
    objects: Counter[str] = field(default_factory=Counter)  # that were read, by kind
    skipped: Counter[str] = field(default_factory=Counter)  # of kinds that are not read, by kind
    rejected: list[InvalidObject] = field(default_factory=list)  # the first MAX_NAMED
    rejections: int = 0  # all of them
    cut: list[str] = field(default_factory=list)  # what was left out, of the first MAX_NAMED
    cuts: int = 0  # objects of which something was left out
    custom: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    """Custom resources in JSON, by API version and kind, by namespace/name or name."""
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The data of those that the reader was to keep, by namespace/name."""

    def take_custom(self, api_version: str, plural: str) -> dict[str, dict[str, Any]]:
        """Return the objects of a kind that a plugin follows, by key; they count as read.

        plural: as in paths of the API server. Source: apimachinery, UnsafeGuessKindToResource.
        """
        found: dict[str, dict[str, Any]] = {}
        for version, kind in list(self.custom):
            if version == api_version and _plural(kind) == plural:
                for key, data in self.custom.pop((version, kind)).items():
                    found[key] = msgspec.json.decode(data, type=dict[str, Any])
                name = _full_name(kind, version.rpartition("/")[0])
                self.objects[name] += len(found)
                self.skipped.pop(name, None)
        return found

    @property
    def newest_report(self) -> float | None:
        """The time of the newest NodeMetric, in Unix seconds; None: there is none."""
        reports = self.cluster.reports.values()
        return max(
            (one.update_time for one in reports if one.update_time is not None), default=None
        )


def _plural(kind: str) -> str:
    name = kind.lower()
    if name.endswith("y"):
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


def _full_name(kind: str, group: str) -> str:
    return f"{kind}.{group}" if group else kind


class DumpReader:
    """Reads documents, in any order, into one cluster. The same object twice is one, the last."""

    def __init__(self, kept: KeptFields = NO_FIELDS, config_maps: Collection[str] = ()) -> None:
        """kept: what plugins read of pods and nodes beyond what is always kept.

        config_maps: those whose data is kept, by namespace/name.
        """
        self.dump = Dump()
        self._config_maps = config_maps
        self._decoder = Decoder(kept)
        self._custom_bytes_left = MAX_CUSTOM_BYTES

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
        if len(self.dump.rejected) < MAX_NAMED:
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
        if (group, head.kind) == ("", "ConfigMap") and self._keep_config_map(data):
            return
        kind = KINDS.get((group, head.kind or ""))
        if kind is None:
            if self._skip(head, group, where) and "." in group:
                self._keep_custom(head, data, where)
            return
        faults = DecodingFaults()
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
        if len(self.dump.cut) < MAX_NAMED:
            self.dump.cut.append(text)

    def _skip(self, head: _Head, group: str, where: str) -> bool:
        """Count an object of a kind that is not read; return whether it has one with a name."""
        if not head.kind:
            self.reject(InvalidObject(where, wanted="an object with a kind", found="none"))
            return False
        skipped, name = self.dump.skipped, _full_name(head.kind, group)
        is_named = name in skipped or len(skipped) < MAX_NAMED
        skipped[name if is_named else BEYOND] += 1
        return is_named

    def _keep_config_map(self, data: bytes) -> bool:
        """Keep it when it is one of those; return whether it is."""
        try:
            found = _CONFIG_MAP.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return False  # counted among what is skipped
        key = f"{found.metadata.namespace}/{found.metadata.name}"
        if key not in self._config_maps:
            return False
        self.dump.config_maps[key] = found.data or {}
        self.dump.objects["ConfigMap"] += 1
        return True

    def _keep_custom(self, head: _Head, data: bytes, where: str) -> None:
        """Keep a custom resource: which ones are of use, plugins know."""
        try:
            found = _NAMED.decode(data)
            msgspec.json.decode(data)  # as a whole, so that it can be taken
        except (msgspec.DecodeError, RecursionError, UnicodeError) as err:
            self.reject(InvalidObject(where, wanted="an object", found=str(err)))
            return
        name, namespace = found.metadata.name, found.metadata.namespace
        self._custom_bytes_left -= len(data)
        if not name or self._custom_bytes_left < 0:
            wanted = "a name" if not name else f"at most {MAX_CUSTOM_BYTES >> 20} MiB of such kinds"
            self.reject(InvalidObject(where, wanted=wanted, found="none" if not name else "more"))
            return
        key = f"{namespace}/{name}" if namespace else name
        of_kind = self.dump.custom.setdefault((head.api_version or "", head.kind or ""), {})
        of_kind[key] = data


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


MAX_FILE_BYTES = 1 << 30  # bytes; 150,000 pods as kubectl prints them
MAX_DUMP_BYTES = 2 << 30  # bytes of all files
MAX_FILES = 1000
SUFFIXES = (".json", ".yaml", ".yml")


def read_dump(path: Path, kept: KeptFields = NO_FIELDS, config_maps: Collection[str] = ()) -> Dump:
    """Return the cluster of a file, or of a directory's files that end in one of SUFFIXES.

    In a directory, in the order of their names; hidden files are passed over. Links, devices and
    files that are too large or cannot be read are among the dump's rejections. The path itself may
    be a link. kept, config_maps: as of DumpReader.

    Raises:
        OptionError: the path cannot be read, or has no file of a dump.
    """
    if not path.is_dir():
        return _read_file(path, kept, config_maps)
    reader = DumpReader(kept, config_maps)
    files, left = 0, MAX_DUMP_BYTES
    for name in _names(path):
        files += 1
        try:
            data = read_bounded(path / name, min(left, MAX_FILE_BYTES), follow_links=False)
        except FileReadError as err:
            reader.reject(_unreadable(name, err))
            continue
        left -= len(data)
        reader.read(data, name)
    if not files:
        raise OptionError(str(path), "no file of a dump", f"wanted one of {', '.join(SUFFIXES)}")
    return reader.dump


def _read_file(path: Path, kept: KeptFields, config_maps: Collection[str]) -> Dump:
    reader = DumpReader(kept, config_maps)
    try:
        data = read_bounded(path, MAX_FILE_BYTES)
    except FileReadError as err:
        hint = "name a file with what `kubectl get nodes,pods,… -A -o json` printed, or a directory"
        raise OptionError(str(path), err.found, hint) from err
    reader.read(data, path.name)
    return reader.dump


def _names(path: Path) -> Iterator[str]:
    try:
        found = sorted(os.listdir(path))
    except OSError as err:
        raise OptionError(str(path), err.strerror or str(err), "make it readable") from err
    names = [name for name in found if name.endswith(SUFFIXES) and not name.startswith(".")]
    if len(names) > MAX_FILES:
        raise OptionError(str(path), f"{len(names)} files", f"wanted at most {MAX_FILES}")
    yield from names


def _unreadable(name: str, err: FileReadError) -> InvalidObject:
    return InvalidObject(name, wanted="a regular file of bounded size, no link", found=err.found)
