"""Images of nodes: equal sets are read once, and each image is a column when it is needed."""

from functools import cached_property, lru_cache
from hashlib import blake2b
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from koord.cluster import wire
from koord.cluster.columns import Column, FrozenColumn, Ids
from koord.cluster.facts import NO_IMAGES, Image, ImageSet

MOST_COLUMNS = 64  # that a view keeps; 40 KB each at 5,000 nodes
_NUMBER_BYTES = 4

_IMAGES = msgspec.json.Decoder(wire.NodeImages | None)


class ImageSets:
    """Image sets of the nodes that are known; the last node takes its set along."""

    def __init__(self) -> None:
        self._sets: WeakValueDictionary[bytes, ImageSet] = WeakValueDictionary()

    def read(self, found: Raw) -> ImageSet:
        """Return the one set of nodes with this list of images.

        Raises:
            msgspec.ValidationError: it is malformed.
        """
        if found is wire.NOTHING:
            return NO_IMAGES
        key = blake2b(found, digest_size=16).digest()
        known = self._sets.get(key)
        if known is None:
            images = [
                _image(tuple(one.names or ()), max(one.size_bytes or 0, 0))
                for one in _IMAGES.decode(found) or ()
            ]
            known = self._sets[key] = ImageSet(tuple(images))
        return known


@lru_cache(maxsize=8192)  # most nodes have the same ones
def _image(names: tuple[str, ...], size: int) -> Image:
    return Image(names, size)


class _Names:
    """Images, by the numbers that nodes have for them, found by name."""

    def __init__(self, images: FrozenColumn) -> None:
        self.images = images

    @cached_property
    def by_name(self) -> dict[str, list[tuple[int, int]]]:
        """Numbers and sizes."""
        found: dict[str, list[tuple[int, int]]] = {}
        for number, image in enumerate(self.images.array.tolist()):
            for name in () if image is None else image.names:
                found.setdefault(name, []).append((number, image.size))
        return found


class FrozenImages:
    """Which nodes have which images. It never changes."""

    def __init__(self, rows: FrozenColumn, names: _Names) -> None:
        """rows: the numbers of each node's images, as bytes."""
        self.rows = rows
        self.names = names
        self._columns: dict[str, NDArray[np.int64]] = {}

    def sizes(self, name: str) -> NDArray[np.int64] | None:
        """Bytes of an image on each node, 0 where it is not; shape (nodes,). None: on none."""
        column = self._columns.get(name)
        if column is None and name in self.names.by_name:
            if len(self._columns) >= MOST_COLUMNS:
                del self._columns[next(iter(self._columns))]
            column = self._columns[name] = self._column(name)
        return column

    def spread(self, name: str) -> int:
        """On how many nodes an image is."""
        column = self.sizes(name)
        return 0 if column is None else int(np.count_nonzero(column))

    def _column(self, name: str) -> NDArray[np.int64]:
        numbers, ends = self._table
        sizes = np.zeros(len(self.names.images), np.int64)
        for number, size in self.names.by_name[name]:
            sizes[number] = size
        there = sizes[numbers]
        places = np.flatnonzero(there)
        column = np.zeros(len(self.rows), np.int64)
        column[np.searchsorted(ends, places, "right")] = there[places]
        column.flags.writeable = False
        return column

    @cached_property
    def _table(self) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """Numbers of all nodes' images, node by node, and where those of each node end."""
        texts: list[bytes] = self.rows.array.tolist()
        counts = np.fromiter(map(len, texts), np.intp, len(texts)) // _NUMBER_BYTES
        return np.frombuffer(b"".join(texts), np.int32), np.cumsum(counts)


class NodeImages:
    """Images of nodes by row, changed as nodes come and go. Belongs to one thread."""

    def __init__(self) -> None:
        self._ids: Ids[Image] = Ids()
        self._rows = Column(object)
        self._names = _Names(self._ids.freeze())
        self._frozen: FrozenImages | None = None

    def append(self, images: ImageSet) -> None:
        """Add a row."""
        self._rows.append(self._take(images))
        self._frozen = None

    def put(self, row: int, images: ImageSet) -> None:
        """Let a row have these images and no others."""
        numbers = self._take(images)
        self._release(row)
        self._rows[row] = numbers
        self._frozen = None

    def drop_row(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        self._release(row)
        last = len(self._rows) - 1
        if row != last:
            self._rows[row] = self._rows[last]
        self._rows.pop()
        self._frozen = None

    def freeze(self) -> FrozenImages:
        """The images as they are now."""
        if self._frozen is None:
            images = self._ids.freeze()
            if images is not self._names.images:
                self._names = _Names(images)
            self._frozen = FrozenImages(self._rows.freeze(), self._names)
        return self._frozen

    def _take(self, images: ImageSet) -> bytes:
        return np.array([self._ids.take(one) for one in images.images], np.int32).tobytes()

    def _release(self, row: int) -> None:
        for number in np.frombuffer(self._rows[row], np.int32).tolist():
            self._ids.release(number)
