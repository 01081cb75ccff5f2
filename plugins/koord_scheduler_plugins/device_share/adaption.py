"""Annotations and labels that vendors' device plugins read, with the gate DevicePluginAdaption.

Source: Koordinator, pkg/scheduler/plugins/deviceshare (device_plugin_adapter).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from koord.api.devices.allocation import Allocation, GivenDevice
from koord.api.devices.layout import (
    CAMBRICON_LOCK,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    ISOLATION_PROVIDER,
    METAX_LOCK,
    NodeDevices,
)
from koord.plugin import KoordError
from koord.plugin.kube import MERGE_PATCH, NODES
from koord_scheduler.plugin import ClusterPod, Services, Status
from koord_scheduler_plugins.device_share.tables import DeviceTables

GATE = "DevicePluginAdaption"
BIND_TIMESTAMP = "scheduling.koordinator.sh/bind-timestamp"
GPU_MINORS = "scheduling.koordinator.sh/gpu-minors"
LOCK_SECONDS = 300.0  # after which a lock is void
_CAMBRICON_UNIT = 256 * 2**20  # bytes
_METAX_UNIT = 2**20
_DUO = "Ascend-310P3-300I-DUO"


@dataclass(slots=True)
class Adaption:
    """Labels and annotations of the pod, and the lock of its node; "": none."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    lock: str = ""


class CannotAdapt(KoordError):
    """The vendor's device plugin could not give what was chosen."""


def adaption(
    given: Allocation, devices: NodeDevices, labels: Mapping[str, str], now: int
) -> Adaption:
    """Return what is written for a pod. labels: the pod's; now: Unix nanoseconds.

    Raises:
        CannotAdapt: the device plugin of the vendor cannot give that.
    """
    found = Adaption(annotations={BIND_TIMESTAMP: str(now)})
    gpus = given.get(GPU, ())
    if not gpus:
        return found
    found.annotations[GPU_MINORS] = ",".join(str(one.minor) for one in gpus)
    if labels.get(ISOLATION_PROVIDER) == "HAMi-core":
        found.labels["hami.io/vgpu-node"] = devices.name
    vendor = VENDORS.get(devices.vendor)
    if vendor is not None:
        try:
            vendor(found, gpus, devices, now)
        except CannotAdapt as err:
            text = f"failed to adapt for GPU device plugin of vendor {devices.vendor!r}: {err}"
            raise CannotAdapt(text) from err
    return found


Gpus = tuple[GivenDevice, ...]


def _huawei(found: Adaption, gpus: Gpus, devices: NodeDevices, now: int) -> None:
    found.annotations["predicate-time"] = str(now)
    if devices.model == _DUO:
        cards = ",".join(f"Ascend310P-{one.minor}" for one in gpus)
        found.annotations["huawei.com/Ascend310P"] = cards
        return
    found.annotations["huawei.com/npu-core"] = ",".join(
        f"{one.minor}-{one.template}" if one.template else str(one.minor) for one in gpus
    )


def _cambricon(found: Adaption, gpus: Gpus, devices: NodeDevices, now: int) -> None:
    if len(gpus) > 1:
        raise CannotAdapt("multiple gpu share is not supported on device side")
    core, memory = _share(gpus[0], _CAMBRICON_UNIT)
    found.annotations["CAMBRICON_DSMLU_ASSIGHED"] = "false"  # as its device plugin spells it
    profile = f"{gpus[0].minor}_{core}_{memory // _CAMBRICON_UNIT}"
    found.annotations["CAMBRICON_DSMLU_PROFILE"] = profile
    found.lock = CAMBRICON_LOCK


def _metax(found: Adaption, gpus: Gpus, devices: NodeDevices, now: int) -> None:
    cards = []
    for one in gpus:
        core, memory = _share(one, _METAX_UNIT)
        name = devices.ids.get((GPU, one.minor), "")
        cards.append({"uuid": name, "compute": core, "vRam": memory // _METAX_UNIT})
    text = json.dumps([cards], separators=(",", ":"))
    found.annotations["metax-tech.com/gpu-devices-allocated"] = text
    found.lock = METAX_LOCK


def _share(one: GivenDevice, unit: int) -> tuple[int, int]:
    """Core and memory of a card."""
    core, memory = one.amounts.get(GPU_CORE), one.amounts.get(GPU_MEMORY, 0)
    if core is None:
        raise CannotAdapt("gpu core resource is required")
    if memory < unit:
        raise CannotAdapt(f"gpu memory must not be less than {unit} bytes")
    return core, memory


LOCKING_VENDORS = ("cambricon", "metax")

VENDORS: Mapping[str, Callable[[Adaption, Gpus, NodeDevices, int], None]] = {
    "huawei": _huawei,
    "cambricon": _cambricon,
    "metax": _metax,
}


LOCKED = Status.unresolvable("node(s) have been locked for another pod's devices")


class NodeLocks:
    """Locks by which pods get devices of a node in turn: the vendor's device plugin unlocks it."""

    def __init__(self, services: Services, tables: DeviceTables) -> None:
        self._client = services.client
        self._clock = services.clock
        self._cluster = services.cluster
        self._tables = tables

    def status(self, pod: ClusterPod, node: str) -> Status | None:
        """Return why a pod is not put on a node: it is locked for another pod; None: it may be."""
        locks, devices = self._tables.locks.get(node), self._tables.devices.get(node)
        if not locks or devices is None or devices.vendor not in LOCKING_VENDORS:
            return None
        return lock_status(locks, self._clock.wall(), partial(self._is_another, pod))

    async def take(self, key: str, pod: ClusterPod, node: str) -> None:
        """Lock a node for a pod. key: the annotation.

        Raises:
            KoordError: another pod has it, or the API server does not take it.
        """
        path = NODES.object(node)
        meta = (await self._client.get(path)).get("metadata") or {}
        held, now = (meta.get("annotations") or {}).get(key), self._clock.wall()
        if held is not None and is_locked(held, now, partial(self._is_another, pod)):
            raise CannotAdapt(f'failed to lock node: node "{node}" has been locked')
        annotations = {key: lock_text(now, pod.namespace, pod.name)}
        version = meta.get("resourceVersion")  # another pod may be about to lock it, too
        patch = {"metadata": {"annotations": annotations, "resourceVersion": version}}
        await self._client.patch(path, patch, MERGE_PATCH)

    def _is_another(self, pod: ClusterPod, key: str) -> bool:
        """Whether a lock is of another pod that is there: one's own is taken again."""
        return key != pod.key and self._cluster.pod(key) is not None


def lock_status(
    locks: Iterable[str], now: float, pod_exists: Callable[[str], bool]
) -> Status | None:
    """Return why a node is rejected that has locks: PreBind would fail there; None: none counts.

    One that is malformed rejects it, too: no lock can be taken there.
    """
    for text in locks:
        try:
            if is_locked(text, now, pod_exists):
                return LOCKED
        except CannotAdapt as err:
            return Status.unresolvable(str(err))
    return None


def lock_text(now: float, namespace: str, name: str) -> str:
    """Return the value of a lock. now: Unix seconds."""
    moment = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{moment},{namespace},{name}"


def is_locked(value: str, now: float, pod_exists: Callable[[str], bool]) -> bool:
    """Whether a node's lock counts: it is not old, and its pod is there.

    Raises:
        CannotAdapt: it is no lock.
    """
    parts = value.split(",")
    if len(parts) != 3:
        raise CannotAdapt(f'invalid node lock value "{value:.200}"')
    try:
        since = datetime.fromisoformat(parts[0]).timestamp()
    except (ValueError, OverflowError) as err:
        raise CannotAdapt(f'invalid node lock value "{value:.200}"') from err
    return now - since <= LOCK_SECONDS and pod_exists(f"{parts[1]}/{parts[2]}")
