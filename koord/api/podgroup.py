"""Gangs as pods and PodGroups declare them: keys, and the PodGroup object.

Source: Koordinator, apis/extension/coscheduling.go; scheduler-plugins, PodGroup v1alpha1.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from koord.api.fields import Fields
from koord.util import goformat
from koord.util.errors import InvalidObject

NETWORK_TOPOLOGY_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
NETWORK_TOPOLOGY_SELECTOR = "scheduling.koordinator.sh/network-topology-selector"
"""An annotation of a pod: pods with the same value attract one another."""

MAX_SPEC_BYTES = 4096
MAX_RULES = 32
MAX_LAYER_NAME = 253  # characters
_MAX_INT32 = 2**31 - 1


class GatherStrategy(StrEnum):
    """How much it matters that the pods of a gang are in one place of a layer."""

    MUST = "MustGather"
    PREFER = "PreferGather"


@dataclass(frozen=True, slots=True)
class GatherRule:
    """A rule about one layer."""

    layer: str
    strategy: GatherStrategy = GatherStrategy.PREFER
    multiple: int = 1  # the pods in each place of the layer are a multiple of it


@dataclass(frozen=True, slots=True)
class GangTopology:
    """The topology spec of a gang. Without rules it is as close together as possible."""

    rules: tuple[GatherRule, ...] = ()

    @property
    def must_gather(self) -> frozenset[str]:
        """Layers in one place of which all pods must be."""
        return frozenset(one.layer for one in self.rules if one.strategy is GatherStrategy.MUST)

    @property
    def multiples(self) -> Mapping[str, int]:
        """Multiples by layer, where they matter."""
        return {one.layer: one.multiple for one in self.rules if one.multiple > 1}


def read_gang_topology(text: str) -> GangTopology:
    """Return the topology spec of an annotation's text.

    Raises:
        InvalidObject: it is no such JSON, or too large.
    """
    where = f"annotation {NETWORK_TOPOLOGY_SPEC}"
    wanted = f"JSON of at most {MAX_SPEC_BYTES} bytes"
    if len(text.encode(errors="replace")) > MAX_SPEC_BYTES:
        raise InvalidObject(where, wanted=wanted, found=f"{len(text)} characters")
    try:
        fields = Fields(json.loads(text), where)
    except (ValueError, RecursionError):
        raise InvalidObject(where, wanted=wanted, found=text) from None
    rules = tuple(_rule(one) for one in fields.objects("gatherStrategy"))
    if len(rules) > MAX_RULES:
        raise InvalidObject(where, wanted=f"at most {MAX_RULES} layers", found=len(rules))
    return GangTopology(rules)


def _rule(fields: Fields) -> GatherRule:
    layer, strategy = fields.required_text("layer"), fields.text("strategy")
    if len(layer) > MAX_LAYER_NAME:
        wanted = f"at most {MAX_LAYER_NAME} characters"
        raise InvalidObject(fields.path("layer"), wanted=wanted, found=layer)
    if strategy not in ("", *GatherStrategy):
        wanted = " or ".join(GatherStrategy)
        raise InvalidObject(fields.path("strategy"), wanted=wanted, found=strategy)
    multiple = fields.integer("podCountMultiple") or 1
    if not 0 < multiple <= _MAX_INT32:
        wanted = f"0 to {_MAX_INT32}"
        raise InvalidObject(fields.path("podCountMultiple"), wanted=wanted, found=multiple)
    return GatherRule(layer, GatherStrategy(strategy or GatherStrategy.PREFER), multiple)


API_GROUP = "scheduling.sigs.k8s.io"
API_VERSION = f"{API_GROUP}/v1alpha1"
KIND = "PodGroup"
PLURAL = "podgroups"

GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io"
"""A label of a pod: the name of its PodGroup."""
LIGHTWEIGHT_NAME_LABEL = f"{GROUP_LABEL}/name"
LIGHTWEIGHT_MIN_LABEL = f"{GROUP_LABEL}/min-available"
POLICY_ALIAS = f"{GROUP_LABEL}/match-policy"
PREFIX = "gang.scheduling.koordinator.sh/"
NAME = f"{PREFIX}name"
MIN_AVAILABLE = f"{PREFIX}min-available"
TOTAL_NUMBER = f"{PREFIX}total-number"
MODE = f"{PREFIX}mode"
WAITING_TIME = f"{PREFIX}waiting-time"
GROUPS = f"{PREFIX}groups"
MATCH_POLICY = f"{PREFIX}match-policy"
TOPOLOGY_INDEX = f"{PREFIX}network-topology-index"
GROUP_ID_KEYS = (
    "internal.scheduling.koordinator.sh/bind-gang-group-id",
    "scheduling.koordinator.sh/bind-gang-group-id",
)
"""Annotations that a bound member gets: the gang group. The second one is deprecated."""
MEMBER_COUNT_KEYS = (
    "internal.scheduling.koordinator.sh/bind-gang-member-count",
    "scheduling.koordinator.sh/bind-gang-member-count",
)

ANNOTATIONS = (
    NAME,
    MIN_AVAILABLE,
    TOTAL_NUMBER,
    MODE,
    WAITING_TIME,
    GROUPS,
    MATCH_POLICY,
    POLICY_ALIAS,
    TOPOLOGY_INDEX,
    *GROUP_ID_KEYS,
    *MEMBER_COUNT_KEYS,
)
"""The annotations of pods that are about gangs."""

MAX_GROUPS = 64  # gangs of a group; of more the pod's own gang is the group
_MAX_TEXT = 64 << 10  # characters of a list of gangs


class Mode(StrEnum):
    """Whether members that have found a node give it up when another one finds none."""

    STRICT = "Strict"
    NON_STRICT = "NonStrict"


class MatchPolicy(StrEnum):
    """Which members count towards the minimum of a gang."""

    ONCE_SATISFIED = "once-satisfied"
    WAITING_AND_RUNNING = "waiting-and-running"
    ONLY_WAITING = "only-waiting"


@dataclass(frozen=True, kw_only=True, slots=True)
class GangSpec:
    """The parameters of a gang."""

    gang: str  # namespace/name
    min_members: int
    total: int  # only reported
    mode: Mode = Mode.STRICT
    policy: MatchPolicy | None = None  # None: that of the plugin's arguments
    wait: float | None = None  # seconds in which all must have a node; None: the arguments'
    group: tuple[str, ...]  # gangs that must be satisfied together, sorted; this one among them
    topology: GangTopology | None = None  # None: its nodes may be anywhere in the network
    from_pod_group: bool = False
    is_basic: bool = False  # a group of a Workload whose pods are placed one by one

    @property
    def group_id(self) -> str:
        return ",".join(self.group)


@dataclass(frozen=True, kw_only=True, slots=True)
class PodGroup:
    """A PodGroup of the API server."""

    namespace: str
    name: str
    uid: str = ""
    created: float | None = None  # Unix seconds
    spec: GangSpec
    problem: str = ""  # what of it is ignored, and why; "": nothing
    status: Mapping[str, object]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(labels: Mapping[str, str], annotations: Mapping[str, str], namespace: str) -> str:
    """Return the gang of a pod as namespace/name; "": it has none."""
    name = labels.get(GROUP_LABEL) or labels.get(LIGHTWEIGHT_NAME_LABEL) or annotations.get(NAME)
    return f"{namespace}/{name}" if name else ""


def is_of_pod_group(labels: Mapping[str, str]) -> bool:
    """Whether the parameters of a pod's gang are those of its PodGroup alone."""
    return bool(labels.get(GROUP_LABEL))


def spec_of_pod(
    gang: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> GangSpec | None:
    """Return the parameters of a gang as one of its pods says them; None: it says none."""
    lightweight = labels.get(LIGHTWEIGHT_NAME_LABEL) and LIGHTWEIGHT_MIN_LABEL in labels
    text = labels[LIGHTWEIGHT_MIN_LABEL] if lightweight else annotations.get(MIN_AVAILABLE, "")
    minimum = _whole(text)
    if minimum is None or minimum < 0:
        return None
    try:
        wait = goformat.parse_duration(annotations.get(WAITING_TIME, ""))
    except ValueError:
        wait = 0.0
    return _spec(gang, minimum, wait, annotations, from_pod_group=False)


def read_pod_group(item: object) -> PodGroup:
    """Return a PodGroup from its JSON.

    Raises:
        InvalidObject: it has no name, a field has the wrong type, or its minimum is absurd.
    """
    fields = Fields(item, "podgroup")
    meta, spec, status = (fields.nested(key) for key in ("metadata", "spec", "status"))
    namespace, name = meta.required_text("namespace"), meta.required_text("name")
    key = f"{namespace}/{name}"
    annotations = {
        key: value
        for key, value in meta.nested("annotations").raw.items()
        if isinstance(value, str)
    }
    minimum = spec.integer("minMember") or 0
    if not 0 <= minimum <= _MAX_INT32:
        raise InvalidObject("podgroup.spec.minMember", wanted=f"0 to {_MAX_INT32}", found=minimum)
    wait = spec.integer("scheduleTimeoutSeconds") or 0
    return PodGroup(
        namespace=namespace,
        name=name,
        uid=meta.text("uid"),
        created=meta.time("creationTimestamp"),
        spec=_spec(key, minimum, float(wait), annotations, from_pod_group=True),
        problem=groups_problem(key, annotations) or _topology_problem(annotations),
        status=status.raw,
    )


def groups_problem(gang: str, annotations: Mapping[str, str]) -> str:
    """Return why the list of gangs of a group is ignored; "": it is not."""
    text = annotations.get(GROUPS, "")
    if not text or _groups(text) is not None:
        return ""
    wanted = f"a JSON list of at most {MAX_GROUPS} texts namespace/name"
    return f"annotation {GROUPS}: wanted {wanted}, found {text[:80]!r}; {gang} is a group by itself"


def _spec(
    gang: str,
    minimum: int,
    wait: float,
    annotations: Mapping[str, str],
    *,
    from_pod_group: bool,
) -> GangSpec:
    total = _whole(annotations.get(TOTAL_NUMBER, ""))
    mode = annotations.get(MODE, "")
    policy = annotations.get(MATCH_POLICY) or annotations.get(POLICY_ALIAS) or ""
    return GangSpec(
        gang=gang,
        min_members=minimum,
        total=minimum if total is None or total < minimum else total,
        mode=Mode(mode) if mode in _values(Mode) else Mode.STRICT,
        policy=MatchPolicy(policy) if policy in _values(MatchPolicy) else None,
        wait=wait if wait > 0 else None,
        group=_groups(annotations.get(GROUPS, "")) or (gang,),
        topology=_topology(annotations),
        from_pod_group=from_pod_group,
    )


def _topology(annotations: Mapping[str, str]) -> GangTopology | None:
    try:
        return read_gang_topology(annotations[NETWORK_TOPOLOGY_SPEC])
    except (KeyError, InvalidObject):
        return None


def _topology_problem(annotations: Mapping[str, str]) -> str:
    """Why the topology spec is ignored; "": it is not."""
    try:
        read_gang_topology(annotations.get(NETWORK_TOPOLOGY_SPEC, "{}"))
    except InvalidObject as err:
        return str(err)
    return ""


def _values(kind: Iterable[StrEnum]) -> frozenset[str]:
    return frozenset(str(one) for one in kind)


def _groups(text: str) -> tuple[str, ...] | None:
    """The gangs of a list, sorted; None: it is no such list, or empty."""
    if not text or len(text) > _MAX_TEXT:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return None
    names = tuple(sorted(set(found)))
    return names if 0 < len(names) <= MAX_GROUPS else None


def _whole(text: str) -> int | None:
    """A whole number of 32 bits as Go's strconv.Atoi reads it; None: it is none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        return None
    found = int(text)
    return found if -_MAX_INT32 - 1 <= found <= _MAX_INT32 else None
