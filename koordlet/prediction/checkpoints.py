"""Models as files: Koordinator's checkpoints, with a checksum and the age of the model added.

Source: Koordinator pkg/koordlet/prediction/checkpoint.go. Its agent leaves keys out that it does
not know, so both read each other's files.
"""

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from koord.api.fields import Fields
from koord.util.documents import decode
from koord.util.errors import InvalidObject, KoordError
from koord.util.logs import LogState, get_logger
from koord.util.ownedfiles import OwnedDirectory
from koordlet.prediction.models import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    OF_THE_NODE,
    Buckets,
    Checkpoint,
    HistogramSnapshot,
)

MAX_BYTES = 64 * 1024  # of a file; a full one has about 6 KiB
MAX_WEIGHT = 10000  # of a bucket in a file
_MAX_TOTAL = 1e60  # more than a pod can collect

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = "0001-01-01T00:00:00Z"
_CHECKSUM = "Checksum"
_POD_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{7,62}", re.ASCII)  # a UID; a static pod's is a hash

log = get_logger("koordlet.prediction")


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of the file."""
    content: dict[str, object] = {
        "UID": checkpoint.id,
        "CPU": _histogram(checkpoint.cpu),
        "Memory": _histogram(checkpoint.memory),
        "LastUpdated": _time_text(checkpoint.updated),
    }
    if checkpoint.since is not None:
        content["TrainedSince"] = _time_text(checkpoint.since)
    content[_CHECKSUM] = _checksum(content)
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def decode_checkpoint(data: bytes, name: str) -> Checkpoint:
    """Return the model in a file of that name.

    Raises:
        InvalidObject: it is none, or was damaged since it was written.
    """
    fields = Fields(decode(data, name), name)
    if fields.required_text("UID") != name:
        raise InvalidObject(fields.path("UID"), wanted=f"the file's name, {name}", found="another")
    content = {key: value for key, value in fields.raw.items() if key != _CHECKSUM}
    checksum = fields.text(_CHECKSUM)
    if checksum and checksum != _checksum(content):
        wanted = f"{_checksum(content)}, that of the content"
        raise InvalidObject(fields.path(_CHECKSUM), wanted=wanted, found=checksum)
    return Checkpoint(
        name,
        _snapshot(fields.nested("CPU"), CPU_BUCKETS),
        _snapshot(fields.nested("Memory"), MEMORY_BUCKETS),
        fields.time("LastUpdated") or 0.0,
        fields.time("TrainedSince"),
    )


class CheckpointFiles:
    """The files of the models in a directory of their own."""

    def __init__(self, open_directory: Callable[[], OwnedDirectory]) -> None:
        """open_directory makes it if need be; it raises OSError."""
        self._open = open_directory
        self._directory: OwnedDirectory | None = None
        self._failure = LogState(log)
        self.problem = ""  # why models are not kept; "": they are

    def load(self, current: Collection[str]) -> list[Checkpoint]:
        """Return the models of the current ids, and remove the files of all others.

        Files whose name is no model's are left alone.
        """
        return list(self._load(current))

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a model; return whether that worked. The file of before stays if it did not."""
        try:
            (self._opened() / checkpoint.id).write(encode_checkpoint(checkpoint))
        except (KoordError, OSError) as err:
            self._failed(err)
            return False
        self.problem = ""
        self._failure.ended("prediction.checkpoints_resumed")
        return True

    def remove(self, name: str) -> None:
        """Remove the file of a model."""
        try:
            (self._opened() / name).unlink()
        except OSError as err:
            self._failed(err)

    def _load(self, current: Collection[str]) -> Iterator[Checkpoint]:
        try:
            directory = self._opened()
            names = directory.names()
        except OSError as err:
            self._failed(err)
            return
        for name in names:
            if name not in current:
                if _is_model(name.removesuffix(".tmp").removeprefix(".")):
                    self.remove(name)
                continue
            try:
                data = (directory / name).read(MAX_BYTES)
                if data is not None:
                    yield decode_checkpoint(data, name)
            except (KoordError, OSError) as err:
                log.warning("prediction.checkpoint_removed", file=name, error=str(err))
                self.remove(name)

    def _opened(self) -> OwnedDirectory:
        if self._directory is None:
            self._directory = self._open()
        return self._directory

    def _failed(self, err: Exception) -> None:
        self.problem = f"models are not kept over restarts: {err}"
        self._failure.failed("prediction.checkpoints_failed", error=str(err))


def _is_model(name: str) -> bool:
    return name in OF_THE_NODE or _POD_ID.fullmatch(name) is not None


def _checksum(content: Mapping[str, object]) -> str:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return f"crc32:{zlib.crc32(text.encode('utf-8', 'backslashreplace')):08x}"


def _histogram(snapshot: HistogramSnapshot) -> dict[str, object]:
    """Weights relative to the largest, as whole numbers; what is then 0 is left out."""
    largest = max(snapshot.weights.values(), default=0.0)
    weights = {
        str(index): whole
        for index, weight in sorted(snapshot.weights.items())
        if (whole := int(weight / largest * MAX_WEIGHT + 0.5)) > 0
    }
    reference = _NEVER if snapshot.reference is None else _time_text(snapshot.reference)
    return {
        "referenceTimestamp": reference,
        "bucketWeights": weights,
        "totalWeight": snapshot.total if weights else 0.0,
    }


def _snapshot(fields: Fields, buckets: Buckets) -> HistogramSnapshot:
    stored = fields.integers("bucketWeights")
    total = fields.number("totalWeight") or 0.0
    if not 0 <= total <= _MAX_TOTAL:
        wanted = f"a number from 0 to {_MAX_TOTAL:g}"
        raise InvalidObject(fields.path("totalWeight"), wanted=wanted, found=total)
    weights = {}
    for text, weight in stored.items():
        index = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
        if not 0 <= index < buckets.count or not 0 <= weight <= MAX_WEIGHT:
            wanted = f"buckets from 0 to {buckets.count - 1} with weights from 0 to {MAX_WEIGHT}"
            raise InvalidObject(
                fields.path("bucketWeights"), wanted=wanted, found=f"{text}: {weight}"
            )
        weights[index] = float(weight)
    whole = sum(weights.values())
    scaled = {index: weight * total / whole for index, weight in weights.items() if weight > 0}
    never = fields.text("referenceTimestamp") in {"", _NEVER}
    return HistogramSnapshot(None if never else fields.time("referenceTimestamp"), scaled, total)


def _time_text(seconds: float) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    moment = _EPOCH + timedelta(seconds=seconds)
    return moment.isoformat().replace("+00:00", "Z")
