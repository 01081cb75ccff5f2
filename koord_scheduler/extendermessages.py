"""Messages between a scheduler and an HTTP extender, in both directions, as JSON.

Go reads field names in any case, so both sides here do, too; the scheduler writes them with
capitals, and null for what is absent.

Source: Kubernetes, k8s.io/kube-scheduler/extender/v1.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Raw, Struct, field, json

from koord.cluster.decoder import MAX_OBJECT_BYTES
from koord.util.errors import InvalidObject

MIN_SCORE = 0
MAX_SCORE = 10
MAX_REASON_LENGTH = 1024  # characters of a reason that are kept
MAX_NODES = 20_000  # in one message
MAX_NAME_LENGTH = 260  # bytes of a node's in a list; Kubernetes has at most 253

T = TypeVar("T")

Victims = Mapping[str, Sequence[str]]
"""Uids of the pods that would be evicted, by node."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A question about a pod and some nodes: of filter and prioritize."""

    pod: bytes  # as the API server has it
    names: tuple[str, ...]  # of the nodes
    nodes: Sequence[bytes | Raw] | None  # the nodes themselves; None: only names travel


@dataclass(frozen=True, slots=True)
class ExtenderFilterResult:
    """Which nodes passed, and why the others did not."""

    names: tuple[str, ...] | None  # None: the response says nothing about that
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unresolvable: Mapping[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class MetaVictims:
    """Pods of a node that would be evicted, by uid."""

    uids: tuple[str, ...]
    violations: int = 0  # of disruption budgets


@dataclass(frozen=True, slots=True)
class ExtenderBindingArgs:
    """A pod and the node that it is to be bound to."""

    namespace: str
    name: str
    uid: str
    node: str


def write_extender_args(asked: ExtenderArgs) -> bytes:
    """Return a question for filter or prioritize."""
    nodes = None
    if asked.nodes is not None:
        nodes = {"metadata": {}, "items": [Raw(one) for one in asked.nodes]}
    names = asked.names if asked.nodes is None else None
    return json.encode({"Pod": Raw(asked.pod), "Nodes": nodes, "NodeNames": names})


def read_extender_args(data: bytes | bytearray) -> ExtenderArgs:
    """Return the question that a scheduler asks; nodes are views of the data.

    Nothing is made of what is not asked for, and of no more than MOST_NODES nodes: a body of
    128 MiB, whatever is in it, costs a few MiB beside itself.

    Raises:
        InvalidObject: it is none.
    """
    where = "ExtenderArgs"
    found = _typed(data, _ExtenderArgs, where)
    pod, nodes = found.pod or found.small_pod, found.nodes or found.small_nodes
    listed = found.names or found.small_names
    if len(pod) > MAX_OBJECT_BYTES or not bytes(pod).startswith(b"{"):
        raise InvalidObject(where, wanted="a Pod", found=f"{len(pod)} bytes")
    if listed not in _NOTHING:
        return ExtenderArgs(bytes(pod), _listed_names(listed), None)
    if nodes in _NOTHING:
        raise InvalidObject(where, wanted="Nodes or NodeNames", found="neither")
    return ExtenderArgs(bytes(pod), *_whole_nodes(nodes))


def write_filter_result(
    response: ExtenderFilterResult, nodes: Sequence[bytes | Raw] | None = None
) -> list[bytes | Raw]:
    """Return the response to filter in pieces; nodes: those that passed, where they travel."""
    rest = {
        "NodeNames": None if nodes is not None else response.names or (),
        "FailedNodes": response.failed,
        "FailedAndUnresolvableNodes": response.unresolvable,
        "Error": response.error,
    }
    if nodes is None:
        return [json.encode({"Nodes": None, **rest})]
    pieces: list[bytes | Raw] = [b'{"Nodes":{"metadata":{},"items":[']
    for node in nodes:
        pieces += (node,) if len(pieces) == 1 else (b",", node)
    pieces += (b"]},", json.encode(rest)[1:])
    return pieces


def read_filter_result(data: bytes) -> ExtenderFilterResult:
    """Return an extender's answer to filter.

    Raises:
        InvalidObject: it is none, or says neither which nodes passed nor what went wrong.
    """
    found = _object(data, "ExtenderFilterResult")
    error = _text(found.get("error"), "Error")
    names = _names(found.get("nodenames"), "NodeNames")
    if names is None:
        nodes = _items(found.get("nodes"))
        names = None if nodes is None else tuple(_name_of(one) for one in nodes)
    if names is None and not error:
        raise InvalidObject(
            "ExtenderFilterResult", wanted="NodeNames, Nodes or Error", found="none of them"
        )
    return ExtenderFilterResult(
        names=names,
        failed=_reasons(found.get("failednodes"), "FailedNodes"),
        unresolvable=_reasons(
            found.get("failedandunresolvablenodes"), "FailedAndUnresolvableNodes"
        ),
        error=error,
    )


def write_priorities(scores: Mapping[str, int]) -> bytes:
    """Return the response to prioritize."""
    return json.encode([{"Host": name, "Score": score} for name, score in scores.items()])


def read_priorities(data: bytes) -> Mapping[str, int]:
    """Return scores by node; those of a node that comes twice are added.

    A whole number with a point, as in 7.0, is one.

    Raises:
        InvalidObject: it is no list of hosts with scores from MIN_SCORE to MAX_SCORE.
    """
    where = "HostPriorityList"
    items = [] if data.strip() == b"null" else _list(_decoded(data, where), where)
    found: dict[str, int] = {}
    for item in items:
        if not isinstance(item, dict):
            raise InvalidObject(where, wanted="hosts with scores", found=_short(item))
        fields = _folded(item)
        host, score = fields.get("host"), fields.get("score", 0)
        if not isinstance(host, str) or not _is_whole(score):
            wanted = "a host and a whole number as its score"
            raise InvalidObject(where, wanted=wanted, found=_short(item))
        if not MIN_SCORE <= score <= MAX_SCORE:
            wanted = f"scores from {MIN_SCORE} to {MAX_SCORE}"
            raise InvalidObject(where, wanted=wanted, found=f"{host}: {score:g}")
        found[host] = found.get(host, 0) + int(score)
    return found


def write_preempt(
    pod: bytes,
    victims: Mapping[str, MetaVictims],
    whole: Mapping[str, bytes] | None,
) -> bytes:
    """Return a question for preempt. whole: victims by uid, where they travel themselves."""
    candidates: dict[str, Any] = {}
    for name, one in victims.items():
        pods = [{"UID": uid} if whole is None else Raw(whole[uid]) for uid in one.uids]
        candidates[name] = {"Pods": pods, "NumPDBViolations": one.violations}
    return json.encode(
        {
            "Pod": Raw(pod),
            "NodeNameToVictims": None if whole is None else candidates,
            "NodeNameToMetaVictims": candidates if whole is None else None,
        }
    )


def read_preempt_result(data: bytes) -> Mapping[str, MetaVictims]:
    """Return the candidates that an extender leaves, with their victims.

    Raises:
        InvalidObject: it is no such response.
    """
    where = "ExtenderPreemptionResult"
    candidates = _object(data, where).get("nodenametometavictims")
    if not isinstance(candidates, dict):
        raise InvalidObject(where, wanted="NodeNameToMetaVictims", found=_short(candidates))
    found = {}
    for name, item in candidates.items():
        fields = _folded(item) if isinstance(item, dict) else {}
        pods, violations = fields.get("pods") or [], fields.get("numpdbviolations", 0)
        uids = [
            _folded(one).get("uid") if isinstance(one, dict) else None for one in _list(pods, where)
        ]
        if not isinstance(violations, int) or not all(isinstance(uid, str) for uid in uids):
            wanted = "Pods with UIDs, and a whole number of NumPDBViolations"
            raise InvalidObject(where, wanted=wanted, found=_short(item))
        found[name] = MetaVictims(tuple(map(str, uids)), violations)
    return found


def write_bind(asked: ExtenderBindingArgs) -> bytes:
    """Return a question for bind."""
    return json.encode(
        {
            "PodName": asked.name,
            "PodNamespace": asked.namespace,
            "PodUID": asked.uid,
            "Node": asked.node,
        }
    )


def read_bind(data: bytes | bytearray) -> ExtenderBindingArgs:
    """Return which pod a scheduler wants bound.

    Raises:
        InvalidObject: a part of it is missing.
    """
    found = _object(data, "ExtenderBindingArgs")
    parts = [found.get(key) for key in ("podnamespace", "podname", "poduid", "node")]
    if not all(isinstance(one, str) and one for one in parts):
        wanted = "PodNamespace, PodName, PodUID and Node"
        raise InvalidObject("ExtenderBindingArgs", wanted=wanted, found=_short(found))
    return ExtenderBindingArgs(*map(str, parts))


def write_error(error: str) -> bytes:
    """Return the response to bind; "": the pod is bound."""
    return json.encode({"Error": error})


def read_error(data: bytes) -> str:
    """Return the error of a response to bind; "": the pod is bound.

    Raises:
        InvalidObject: it is no such response.
    """
    return _text(_object(data, "ExtenderBindingResult").get("error"), "Error")


class _ExtenderArgs(Struct, gc=False):
    """ExtenderArgs, with the names of Go and in small letters; what else there is costs nothing."""

    pod: Raw = field(name="Pod", default=Raw())
    nodes: Raw = field(name="Nodes", default=Raw())
    names: Raw = field(name="NodeNames", default=Raw())
    small_pod: Raw = field(name="pod", default=Raw())
    small_nodes: Raw = field(name="nodes", default=Raw())
    small_names: Raw = field(name="nodenames", default=Raw())


class _Whole(Struct, gc=False):
    """A NodeList, its nodes as they are."""

    items: list[Raw] | None = None


class _Metadata(Struct, gc=False):
    name: Annotated[str, Meta(min_length=1)]


class _Node(Struct, gc=False):
    """The name of a node, counted while a list of them is read."""

    metadata: _Metadata

    def __post_init__(self) -> None:
        _counted.nodes += 1
        if _counted.nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} nodes")


class _Named(Struct, gc=False):
    """A NodeList, only the names."""

    items: list[_Node] | None = None


_counted = threading.local()
_NOTHING = (Raw(), Raw(b"null"))


def _whole_nodes(data: Raw) -> tuple[tuple[str, ...], list[Raw]]:
    """Names and nodes of a NodeList. The names are read first: they say whether it is too long."""
    _counted.nodes = 0
    named = _typed(data, _Named, "Nodes").items or ()
    whole = _typed(data, _Whole, "Nodes").items or []
    return tuple(one.metadata.name for one in named), whole


def _listed_names(data: Raw) -> tuple[str, ...]:
    # No name has a comma.
    if len(data) > MAX_NODES * MAX_NAME_LENGTH or bytes(data).count(b",") >= MAX_NODES:
        wanted = f"a list of at most {MAX_NODES}"
        raise InvalidObject("NodeNames", wanted=wanted, found=f"{len(data)} bytes")
    return tuple(_typed(data, list[str], "NodeNames"))


def _typed(data: bytes | bytearray | Raw, kind: type[T], where: str) -> T:
    try:
        return json.decode(data, type=kind)
    except (DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise InvalidObject(where, wanted="what kube-scheduler sends", found=str(err)) from err


def _decoded(data: bytes | bytearray, where: str) -> object:
    try:
        found: object = json.decode(data)
    except (DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise InvalidObject(where, wanted="JSON", found=str(err)) from err
    return found


def _object(data: bytes | bytearray, where: str) -> dict[str, Any]:
    """The fields of an object, names in small letters."""
    found = _decoded(data, where)
    if not isinstance(found, dict):
        raise InvalidObject(where, wanted="an object", found=_short(found))
    return _folded(found)


def _folded(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in found.items()}


def _list(found: object, where: str) -> list[Any]:
    if not isinstance(found, list) or len(found) > MAX_NODES:
        raise InvalidObject(where, wanted=f"a list of at most {MAX_NODES}", found=_short(found))
    return found


def _items(found: object) -> list[dict[str, Any]] | None:
    """The nodes of a NodeList; None: there is no list."""
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InvalidObject("Nodes", wanted="a NodeList", found=_short(found))
    items = _list(_folded(found).get("items") or [], "Nodes")
    if not all(isinstance(one, dict) for one in items):
        raise InvalidObject("Nodes", wanted="nodes", found=_short(items))
    return items


def _name_of(node: Mapping[str, Any]) -> str:
    metadata = node.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidObject("Nodes", wanted="nodes with names", found=_short(node))
    return name


def _names(found: object, where: str) -> tuple[str, ...] | None:
    if found is None:
        return None
    names = _list(found, where)
    if not all(isinstance(one, str) for one in names):
        raise InvalidObject(where, wanted="names", found=_short(found))
    return tuple(names)


def _reasons(found: object, where: str) -> Mapping[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise InvalidObject(where, wanted="reasons by node", found=_short(found))
    return {name: reason[:MAX_REASON_LENGTH] for name, reason in found.items()}


def _text(found: object, where: str) -> str:
    if found is not None and not isinstance(found, str):
        raise InvalidObject(where, wanted="a text", found=_short(found))
    return (found or "")[:MAX_REASON_LENGTH]


def _is_whole(score: object) -> bool:
    if isinstance(score, bool) or not isinstance(score, int | float):
        return False
    return isinstance(score, int) or score.is_integer()


def _short(found: object) -> str:
    return f"{found!r:.120}"
