"""The devices that pods have, as their annotation says: written, read, and kept in the account.

Source: Koordinator, apis/extension/device_share.go; docs/decisions/account.md.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from koord.api.annotations import (
    DEVICE_ALLOCATED,
    AllocatedDevice,
    device_allocations,
    is_designated,
)
from koord.api.devices.allocation import Allocation, GivenDevice
from koord.api.devices.layout import (
    FUNCTION,
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    TYPES,
    WHOLE,
    Amounts,
    used_key,
)
from koord.api.devices.requests import InvalidRequest, device_requests, gpu_request
from koord.api.quantity import Quantity, memory_text
from koord.api.reservation import RESERVE_POD_NAME
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.koordinator import AccountKind, Holding


def allocated_text(allocation: Allocation, ids: Mapping[tuple[str, int], str]) -> str:
    """Return the annotation of a pod that gets devices. ids: by type and minor."""
    found = {
        kind: [_device(one, ids.get((kind, one.minor), "")) for one in allocation[kind]]
        for kind in sorted(allocation)
    }
    return json.dumps(found, separators=(",", ":"))


def _device(one: GivenDevice, device_id: str) -> dict[str, object]:
    resources = amounts_text(one.amounts) or None  # null, as Go writes an empty list
    found: dict[str, object] = {"minor": one.minor, "resources": resources}
    if device_id:
        found["id"] = device_id
    extension: dict[str, object] = {}
    if one.functions:
        extension["vfs"] = [{"busID": each} for each in one.functions]
    if one.template:
        extension["gpuSharedResourceTemplate"] = one.template
    if extension:
        found["extension"] = extension
    if one.containers:
        found["containers"] = {name: amounts_text(each) for name, each in one.containers}
    return found


def used_amounts(allocation: Allocation) -> Iterator[tuple[str, int]]:
    """Yield what an allocation takes of a node, by used_key."""
    for kind, devices in allocation.items():
        for one in devices:
            for name, amount in one.amounts.items():
                yield used_key(kind, one.minor, name), amount
            for address in one.functions:
                yield used_key(kind, one.minor, f"{FUNCTION}{address}"), 1


def amounts_text(amounts: Amounts) -> dict[str, str]:
    """Return amounts as quantities, sorted by name."""
    return {
        name: memory_text(amounts[name]) if name == GPU_MEMORY else str(amounts[name])
        for name in sorted(amounts)
    }


def allocated_devices(pod: ClusterPod) -> Mapping[str, Sequence[AllocatedDevice]]:
    """Return what the annotation of a pod gives it, by type; empty: nothing.

    Raises:
        InvalidObject: it is malformed.
    """
    text = next((value for key, value in pod.annotations if key == DEVICE_ALLOCATED), "")
    return device_allocations(text) if text else {}


def requested_types(pod: ClusterPod) -> Iterable[str]:
    """Return the types of devices that a pod requests."""
    try:
        return device_requests(pod.spec.requests)
    except InvalidRequest:
        return ()


def comes_with_devices(pod: ClusterPod) -> bool:
    """Whether a pod's scheduling hint says that it comes with its devices.

    Raises:
        InvalidRequest: the hint is malformed.
    """
    try:
        return is_designated(pod.annotations, "DeviceShare")
    except InvalidObject as err:
        raise InvalidRequest(str(err)) from err


def _holdings(pod: ClusterPod) -> Sequence[Holding]:
    """Return what a pod on a node holds of the node's devices.

    An annotation counts as far as the agent grants it: not beyond what the containers request. The
    pod of a Reservation has what consumers have left, which need be no request that a pod can have.

    Raises:
        InvalidObject: it is malformed, or gives more than that.
    """
    if not pod.node or not pod.annotations:
        return ()
    given = allocated_devices(pod)
    if not given:
        return ()
    if pod.name.startswith(RESERVE_POD_NAME):
        return (Holding(pod.node, tuple(_all_amounts(given).items())),)
    requested = device_requests(pod.spec.requests)
    amounts: dict[str, int] = {}
    for kind in TYPES:
        devices = given.get(kind)
        if not devices:
            continue
        most, count = _most(requested, kind)
        if len(devices) > count:
            raise InvalidObject(f"{DEVICE_ALLOCATED}.{kind}", wanted=f"{count}", found=len(devices))
        for one in devices:
            for name, amount in _amounts(kind, one, most):
                key = used_key(kind, one.minor, name)
                amounts[key] = amounts.get(key, 0) + amount
            for address in one.functions[:1]:
                amounts[used_key(kind, one.minor, f"{FUNCTION}{address}")] = 1
    return (Holding(pod.node, tuple(amounts.items())),) if amounts else ()


def _most(requested: Mapping[str, Amounts], kind: str) -> tuple[Amounts, int]:
    """The most that a pod can have of a device of a type, and of how many."""
    amounts = requested.get(kind)
    if amounts is None:
        return {}, 0
    if kind == GPU:
        wanted = gpu_request(amounts)
        return wanted.each, wanted.count
    return {name: min(amount, WHOLE) for name, amount in amounts.items()}, _ANY_NUMBER


_ANY_NUMBER = 256  # of interfaces: a pod may request all of a node
_DERIVED = frozenset((GPU_MEMORY, GPU_MEMORY_RATIO))  # each follows from the other


def _amounts(kind: str, one: AllocatedDevice, most: Amounts) -> Sequence[tuple[str, int]]:
    found = []
    for name, text in one.resources.items():
        amount = Quantity.parse(text).integer
        limit = most.get(name, 0)
        if name in _DERIVED and name not in most and _DERIVED & most.keys():
            limit = WHOLE if name == GPU_MEMORY_RATIO else amount
        elif kind != GPU and most:
            limit = WHOLE  # by number with a policy, a whole device counts as one
        if not 0 <= amount <= limit:
            where = f"{DEVICE_ALLOCATED}.{kind}[{one.minor}].{name}"
            raise InvalidObject(where, wanted=f"at most {limit}, as requested", found=text)
        found.append((name, amount))
    return found


def _all_amounts(given: Mapping[str, Sequence[AllocatedDevice]]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for kind, devices in given.items():
        for one in devices:
            for name, text in one.resources.items():
                amounts[used_key(kind, one.minor, name)] = Quantity.parse(text).integer
            for address in one.functions:
                amounts[used_key(kind, one.minor, f"{FUNCTION}{address}")] = 1
    return amounts


def held_amounts(pod: ClusterPod) -> dict[str, int]:
    """Return what the pod of a Reservation has of devices, by used_key.

    Raises:
        InvalidObject: its annotation is malformed.
    """
    return _all_amounts(allocated_devices(pod))


def without_amounts(text: str, taken: Mapping[str, int]) -> str:
    """Return an annotation without amounts that others have taken, by used_key.

    Raises:
        InvalidObject: it is malformed.
    """
    found: dict[str, tuple[GivenDevice, ...]] = {}
    for kind, devices in device_allocations(text).items():
        left = []
        for one in devices:
            amounts = {}
            for name, quantity in one.resources.items():
                amount = Quantity.parse(quantity).integer
                amount -= taken.get(used_key(kind, one.minor, name), 0)
                if amount > 0:
                    amounts[name] = amount
            functions = tuple(
                address
                for address in one.functions
                if used_key(kind, one.minor, f"{FUNCTION}{address}") not in taken
            )
            if amounts or functions:
                left.append(GivenDevice(one.minor, amounts, functions))
        if left:
            found[kind] = tuple(left)
    return allocated_text(found, {}) if found else ""


DEVICES = AccountKind(
    "devices",
    _holdings,
    annotation=DEVICE_ALLOCATED,
    without=without_amounts,
    labels=frozenset(),
)
"""Amounts and virtual functions of devices that pods hold, by node."""
