"""The mutation of created pods by profiles, in plain code; policies do the same.

Source: Koordinator, pkg/webhook/pod/mutating.
"""

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from koord.api.pod import EXTENDED_RESOURCES
from koord.api.qos import (
    QOS_LABEL,
    KoordPriorityClass,
    QoSClass,
    raw_priority_class,
    raw_qos,
)
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject
from koord_manager_plugins.profiles.profile import MERGE_KEYS, SUB_PRIORITY, Profile

Pod = dict[str, Any]
TIERS = {KoordPriorityClass.BATCH: "batch", KoordPriorityClass.MID: "mid"}
COMPUTE = ("cpu", "memory")
CONTAINERS = ("initContainers", "containers")  # sidecars are init containers
GPU, GPU_SHARED = "koordinator.sh/gpu", "koordinator.sh/gpu.shared"
GPU_CORE, GPU_RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
GPUS = (GPU, GPU_CORE, "koordinator.sh/gpu-memory", GPU_RATIO, GPU_SHARED)
BATCH = tuple(f"kubernetes.io/batch-{name}" for name in COMPUTE)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of the cluster."""

    value: int
    preemption_policy: str = "PreemptLowerPriority"


@dataclass(frozen=True, kw_only=True, slots=True)
class MutationOptions:
    """Which steps there are, as Koordinator's feature gates say."""

    translate: bool = True  # not ColocationProfileSkipMutatingResources
    extended_spec: bool = True  # not DisableExtendedResourceSpec
    devices: bool = True  # not DisableDeviceResourceSpec


DEFAULT_OPTIONS = MutationOptions()


def mutate(
    pod: Mapping[str, Any],
    namespace_labels: Mapping[str, str],
    profiles: Iterable[Profile],
    classes: Mapping[str, PriorityClass],
    draw: Callable[[], int],
    options: MutationOptions = DEFAULT_OPTIONS,
) -> Pod:
    """Return what becomes of a pod that is created. classes: by name; draw: 0 to 99, each alike.

    Raises:
        InvalidObject: a profile names a PriorityClass that there is not, or a field has a type that
            the API server would not accept.
    """
    made: Pod = copy.deepcopy(dict(pod))
    submitted = dict(_labels(made))
    matched = sorted(
        (one for one in profiles if one.matches(submitted, namespace_labels)),
        key=lambda one: one.name.encode(),
    )
    for one in matched:
        if one.percent > 0 and (one.percent >= 100 or draw() < one.percent):
            _apply(made, one, classes)
    if matched and options.translate and not any(one.skips_resources for one in matched):
        translate(made)
    if options.extended_spec:
        write_extended_spec(made)
    if options.devices:
        for container in _containers(made, ("containers",)):
            expand_gpus(container)
    return made


def _labels(pod: Pod) -> dict[str, str]:
    found: dict[str, str] = pod.get("metadata", {}).get("labels") or {}
    return found


def _apply(pod: Pod, profile: Profile, classes: Mapping[str, PriorityClass]) -> None:
    meta, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    _set(meta, "labels", profile.labels)
    _set(meta, "annotations", profile.annotations)
    for field, keys in (("labels", profile.label_keys), ("annotations", profile.annotation_keys)):
        before = dict(meta.get(field) or {})
        _set(meta, field, {new: before.get(old, "") for old, new in keys.items()})
    for key, suffix in profile.label_suffixes.items():
        if key in (meta.get("labels") or {}):
            meta["labels"][key] += suffix
    if profile.scheduler_name:
        spec["schedulerName"] = profile.scheduler_name
    if profile.qos:
        _set(meta, "labels", {QOS_LABEL: str(profile.qos)})
    if profile.priority_class:
        found = classes.get(profile.priority_class)
        if found is None:
            raise InvalidObject(
                f"profile {profile.name}: spec.priorityClassName",
                wanted="the name of a PriorityClass",
                found=profile.priority_class,
            )
        spec |= {
            "priorityClassName": profile.priority_class,
            "priority": found.value,
            "preemptionPolicy": found.preemption_policy,
        }
    if profile.sub_priority is not None:
        _set(meta, "labels", {SUB_PRIORITY: str(profile.sub_priority)})
    if profile.patch:
        merge(pod, profile.patch)


def amend(pod: Mapping[str, Any], profile: Profile) -> Pod:
    """Return what becomes of a pod that waits for a node: the fields of a profile that may change.

    Those are all but schedulerName and priorityClassName. A suffix that is there is not appended
    again. Raises InvalidObject as mutate.

    Source: Koordinator, pkg/controller/colocationprofile.
    """
    made: Pod = copy.deepcopy(dict(pod))
    labels = _labels(made)
    suffixes = {
        key: suffix
        for key, suffix in profile.label_suffixes.items()
        if not labels.get(key, "").endswith(suffix)
    }
    _apply(
        made, replace(profile, scheduler_name="", priority_class="", label_suffixes=suffixes), {}
    )
    return made


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Pod:
    """Return the merge patch (RFC 7396) that makes one object of another; empty: they are equal."""
    found: Pod = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                found[key] = inner
        elif key not in old or before != value:
            found[key] = value
    return found


def _set(meta: Pod, field: str, values: Mapping[str, str]) -> None:
    if values:
        meta[field] = {**(meta.get(field) or {}), **values}


def merge(onto: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Apply a strategic merge patch without directives to a part of a pod.

    Source: Kubernetes, apimachinery strategicpatch.
    """
    for key, value in patch.items():
        if value is None:
            onto.pop(key, None)
        elif isinstance(value, Mapping):
            inner = onto.get(key)
            onto[key] = inner if isinstance(inner, dict) else {}
            merge(onto[key], value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            onto[key] = _merged_list(onto.get(key) or [], value, MERGE_KEYS[key])
        else:
            onto[key] = copy.deepcopy(value)


def _merged_list(items: list[Any], patches: list[Any], key: str) -> list[Any]:
    found = list(items)
    for patch in patches:
        if not isinstance(patch, Mapping) or key not in patch:
            raise InvalidObject("spec.patch", wanted=f"items with {key}", found=patch)
        same = next((one for one in found if one.get(key) == patch[key]), None)
        if same is None:
            same = {}
            found.append(same)
        merge(same, patch)
    return found


def priority_class(pod: Pod) -> KoordPriorityClass:
    """Return the class that decides what cpu and memory become.

    A pod without one is prod, or has QoS BE and is batch: one that Kubernetes calls BestEffort has
    nothing that could be translated.
    """
    labels, priority = _labels(pod), pod.get("spec", {}).get("priority")
    if found := raw_priority_class(labels, priority):
        return found
    return KoordPriorityClass.BATCH if raw_qos(labels) is QoSClass.BE else KoordPriorityClass.PROD


def translate(pod: Pod) -> None:
    """Rename cpu and memory of the containers of a batch or mid pod.

    Its overhead stays: the API server refuses a pod whose overhead is not its RuntimeClass's.
    """
    tier = TIERS.get(priority_class(pod))
    if tier is None:
        return
    for container in _containers(pod, CONTAINERS):
        resources = container.get("resources") or {}
        for kind in ("requests", "limits"):
            amounts = resources.get(kind) or {}
            for name in COMPUTE:
                if name in amounts:
                    amounts[f"kubernetes.io/{tier}-{name}"] = _renamed(name, amounts.pop(name))
        limits = resources.get("limits") or {}
        for name in (f"kubernetes.io/{tier}-{one}" for one in COMPUTE):
            if name in limits and name not in (resources.get("requests") or {}):
                resources["requests"] = {**(resources.get("requests") or {}), name: limits[name]}


def _renamed(name: str, text: object) -> str:
    found = _quantity(text)
    return str(Quantity.of_milli(found.milli * 1000)) if name == "cpu" else str(found)


def _quantity(value: object) -> Quantity:
    try:
        return Quantity.parse(value)
    except ValueError as err:
        raise InvalidObject("resources", wanted="a quantity", found=value) from err


def _containers(pod: Pod, kinds: Iterable[str]) -> Iterator[dict[str, Any]]:
    for kind in kinds:
        yield from pod.get("spec", {}).get(kind) or ()


def write_extended_spec(pod: Pod) -> None:
    """Write the batch resources of containers into the annotation that Koordinator's agent reads.

    Source: Koordinator, pkg/webhook/pod/mutating/extended_resource_spec.go.
    """
    found: dict[str, Any] = {}
    for container in _containers(pod, ("containers",)):
        kinds: dict[str, dict[str, str]] = {}
        for kind in ("limits", "requests"):
            amounts = (container.get("resources") or {}).get(kind) or {}
            named = {name: str(_quantity(amounts[name])) for name in BATCH if name in amounts}
            if named:
                kinds[kind] = named
        if kinds:
            found[container.get("name", "")] = kinds
    meta = pod.setdefault("metadata", {})
    text = (meta.get("annotations") or {}).get(EXTENDED_RESOURCES)
    if not found and text is None:
        return
    wanted: dict[str, Any] = {"containers": found} if found else {}
    if text is None or not _says(text, wanted):
        _set(meta, "annotations", {EXTENDED_RESOURCES: json.dumps(wanted, separators=(",", ":"))})


def _says(text: str, wanted: object) -> bool:
    try:
        return bool(json.loads(text) == wanted)
    except (ValueError, RecursionError):
        return False


def expand_gpus(container: dict[str, Any]) -> None:
    """Write the shorthands of GPUs of one container out."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    if not any(name in requests or name in limits for name in GPUS):
        return
    requests = {**{name: limits[name] for name in GPUS if name in limits}, **requests}
    limits = dict(limits)
    if GPU in requests:
        amount = requests[GPU]
        for each in (requests, limits):
            each.pop(GPU, None)
            each |= {GPU_CORE: amount, GPU_RATIO: amount}
    if GPU_SHARED not in requests:
        name = GPU_RATIO if GPU_RATIO in requests else GPU_CORE
        percent = _quantity(requests.get(name, "0")).integer
        count = percent // 100 if percent > 100 and percent % 100 == 0 else 1
        requests[GPU_SHARED] = limits[GPU_SHARED] = str(count)
    container["resources"] = {**resources, "requests": requests, "limits": limits}


def class_names(classes: Mapping[str, PriorityClass]) -> dict[str, KoordPriorityClass]:
    """Return the class of Koordinator that each PriorityClass stands for, where it does for one."""
    found = {name: raw_priority_class({}, one.value) for name, one in classes.items()}
    return {name: one for name, one in sorted(found.items()) if one}
