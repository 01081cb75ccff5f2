"""Profiles as policies of the API server, which mutates pods itself, whoever is down.

A profile becomes a MutatingAdmissionPolicy and its binding. Of profiles that match one pod the
later name wins, in a field that both set: policies have no order, so the earlier one leaves such a
field out where the later one matches. What CEL cannot say is returned by name.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koord.api.labelselector import LabelSelector
from koord.api.pod import EXTENDED_RESOURCES
from koord.api.qos import PRIORITY_CLASS_LABEL, QOS_LABEL, KoordPriorityClass
from koord.plugin import InvalidObject
from koord_manager_plugins.profiles.cel import (
    ListItem,
    Path,
    add,
    add_at,
    has_items,
    keys_of,
    literal,
    literal_texts,
    located,
    optional,
    plain,
    pointer,
    remove,
    remove_at,
    selects,
    text_literal,
)
from koord_manager_plugins.profiles.mutation import (
    BATCH,
    COMPUTE,
    CONTAINERS,
    DEFAULT_OPTIONS,
    GPU,
    GPU_CORE,
    GPU_RATIO,
    GPU_SHARED,
    GPUS,
    TIERS,
    MutationOptions,
)
from koord_manager_plugins.profiles.profile import MERGE_KEYS, SUB_PRIORITY, Profile, disjoint

Object = dict[str, Any]
POLICY, BINDING = "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"
MANAGED_BY, NAME = "app.kubernetes.io/managed-by", "koord-manager"
PROFILE = "config.koordinator.sh/colocation-profile"  # annotation: the profile's name
NOT_APPLIED = "config.koordinator.sh/not-applied"  # annotation: what a policy cannot do
PREFIX = "koord-manager-profile-"
DEVICES, EXTENDED = "koord-manager-device-resources", "koord-manager-extended-resource-spec"
EXCLUDED = {"key": "control-plane", "operator": "DoesNotExist"}  # as Koordinator's webhooks
MAX_EXPRESSION = 200_000  # characters of one policy; etcd takes 1.5 MiB
BANDS = (
    (KoordPriorityClass.PROD, 9000, 9999),
    (KoordPriorityClass.MID, 7000, 7999),
    (KoordPriorityClass.BATCH, 5000, 5999),
    (KoordPriorityClass.FREE, 3000, 3999),
)
_LABELS, _ANNOTATIONS = ("metadata", "labels"), ("metadata", "annotations")


def matches(profile: Profile) -> str:
    """Return the CEL expression that says whether a profile is for the pod."""
    return (
        f"({selects(profile.selector, 'variables.labels')}"
        f" && {selects(profile.namespace_selector, 'variables.namespaceLabels')})"
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """A field that a profile sets: value is CEL; None removes it.

    Of an item: it is appended with its key alone, where it is missing.
    """

    path: Path
    value: str | None

    @property
    def is_item(self) -> bool:
        return isinstance(self.path[-1], ListItem)


@dataclass(frozen=True, slots=True)
class ProfilePolicy:
    """The objects of one profile on the API server."""

    objects: tuple[Object, ...]
    not_applied: tuple[str, ...] = ()  # what of the profile no policy can do
    overruled: tuple[str, ...] = ()  # fields that a later profile decides, for pods of both


class ProfileSet:
    """All profiles, each with what the policies of the others need of it, made once."""

    def __init__(self, profiles: Iterable[Profile]) -> None:
        self.profiles = tuple(profiles)
        self._values = {one.name: _values(one) for one in self.profiles}
        self._matches = {one.name: matches(one) for one in self.profiles}

    def values(self, profile: Profile) -> Mapping[Path, str | None]:
        """Return the last value that a profile sets in each field, as CEL."""
        return self._values[profile.name]

    def matches(self, profile: Profile) -> str:
        """The CEL expression that says whether a profile is for the pod."""
        return self._matches[profile.name]


def profile_policy(
    profile: Profile,
    profiles: ProfileSet,
    classes: Mapping[str, KoordPriorityClass],
    version: str,
    options: MutationOptions = DEFAULT_OPTIONS,
) -> ProfilePolicy:
    """Return the policy and binding of a profile.

    profiles: all of them. classes: what the PriorityClasses that profiles name stand for. version:
    of admissionregistration.k8s.io.

    Raises:
        InvalidObject: the policy would be too large.
    """
    others = [
        one for one in profiles.profiles if one.name != profile.name and not disjoint(one, profile)
    ]
    later = [one for one in others
             if one.name.encode() > profile.name.encode() and one.percent >= 100]  # fmt: skip
    not_applied: list[str] = []
    overruled: list[str] = []
    mutations: list[str] = []
    if 0 < profile.percent < 100:
        not_applied.append(f"probability: {profile.percent}% of pods cannot be drawn: none is")
    elif profile.percent >= 100:
        for steps in _fields(profile, not_applied):
            mutations += _mutation(steps, later, profiles, overruled)
    if options.translate and not profile.skips_resources:
        mutations.append(
            _translation([profiles.matches(one) for one in others if one.skips_resources])
        )
    if sum(map(len, mutations)) > MAX_EXPRESSION:
        raise InvalidObject("spec", wanted=f"a policy of {MAX_EXPRESSION} characters", found="more")
    if not mutations:
        return ProfilePolicy((), tuple(not_applied), tuple(overruled))
    objects = _policy(
        policy_name(profile.name),
        version,
        mutations,
        variables=_variables(classes),
        namespace_selector=_excluding(profile.namespace_selector),
        object_selector=_selector_json(profile.selector),
        # A label suffix, or a key that is copied on, would be taken twice.
        again=not (profile.label_suffixes or _is_chained(profile)),
    )
    for one in objects:
        one["metadata"]["annotations"] = {PROFILE: profile.name}
        if not_applied:
            one["metadata"]["annotations"][NOT_APPLIED] = "; ".join(not_applied)
        if profile.uid:
            one["metadata"]["ownerReferences"] = [
                {
                    "apiVersion": "config.koordinator.sh/v1alpha1",
                    "kind": "ClusterColocationProfile",
                    "name": profile.name,
                    "uid": profile.uid,
                }
            ]
    return ProfilePolicy(tuple(objects), tuple(not_applied), tuple(overruled))


def policy_name(profile: str) -> str:
    """Return the name of a profile's policy and binding."""
    name = PREFIX + profile
    if len(name) <= 253:
        return name
    return f"{name[:220]}-{hashlib.sha256(profile.encode()).hexdigest()[:16]}"


def _is_chained(profile: Profile) -> bool:
    return any(keys.keys() & set(keys.values())
               for keys in (profile.label_keys, profile.annotation_keys))  # fmt: skip


def _fields(profile: Profile, not_applied: list[str]) -> Iterator[list[_Step]]:
    """Yield what a profile sets, in the order of mutations; each sees what the one before did."""
    yield [
        *(_Step((*_LABELS, key), literal(value)) for key, value in profile.labels.items()),
        *(_Step((*_ANNOTATIONS, key), literal(value))
          for key, value in profile.annotations.items()),
    ]  # fmt: skip
    yield [
        _Step((*base, new), f'{optional((*base, old))}.orValue("")')
        for base, keys in ((_LABELS, profile.label_keys), (_ANNOTATIONS, profile.annotation_keys))
        for old, new in keys.items()
    ]
    yield [
        _Step((*_LABELS, key, "+"), literal(suffix))
        for key, suffix in profile.label_suffixes.items()
        if suffix
    ]
    last: list[_Step] = []
    if profile.scheduler_name:
        last.append(_Step(("spec", "schedulerName"), literal(profile.scheduler_name)))
    if profile.qos:
        last.append(_Step((*_LABELS, QOS_LABEL), literal(str(profile.qos))))
    if profile.priority_class:
        last.append(_Step(("spec", "priorityClassName"), literal(profile.priority_class)))
    if profile.sub_priority is not None:
        last.append(_Step((*_LABELS, SUB_PRIORITY), literal(str(profile.sub_priority))))
    items: dict[int, list[_Step]] = {}  # by how many items are around them
    try:
        patched = _patched(profile.patch, (), items)
    except InvalidObject as err:
        not_applied.append(f"patch: {err}")
    else:
        for _, steps in sorted(items.items()):  # an item is there before what is set in it
            yield steps
        last += patched
    yield last


def _patched(patch: Mapping[str, object], path: Path, items: dict[int, list[_Step]]) -> list[_Step]:
    """Return the fields that a strategic merge patch sets; items takes those of its keyed lists."""
    found: list[_Step] = []
    for key, value in patch.items():
        place = (*path, key)
        if isinstance(value, Mapping):
            found += _patched(value, place, items)
        elif isinstance(value, list) and key in MERGE_KEYS:
            depth = sum(isinstance(part, ListItem) for part in path)
            for item, fields in _keyed(value, place, MERGE_KEYS[key]):
                items.setdefault(depth, []).append(_Step((*place, item), ""))
                found += _patched(fields, (*place, item), items)
        else:
            found.append(_Step(place, None if value is None else literal(value)))
    return found


def _keyed(
    patches: list[object], place: Path, key: str
) -> Iterator[tuple[ListItem, Mapping[str, object]]]:
    """Yield the items of a list of a patch, each with what is set beside its key.

    Raises:
        InvalidObject: an item has no key, or another one has the same.
    """
    seen: set[object] = set()
    for patch in patches:
        value = patch.get(key) if isinstance(patch, Mapping) else None
        is_key = (isinstance(value, int) and not isinstance(value, bool)) or isinstance(value, str)
        where = ".".join(("spec.patch", *map(str, place)))
        if not isinstance(patch, Mapping) or not is_key or not isinstance(value, str | int):
            raise InvalidObject(where, wanted=f"items with {key}", found=patch)
        if value in seen:
            raise InvalidObject(where, wanted=f"each {key} once", found=f"{value} twice")
        seen.add(value)
        yield ListItem(key, value), {name: one for name, one in patch.items() if name != key}


def _values(profile: Profile) -> dict[Path, str | None]:
    """Return what a profile sets last in each field, as CEL."""
    return {
        one.path: one.value for steps in _fields(profile, []) for one in steps if not one.is_item
    }


def _mutation(
    steps: Sequence[_Step],
    later: Sequence[Profile],
    profiles: ProfileSet,
    overruled: list[str],
) -> list[str]:
    if not steps:
        return []
    parts = [*_parents(steps)]
    for step in steps:
        by = [one for one in later if _is_overruled(step, profiles.values(one))]
        operations = _operations(step)
        if by:
            field = ".".join(map(str, step.path)).removesuffix(".+")
            overruled += [f"{field} by profile {one.name}" for one in by]
            none = " || ".join(profiles.matches(one) for one in by)
            operations = f"({none} ? [] : {operations})"
        parts.append(operations)
    return [" + ".join(parts)]


def _is_overruled(step: _Step, later: Mapping[Path, str | None]) -> bool:
    """Whether another profile sets the field, or an object that it is in, to something else."""
    if step.path in later:
        return later[step.path] != step.value
    path = step.path
    if step.is_item:  # what is set in it is no contradiction
        return any(path[: len(one)] == one for one in later)
    return any(one[: len(path)] == path or path[: len(one)] == one for one in later)


def _parents(steps: Sequence[_Step]) -> list[str]:
    """Return operations that make the objects that fields are set in, where there are none."""
    found: dict[Path, str] = {}
    for step in steps:
        if step.value is None or step.path[-1] == "+":
            continue
        for end in range(2, len(step.path)):
            if not isinstance(step.path[end - 1], ListItem):
                found[step.path[:end]] = "[]" if isinstance(step.path[end], ListItem) else "{}"
    return [_created(path, value) for path, value in found.items()]


def _created(path: Path, value: str) -> str:
    """Return the operation that makes an object or list, where there is none."""
    if not has_items(path):
        return f"({optional(path)}.hasValue() ? [] : [{add(plain(path), value)}])"
    return located(
        path, lambda place, present: f"({present}.hasValue() ? [] : [{add_at(place, value)}])"
    )


def _in_items(step: _Step) -> str:
    """Return the operations of a step whose path has items."""
    *holder, last = step.path
    if isinstance(last, ListItem):
        item = literal(last.value)

        def appended(place: str, items: str) -> str:
            value = f"{{{text_literal(last.key)}: {item}}}"
            missing = f"{item} in {keys_of(items, last)}"
            end = add_at(f'{place} + "/-"', value)
            return f"({missing} ? [] : [{end}])"

        return located(tuple(holder), appended)
    if step.value is None:
        return located(
            step.path,
            lambda place, present: f"({present}.hasValue() ? [{remove_at(place)}] : [])",
        )
    value = step.value
    return located(step.path, lambda place, present: f"[{add_at(place, value)}]")


def _operations(step: _Step) -> str:
    if has_items(step.path):
        return _in_items(step)
    path = plain(step.path)
    if step.path == ("spec", "priorityClassName"):
        # Kubernetes' Priority plugin has set both by the class before, refuses another class with
        # them, and sets them again after this.
        cleared = (f"(has(object.spec.{name}) ? [{remove(('spec', name))}] : [])"
                   for name in ("priority", "preemptionPolicy"))  # fmt: skip
        name = 'object.spec.?priorityClassName.orValue("")'
        return (
            f"({name} == {step.value} ? [] : "
            f"[{add(path, str(step.value))}] + {' + '.join(cleared)})"
        )
    if step.path[-1] == "+":  # a suffix
        path = path[:-1]
        old = optional(path)
        return f"({old}.hasValue() ? [{add(path, f'{old}.value() + {step.value}')}] : [])"
    if step.value is None:
        return f"({optional(path)}.hasValue() ? [{remove(path)}] : [])"
    return f"[{add(path, step.value)}]"


def _variables(classes: Mapping[str, KoordPriorityClass]) -> list[Object]:
    """Return what the expressions of a profile share; evaluated anew for each mutation."""
    priority = "object.spec.priority"
    named = ", ".join(
        f"{text_literal(name)}: {text_literal(one)}" for name, one in sorted(classes.items())
    )
    band = " : ".join(
        f"{priority} >= {low} && {priority} <= {high} ? {text_literal(name)}"
        for name, low, high in BANDS
    )
    known = literal_texts(one for one in KoordPriorityClass if one)
    label = text_literal(PRIORITY_CLASS_LABEL)
    raw = (
        f"{label} in variables.labels ? (variables.labels[{label}] in {known}"
        f' ? variables.labels[{label}] : "") : '
        f'has({priority}) ? ({band} : "") : '
        + (f'{{{named}}}[?object.spec.?priorityClassName.orValue("")].orValue("")' if named
           else '""')
    )  # fmt: skip
    batch = text_literal(KoordPriorityClass.BATCH)
    be = f'variables.labels[?{text_literal(QOS_LABEL)}].orValue("") == "BE"'
    tiers = ", ".join(f"{text_literal(name)}: {text_literal(tier)}" for name, tier in TIERS.items())
    return [
        {"name": "labels", "expression": "object.metadata.?labels.orValue({})"},
        {"name": "namespaceLabels",
         "expression": "namespaceObject.metadata.?labels.orValue({})"},
        {"name": "rawClass", "expression": raw},
        {"name": "class", "expression": f'variables.rawClass != "" ? variables.rawClass'
                                        f' : {be} ? {batch} : ""'},
        {"name": "tier", "expression": f'{{{tiers}}}[?variables.class].orValue("")'},
    ]  # fmt: skip


def _translation(skipping: Sequence[str]) -> str:
    """Return the operations that rename cpu and memory of a batch or mid pod.

    A limit without a request needs nothing: the API server's defaults have made one.
    """
    unless = "".join(f" || {one}" for one in skipping)
    lists = []
    for containers in CONTAINERS:
        renamed = " + ".join(
            _renamed(containers, kind, name) for kind in ("requests", "limits") for name in COMPUTE
        )
        items = f"object.spec.?{containers}.orValue([])"
        lists.append(f"{items}.transformList(i, c, {renamed}).flatten()")
    return f'(variables.tier == ""{unless} ? [] : {" + ".join(lists)})'


def _renamed(containers: str, kind: str, name: str) -> str:
    amounts = f"c.?resources.?{kind}"
    old = f"c.resources.{kind}[{text_literal(name)}]"
    if name == "cpu":  # milli-cores; the API server keeps no less of cpu, so nothing is rounded
        value = f"string(int(quantity(string({old})).asApproximateFloat() * 1000.0 + 0.5))"
    else:
        value = f"string({old})"
    path = f'"/spec/{containers}/" + string(i) + "/resources/{kind}/'
    added = add_at(f'{path}kubernetes.io~1" + variables.tier + "-{name}"', value)
    removed = remove_at(f'{path}{name}"')
    return f"({amounts}[?{text_literal(name)}].hasValue() ? [{added}, {removed}] : [])"


def device_policy(version: str) -> list[Object]:
    """Return the policy that writes the shorthands of GPUs out, and its binding."""
    base = '"/spec/containers/" + string(i) + "/resources/'
    requests = "c.?resources.?requests"

    def place(kind: str, name: str) -> str:
        return f'{base}{kind}{pointer((name,))}"'

    def put(kind: str, name: str, value: str) -> str:
        return add_at(place(kind, name), value)

    def drop(kind: str, name: str) -> str:
        return remove_at(place(kind, name))

    created = add_at(f'{base}limits"', "{}")
    limits = f"(c.?resources.?limits.hasValue() ? [] : [{created}])"
    amount = f"string(c.resources.requests[{text_literal(GPU)}])"
    whole = ", ".join(
        put(kind, name, amount) for kind in ("requests", "limits") for name in (GPU_CORE, GPU_RATIO)
    )
    first = (
        f"object.spec.containers.transformList(i, c, {requests}[?{text_literal(GPU)}].hasValue() ? "
        f"{limits} + [{whole}, {drop('requests', GPU)}]"
        f" + (c.?resources.?limits[?{text_literal(GPU)}].hasValue() ? [{drop('limits', GPU)}] : [])"
        " : []).flatten()"
    )

    def count(name: str) -> str:
        percent = f"quantity(string(c.resources.requests[{text_literal(name)}])).asInteger()"
        return f'({percent} > 100 && {percent} % 100 == 0 ? string({percent} / 100) : "1")'

    number = (
        f"({requests}[?{text_literal(GPU_RATIO)}].hasValue() ? {count(GPU_RATIO)}"
        f' : {requests}[?{text_literal(GPU_CORE)}].hasValue() ? {count(GPU_CORE)} : "1")'
    )
    has_any = f"{literal_texts(GPUS)}.exists(n, {requests}[?n].hasValue())"
    shares = ", ".join(put(kind, GPU_SHARED, number) for kind in ("requests", "limits"))
    second = (
        f"object.spec.containers.transformList(i, c, {has_any}"
        f" && !{requests}[?{text_literal(GPU_SHARED)}].hasValue() ? {limits} + [{shares}]"
        " : []).flatten()"
    )
    return _policy(DEVICES, version, [first, second])


def extended_spec_policy(version: str) -> list[Object]:
    """Return the policy that writes batch resources into the annotation, and its binding."""

    def amounts(kind: str) -> str:
        named = f"c.?resources.?{kind}"
        items = " + ".join(
            f"({named}[?{text_literal(name)}].hasValue() ? "
            f"['\"{name}\":\"' + string(c.resources.{kind}[{text_literal(name)}]) + '\"'] : [])"
            for name in BATCH
        )
        has_any = f"{literal_texts(BATCH)}.exists(n, {named}[?n].hasValue())"
        return f"({has_any} ? ['\"{kind}\":{{' + ({items}).join(\",\") + '}}'] : [])"

    key = text_literal(EXTENDED_RESOURCES)
    holds = (
        f"object.spec.containers.filter(c, {literal_texts(BATCH)}.exists(n, "
        "c.?resources.?requests[?n].hasValue() || c.?resources.?limits[?n].hasValue()))"
    )
    kinds = f'({amounts("limits")} + {amounts("requests")}).join(",")'
    each = f"'\"' + c.name + '\":{{' + {kinds} + '}}'"
    variables = [
        {"name": "holders", "expression": holds},
        {"name": "text", "expression":
            "variables.holders.size() == 0 ? \"{}\" : "
            f"'{{\"containers\":{{' + variables.holders.map(c, {each}).join(\",\") + '}}}}'"},
        {"name": "now", "expression": f"object.metadata.?annotations[?{key}].orValue(\"\")"},
    ]  # fmt: skip
    path = (*_ANNOTATIONS, EXTENDED_RESOURCES)
    # No match condition: only what was called before is called again when another policy, or a
    # webhook, has changed the pod.
    expression = (
        '(variables.holders.size() == 0 && variables.now == "") || variables.now == variables.text'
        " ? [] : (has(object.metadata.annotations) ? [] : "
        f"[{add(_ANNOTATIONS, '{}')}]) + [{add(path, 'variables.text')}]"
    )
    return _policy(EXTENDED, version, [expression], variables=variables)


def _policy(
    name: str,
    version: str,
    mutations: Iterable[str],
    *,
    variables: Sequence[Object] = (),
    namespace_selector: Object | None = None,
    object_selector: Object | None = None,
    again: bool = True,
) -> list[Object]:
    """Return a policy for new pods and its binding, with all that the server would add.

    An expression that fails leaves the pod as it is: a policy must not keep pods from being made.
    """
    spec: Object = {
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded" if again else "Never",
        "matchConstraints": constraints(
            ["CREATE"], namespace_selector=namespace_selector, object_selector=object_selector
        ),
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": one}} for one in mutations
        ],
    }
    if variables:
        spec["variables"] = list(variables)
    return [
        managed(POLICY, version, name, spec),
        managed(BINDING, version, name, {"policyName": name}),
    ]


def constraints(
    operations: Sequence[str],
    *,
    namespace_selector: Object | None = None,
    object_selector: Object | None = None,
) -> Object:
    """Return matchConstraints for pods, with all that the server would add."""
    return {
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespace_selector or {"matchExpressions": [EXCLUDED]},
        "objectSelector": object_selector or {},
        "resourceRules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": list(operations),
                "resources": ["pods"],
                "scope": "*",
            }
        ],
    }


def managed(kind: str, version: str, name: str, spec: Object) -> Object:
    """Return an object that koord-manager keeps."""
    return {
        "apiVersion": f"admissionregistration.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": name, "labels": {MANAGED_BY: NAME}},
        "spec": spec,
    }


def _excluding(selector: LabelSelector) -> Object:
    found = _selector_json(selector)
    return {**found, "matchExpressions": [*found.get("matchExpressions", []), EXCLUDED]}


def _selector_json(selector: LabelSelector) -> Object:
    found: Object = {}
    if selector.match_labels:
        found["matchLabels"] = dict(selector.match_labels)
    if selector.match_expressions:
        found["matchExpressions"] = [
            {"key": one.key, "operator": one.operator}
            | ({"values": list(one.values)} if one.values else {})
            for one in selector.match_expressions
        ]
    return found
