"""Fields of objects that are kept because a plugin declares that it reads them.

    @reads(pod_annotations={"example.com/seat": 256})
    class Seats(FilterPlugin): ...

What no enabled plugin declares is not kept, and costs nothing.
"""

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from koord.cluster.lenient_decoding import DecodingFaults
from koord.util.errors import KoordError

MAX_VALUE_BYTES = 256 << 10  # all annotations of an object together have no more in Kubernetes
MAX_KEY_LENGTH = 317  # characters: a prefix of 253, a slash, a name of 63
MAX_KEYS = 256  # of one kind, that one plugin declares

_DECLARED = "__plugin_reads__"
_NONE: Mapping[str, int] = MappingProxyType({})

F = TypeVar("F", bound=Callable[..., object])


class DeclarationError(KoordError):
    """A plugin declares fields that cannot be kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFields:
    """Fields that are read of pods and nodes beyond those that are always kept.

    Annotations are by key, with the most bytes of a value. All labels are kept, at most 63 bytes
    each, as the API server has them; of an object that has more than are kept together, declared
    ones come first.
    """

    pod_annotations: Mapping[str, int] = field(default_factory=dict)
    node_annotations: Mapping[str, int] = field(default_factory=dict)
    pod_labels: frozenset[str] = frozenset()
    node_labels: frozenset[str] = frozenset()
    containers: bool = False  # requests and limits of each container: PodSpec.containers

    def __or__(self, other: "KeptFields") -> "KeptFields":
        """The fields of both; of two bounds the larger one."""
        return KeptFields(
            pod_annotations=_larger(self.pod_annotations, other.pod_annotations),
            node_annotations=_larger(self.node_annotations, other.node_annotations),
            pod_labels=self.pod_labels | other.pod_labels,
            node_labels=self.node_labels | other.node_labels,
            containers=self.containers or other.containers,
        )

    def covers(self, other: "KeptFields") -> bool:
        """Whether this keeps all that the other does."""
        return self | other == self


NO_FIELDS = KeptFields()


def reads(
    *others: KeptFields,
    pod_annotations: Mapping[str, int] = _NONE,
    node_annotations: Mapping[str, int] = _NONE,
    pod_labels: Iterable[str] = (),
    node_labels: Iterable[str] = (),
    containers: bool = False,
) -> Callable[[F], F]:
    """Declare what the plugins of a factory, which may be a plugin's class, read of objects.

    Annotations are by key, with the most bytes of a value, up to 256 KiB. A longer value is left
    out; an event on the object names it, and such a pod fits no node. others: declared elsewhere,
    as for rules that several plugins share. A derived class also has what its bases declare.

    Raises:
        DeclarationError: a key or a bound cannot be one.
    """
    own = KeptFields(
        pod_annotations=_checked_bounds(pod_annotations),
        node_annotations=_checked_bounds(node_annotations),
        pod_labels=_checked_keys(pod_labels),
        node_labels=_checked_keys(node_labels),
        containers=containers,
    )

    def declare(factory: F) -> F:
        setattr(factory, _DECLARED, union((own, *others, reads_of(factory))))
        return factory

    return declare


def reads_of(factory: object) -> KeptFields:
    """Return what a factory declares; a function without a declaration has that of its result."""
    found = getattr(factory, _DECLARED, None)
    if found is None and not isinstance(factory, type):
        found = getattr(_result_of(factory), _DECLARED, None)
    return found if isinstance(found, KeptFields) else NO_FIELDS


def union(declared: Iterable[KeptFields]) -> KeptFields:
    """Return all fields of several declarations."""
    found = NO_FIELDS
    for one in declared:
        found |= one
    return found


def kept_annotations(
    found: Mapping[str, str], bounds: Mapping[str, int], faults: DecodingFaults
) -> tuple[tuple[str, str], ...]:
    """Return the annotations of an object that are kept, sorted by key.

    bounds: the most bytes of each. A longer one is left out, which is noted.
    """
    kept = []
    for key in sorted(bounds.keys() & found.keys()):
        value = found[key]
        size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        if size <= bounds[key]:
            kept.append((key, value))
        else:
            faults.note(f"annotation {key}", f"{size} bytes of at most {bounds[key]}")
    return tuple(kept)


def _larger(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, int]:
    if not first or not second:
        return first or second
    return {**first, **{key: max(bound, first.get(key, 0)) for key, bound in second.items()}}


def _checked_bounds(found: Mapping[str, int]) -> Mapping[str, int]:
    _checked_keys(found)
    for key, bound in found.items():
        if not isinstance(bound, int) or isinstance(bound, bool):
            raise DeclarationError(f"reads: {key}: wanted a number of bytes, found {bound!r:.80}")
        if not 0 < bound <= MAX_VALUE_BYTES:
            raise DeclarationError(
                f"reads: {key}: wanted 1 to {MAX_VALUE_BYTES} bytes, found {bound}"
            )
    return dict(found)


def _checked_keys(found: Iterable[str]) -> frozenset[str]:
    if isinstance(found, str):
        raise DeclarationError(f"reads: wanted several keys, found the text {found!r:.80}")
    keys = frozenset(found)
    if len(keys) > MAX_KEYS:
        raise DeclarationError(f"reads: wanted at most {MAX_KEYS} keys, found {len(keys)}")
    for key in keys:
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            raise DeclarationError(f"reads: wanted a key as Kubernetes has it, found {key!r:.80}")
    return keys


def _result_of(factory: object) -> object:
    """Return the annotated type of the result of a function; None: it is not known."""
    try:
        return typing.get_type_hints(factory).get("return")
    except Exception:  # annotations of a third party's code
        return None
