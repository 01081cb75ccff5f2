"""Columns: one value, or a few, for each node; which are the same, and which are the highest."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain, compress, repeat, zip_longest
from operator import is_not
from random import Random
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast
from weakref import WeakValueDictionary, ref

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from koord.cluster import wire
from koord.cluster.facts import NO_IMAGES, Image, ImageSet
from koord.cluster.lenient_decoding import DecodingFaults, LenientDecoder

Mask = NDArray[np.bool_]
"""Which nodes; shape (nodes,)."""

CHUNK = 64  # rows that are copied together, most often for one that has changed
_SHARDS = 256  # a change after a view copies one shard, not the names of all pods
_FEW_WRITTEN = 16  # rows that are compared one by one sooner than chunk by chunk
_EXACT = 2**46  # below it, hundredths of a whole number are exact as floats

T = TypeVar("T")
S = TypeVar("S", bound=np.generic)
H = TypeVar("H", bound=Hashable)


def read_only(array: NDArray[S]) -> NDArray[S]:
    """The same array, which cannot be written any more: others get it, too."""
    array.flags.writeable = False
    return array


class FrozenColumn:
    """A column that never changes. It shares its chunks with the one that it was made from.

    Rows are the last axis of a chunk: one of several values, over all rows, is contiguous, and
    what is computed over all rows takes a fifth of the time.
    """

    def __init__(self, chunks: tuple[NDArray[Any], ...], length: int, empty: NDArray[Any]) -> None:
        """empty: a chunk without rows, of the type and width of all."""
        self.chunks = chunks
        self.length = length
        self._empty = empty
        self._zeros: dict[int, Mask | None] = {}
        self._floats: dict[int, NDArray[np.float64] | None] = {}
        self._asked: tuple[ref[FrozenColumn], list[int]] | None = None  # see other_rows
        self._written: tuple[ref[FrozenColumn], frozenset[int]] | None = None

    def has_written(self, rows: Iterable[int], before: "FrozenColumn") -> None:
        """Note the only rows that may be others than those of a column as long as this one."""
        self._written = ref(before), frozenset(rows)

    @cached_property
    def array(self) -> NDArray[Any]:
        """All rows in one array, which cannot be written; shape (rows,) or (rows, width)."""
        joined = np.concatenate((*self.chunks, self._empty), axis=-1)[..., : self.length]
        return read_only(joined).T

    def zeros(self, at: int) -> Mask | None:
        """Rows in which one of several values is 0; None: there is none. Computed once."""
        if at not in self._zeros:
            found = self.array[:, at] == 0
            self._zeros[at] = read_only(found) if found.any() else None
        return self._zeros[at]

    def floats(self, at: int) -> NDArray[np.float64] | None:
        """One of several whole values as floats. Computed once.

        Hundredths of them are exact, and so is 100 * part / value when it is cut, for a part of at
        most the value. None: some value is too large for that, or negative.
        """
        if at not in self._floats:
            values = self.array[:, at]
            exact = not len(values) or 0 <= values.min() <= values.max() < _EXACT
            self._floats[at] = read_only(values.astype(np.float64)) if exact else None
        return self._floats[at]

    def __getitem__(self, row: int) -> Any:
        if not 0 <= row < self.length:
            raise IndexError(row)
        return self.chunks[row // CHUNK].T[row % CHUNK]

    def chunk_of(self, row: int) -> tuple[NDArray[Any], int]:
        """The array (values, rows) that has a row, and the place of the row in it."""
        if not 0 <= row < self.length:
            raise IndexError(row)
        return self.chunks[row // CHUNK], row % CHUNK

    def number(self, row: int, at: int) -> int:
        """One of several whole values of a row."""
        if not 0 <= row < self.length:
            raise IndexError(row)
        found: int = self.chunks[row // CHUNK].item(at, row % CHUNK)
        return found

    def __len__(self) -> int:
        return self.length

    @property
    def width(self) -> int:
        """How many values a row has, where it has several."""
        return len(self._empty)

    def added(self, rows: NDArray[np.intp], amounts: NDArray[Any]) -> "FrozenColumn":
        """The column with amounts, shape (width, rows), added to some rows, each named once."""
        joined = np.concatenate(self.chunks or (self._empty,), axis=-1)
        joined[..., rows] += amounts
        return self._of(joined)

    def replaced(self, rows: NDArray[np.intp], values: NDArray[Any]) -> "FrozenColumn":
        """The column with other values in some rows."""
        joined = np.concatenate(self.chunks or (self._empty,), axis=-1)
        joined[..., rows] = values
        return self._of(joined)

    def _of(self, joined: NDArray[Any]) -> "FrozenColumn":
        """A column of the same length whose chunks are parts of one array."""
        begins = range(0, len(self.chunks) * CHUNK, CHUNK)
        chunks = tuple(joined[..., begin : begin + CHUNK] for begin in begins)
        found = FrozenColumn(chunks, self.length, self._empty)
        whole = read_only(joined[..., : self.length])
        found.__dict__["array"] = whole.T  # the chunks need not be joined again
        return found

    def other_rows(self, before: "FrozenColumn | None") -> list[int]:
        """Rows whose value is another one than before, or that only one of the two has; ascending.

        Of objects: another object. Of numbers none may be 0, as no generation is. It costs little
        where the two share their chunks, and nothing the next time; None is empty. The list is not
        to be changed.
        """
        if self is before:
            return []
        asked = self._asked
        if asked is not None and before is not None and asked[0]() is before:
            return asked[1]
        old = () if before is None else before.chunks
        rows: list[int] = []
        written = self._written
        if written is not None and before is not None and written[0]() is before:
            rows = [row for row in sorted(written[1]) if self[row] is not before[row]]
            if self._empty.dtype != object:
                rows = [row for row in rows if self[row] != before[row]]
            self._asked = ref(before), rows
            return rows
        for number, (one, other) in enumerate(zip_longest(self.chunks, old)):
            if one is not other:
                begin = number * CHUNK
                rows += [begin + place for place in _other_places(one, other)]
        if before is not None:
            self._asked = ref(before), rows
        return rows


def _other_places(one: NDArray[Any] | None, other: NDArray[Any] | None) -> list[int]:
    """Places at which two chunks differ; None has nothing."""
    chunk = one if other is None else other
    assert chunk is not None  # noqa: S101 - one of the two is there
    if chunk.dtype != object:
        found: list[int] = np.flatnonzero(
            (0 if one is None else one) != (0 if other is None else other)
        ).tolist()
        return found
    pairs = zip(
        repeat(0) if one is None else one.tolist(),
        repeat(0) if other is None else other.tolist(),
        range(CHUNK),
        strict=False,
    )
    return [place for value, last, place in pairs if value is not last]


@lru_cache(maxsize=64)
def _empty_chunk(dtype: Any, *width: int) -> NDArray[Any]:
    """A chunk of zeros, which is never written: a hypothetical cluster begins with six columns."""
    return read_only(np.zeros((*width, CHUNK), dtype))


class Column:
    """A column that grows and changes. A chunk is copied when a frozen column has it, too."""

    def __init__(self, dtype: type[Any], *width: int, base: FrozenColumn | None = None) -> None:
        """width: the values of each row; none for a single one. base: what it begins with."""
        self._empty = _empty_chunk(cast(Hashable, dtype), *width)
        self._chunks = list(base.chunks) if base else []
        self._own: set[int] = set()  # numbers of chunks that no frozen column has
        self._length = len(base) if base else 0
        self._frozen = base
        self._last = base  # that was frozen last; None: it had other rows
        self._written: set[int] = set()  # rows, since then

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Any:
        if not 0 <= row < self._length:
            raise IndexError(row)
        return self._chunks[row // CHUNK].T[row % CHUNK]

    def __setitem__(self, row: int, value: object) -> None:
        self._writable(row).T[row % CHUNK] = value

    def writable(self, row: int) -> NDArray[Any]:
        """The values of a row, of which there are several, to be changed."""
        found: NDArray[Any] = self._writable(row).T[row % CHUNK]
        return found

    def _writable(self, row: int) -> NDArray[Any]:
        """The chunk that has the row."""
        if not 0 <= row < self._length:
            raise IndexError(row)
        self._frozen = None
        self._written.add(row)
        number = row // CHUNK
        if number not in self._own:
            self._chunks[number] = self._chunks[number].copy()
            self._own.add(number)
        return self._chunks[number]

    def append(self, value: object) -> None:
        if self._length % CHUNK == 0:
            self._own.add(len(self._chunks))
            self._chunks.append(self._empty.copy())
        self._length += 1
        self[self._length - 1] = value
        self._last = None

    def pop(self) -> None:
        """Drop the last row."""
        self[self._length - 1] = self._empty.T[0]
        self._length -= 1
        self._last = None
        if self._length % CHUNK == 0:
            self._chunks.pop()
            self._own.discard(len(self._chunks))

    def freeze(self) -> FrozenColumn:
        """The column as it is now. Costs nothing but the list of its chunks."""
        if self._frozen is None:
            frozen = FrozenColumn(tuple(self._chunks), self._length, self._empty[..., :0])
            if self._last is not None and len(self._written) <= _FEW_WRITTEN:
                frozen.has_written(self._written, self._last)
            self._frozen = self._last = frozen
            self._written.clear()
            self._own.clear()
        return self._frozen


_BLOCK = 256  # values whose highest is known


class BlockMaxima:
    """The highest of many values, of which a few change: it is known block by block."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        """values: at least one; renew() is to be called for each that changes."""
        self._values = values
        begins = np.arange(0, len(values), _BLOCK)
        self._highest: NDArray[np.int64] = np.maximum.reduceat(values, begins)
        is_highest = values == self._highest.repeat(_BLOCK)[: len(values)]
        self._counts: NDArray[np.int64] = np.add.reduceat(is_highest, begins, dtype=np.int64)

    def renew(self, place: int) -> None:
        """Take note of a value that has changed."""
        block = place // _BLOCK
        values = self._values[block * _BLOCK : (block + 1) * _BLOCK]
        self._highest[block] = highest = values[values.argmax()]  # faster than max()
        self._counts[block] = np.count_nonzero(values == highest)

    def draw(self, draw: Random) -> int:
        """The place of the highest value; one of them, if there are several."""
        highest = self._highest[self._highest.argmax()]
        (blocks,) = (self._highest == highest).nonzero()
        ends = self._counts[blocks].cumsum()
        number = draw.randrange(int(ends[-1]))
        at = int(ends.searchsorted(number, "right"))
        begin = int(blocks[at]) * _BLOCK
        (places,) = (self._values[begin : begin + _BLOCK] == highest).nonzero()
        return begin + int(places[number - int(ends[at])])  # negative: from the last one


class CodedColumn(Generic[H]):
    """A column of values of any type as codes: equal values have equal codes, absent ones -1."""

    def __init__(self, values: Iterable[H | None]) -> None:
        index: dict[H, int] = {}
        codes = (-1 if value is None else index.setdefault(value, len(index)) for value in values)
        self.codes: NDArray[np.intp] = read_only(np.fromiter(codes, np.intp))
        self.index: Mapping[H, int] = MappingProxyType(index)

    @cached_property
    def present(self) -> Mask:
        """Rows that have a value; it cannot be written."""
        present: Mask = self.codes >= 0
        return read_only(present)

    @cached_property
    def complete(self) -> bool:
        """Whether all rows have a value."""
        return bool(self.present.all())

    def where(self, holds: Callable[[H], bool], *, absent: bool = False) -> Mask:
        """Rows whose value fulfils a condition, which is asked once for each value."""
        answers = [*map(holds, self.index), absent]
        if all(answers[:-1]) and (absent or self.complete):
            return np.ones(len(self.codes), np.bool_)
        return np.array(answers, np.bool_).take(self.codes)  # -1 is the last

    def numbers(self, of: Callable[[H], int], *, absent: int = 0) -> NDArray[np.int64]:
        """A number for each row by its value, which is asked for once for each value."""
        table = np.fromiter(chain(map(of, self.index), (absent,)), np.int64, len(self.index) + 1)
        return table.take(self.codes)  # -1 is the last

    def among(self, values: Iterable[H]) -> Mask:
        """Rows that have one of the values."""
        wanted = np.zeros(len(self.index) + 1, np.bool_)
        for value in values:
            code = self.index.get(value)
            if code is not None:
                wanted[code] = True
        return wanted.take(self.codes)

    def totals(self, amounts: NDArray[Any], counted: Mask | None = None) -> NDArray[np.int64]:
        """Sums over the counted rows, by default all, that have a value; shape (values + 1,).

        By code; the last one is 0, and found by the code of rows without a value.
        """
        rows = None if self.complete else self.present
        if counted is not None:
            rows = counted if rows is None else counted & rows
        codes = self.codes if rows is None else self.codes[rows]
        wanted = amounts if rows is None else amounts[rows]
        sums = np.bincount(codes, wanted, minlength=len(self.index) + 1)
        return sums.astype(np.int64)


class Shards(Generic[T]):
    """A mapping from names whose copies cost only what changes: objects that have a key."""

    def __init__(self, base: "FrozenShards[T] | None" = None) -> None:
        """base: what it begins with."""
        self._shards: list[dict[str, T]] = (
            [{} for _ in range(_SHARDS)] if base is None else list(base.shards)
        )
        self._shared = [base is not None] * _SHARDS
        self._frozen = base

    def get(self, key: str) -> T | None:
        return self._shards[hash(key) % _SHARDS].get(key)

    def put(self, key: str, value: T) -> None:
        self._writable(key)[key] = value

    def drop(self, key: str) -> None:
        """Forget it; one that is not known is none the less forgotten."""
        if self.get(key) is not None:
            del self._writable(key)[key]

    def keys(self) -> Iterator[str]:
        """All names, in no given order."""
        return chain.from_iterable(self._shards)

    def freeze(self) -> "FrozenShards[T]":
        if self._frozen is None:
            self._frozen = FrozenShards(tuple(self._shards))
            self._shared = [True] * _SHARDS
        return self._frozen

    def _writable(self, key: str) -> dict[str, T]:
        self._frozen = None
        number = hash(key) % _SHARDS
        if self._shared[number]:
            self._shards[number] = dict(self._shards[number])
            self._shared[number] = False
        return self._shards[number]


class FrozenShards(Generic[T]):
    """Shards that never change."""

    def __init__(self, shards: tuple[dict[str, T], ...]) -> None:
        self.shards = shards

    def get(self, key: str) -> T | None:
        return self.shards[hash(key) % _SHARDS].get(key)

    def other_keys(self, before: "FrozenShards[T] | None") -> Iterator[str]:
        """Names whose object is another one than before, or that only one of the two has.

        It costs little where the two share their shards; None is empty.
        """
        nothing: Mapping[str, T] = {}
        old = before.shards if before is not None else (nothing,) * len(self.shards)
        # Asked several times a cycle: a loop over all shards in Python took 15 microseconds.
        changed = compress(zip(self.shards, old, strict=True), map(is_not, self.shards, old))
        for one, other in changed:
            for key in one.keys() | other.keys():
                if one.get(key) is not other.get(key):
                    yield key


class Ids(Generic[T]):
    """Small numbers for what pods share, by identity. A number is used again when it is free."""

    def __init__(self, base: FrozenColumn | None = None) -> None:
        """base: numbers that are in use elsewhere and stay."""
        self._values = Column(object, base=base)
        self._ids: dict[T, int] = {}
        self._uses: dict[int, int] = {}
        self._free: list[int] = []

    def take(self, value: T) -> int:
        """Return the number of a value, for one more user."""
        number = self._ids.get(value)
        if number is None:
            number = self._ids[value] = self._new(value)
        self._uses[number] = self._uses.get(number, 0) + 1
        return number

    def release(self, number: int) -> None:
        """One user less. A number of base is never free."""
        uses = self._uses.get(number)
        if uses is None:
            return
        if uses > 1:
            self._uses[number] = uses - 1
            return
        del self._uses[number], self._ids[self._values[number]]
        self._values[number] = None
        self._free.append(number)

    def freeze(self) -> FrozenColumn:
        """The values by number; None where a number is free."""
        return self._values.freeze()

    def _new(self, value: T) -> int:
        if self._free:
            number = self._free.pop()
            self._values[number] = value
            return number
        self._values.append(value)
        return len(self._values) - 1


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
