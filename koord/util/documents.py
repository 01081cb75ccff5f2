"""JSON and YAML documents that people write, read and written as Kubernetes does."""

import codecs
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from koord.util.errors import InvalidObject

if TYPE_CHECKING:
    import yaml


YamlScalar = str | int | float | bool | None

_MEANINGS: dict[YamlScalar, tuple[str, ...]] = {
    True: ("y", "yes", "true", "on"),
    False: ("n", "no", "false", "off"),
    None: ("null", "~", ""),
}
_WORDS: dict[str, YamlScalar] = {
    spelling: value
    for value, words in _MEANINGS.items()
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)"
    r"(0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)"
    r"|(?P<dec>0|[1-9][0-9]{0,19}))"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_EXACT = 2**53  # up to here a whole float is written by Go as the integer that it is


def resolve(text: str) -> YamlScalar:
    """Return the value of a scalar without quotes and tag; a text that is nothing else is itself.

    Integers beyond 64 bits are floats, and beyond those texts. Dates stay texts.

    Raises:
        ValueError: it is an infinity or no number, which JSON cannot say.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"the number {text}")
    plain = text if text[0] == "." else text.replace("_", "")
    number: YamlScalar = _integer(plain)
    if number is None and _FLOAT.fullmatch(plain):
        number = _float(plain)
    return text if number is None else number


def resolve_key(text: str) -> str | None:
    """Return the key that a plain scalar is in JSON; None: it is none.

    A key of 1.5 is "1.5", yes is "true" and 0x1F is "31". Raises as resolve does.
    """
    found = resolve(text)
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, int):
        return str(found)
    return None if found is None else text


def _integer(text: str) -> int | None:
    """The whole number of 64 bits; None: it is none."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    base = next(base for base in _BASES if found[base])
    number = int(found[base], _BASES[base])
    most = 2**64 if not found["sign"] else 2**63 + (found["sign"] == "-")
    if number >= most:
        return None
    return -number if found["sign"] == "-" else number


def _float(text: str) -> float | int | None:
    """The number, as an integer if it is one in JSON; None: it is too large."""
    number = float(text)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number


T = TypeVar("T")

MAX_YAML_BYTES = 4 << 20  # 0.8 s to read; JSON is 14 times faster
MAX_DEPTH = 100  # levels of nesting; no Kubernetes object comes near
MAX_VALUES = 1_000_000  # in a document; a list of 1000 pods has a quarter of it

_FED = 256 << 10  # bytes that are looked at together: 5 ms
_AT_ONCE = 64 << 10  # characters of JSON that hold the interpreter lock for no longer than 1 ms
_TOO_DEEP = "nesting too deep"
_TOO_MANY = f"more than {MAX_VALUES} values"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_AFTER_NUMBER = frozenset(",]} \t\n\r")
_SPACE = re.compile(r"[ \t\n\r]*")


def decode(data: bytes, where: str, *, half_characters: bool = False) -> object:
    """Return the object that the bytes of a file describe. where is named in errors.

    JSON if the first character is a brace, else YAML without aliases, merge keys and tags.
    half_characters: texts in JSON may have one, as the caller rejects it where it stands.

    Raises:
        InvalidObject: neither, or truncated, too deep, too large, or not text.
    """
    try:
        text = data.decode("utf-8-sig")
        if text.lstrip()[:1] == "{":
            return _decode_json(text, half_characters)
        if len(data) > MAX_YAML_BYTES:
            _refuse(f"{len(data)} bytes of YAML; write so much as JSON")
        _check_count(text, ",[{\n")
        return _decode_yaml(text)
    except RecursionError as err:
        raise InvalidObject(where, wanted="JSON or YAML", found=_TOO_DEEP) from err
    except ValueError as err:
        raise InvalidObject(where, wanted="JSON or YAML", found=str(err)) from err


class EarlierItems:
    """Values made from the objects of an earlier list, found again by their text.

    The text of a JSON object ends with its closing brace, so where the whole text of an earlier
    item stands again, it is that item: it need not be decoded. Kept are a digest of each text, its
    length and its first characters, by which it is looked up; of two that begin alike, the last.
    """

    def __init__(self) -> None:
        self._items: dict[str, tuple[int, bytes, object]] = {}

    def find(self, text: str, at: int) -> tuple[object, int] | None:
        """Return what was made of the item whose text begins here, and where that text ends."""
        found = self._items.get(text[at : at + _BEGINNING])
        if found is None:
            return None
        length, digest, value = found
        if at + length > len(text) or _digest(text[at : at + length]) != digest:
            return None
        return value, at + length

    def keep(self, text: str, value: object) -> None:
        """Keep what was made of an item, by its whole text, which must be that of a JSON object."""
        self._items[text[:_BEGINNING]] = (len(text), _digest(text), value)


_BEGINNING = 256  # characters; in a pod of the kubelet's list the name and namespace


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class ListStream:
    """Reads one JSON object as its bytes come; what stands in its lists goes through read.

    At no time more than one item is in memory, with its text. Items are read where the bytes that
    end them are fed, so that a caller that feeds in a thread gives others their turn.
    """

    def __init__(
        self,
        where: str,
        read: Callable[[object], object],
        *,
        item_bytes: int,
        earlier: EarlierItems | None = None,
    ) -> None:
        """Begin.

        where: for errors. item_bytes: how long the text of one item may be, in characters.
        earlier: of a document before; what has not changed since is taken from there, not read.
        """
        self.items_read = EarlierItems()  # of this document, for the next one
        self._earlier = earlier or EarlierItems()
        self._where = where
        self._read = read
        self._most = item_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._tried = 0  # characters that were too few for the value that is there
        self._last = False
        self._next: Callable[[], None] = self._begin
        self._found: dict[str, object] = {}
        self._key = ""
        self._items: list[object] = []

    def feed(self, data: bytes) -> None:
        """Read what the next bytes complete.

        Raises:
            InvalidObject: it is not one JSON object.
        """
        for at in range(0, len(data), _FED):
            self._advance(data[at : at + _FED])

    def end(self) -> dict[str, object]:
        """Return the object, in its lists what read has returned.

        Raises:
            InvalidObject: as with feed, or its end is missing.
        """
        self._last = True
        self._advance(b"")
        return self._found

    def _advance(self, data: bytes) -> None:
        try:
            self._text = self._text[self._at :] + self._decoder.decode(data, self._last)
            self._at = 0
            while self._peek():
                self._next()
            if self._last and self._next != self._ended:
                self._fail("more")
        except _TooShort:
            if len(self._text) - self._at > self._most:
                found = f"a value of more than {self._most} characters"
                raise InvalidObject(self._where, wanted="JSON", found=found) from None
        except RecursionError as err:
            raise InvalidObject(self._where, wanted="JSON", found=_TOO_DEEP) from err
        except ValueError as err:
            raise InvalidObject(self._where, wanted="a JSON object", found=str(err)) from err

    def _begin(self) -> None:
        self._take("{")
        self._next = self._first_field

    def _first_field(self) -> None:
        self._next = self._close if self._peek() == "}" else self._name

    def _name(self) -> None:
        key = self._plain()
        if not isinstance(key, str):
            self._fail("the name of a field")
        self._key, self._next = key, self._colon

    def _colon(self) -> None:
        self._take(":")
        self._next = self._value

    def _value(self) -> None:
        if self._peek() == "[":
            self._at += 1
            self._items, self._next = [], self._first_item
            return
        self._found[self._key] = self._plain()
        self._next = self._after_field

    def _first_item(self) -> None:
        self._next = self._close_list if self._peek() == "]" else self._item

    def _item(self) -> None:
        self._items.append(self._item_value())
        self._next = self._after_item

    def _item_value(self) -> object:
        """Return the value of the item that begins here; decode it if it is new."""
        is_object, begin = self._peek() == "{", self._at
        found = self._earlier.find(self._text, begin) if is_object else None
        if found is not None:
            value, self._at = found
            self._tried = 0
        else:
            value = self._read(self._plain())
        if is_object:
            self.items_read.keep(self._text[begin : self._at], value)
        return value

    def _after_item(self) -> None:
        if self._peek() == "]":
            self._next = self._close_list
            return
        self._take(",")
        self._next = self._item

    def _close_list(self) -> None:
        self._at += 1
        self._found[self._key] = self._items
        self._next = self._after_field

    def _after_field(self) -> None:
        if self._peek() == "}":
            self._next = self._close
            return
        self._take(",")
        self._next = self._name

    def _close(self) -> None:
        self._at += 1
        self._next = self._ended

    def _ended(self) -> None:
        self._fail("nothing more")

    def _plain(self) -> object:
        """The value that begins here. Raises _TooShort if its end has not come yet."""
        left = len(self._text) - self._at
        if left < min(2 * self._tried, self._most) and not self._last:
            raise _TooShort
        self._tried = left
        if left > MAX_VALUES:
            _check_count(self._text[self._at :])
        try:
            value, at = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError:
            if self._last:
                raise
            raise _TooShort from None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not self._last and self._text[at : at + 1] not in _AFTER_NUMBER:
            raise _TooShort  # 12 may be the beginning of 123, or of 12.5
        self._at, self._tried = at, 0
        _check_depth(value)
        found: object = value
        return found

    def _peek(self) -> str:
        """The next character after white space; "" at the end."""
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> None:
        if self._peek() != wanted:
            self._fail(repr(wanted))
        self._at += 1

    def _fail(self, wanted: str) -> NoReturn:
        raise json.JSONDecodeError(f"expecting {wanted}", self._text, self._at)


class _TooShort(Exception):
    """The text so far ends within a value."""


def decode_line(data: bytes, where: str) -> Any:
    """Return the value of one line of JSON, such as one of a record.

    Raises:
        InvalidObject: it is none, nested too deep, or has too many values.
    """
    try:
        text = data.decode()
        _check_count(text)
        value = json.loads(text, parse_constant=_refuse_constant)
        if _may_be_deep(text):
            _check_depth(value)
    except RecursionError as err:
        raise InvalidObject(where, wanted="JSON", found=_TOO_DEEP) from err
    except ValueError as err:
        raise InvalidObject(where, wanted="JSON", found=str(err)) from err
    return value


def _decode_json(text: str, half_characters: bool) -> object:
    _check_count(text)
    found = _decode_small(text)
    if found is None:
        found = _JsonReader(text).document()
    if not half_characters and _SURROGATE.search(text):
        # Half a character is valid JSON, but cannot be written out again.
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _decode_small(text: str) -> object:
    """Decode a small document in one call; None: it is large, or not right, as the reader says."""
    if len(text) > _AT_ONCE or _may_be_deep(text):
        return None
    try:
        found: object = _DECODER.decode(text)
    except ValueError:
        return None
    return found


class _JsonReader:
    """Decodes an object field by field and its lists item by item.

    The standard decoder holds the interpreter lock until it is done, up to 40 ms for each megabyte.
    So other threads, the event loop's above all, get their turn between the items.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> dict[str, object]:
        found = dict(self._until_closed("{", "}", self._field))
        if self._peek():
            self._fail("nothing more")
        return found

    def _field(self) -> tuple[str, object]:
        key = self._plain()
        if not isinstance(key, str):
            self._fail("the name of a field")
        self._take(":")
        if self._peek() == "[":
            return key, list(self._until_closed("[", "]", self._plain))
        return key, self._plain()

    def _until_closed(self, first: str, last: str, read: Callable[[], T]) -> Iterator[T]:
        self._take(first)
        if self._peek() != last:
            yield read()
            while self._peek() != last:
                self._take(",")
                yield read()
        self._take(last)

    def _plain(self) -> object:
        self._peek()
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        _check_depth(value)
        found: object = value
        return found

    def _peek(self) -> str:
        """The next character after white space; "" at the end."""
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> None:
        if self._peek() != wanted:
            self._fail(repr(wanted))
        self._at += 1

    def _fail(self, wanted: str) -> NoReturn:
        raise json.JSONDecodeError(f"expecting {wanted}", self._text, self._at)


def _decode_yaml(text: str) -> object:
    import yaml  # costs 2 MiB, and most hosts never read YAML

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        return _YamlReader(yaml.parse(text, Loader=loader)).document()
    except yaml.YAMLError as err:
        raise ValueError(" ".join(str(err).split())) from err


class _YamlReader:
    """Makes an object out of YAML's events. Raises ValueError for what JSON could not say."""

    def __init__(self, events: "Iterator[yaml.Event]") -> None:
        import yaml

        self._yaml = yaml
        self._events = events
        self._values = 0

    def document(self) -> object:
        """The value of the only document."""
        documents = [
            self._value(next(self._events), 0)
            for event in self._events
            if isinstance(event, self._yaml.DocumentStartEvent)
        ]
        if len(documents) != 1:
            _refuse(f"{len(documents)} documents")
        return documents[0]

    def _value(self, event: "yaml.Event", depth: int) -> object:
        yaml = self._yaml
        self._values += 1
        if self._values > MAX_VALUES:
            _refuse(_TOO_MANY)
        if isinstance(event, yaml.AliasEvent):
            _refuse(f"the alias *{event.anchor}; write the value out")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        self._check_tag(event)
        if depth == MAX_DEPTH:
            _refuse(_TOO_DEEP)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        return {
            self._key(key): self._value(next(self._events), depth + 1)
            for key in self._until(yaml.MappingEndEvent)
        }

    @staticmethod
    def _check_tag(event: "yaml.Event") -> None:
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            _refuse(f"the tag {tag}")

    def _until(self, end: "type[yaml.Event]") -> "Iterator[yaml.Event]":
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _key(self, event: "yaml.Event") -> str:
        """A key as Kubernetes writes it: yes is "true", and 0x1F is "31"."""
        if not isinstance(event, self._yaml.ScalarEvent):
            _refuse("a key that is no text")
        self._check_tag(event)
        found = resolve_key(event.value) if _is_plain(event) else str(event.value)
        if found is None:
            _refuse("a key that is no text")
        if event.implicit[0] and event.value == "<<":
            _refuse("the merge key <<; write the fields out")
        return found

    def _scalar(self, event: "yaml.ScalarEvent") -> YamlScalar:
        self._check_tag(event)
        text = str(event.value)
        return resolve(text) if _is_plain(event) else text


def _is_plain(event: "yaml.ScalarEvent") -> bool:
    """Whether a scalar has neither quotes nor a tag."""
    return bool(event.implicit[0]) and event.tag is None


def _check_count(text: str, marks: str = ",[{") -> None:
    """See that a document has a bounded number of values, before it is decoded."""
    if sum(map(text.count, marks)) > MAX_VALUES:
        _refuse(_TOO_MANY)


def _may_be_deep(text: str) -> bool:
    """Whether JSON has brackets enough to be nested too deep."""
    return text.count("[") + text.count("{") > MAX_DEPTH


def _check_depth(value: object) -> None:
    """See that a value is not nested too deep, level by level."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    _refuse(_TOO_DEEP)


def _refuse_constant(name: str) -> NoReturn:
    _refuse(f"the number {name}")


def _refuse(found: str) -> NoReturn:
    raise ValueError(found)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def to_yaml(value: object) -> str:
    """Return the YAML of a JSON value. Texts that Kubernetes would take for more have quotes.

    Raises:
        ValueError: a number in it is not finite, which JSON cannot say.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Follows Kubernetes' rules of plain scalars, not PyYAML's, and makes no aliases."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: Dumper, data: str) -> "yaml.Node":
        style = None if _is_itself(data) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def number(dumper: Dumper, data: float) -> "yaml.Node":
        if not math.isfinite(data):
            raise ValueError(f"the number {data}")
        return dumper.represent_scalar("tag:yaml.org,2002:float", _decimal(data))

    Dumper.add_representer(str, text)
    Dumper.add_representer(float, number)
    written: Any = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=False)
    return str(written)


def _is_itself(text: str) -> bool:
    """Whether a text without quotes is read as this text."""
    try:
        return resolve(text) == text
    except ValueError:
        return False


def _decimal(number: float) -> str:
    """A float as YAML 1.1 has it: with a point, and a sign in the exponent."""
    text = repr(number)
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"
