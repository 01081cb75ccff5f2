"""What equal pods share: read once from the JSON that they have in common."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from sys import intern
from types import MappingProxyType
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw

from koord.api.labelselector import Requirement
from koord.api.pods.requests import amount
from koord.api.pods.totals import Share, running_total
from koord.cluster import wire
from koord.cluster.facts import Disk, HostPort, LabelSet, PodSpec, Toleration
from koord.cluster.images import ImageSets
from koord.cluster.selectors import (
    read_affinity,
    read_node_terms,
    read_preferred_affinity,
    read_preferred_nodes,
    read_spread,
)
from koord.util.errors import InvalidObject

_SCALES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MOST_DIGITS = 18
LARGEST_AMOUNT = 2**50  # of one resource in one object; sums of thousands stay below 64 bits
NONZERO = {"cpu": 100, "memory": 200 << 20}
"""Milli-cores and bytes of a container that requests none, where loads are compared."""

_RESOURCES = msgspec.json.Decoder(wire.Resources | None)
_AMOUNTS = msgspec.json.Decoder(wire.Amounts | None)
_PORTS = msgspec.json.Decoder(wire.ManyOf[wire.Port] | None)
_TOLERATIONS = msgspec.json.Decoder(wire.ManyOf[wire.Toleration] | None)
_LABELS = msgspec.json.Decoder(wire.Labels | None)
_AFFINITY = msgspec.json.Decoder(wire.Affinity | None)
_SPREAD = msgspec.json.Decoder(wire.ManyOf[wire.Spread] | None)
_IMAGE = msgspec.json.Decoder(wire.Text | None)
_DISK = msgspec.json.Decoder(wire.Disk | None)
_DISK_KINDS = {
    "gce_persistent_disk": "gcePersistentDisk",
    "aws_elastic_block_store": "awsElasticBlockStore",
    "iscsi": "iscsi",
    "rbd": "rbd",
}
_ITEMS = msgspec.json.Decoder(wire.ManyOf[Raw] | None)


class Sharing:
    """Label sets and specs of the pods that live; the last pod takes them along. Images of nodes,
    too.
    """

    def __init__(self) -> None:
        self.images = ImageSets()
        self._labels: WeakValueDictionary[tuple[str, ...], LabelSet] = WeakValueDictionary()
        self._specs: WeakValueDictionary[bytes, PodSpec] = WeakValueDictionary()

    def label_set(self, namespace: str, labels: dict[str, str]) -> LabelSet:
        """Return the one label set of pods with these labels."""
        key = (namespace, *labels, *labels.values())
        found = self._labels.get(key)
        if found is None:
            found = self._labels[key] = LabelSet(namespace, MappingProxyType(labels))
        return found

    def spec(self, found: wire.Spec, namespace: str, where: str) -> PodSpec:
        """Return the one spec of pods with this JSON.

        Raises:
            InvalidObject, msgspec.ValidationError: a part of it is malformed.
        """
        key = _digest(found, namespace)
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = read_spec(found, namespace, where)
        return spec


def read_spec(found: wire.Spec, namespace: str, where: str) -> PodSpec:
    """Return the rules and requests of a pod. Raises as Sharing.spec."""
    affinity = _AFFINITY.decode(found.affinity) or wire.Affinity()
    node_affinity = affinity.node_affinity or wire.NodeAffinity()
    node_terms = node_affinity.required_during_scheduling_ignored_during_execution
    labels = _LABELS.decode(found.node_selector) or {}
    spread = _SPREAD.decode(found.topology_spread_constraints) or ()
    amounts = _PodAmounts(found, where)
    nonzero_cpu, nonzero_memory = (amounts.nonzero(name) for name in ("cpu", "memory"))
    return PodSpec(
        requests=_kept(amounts.requests),
        limits=_kept(amounts.limits),
        nonzero_cpu=nonzero_cpu,
        nonzero_memory=nonzero_memory,
        tolerations=tuple(
            Toleration(one.key or "", one.operator or "", one.value or "", one.effect or "")
            for one in _TOLERATIONS.decode(found.tolerations) or ()
        ),
        node_selector=tuple(Requirement(key, "In", (text,)) for key, text in labels.items()),
        node_terms=None if node_terms is None else read_node_terms(node_terms),
        preferred_nodes=read_preferred_nodes(node_affinity),
        affinity=read_affinity(affinity.pod_affinity, namespace, where),
        anti_affinity=read_affinity(affinity.pod_anti_affinity, namespace, where),
        preferred_affinity=read_preferred_affinity(affinity.pod_affinity, namespace, where),
        preferred_anti_affinity=read_preferred_affinity(
            affinity.pod_anti_affinity, namespace, where
        ),
        spread=tuple(read_spread(spread, "DoNotSchedule", where)),
        soft_spread=tuple(read_spread(spread, "ScheduleAnyway", where)),
        host_ports=tuple(_host_ports(found)),
        images=_images(one.image for one in found.containers or ()),
        other_images=tuple(
            sorted(
                (
                    *_images(one.image for one in found.init_containers or ()),
                    *(one.image.reference or "" for one in found.volumes or () if one.image),
                )
            )
        ),
        resource_claims=bool(_ITEMS.decode(found.resource_claims)),
        ephemeral_volumes=tuple(
            one.name for one in found.volumes or () if wire.given(one.ephemeral)
        ),
        disks=tuple(_disks(found)),
    )


def read_amounts(found: Mapping[str, str | int | float], where: str) -> dict[str, int]:
    """Return amounts of resources by name.

    Raises:
        InvalidObject: one is no quantity, below zero or absurdly large.
    """
    return {name: read_amount(name, text, where) for name, text in found.items()}


def read_amount(name: str, text: str | int | float, where: str) -> int:
    """Return the amount of one resource. Raises as read_amounts does.

    Most are written like 250m or 512Mi, and a NodeMetric has dozens: those take a tenth of the
    time of the others.
    """
    if isinstance(text, str):
        digits, scale = text, 1
        if name == "cpu":
            if text[-1:] == "m":
                digits = text[:-1]
            else:
                scale = 1000
        elif text[-1:] == "i":
            digits, scale = text[:-2], _SCALES.get(text[-2:], 0)
        if scale and digits.isdecimal() and len(digits) <= _MOST_DIGITS and digits.isascii():
            value = int(digits) * scale
            if value <= LARGEST_AMOUNT:
                return value
    value = _amount(name, text, where)
    if not 0 <= value <= LARGEST_AMOUNT:
        wanted = f"0 to {LARGEST_AMOUNT}"
        raise InvalidObject(f"{where}: {name}", wanted=wanted, found=text)
    return value


def _amount(name: str, text: str | int | float, where: str) -> int:
    try:
        return amount(name, str(text))
    except ValueError as err:
        raise InvalidObject(f"{where}: {name}", wanted="a quantity", found=text) from err


class _PodAmounts:
    """What a pod requests, and is limited to: of regular containers, init containers, sidecars,
    the pod as a whole, and overhead.

    Source: Kubernetes, component-helpers resource.PodRequests, resource.PodLimits.
    """

    def __init__(self, found: wire.Spec, where: str) -> None:
        """Raises InvalidObject: an amount is malformed, or a request absurdly large."""
        self._where = where
        regular = [_RESOURCES.decode(one.resources) for one in found.containers or ()]
        init = [_RESOURCES.decode(one.resources) for one in found.init_containers or ()]
        pod = _RESOURCES.decode(found.resources)
        self._sidecars = [one.restart_policy == "Always" for one in found.init_containers or ()]
        self._overhead = read_amounts(_AMOUNTS.decode(found.overhead) or {}, where)
        self._requests = [self._requested(one) for one in regular]
        self._init_requests = [self._requested(one) for one in init]
        self._pod_requests = self._requested(pod)
        self.requests = self._totals(self._requests, self._init_requests)
        self.requests.update(self._pod_requests)
        for name, more in self._overhead.items():
            self.requests[name] = self.requests.get(name, 0) + more
        limits = self._totals(
            [self._limited(one) for one in regular], [self._limited(one) for one in init]
        )
        limits.update(self._limited(pod))
        self.limits = {
            name: value + self._overhead.get(name, 0) for name, value in limits.items() if value
        }

    def nonzero(self, name: str) -> int:
        """The request in which a container without one has the default.

        Unless the pod has requests as a whole, and one of this resource somewhere.

        Source: Kubernetes, framework.PodInfo.CalculateResource.
        """
        if self._pod_requests and name in self.requests:
            return min(self.requests[name], LARGEST_AMOUNT)
        total = self._total(self._requests, self._init_requests, name, NONZERO[name])
        return min(total + self._overhead.get(name, 0), LARGEST_AMOUNT)

    def _totals(self, regular: list[dict[str, int]], init: list[dict[str, int]]) -> dict[str, int]:
        names = {name for amounts in (*regular, *init) for name in amounts}
        return {name: self._total(regular, init, name, 0) for name in names}

    def _total(
        self, regular: list[dict[str, int]], init: list[dict[str, int]], name: str, default: int
    ) -> int:
        shares = zip(init, self._sidecars, strict=True)
        return running_total(
            (one.get(name, default) for one in regular),
            (Share(one.get(name, default), sidecar) for one, sidecar in shares),
        )

    def _requested(self, found: wire.Resources | None) -> dict[str, int]:
        return read_amounts((found and found.requests) or {}, self._where)

    def _limited(self, found: wire.Resources | None) -> dict[str, int]:
        """One that is absurdly large is cut: it is as good as none."""
        limits = (found and found.limits) or {}
        return {
            name: min(max(_amount(name, text, self._where), 0), LARGEST_AMOUNT)
            for name, text in limits.items()
        }


def _kept(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(
        sorted((name, min(value, LARGEST_AMOUNT)) for name, value in amounts.items() if value)
    )


def _images(found: Iterable[Raw]) -> tuple[str, ...]:
    return tuple(sorted(intern(_IMAGE.decode(one) or "") for one in found))


def _host_ports(found: wire.Spec) -> Iterator[HostPort]:
    """Ports of what runs as long as the pod. Source: Kubernetes, schedutil.GetHostPorts."""
    sidecars = (one for one in found.init_containers or () if one.restart_policy == "Always")
    for container in (*(found.containers or ()), *sidecars):
        for port in _PORTS.decode(container.ports) or ():
            if port.host_port and port.host_port > 0:
                address = port.host_ip or "0.0.0.0"  # noqa: S104 - as Kubernetes writes it
                yield HostPort(port.host_port, port.protocol or "TCP", address)


def _disks(found: wire.Spec) -> Iterator[Disk]:
    """Disks that are named in the pod, not by a claim."""
    for volume in found.volumes or ():
        for attribute, kind in _DISK_KINDS.items():
            disk = _DISK.decode(getattr(volume, attribute))
            if disk is not None:
                name = disk.pd_name or disk.volume_id or disk.iqn or ""
                if kind == "rbd":
                    name = f"{disk.pool or 'rbd'}/{disk.image or ''}"
                monitors = tuple(disk.monitors or ())
                yield Disk(kind, name, bool(disk.read_only), monitors)


def _digest(found: wire.Spec, namespace: str) -> bytes:
    """Sixteen bytes that only equal specs have in common, however large they are."""
    parts: list[Raw | bytes] = [
        found.overhead,
        found.resources,
        found.tolerations,
        found.node_selector,
        found.affinity,
        # its terms mean that namespace
        b"" if found.affinity is wire.NOTHING else namespace.encode(),
        found.topology_spread_constraints,
        found.resource_claims,
    ]
    for one in found.containers or ():
        parts += (b"c", one.image, one.resources, one.ports)
    for one in found.init_containers or ():
        sidecar = one.restart_policy == "Always"
        parts += (b"s" if sidecar else b"i", one.image, one.resources, one.ports)
    for volume in found.volumes or ():
        if volume.image is not None:
            parts += (b"v", (volume.image.reference or "").encode())
        if wire.given(volume.ephemeral):
            parts += (b"e", ascii(volume.name).encode())
        for attribute in _DISK_KINDS:
            disk: Raw = getattr(volume, attribute)
            if disk is not wire.NOTHING:
                parts += (attribute.encode(), disk)
    return blake2b(b"\0".join(parts), digest_size=16).digest()  # JSON has no zero bytes
