"""A ClusterColocationProfile, parsed and checked.

Source: Koordinator, apis/config/v1alpha1 and pkg/webhook/pod/mutating.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from koord.api.fields import Fields
from koord.api.labelselector import SELECTOR, LabelSelector, check_selector, parse_selector
from koord.api.qos import QoSClass
from koord.plugin import InvalidObject

SKIP_RESOURCES = "config.koordinator.sh/skip-update-resources"  # annotation of a profile
SUB_PRIORITY = "koordinator.sh/priority"  # label of a pod
EVERYTHING = LabelSelector()
MAX_PATCH = 64 << 10  # characters of JSON
MAX_DEPTH = 12  # of a patch
MAX_ENTRIES = 128  # of each map
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PERCENT = re.compile(r"(-?[0-9]{1,9})%")
_SUFFIX = re.compile(r"[-A-Za-z0-9_.]{0,62}[A-Za-z0-9]")

# Lists of a pod that a strategic merge patch merges by this field of their items; all others it
# replaces. Source: Kubernetes, the patchMergeKey tags of core/v1.
MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
}
_PATCHED = {"metadata": {"labels", "annotations"}, "spec": None}
# What the API server or the kubelet decides, or whoever creates the pod.
_NEVER_PATCHED = {
    "nodeName",
    "serviceAccountName",
    "serviceAccount",
    "priority",
    "ephemeralContainers",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One profile. Empty values leave the pod as it is."""

    name: str
    uid: str = ""
    namespace_selector: LabelSelector = EVERYTHING
    selector: LabelSelector = EVERYTHING
    percent: int = 100  # of the pods; 0 and less: none
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    label_keys: Mapping[str, str] = field(default_factory=dict)  # old key -> new key
    annotation_keys: Mapping[str, str] = field(default_factory=dict)
    label_suffixes: Mapping[str, str] = field(default_factory=dict)  # key -> what is appended
    scheduler_name: str = ""
    qos: QoSClass = QoSClass.NONE
    priority_class: str = ""
    sub_priority: int | None = None
    patch: Mapping[str, object] = field(default_factory=dict)  # strategic merge patch
    skips_resources: bool = False  # requests stay as they are

    def matches(self, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        """Whether it is for a pod that was submitted with these labels."""
        return self.namespace_selector.matches(namespace_labels) and self.selector.matches(labels)

    @property
    def matches_everything(self) -> bool:
        """Whether it is for all pods of all namespaces."""
        return self.namespace_selector == EVERYTHING == self.selector


def parse_profile(item: Mapping[str, object]) -> Profile:
    """Return the profile of an object of the API server.

    Raises:
        InvalidObject: it could never be applied: a pod with what it sets would be refused, or a
            field has another type. The message names the field.
    """
    meta = Fields(item.get("metadata"), "metadata")
    spec = Fields({} if item.get("spec") is None else item["spec"], "spec")
    sub_priority = spec.integer("koordinatorPriority")
    if sub_priority is not None and not -(2**31) <= sub_priority < 2**31:
        raise InvalidObject(spec.path("koordinatorPriority"), wanted="32 bits", found=sub_priority)
    return Profile(
        name=meta.required_text("name"),
        uid=meta.text("uid"),
        namespace_selector=_selector(spec, "namespaceSelector"),
        selector=_selector(spec, "selector"),
        percent=_percent(spec),
        labels=_labels(spec, "labels"),
        annotations=_annotations(spec),
        label_keys=_keys(spec, "labelKeysMapping"),
        annotation_keys=_keys(spec, "annotationKeysMapping"),
        label_suffixes=_suffixes(spec),
        scheduler_name=_name(spec, "schedulerName"),
        qos=_qos(spec),
        priority_class=_name(spec, "priorityClassName"),
        sub_priority=sub_priority,
        patch=_patch(spec),
        skips_resources=SKIP_RESOURCES in meta.texts("annotations"),
    )


def _selector(spec: Fields, key: str) -> LabelSelector:
    value = spec.get(key)
    if value is None:
        return EVERYTHING
    where = spec.path(key)
    return parse_selector(SELECTOR.read(value, where), where)


def _percent(spec: Fields) -> int:
    value = spec.get("probability")
    if value is None:
        return 100
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidObject(spec.path("probability"), wanted='a number or "50%"', found=value)
    return int(match[1])


def _bounded(found: dict[str, str], where: str) -> dict[str, str]:
    if len(found) > MAX_ENTRIES:
        raise InvalidObject(where, wanted=f"at most {MAX_ENTRIES} entries", found=len(found))
    return found


def _labels(spec: Fields, key: str) -> dict[str, str]:
    found = _bounded(spec.texts(key), spec.path(key))
    check_selector(LabelSelector(match_labels=found), spec.path(key))
    return found


def _annotations(spec: Fields) -> dict[str, str]:
    where = spec.path("annotations")
    found = _bounded(spec.texts("annotations"), where)
    check_selector(LabelSelector(match_labels=dict.fromkeys(found, "")), where)
    if sum(map(len, found.values())) > MAX_PATCH:
        raise InvalidObject(where, wanted=f"at most {MAX_PATCH} characters", found="more")
    return found


def _keys(spec: Fields, key: str) -> dict[str, str]:
    found = _bounded(spec.texts(key), spec.path(key))
    check_selector(LabelSelector(match_labels=dict.fromkeys(found.values(), "")), spec.path(key))
    return found


def _suffixes(spec: Fields) -> dict[str, str]:
    found = _bounded(spec.texts("labelSuffixes"), spec.path("labelSuffixes"))
    for key, suffix in found.items():
        if suffix and not _SUFFIX.fullmatch(suffix):
            raise InvalidObject(
                f"{spec.path('labelSuffixes')}.{key}", wanted="the end of a label", found=suffix
            )
    return found


def _name(spec: Fields, key: str) -> str:
    found = spec.text(key)
    if found and (len(found) > 253 or not _SUBDOMAIN.fullmatch(found)):
        raise InvalidObject(spec.path(key), wanted="a name", found=found)
    return found


def _qos(spec: Fields) -> QoSClass:
    found = spec.text("qosClass")
    try:
        return QoSClass(found)
    except ValueError as err:
        wanted = ", ".join(one for one in QoSClass if one)
        raise InvalidObject(spec.path("qosClass"), wanted=wanted, found=found) from err


def _patch(spec: Fields) -> Mapping[str, object]:
    value = spec.get("patch")
    if value is None:
        return {}
    where = spec.path("patch")
    patch = Fields(value, where)
    if sum(len(part) for part in json.JSONEncoder().iterencode(_shallow(value, where))) > MAX_PATCH:
        raise InvalidObject(where, wanted=f"at most {MAX_PATCH} characters", found="more")
    for key in patch.raw:
        if key not in _PATCHED:
            raise InvalidObject(patch.path(key), wanted="metadata or spec", found=key)
    meta = patch.nested("metadata")
    for key in meta.raw:
        if key not in ("labels", "annotations"):
            raise InvalidObject(meta.path(key), wanted="labels or annotations", found=key)
    texts = {key: one for key, one in meta.nested("labels").raw.items() if one is not None}
    check_selector(LabelSelector(match_labels=Fields({"labels": texts}, where).texts("labels")),
                   meta.path("labels"))  # fmt: skip
    for key, one in meta.nested("annotations").raw.items():
        if one is not None and not isinstance(one, str):
            raise InvalidObject(f"{meta.path('annotations')}.{key}", wanted="a text", found=one)
    wanted = patch.nested("spec")
    for key in wanted.raw:
        if key in _NEVER_PATCHED:
            raise InvalidObject(wanted.path(key), wanted="a field that profiles may set", found=key)
    return patch.raw


def _shallow(value: object, where: str, depth: int = 0) -> object:
    """Return the value. Raises InvalidObject when it is too deep, or has directives."""
    if depth > MAX_DEPTH:
        raise InvalidObject(where, wanted=f"at most {MAX_DEPTH} levels", found="more")
    for key, one in _parts(value):
        if key.startswith("$"):
            raise InvalidObject(f"{where}.{key}", wanted="no directive", found=key)
        _shallow(one, f"{where}.{key}", depth + 1)
    return value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((str(key), one) for key, one in value.items())
    elif isinstance(value, list):
        yield from ((str(index), one) for index, one in enumerate(value))


def disjoint(one: Profile, other: Profile) -> bool:
    """Whether no pod can match both, as far as labels with few values show."""
    pairs = (
        (one.selector, other.selector),
        (one.namespace_selector, other.namespace_selector),
    )
    for mine, theirs in pairs:
        allowed, others = _allowed(mine), _allowed(theirs)
        if any(not allowed[key] & others[key] for key in allowed.keys() & others.keys()):
            return True
        if allowed.keys() & _absent(theirs) or others.keys() & _absent(mine):
            return True
    return False


def _allowed(selector: LabelSelector) -> dict[str, set[str]]:
    found = {key: {value} for key, value in selector.match_labels.items()}
    for one in selector.match_expressions:
        if one.operator == "In":
            found[one.key] = found.get(one.key, set(one.values)) & set(one.values)
    return found


def _absent(selector: LabelSelector) -> set[str]:
    return {one.key for one in selector.match_expressions if one.operator == "DoesNotExist"}
