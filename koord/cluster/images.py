"""Images of nodes: equal sets are read once, and each image is a column when it is needed."""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from hashlib import blake2b
from weakref import WeakValueDictionary

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from koord.cluster import wire
from koord.cluster.columns import Column, FrozenColumn, Ids, read_only
from koord.cluster.facts import NO_IMAGES, Image, ImageSet
from koord.cluster.lenient_decoding import DecodingFaults, LenientDecoder

MAX_COLUMNS = 64  # that a view keeps; 40 KB each at 5,000 nodes
_NUMBER_BYTES = 4
_NAMES_OF_AN_IMAGE = 4  # rarely more

_IMAGES: LenientDecoder[list[wire.NodeImage]] = LenientDecoder(
    "images", list[wire.NodeImage], 2 << 20
)


class ImageSets:
    """Image sets of the nodes that are known; the last node takes its set along."""

    def __init__(self) -> None:
        self._sets: WeakValueDictionary[bytes, ImageSet] = WeakValueDictionary()

    def read(self, found: Raw, faults: DecodingFaults) -> ImageSet:
        """Return the one set of nodes with this list of images, without what is malformed in it."""
        if found is wire.NOTHING:
            return NO_IMAGES
        key = blake2b(found, digest_size=16).digest()
        known = self._sets.get(key)
        if known is None:
            images = [
                _image(tuple(one.names or ()), max(one.size_bytes or 0, 0))
                for one in _IMAGES.read(found, faults) or ()
            ]
            known = self._sets[key] = ImageSet(tuple(images))
        return known


@lru_cache(maxsize=8192)  # most nodes have the same ones
def _image(names: tuple[str, ...], size: int) -> Image:
    return Image(names, size)


class _Index:
    """Numbers by the names of images. Only ever grows: what it says may be of another moment."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, image: Image) -> None:
        for name in image.names:
            known = self._numbers.setdefault(name, [])
            if number not in known:
                known.append(number)

    def images(self, name: str, images: FrozenColumn) -> Iterator[tuple[int, Image]]:
        """Numbers that are of an image of this name among the images, by number."""
        for number in self._numbers.get(name, ()):
            image = images[number] if number < len(images) else None
            if image is not None and name in image.names:
                yield number, image


class FrozenImages:
    """The images of each node. It never changes."""

    def __init__(self, rows: FrozenColumn, images: FrozenColumn, index: _Index) -> None:
        """rows: the numbers of each node's images, as bytes. images: by number."""
        self._rows = rows
        self._images = images
        self._index = index
        self._columns: dict[str, NDArray[np.int64] | None] = {}

    def sizes(self, name: str) -> NDArray[np.int64] | None:
        """Bytes of an image on each node, 0 where it is not; shape (nodes,). None: on none."""
        if name not in self._columns:
            if len(self._columns) >= MAX_COLUMNS:
                del self._columns[next(iter(self._columns))]
            self._columns[name] = self._column(name)
        return self._columns[name]

    def spread(self, name: str) -> int:
        """Return the number of nodes that have an image."""
        column = self.sizes(name)
        return 0 if column is None else int(np.count_nonzero(column))

    def _column(self, name: str) -> NDArray[np.int64] | None:
        found = list(self._index.images(name, self._images))
        if not found:
            return None
        numbers, ends = self._table
        column = np.zeros(len(self._rows), np.int64)
        for number, image in found:
            places = np.flatnonzero(numbers == number)
            column[np.searchsorted(ends, places, "right")] = image.size
        return read_only(column)

    @cached_property
    def _table(self) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """Numbers of all nodes' images, node by node, and where those of each node end."""
        texts: list[bytes] = self._rows.array.tolist()
        counts = np.fromiter(map(len, texts), np.intp, len(texts)) // _NUMBER_BYTES
        return np.frombuffer(b"".join(texts), np.int32), np.cumsum(counts)


class NodeImages:
    """Images of nodes by row, changed as nodes come and go. Belongs to one thread."""

    def __init__(self) -> None:
        self._ids: Ids[Image] = Ids()
        self._rows = Column(object)
        self._index = _Index()
        self._indexed: dict[int, Image] = {}  # by number
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
            self._frozen = FrozenImages(self._rows.freeze(), self._ids.freeze(), self._index)
        return self._frozen

    def _take(self, images: ImageSet) -> bytes:
        numbers = [self._ids.take(one) for one in images.images]
        for number, image in zip(numbers, images.images, strict=True):
            if self._indexed.get(number) is not image:
                self._note(number, image)
        return np.array(numbers, np.int32).tobytes()

    def _note(self, number: int, image: Image) -> None:
        """Index an image by its names; rebuild the index when it has many old names."""
        self._indexed[number] = image
        if len(self._index) > 2 * _NAMES_OF_AN_IMAGE * len(self._indexed):
            self._index = _Index()
            for each, known in self._indexed.items():
                self._index.add(each, known)
        else:
            self._index.add(number, image)

    def _release(self, row: int) -> None:
        for number in np.frombuffer(self._rows[row], np.int32).tolist():
            self._ids.release(number)
