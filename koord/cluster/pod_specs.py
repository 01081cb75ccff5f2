"""Pod specs that equal pods share, decoded once; requests and limits of pods."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from sys import intern
from types import MappingProxyType
from weakref import WeakValueDictionary

from msgspec import Raw

from koord.api.labelselector import Requirement
from koord.api.pod import Share, amount, running_total
from koord.cluster import wire
from koord.cluster.columns import ImageSets
from koord.cluster.facts import (
    AffinityTerm,
    ContainerKind,
    ContainerResources,
    Disk,
    HostPort,
    LabelSet,
    NodeTerm,
    PodSpec,
    PreferredAffinityTerm,
    SpreadConstraint,
    Toleration,
)
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.lenient_decoding import (
    DecodingFaults,
    LenientDecoder,
    bounded_amounts,
    readable,
    take_within_limit,
)
from koord.cluster.selectors import (
    read_affinity_term,
    read_node_terms,
    read_preferred_nodes,
    read_preferred_term,
    read_spread,
)

_SCALES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MAX_DIGITS = 18  # a number of so many is below 2**63; a longer text costs time to read
MAX_AMOUNT = 2**50  # of one resource in one object: larger ones count as this
MAX_ALLOCATABLE = MAX_AMOUNT - 1  # so that no pod fits that requests more than it says
NONZERO = {"cpu": 100, "memory": 200 << 20}
"""Milli-cores and bytes of a container that requests none, where loads are compared."""

_ANY_SIZE = 1 << 30  # requests always count: only the object as a whole is bounded
_RESOURCES: LenientDecoder[wire.Resources] = LenientDecoder("resources", wire.Resources, _ANY_SIZE)
_AMOUNTS: LenientDecoder[wire.Amounts] = LenientDecoder("amounts", wire.Amounts, _ANY_SIZE)
_INFEASIBLE = "Infeasible"

Effective = Mapping[str, Mapping[str, int]]
"""Requests that count in place of those in the spec, by container."""


def read_amount(name: str, text: str | int | float) -> int:
    """Return the amount of one resource, at most MAX_AMOUNT.

    Most are written like 250m or 512Mi, and a NodeMetric has dozens: those take a tenth of the
    time of the others.

    Raises:
        ValueError: it is no quantity, or below zero.
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
        if scale and digits.isdecimal() and len(digits) <= _MAX_DIGITS and digits.isascii():
            value = int(digits) * scale
            if value <= MAX_AMOUNT:
                return value
    value = amount(name, str(text))
    if value < 0:
        raise ValueError(f"an amount below zero: {text}")
    return min(value, MAX_AMOUNT)


def read_amounts(
    found: Mapping[str, str | int | float] | None, where: str, faults: DecodingFaults
) -> dict[str, int]:
    """Return amounts by name of the resource, without those that are malformed, which is noted."""
    amounts: dict[str, int] = {}
    for name, text in (found or {}).items():
        try:
            amounts[name] = value = read_amount(name, text)
        except ValueError as err:
            faults.note(f"{where}: {name}", str(err))
            continue
        if value == MAX_AMOUNT:
            faults.note(f"{where}: {name}", f"{text} counts as {MAX_AMOUNT}")
    return amounts


class PodAmounts:
    """The requests and limits of a pod.

    They include regular containers, init containers, sidecars, the pod as a whole and overhead.
    """

    def __init__(
        self, found: wire.PodSpecFields, effective: Effective, faults: DecodingFaults
    ) -> None:
        """effective: as effective_requests says. A malformed amount is noted and counts nothing."""
        regular, init = found.containers or (), found.init_containers or ()
        resources = [_RESOURCES.read(one.resources, faults) for one in (*regular, *init)]
        pod = _RESOURCES.read(found.resources, faults) or wire.Resources()
        self._sidecars = [is_sidecar(one) for one in init]
        self.overhead = read_amounts(_AMOUNTS.read(found.overhead, faults), "overhead", faults)
        requests = [
            effective[one.name]
            if one.name in effective
            else _requested(each, f"container {one.name}", faults)
            for one, each in zip((*regular, *init), resources, strict=True)
        ]
        self._requests, self._init_requests = requests[: len(regular)], requests[len(regular) :]
        self._pod_requests = read_amounts(pod.requests, "requests", faults)
        self.requests = self._totals(self._requests, self._init_requests)
        self.requests.update(self._pod_requests)
        for name, more in self.overhead.items():
            self.requests[name] = self.requests.get(name, 0) + more
        limited = [read_limits(one.limits if one else None) for one in resources]
        limits = self._totals(limited[: len(regular)], limited[len(regular) :])
        limits.update(read_limits(pod.limits))
        self.by_container = tuple(zip(requests, limited, strict=True))
        """Requests and limits of each regular container, then of each init container."""
        self.limits = {
            name: value + self.overhead.get(name, 0) for name, value in limits.items() if value
        }

    def nonzero(self, name: str) -> int:
        """The request in which a container without one has the default.

        Unless the pod has requests as a whole, and one of this resource somewhere.

        Source: Kubernetes, framework.PodInfo.CalculateResource.
        """
        if self._pod_requests and name in self.requests:
            return min(self.requests[name], MAX_AMOUNT)
        total = self._total(self._requests, self._init_requests, name, NONZERO[name])
        return min(total + self.overhead.get(name, 0), MAX_AMOUNT)

    def _totals(
        self, regular: list[Mapping[str, int]], init: list[Mapping[str, int]]
    ) -> dict[str, int]:
        names = {name for amounts in (*regular, *init) for name in amounts}
        return {name: self._total(regular, init, name, 0) for name in names}

    def _total(
        self,
        regular: list[Mapping[str, int]],
        init: list[Mapping[str, int]],
        name: str,
        default: int,
    ) -> int:
        shares = zip(init, self._sidecars, strict=True)
        return running_total(
            (one.get(name, default) for one in regular),
            (Share(one.get(name, default), sidecar) for one, sidecar in shares),
        )


def read_limits(found: Mapping[str, str | int | float] | None) -> Mapping[str, int]:
    """Return limits as read_amounts; one that is absurdly large is cut: it is as good as none."""
    return read_amounts(found, "limits", DecodingFaults())


def is_sidecar(found: wire.Container) -> bool:
    """Whether an init container runs as long as the pod."""
    return found.restart_policy == "Always"


def effective_requests(spec: wire.PodSpecFields, status: wire.PodStatus) -> Effective:
    """Return the requests of containers that are being resized, or could not be.

    Per resource the largest of what the spec has, what the kubelet has allocated, and what is in
    force; of a resize that the node can never have, the last two. Empty: all are as the spec says.

    Source: Kubernetes, component-helpers resource.determineEffectiveRequests.
    """
    if not status.container_statuses and not status.init_container_statuses:
        return {}
    reported = {
        one.name: one
        for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        if one.resources is not wire.NOTHING
    }
    if not reported:
        return {}
    resized = {}
    for one in (*(spec.containers or ()), *filter(is_sidecar, spec.init_containers or ())):
        found = reported.get(one.name)
        if found is None or _is_as_spec(one, found):
            continue
        if wire.is_given(found.resources):
            requests = _effective(one, found, infeasible=_is_infeasible(status))
            if requests is not None:
                resized[one.name] = requests
    return resized


def _is_as_spec(spec: wire.Container, status: wire.ContainerStatus) -> bool:
    """Whether both have the same JSON, as nearly always: nothing need be decoded then."""
    if spec.resources != status.resources:
        return False
    allocated = status.allocated_resources
    if allocated is wire.NOTHING:
        return True
    return bytes(spec.resources).endswith(b'"requests":%b}' % allocated)


def _effective(
    spec: wire.Container, status: wire.ContainerStatus, *, infeasible: bool
) -> dict[str, int] | None:
    """The requests that count; None: those of the spec."""
    faults = DecodingFaults()  # what is malformed in a status counts nothing
    wanted = _requested(_RESOURCES.read(spec.resources, faults), spec.name, faults)
    actual = _requested(_RESOURCES.read(status.resources, faults), spec.name, faults)
    allocated = read_amounts(_AMOUNTS.read(status.allocated_resources, faults), spec.name, faults)
    counted = (actual, allocated) if infeasible else (wanted, actual, allocated)
    names = {name for amounts in counted for name in amounts}
    found = {name: max(amounts.get(name, 0) for amounts in counted) for name in sorted(names)}
    return None if found == wanted else found


def _is_infeasible(status: wire.PodStatus) -> bool:
    """Source: Kubernetes, resource.IsPodResizeInfeasible, of 1.32 and older, too."""
    for one in status.conditions or ():
        if one.type == "PodResizePending":
            return one.reason == _INFEASIBLE
    return status.resize == _INFEASIBLE


def _requested(found: wire.Resources | None, where: str, faults: DecodingFaults) -> dict[str, int]:
    return read_amounts((found and found.requests) or {}, where, faults)


MAX_SUM = 2**40
"""Requests up to this one can be added up as they are: millions of pods stay below 64 bits."""

_PORTS: LenientDecoder[list[wire.ContainerPort]] = LenientDecoder("ports", list[wire.ContainerPort])
_TOLERATIONS: LenientDecoder[list[wire.Toleration]] = LenientDecoder(
    "tolerations", list[wire.Toleration]
)
_NODE_SELECTOR: LenientDecoder[wire.Labels] = LenientDecoder("nodeSelector", wire.Labels)
_AFFINITY: LenientDecoder[wire.Affinity] = LenientDecoder(
    "affinity", wire.Affinity, 1 << 30
)  # its parts are bounded
_NODE_TERMS: LenientDecoder[wire.NodeSelector] = LenientDecoder(
    "nodeAffinity, required", wire.NodeSelector
)
_PREFERRED_NODES: LenientDecoder[list[wire.PreferredSchedulingTerm]] = LenientDecoder(
    "nodeAffinity, preferred", list[wire.PreferredSchedulingTerm]
)
_AFFINITY_TERMS = {
    kind: (
        LenientDecoder[list[wire.PodAffinityTerm]](f"{kind}, required", list[wire.PodAffinityTerm]),
        LenientDecoder[list[wire.WeightedAffinityTerm]](
            f"{kind}, preferred", list[wire.WeightedAffinityTerm]
        ),
    )
    for kind in ("podAffinity", "podAntiAffinity")
}
_SPREAD: LenientDecoder[list[wire.TopologySpreadConstraint]] = LenientDecoder(
    "topologySpreadConstraints", list[wire.TopologySpreadConstraint]
)
_IMAGE: LenientDecoder[str] = LenientDecoder("image", str)
_DISK: LenientDecoder[wire.DiskVolumeSource] = LenientDecoder("volumes", wire.DiskVolumeSource)
_DISK_KINDS = {
    "gce_persistent_disk": "gcePersistentDisk",
    "aws_elastic_block_store": "awsElasticBlockStore",
    "iscsi": "iscsi",
    "rbd": "rbd",
}
_ITEMS: LenientDecoder[list[Raw]] = LenientDecoder("resourceClaims", list[Raw])


class SharedSpecs:
    """Label sets and specs of the pods that live; the last pod takes them along. Images of nodes,
    too.
    """

    def __init__(self, kept: KeptFields = NO_FIELDS) -> None:
        self.kept = kept
        """The fields of pods and nodes that are kept because plugins read them."""
        self.images = ImageSets()
        self._labels: WeakValueDictionary[tuple[str, ...], LabelSet] = WeakValueDictionary()
        self._specs: WeakValueDictionary[bytes, PodSpec] = WeakValueDictionary()

    def label_set(self, namespace: str, labels: Mapping[str, str]) -> LabelSet:
        """Return the one label set of pods with these labels."""
        key = (namespace, *labels, *labels.values())
        found = self._labels.get(key)
        if found is None:
            found = self._labels[key] = LabelSet(namespace, MappingProxyType(labels))
        return found

    def spec(self, found: wire.PodSpecFields, status: wire.PodStatus, namespace: str) -> PodSpec:
        """Return the one spec of pods with this JSON, and with the same resize under way."""
        effective, by_container = effective_requests(found, status), self.kept.containers
        key = _digest(found, effective, namespace, by_container=by_container)
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = read_spec(
                found, effective, namespace, by_container=by_container
            )
        return spec


def read_spec(
    found: wire.PodSpecFields, effective: Effective, namespace: str, *, by_container: bool = False
) -> PodSpec:
    """Return the rules and requests of a pod; what cannot be read is in its faults.

    effective: the requests of containers that count in place of the spec's. by_container: keep
    those of each container, too.
    """
    rules, others = DecodingFaults(), DecodingFaults()
    affinity = _AFFINITY.read(found.affinity, rules) or wire.Affinity()
    node_affinity = affinity.node_affinity or wire.AffinityTerms()
    near = _AffinityReader("podAffinity", affinity.pod_affinity, namespace)
    apart = _AffinityReader("podAntiAffinity", affinity.pod_anti_affinity, namespace)
    labels = _NODE_SELECTOR.read(found.node_selector, rules) or {}
    spread = _SPREAD.read(found.topology_spread_constraints, rules) or ()
    amounts = PodAmounts(found, effective, rules)
    requests = bounded_amounts(_without_zeros(amounts.requests), "requests", rules)
    nonzero_cpu, nonzero_memory = (amounts.nonzero(name) for name in ("cpu", "memory"))
    return PodSpec(
        requests=requests,
        limits=bounded_amounts(_without_zeros(amounts.limits), "limits", others),
        overhead=bounded_amounts(_without_zeros(amounts.overhead), "overhead", others),
        containers=_containers(found, amounts, rules) if by_container else None,
        nonzero_cpu=nonzero_cpu,
        nonzero_memory=nonzero_memory,
        tolerations=tuple(
            dict.fromkeys(
                Toleration(one.key or "", one.operator or "", one.value or "", one.effect or "")
                for one in _TOLERATIONS.read(found.tolerations, rules) or ()
            )
        ),
        node_selector=tuple(Requirement(key, "In", (text,)) for key, text in labels.items()),
        node_terms=_node_terms(
            node_affinity.required_during_scheduling_ignored_during_execution, rules
        ),
        preferred_nodes=read_preferred_nodes(
            _PREFERRED_NODES.read(
                node_affinity.preferred_during_scheduling_ignored_during_execution, others
            )
            or ()
        ),
        affinity=near.required(rules),
        anti_affinity=apart.required(rules),
        preferred_affinity=near.preferred(others),
        preferred_anti_affinity=apart.preferred(others),
        spread=_spread(spread, "DoNotSchedule", rules),
        soft_spread=_spread(spread, "ScheduleAnyway", others),
        host_ports=tuple(_host_ports(found, rules)),
        images=_images((one.image for one in found.containers or ()), others),
        other_images=tuple(
            sorted(
                (
                    *_images((one.image for one in found.init_containers or ()), others),
                    *(one.image.reference or "" for one in found.volumes or () if one.image),
                )
            )
        ),
        resource_claims=wire.is_given(found.resource_claims)
        and _ITEMS.read(found.resource_claims, rules) != [],
        ephemeral_volumes=tuple(
            take_within_limit(
                [one.name for one in found.volumes or () if wire.is_given(one.ephemeral)],
                lambda name: (name,),
                "volumes",
                rules,
            )
        ),
        disks=tuple(_disks(found, rules)),
        has_huge=max(nonzero_cpu, nonzero_memory, *(value for _, value in requests)) > MAX_SUM,
        unread=tuple(rules),
        faults=(*rules, *others),
    )


class _AffinityReader:
    """Reads the terms of a pod affinity, or of an anti-affinity."""

    def __init__(self, kind: str, found: wire.AffinityTerms | None, namespace: str) -> None:
        self._found = found or wire.AffinityTerms()
        self._required, self._preferred = _AFFINITY_TERMS[kind]
        self._namespace = namespace

    def required(self, faults: DecodingFaults) -> tuple[AffinityTerm, ...]:
        terms = self._required.read(
            self._found.required_during_scheduling_ignored_during_execution, faults
        )
        read = partial(read_affinity_term, namespace=self._namespace)
        return readable(terms or (), read, self._required.name, faults)

    def preferred(self, faults: DecodingFaults) -> tuple[PreferredAffinityTerm, ...]:
        terms = self._preferred.read(
            self._found.preferred_during_scheduling_ignored_during_execution, faults
        )
        read = partial(read_preferred_term, namespace=self._namespace)
        return readable(terms or (), read, self._preferred.name, faults)


def _node_terms(found: Raw, faults: DecodingFaults) -> tuple[NodeTerm, ...] | None:
    """The required node affinity; of one that cannot be read no term, which matches no node."""
    if not wire.is_given(found):
        return None
    terms = _NODE_TERMS.read(found, faults)
    return () if terms is None else read_node_terms(terms)


def _spread(
    found: Iterable[wire.TopologySpreadConstraint], when_unsatisfiable: str, faults: DecodingFaults
) -> tuple[SpreadConstraint, ...]:
    wanted = [one for one in found if one.when_unsatisfiable == when_unsatisfiable]
    return readable(wanted, read_spread, _SPREAD.name, faults)


def _without_zeros(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: min(value, MAX_AMOUNT) for name, value in amounts.items() if value}


def _containers(
    found: wire.PodSpecFields, amounts: PodAmounts, faults: DecodingFaults
) -> tuple[ContainerResources, ...]:
    """Requests and limits of each container, in the order of the spec, init containers first."""
    regular, init = found.containers or [], found.init_containers or []
    kinds = [ContainerKind.REGULAR] * len(regular) + [ContainerKind.INIT] * len(init)
    containers = [
        ContainerResources(
            name=one.name,
            kind=kind,
            sidecar=kind is ContainerKind.INIT and is_sidecar(one),
            requests=bounded_amounts(_without_zeros(requests), "requests", faults),
            limits=bounded_amounts(_without_zeros(limits), "limits", faults),
        )
        for one, kind, (requests, limits) in zip(
            (*regular, *init), kinds, amounts.by_container, strict=True
        )
    ]
    containers.sort(key=lambda one: one.kind is not ContainerKind.INIT)
    return tuple(take_within_limit(containers, lambda one: (one.name,), "containers", faults))


def _images(found: Iterable[Raw], faults: DecodingFaults) -> tuple[str, ...]:
    return tuple(sorted(intern(_IMAGE.read(one, faults) or "") for one in found))


def _host_ports(found: wire.PodSpecFields, faults: DecodingFaults) -> list[HostPort]:
    """Ports of what runs as long as the pod. Source: Kubernetes, schedutil.GetHostPorts."""
    ports = []
    for container in (*(found.containers or ()), *filter(is_sidecar, found.init_containers or ())):
        for port in _PORTS.read(container.ports, faults) or ():
            if port.host_port and port.host_port > 0:
                address = port.host_ip or "0.0.0.0"  # noqa: S104 - as Kubernetes writes it
                ports.append(HostPort(port.host_port, port.protocol or "TCP", address))
    return take_within_limit(
        ports, lambda port: (port.protocol, port.address), "host ports", faults
    )


def _disks(found: wire.PodSpecFields, faults: DecodingFaults) -> Iterator[Disk]:
    """Disks that are named in the pod, not by a claim."""
    for volume in found.volumes or ():
        for attribute, kind in _DISK_KINDS.items():
            data: Raw = getattr(volume, attribute)
            disk = None if data is wire.NOTHING else _DISK.read(data, faults)
            if disk is not None:
                name = disk.pd_name or disk.volume_id or disk.iqn or ""
                if kind == "rbd":
                    name = f"{disk.pool or 'rbd'}/{disk.image or ''}"
                monitors = tuple(disk.monitors or ())
                yield Disk(kind, name, bool(disk.read_only), monitors)


def _digest(
    found: wire.PodSpecFields, effective: Effective, namespace: str, *, by_container: bool
) -> bytes:
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
    if effective:
        parts.append(repr(effective).encode())
    for one in found.containers or ():
        parts += (b"c", one.image, one.resources, one.ports)
    for one in found.init_containers or ():
        parts += (b"s" if is_sidecar(one) else b"i", one.image, one.resources, one.ports)
    if by_container:
        names = [one.name for one in (*(found.containers or ()), *(found.init_containers or ()))]
        parts += (b"n", ascii(names).encode())
    for volume in found.volumes or ():
        if volume.image is not None:
            parts += (b"v", (volume.image.reference or "").encode())
        if wire.is_given(volume.ephemeral):
            parts += (b"e", ascii(volume.name).encode())
        for attribute in _DISK_KINDS:
            disk: Raw = getattr(volume, attribute)
            if disk is not wire.NOTHING:
                parts += (attribute.encode(), disk)
    return blake2b(b"\0".join(parts), digest_size=16).digest()  # JSON has no zero bytes
