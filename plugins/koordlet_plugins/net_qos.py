"""Network QoS: bandwidth of the node's interface by QoS class, and limits of single pods.

Claims what is at the root of the node's interface, and of the node's ends of pods' interfaces.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import ClassVar, NamedTuple
from zlib import crc32

from koord.api.annotations import place
from koord.api.node import Node
from koord.api.nodeslo import NodeSLO
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import (
    ANNOTATION,
    MAX_RATE,
    MIN_RATE,
    NetQoSPolicy,
    NetworkQoS,
    PodLimits,
    Problems,
    ResourceQoS,
    bytes_per_second,
    pod_limits,
)
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    ExtensionPlugin,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.network import (
    MAJOR,
    Address,
    AddressMatch,
    CgroupMatch,
    TrafficClass,
    TrafficTree,
    is_interface_name,
    parse_tree,
)
from koordlet.plugin.pods import (
    PodRoundsPlugin,
    PodSettings,
    Process,
    ProcessLists,
    Rejections,
    by_pid,
    containers_of,
    pods_of,
)

LINK, SYSTEM, LS, BE = 1, 2, 3, 4  # classes, as minor ids; SYSTEM is that of all other packets
NAMES = {SYSTEM: "system", LS: "ls", BE: "be"}
LEAF = 3  # from the number of a class to that of its leaf
DEFAULT = SYSTEM + LEAF
FIRST, LAST = 16, 0xFFFE  # numbers of pods' classes
MAX_PODS = 1000  # whose packets are distinguished: with 4 addresses each u32 can have no more


@dataclass(frozen=True, slots=True)
class ClassRates:
    """A class: what it gets in any case, and the most it may borrow, in bytes/s."""

    minor: int
    below: int  # the class above; 0: the root
    rate: int
    ceil: int
    prio: int  # the lowest number borrows first


class PodTraffic(NamedTuple):
    """The traffic of a pod: its class, addresses and limit."""

    uid: str
    minor: int  # SYSTEM, LS or BE
    addresses: tuple[Address, ...]  # that are its own
    limit: int  # bytes/s; 0: none
    group: tuple[int, int] | None = None  # level and number of its sockets' cgroup


def node_tree(
    rates: Sequence[ClassRates], pods: Sequence[PodTraffic], numbers: Mapping[str, int]
) -> TrafficTree:
    """Return the desired tree of the node's interface.

    rates: those of network_qos.classes, not empty. pods: MAX_PODS at most, no address twice. A pod
    whose class has no rates belongs to SYSTEM. numbers: of the pods with a limit, by UID.
    """
    known = {each.minor: each for each in rates}
    members: dict[int, list[PodTraffic]] = {minor: [] for minor in known if minor != LINK}
    for pod in pods:
        members[pod.minor if pod.minor in members else SYSTEM].append(pod)
    found = [_class(each) for each in rates]
    matches: list[AddressMatch] = []
    sockets: list[CgroupMatch] = []
    for minor, of_class in members.items():
        found += _leaves(known[minor], of_class, numbers)
    for pod in pods:
        leaf = leaf_of(pod, known, numbers)
        if leaf != DEFAULT:
            matches += [AddressMatch("from", address, leaf) for address in pod.addresses]
            sockets += [CgroupMatch(*pod.group, leaf)] if pod.group else []
    return TrafficTree.of(DEFAULT, found, matches, sockets)


def leaf_of(pod: PodTraffic, known: Container[int], numbers: Mapping[str, int]) -> int:
    """Return the class of a pod's packets. known: the classes that there are."""
    if pod.limit:
        return numbers[pod.uid]
    return (pod.minor if pod.minor in known else SYSTEM) + LEAF


def pod_tree(limit: int) -> TrafficTree:
    """Return what shall be at the root of the node's end of a pod's interface: what it receives."""
    return TrafficTree.of(1, [TrafficClass(1, 0, limit, limit, 0)], [])


def _class(each: ClassRates) -> TrafficClass:
    return TrafficClass(each.minor, each.below, each.rate, each.ceil, each.prio)


def _leaves(
    above: ClassRates, pods: Sequence[PodTraffic], numbers: Mapping[str, int]
) -> Iterator[TrafficClass]:
    """Yield the classes below one, which share its rate.

    A pod's part depends on the power of two above the count of pods, so that it seldom changes. The
    sum is more than the rate only where each pod would have less than MIN_RATE.
    """
    part = max(above.rate >> len(pods).bit_length(), MIN_RATE)
    left = above.rate
    for pod in pods:
        if pod.limit:
            ceil = max(min(pod.limit, above.ceil), MIN_RATE)
            rate = min(part, ceil)
            left -= rate
            yield TrafficClass(numbers[pod.uid], above.minor, rate, ceil, above.prio)
    rest = max(left, MIN_RATE)
    yield TrafficClass(above.minor + LEAF, above.minor, rest, above.ceil, above.prio)


def numbered(uids: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """Return a class number for each of these pods, LAST - FIRST of them at most.

    It is that of before, else one that follows from the UID: the same after a restart, unless
    another pod has it.
    """
    wanted = sorted(set(uids))
    found = {uid: before[uid] for uid in wanted if uid in before}
    taken = set(found.values())
    for uid in wanted:
        if uid not in found:
            number = crc32(uid.encode())
            while (found_number := FIRST + number % (LAST + 1 - FIRST)) in taken:
                number += 1
            found[uid] = found_number
            taken.add(found_number)
    return found


def recovered(tree: TrafficTree, owners: Mapping[Address, str]) -> dict[str, int]:
    """Return the class numbers that pods have in a tree that is there, by UID, each once."""
    found: dict[int, str] = {}
    for match in tree.matches:
        uid = owners.get(match.address)
        if match.minor >= FIRST and uid is not None and uid not in found.values():
            found.setdefault(match.minor, uid)
    return {uid: number for number, uid in found.items()}


IpAddress = IPv4Address | IPv6Address

_LATE = float("inf")


class PodAddresses(NamedTuple):
    """A pod with the addresses of its network namespace."""

    pod: Pod
    addresses: tuple[IpAddress, ...]


def addresses_of(pod: Pod) -> tuple[IpAddress, ...]:
    """Return a pod's own addresses; none for a pod in the node's network namespace.

    Raises:
        InvalidObject: one is none, or none that packets of one pod come from.
    """
    if pod.host_network:
        return ()
    where = f"pod {pod.namespace}/{pod.name}: status.podIPs"
    return tuple(dict.fromkeys(_address(text, where) for text in pod.ips))


def _address(text: str, where: str) -> IpAddress:
    try:
        found = ip_address(text)
    except ValueError:
        found = None
    if found is None or not _is_own(found):
        raise InvalidObject(where, wanted="addresses of one pod alone", found=text)
    return found


def _is_own(address: IpAddress) -> bool:
    if isinstance(address, IPv6Address) and (
        address.scope_id is not None or address.ipv4_mapped is not None
    ):
        return False
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or address.is_reserved
    )


def owners(pods: Iterable[PodAddresses], of_node: Iterable[IpAddress] = ()) -> dict[IpAddress, str]:
    """Return the UID of the pod that has each address, but those of the node itself.

    Of several pods with one address it is the one that was started last: a network plugin gives an
    address again as soon as a sandbox is gone, which may be before the pod is.
    """
    found: dict[IpAddress, Pod] = {}
    for pod, addresses in pods:
        for address in addresses:
            other = found.get(address)
            if other is None or _age(other) < _age(pod):
                found[address] = pod
    taken = set(of_node)
    return {address: pod.uid for address, pod in found.items() if address not in taken}


def _age(pod: Pod) -> tuple[bool, float, str]:
    start = _LATE if pod.start_time is None else pod.start_time
    return (pod.gone_by is None, start, pod.uid)


def classes(
    qos: ResourceQoS, total: Quantity, link: int | None
) -> tuple[tuple[ClassRates, ...], Problems]:
    """Return the classes of the node's interface, and what of the NodeSLO could not be used.

    None at all where another agent is to do it, or nobody knows what the interface can send.
    total is systemStrategy.totalNetworkBandwidth in bits/s, 0 for unknown; link the speed of the
    interface in bytes/s, None for unknown. A class without enable is none: its pods' packets go
    to SYSTEM.
    """
    if qos.policies.network is not NetQoSPolicy.TC:
        return (), ()
    problems: list[InvalidObject] = []
    most = _total(total, link, problems)
    if most < 4 * MIN_RATE:
        return (), tuple(problems)
    left = most - MIN_RATE  # what SYSTEM has in any case
    found = []
    for minor, name, settings in ((LS, "lsClass", qos.ls.network), (BE, "beClass", qos.be.network)):
        if settings.enable:
            where = f"{name}.networkQOS"
            rate, ceil = _rates(settings, most, where, problems)
            room = max(left, MIN_RATE)
            if rate > room:
                wanted = f"an egressRequest that is left of the bandwidth ({room * 8} bits/s)"
                problems.append(InvalidObject(where, wanted=wanted, found=rate * 8))
            rate = min(rate, room)
            left -= rate
            found.append(ClassRates(minor, LINK, rate, ceil, minor - 1))
    rest = max(most - sum(each.rate for each in found), MIN_RATE)
    first = (ClassRates(LINK, 0, most, most, 0), ClassRates(SYSTEM, LINK, rest, most, 1))
    return (*first, *found), tuple(problems)


def _total(total: Quantity, link: int | None, problems: list[InvalidObject]) -> int:
    """Return the bandwidth in bytes/s, 0 for unknown: at most that of the link."""
    where, bits = "systemStrategy.totalNetworkBandwidth", total.integer
    most = min(link or MAX_RATE, MAX_RATE)
    if bits < 0 or (link and bits > most * 8):
        wanted = f"a quantity of bits/s, at most the link's {most * 8}"
        problems.append(InvalidObject(where, wanted=wanted, found=str(total)))
    if bits <= 0:
        return most if link else 0
    return min(bits // 8, most)


def _rates(
    settings: NetworkQoS, most: int, where: str, problems: list[InvalidObject]
) -> tuple[int, int]:
    """Return rate and ceil in bytes/s, MIN_RATE <= rate <= ceil <= most."""
    ceil = bytes_per_second(settings.egress_limit, most, f"{where}.egressLimit", problems) or most
    rate = bytes_per_second(settings.egress_request, most, f"{where}.egressRequest", problems)
    if rate > ceil:
        wanted = f"at most egressLimit ({ceil * 8} bits/s)"
        problems.append(InvalidObject(f"{where}.egressRequest", wanted=wanted, found=rate * 8))
    ceil = max(ceil, MIN_RATE)
    return min(max(rate, MIN_RATE), ceil), ceil


class VethPeers:
    """Looks for them, for one plugin; each process once, and again while it has none."""

    def __init__(self, plugin: ExtensionPlugin) -> None:
        self._plugin = plugin
        self._lists = ProcessLists(plugin)
        self._found: dict[Process, str] = {}

    def begin(self) -> None:
        """Forget what was found."""
        self._lists.begin()
        self._found = {}

    async def of(self, pods: Sequence[PodMeta]) -> dict[str, str]:
        """Return the name of the node's end by the pod's UID; none for a pod without one."""
        groups = {meta.uid: group for meta in pods if (group := _group(meta))}
        lists = await self._lists.of(list(groups.values()))
        processes = {
            uid: by_pid(found)[0] for uid, group in groups.items() if (found := lists.get(group))
        }
        kept = {each: self._found[each] for each in processes.values() if each in self._found}
        self._found = kept | await self._look([e for e in processes.values() if e not in kept])
        return {
            uid: self._found[process]
            for uid, process in processes.items()
            if process in self._found
        }

    async def _look(self, processes: Sequence[Process]) -> dict[Process, str]:
        if not processes:
            return {}
        kernel = self._plugin.kernel
        names = await kernel.read_many(
            [(resources.PROCESS_INTERFACE, str(each.pid)) for each in processes]
        )
        # A pid may have become another process's meanwhile.
        starts = await kernel.read_many(
            [(resources.PROCESS_START, str(each.pid)) for each in processes]
        )
        return {
            process: name.value
            for process, name, start in zip(processes, names, starts, strict=True)
            if name is not None
            and is_interface_name(name.value)
            and start is not None
            and start.value == process.start_time
        }


def _group(meta: PodMeta) -> str:
    """The cgroup of a process that is in the pod's network namespace: of its sandbox, if known."""
    return meta.sandbox or next((each.cgroup for each in containers_of(meta)), "")


CLASS_OF = {
    QoSClass.SYSTEM: SYSTEM,
    QoSClass.LSE: LS,
    QoSClass.LSR: LS,
    QoSClass.LS: LS,
    QoSClass.BE: BE,
}
_BYTES_OF_MEGABIT = 125_000
_NODE = "node"  # scope of the claim for the node's interface
_PEER, _HOST = "end", "host"  # beginnings of scopes by pod: its end, and in the node's network


class TCNetworkQoS(PodRoundsPlugin[PodLimits]):
    """Reconciles traffic classes with the NodeSLO, pods' labels, annotations and addresses."""

    gates = ("TCNetworkQoS",)
    follows = (StateType.NODE_SLO_SPEC,)
    may_claim: ClassVar[tuple[ClaimScope, ...]] = (
        ClaimScope(resources.TRAFFIC_CLASSES, Level.INTERFACE),
        ClaimScope(resources.NET_PRIORITY, Level.POD),
        ClaimScope(resources.NET_PRIORITY, Level.CONTAINER),
    )

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self.settings = PodSettings(self.pod_settings, self.rejections, otherwise=PodLimits())
        self._addresses: PodSettings[tuple[Address, ...]] = PodSettings(
            addresses_of, Rejections(self), otherwise=()
        )
        self._peers = VethPeers(self)
        self._limited = self.metrics.gauge(
            "limited_pods",
            "Pods with a limit of their own that is asked of the kernel.",
            {"direction": ("ingress", "egress")},
        )
        self._unknown = self.metrics.gauge(
            "unclassified_pods",
            "Pods of a class, or with a limit, whose packets cannot be distinguished from others.",
        )
        self._bandwidth = self.metrics.gauge(
            "class_bytes_per_second",
            "What a class of the node's interface has in any case (rate), and at most (ceil).",
            {"class": ("link", *NAMES.values()), "bound": ("rate", "ceil")},
        )

    def begin(self) -> None:
        super().begin()
        self._peers.begin()
        self._slo: NodeSLO | None = None
        self._interface = ""
        self._speed: int | None = None  # bytes/s
        self._problems = 0  # of the NodeSLO's settings
        self._made_of: object = None  # what the text of the tree follows from
        self._text = ""
        self._numbers: dict[str, int] | None = None  # by UID; None: what is there is not known

    def pod_settings(self, pod: Pod) -> PodLimits:
        return pod_limits(pod.annotations, place(pod, ANNOTATION))

    async def reconcile(self) -> None:
        """Bring the interfaces up to the present states."""
        slo = self.states.node_slo()
        self._slo = slo if slo is not None else self._slo
        if self._slo is None:
            return
        pods = list(pods_of(self.states))
        uids = [meta.uid for meta in pods]
        self.settings.keep(uids)
        self._addresses.keep(uids)
        await self._look_for_interface()
        if self._slo.resource_qos.policies.network is NetQoSPolicy.TC:
            rates = self._rates(self._slo)
            traffic = list(self._traffic(pods))
        else:
            rates, traffic, pods = (), [], []
        await self._keep_node(rates, traffic, pods)
        await self._keep_peers(pods)

    async def _look_for_interface(self) -> None:
        """Find the interface of the default route; what was known last stays while it has none."""
        found = await self.kernel.read_many(
            [(resources.DEFAULT_INTERFACE, ""), (resources.DEFAULT_INTERFACE_6, "")]
        )
        names = [reading.value for reading in found if reading is not None]
        name = next((name for name in names if is_interface_name(name)), self._interface)
        if name != self._interface:
            self._interface, self._speed, self._numbers = name, None, None
        if name:
            speed = await self.kernel.read(resources.INTERFACE_SPEED, name)
            if speed is not None and speed > 0:
                self._speed = speed * _BYTES_OF_MEGABIT

    def _rates(self, slo: NodeSLO) -> tuple[ClassRates, ...]:
        total = slo.system.total_network_bandwidth
        rates, problems = classes(slo.resource_qos, total, self._speed)
        for at, err in enumerate(problems):
            self.rejections.reject(f"rates/{at}", err)
        for at in range(len(problems), self._problems):
            self.rejections.accept(f"rates/{at}")
        self._problems = len(problems)
        return rates

    def _traffic(self, pods: Sequence[PodMeta]) -> Iterator[PodTraffic]:
        """The pods of a class or with a limit, with the addresses that are theirs alone."""
        addressed = [PodAddresses(meta.pod, self._addresses.of(meta.pod) or ()) for meta in pods]
        self._owners = owners(addressed, _addresses_of_node(self.states.node()))
        for pod, addresses in addressed:
            limits = self.settings.of(pod) or PodLimits()
            minor = CLASS_OF.get(pod.raw_qos_class, SYSTEM)
            if minor != SYSTEM or limits.egress:
                own = tuple(each for each in addresses if self._owners.get(each) == pod.uid)
                yield PodTraffic(pod.uid, minor, own, limits.egress)

    async def _keep_node(
        self, rates: tuple[ClassRates, ...], pods: list[PodTraffic], metas: Sequence[PodMeta]
    ) -> None:
        on_host = {meta.uid: meta for meta in metas if meta.pod.host_network}
        if on_host and not await self._has_priorities():
            pods, on_host = await self._matched_by_sockets(pods, on_host), {}
        distinct = [pod for pod in pods if pod.addresses or pod.group or pod.uid in on_host][
            :MAX_PODS
        ]
        limited = [pod.uid for pod in distinct if pod.limit]
        minors = {each.minor for each in rates}
        wanted = bool(limited or minors & {LS, BE})
        lacks = "" if rates or not pods else "no classes: the interface's bandwidth is not known"
        self.degrade(lacks and f"{lacks}, and the NodeSLO has none", part="bandwidth")
        claims, leaves = [], dict[str, int]()
        if self._interface and rates and wanted:
            numbers = await self._numbers_of(limited)
            names = " and ".join(NAMES[minor] for minor in (LS, BE) if minor in minors)
            claim = Claim(
                target=Target.interface(self._interface),
                resource=resources.TRAFFIC_CLASSES,
                value=self._text_of(rates, distinct, numbers),
                reason=f"classes of the NodeSLO: {names or 'none'}; {len(limited)} limits of pods",
                inputs={"bandwidth": rates[0].ceil, "pods": len(distinct)},
            )
            claims.append(claim)
            leaves = {pod.uid: leaf_of(pod, minors, numbers) for pod in distinct}
        await self.keep(_NODE, claims)
        await self._keep_priorities({uid: on_host[uid] for uid in on_host.keys() & leaves}, leaves)
        unknown = len(pods) - len(distinct) if claims else 0
        self.degrade(
            f"{unknown} pods have the node's addresses, or none of their own: their packets "
            "count as SYSTEM, without limits"
            if unknown
            else "",
            part="addresses",
        )
        self._unknown.set(unknown)
        self._limited.set(len(limited) if claims else 0, direction="egress")
        self._show(rates if claims else ())

    def _text_of(
        self, rates: tuple[ClassRates, ...], pods: list[PodTraffic], numbers: dict[str, int]
    ) -> str:
        """The text of a tree; it is made anew only for something else: 5 ms of 150 pods."""
        if self._made_of != (rates, pods, numbers):
            self._made_of = (rates, pods, numbers)
            self._text = str(node_tree(rates, pods, numbers))
        return self._text

    async def _numbers_of(self, limited: list[str]) -> dict[str, int]:
        """The numbers of pods' classes; after a start, those that the kernel has."""
        if self._numbers is None:
            found = await self.kernel.read(resources.TRAFFIC_CLASSES, self._interface)
            try:
                self._numbers = recovered(parse_tree(found or ""), self._owners)
            except ValueError:  # there is nothing of ours
                self._numbers = {}
        self._numbers = numbered(limited, self._numbers)
        return self._numbers

    async def _has_priorities(self) -> bool:
        """Whether the kernel takes a class from the cgroup of the socket."""
        group = self.kernel.layout.qos_dir(KubeQoS.GUARANTEED)
        return await self.kernel.supports(resources.NET_PRIORITY, group)

    async def _matched_by_sockets(
        self, pods: list[PodTraffic], on_host: Mapping[str, PodMeta]
    ) -> list[PodTraffic]:
        """The pods, those in the node's network with the cgroup that the kernel matches."""
        metas = [on_host[pod.uid] for pod in pods if pod.uid in on_host]
        found = await self.kernel.read_many([(resources.SOCKET_GROUP, m.cgroup) for m in metas])
        groups = {
            meta.uid: reading.value
            for meta, reading in zip(metas, found, strict=True)
            if reading is not None
        }
        return [pod._replace(group=groups.get(pod.uid)) for pod in pods]

    async def _keep_priorities(
        self, metas: Mapping[str, PodMeta], leaves: Mapping[str, int]
    ) -> None:
        """Claim the traffic classes of pods in the node's network."""
        wanted: dict[str, list[Claim]] = {}
        for uid, meta in metas.items():
            if leaves[uid] != DEFAULT:
                targets = [Target.of_pod(meta)]
                targets += [Target.of_container(meta, each) for each in containers_of(meta)]
                wanted[f"{_HOST}/{uid}"] = [
                    Claim(
                        target=target,
                        resource=resources.NET_PRIORITY,
                        value={self._interface: MAJOR | leaves[uid]},
                        reason="the pod is in the node's network, so it has no address of its own",
                    )
                    for target in targets
                ]
        await self._keep_scopes(_HOST, wanted)

    async def _keep_scopes(self, kind: str, wanted: Mapping[str, Sequence[Claim]]) -> None:
        for scope in [each for each in self._kept if each.startswith(f"{kind}/")]:
            if scope not in wanted:
                await self.keep(scope, ())
        for scope, claims in wanted.items():
            await self.keep(scope, claims)

    async def _keep_peers(self, pods: Sequence[PodMeta]) -> None:
        """Limit what pods receive."""
        metas = {meta.uid: meta for meta in pods}
        limits = {
            meta.uid: found.ingress
            for meta in pods
            if not meta.pod.host_network
            and (found := self.settings.of(meta.pod)) is not None
            and found.ingress
        }
        ends = await self._peers.of([meta for meta in pods if meta.uid in limits])
        taken = {self._interface}
        wanted: dict[str, list[Claim]] = {}
        for uid, name in sorted(ends.items()):
            if name not in taken:
                taken.add(name)
                claim = Claim(
                    target=Target.interface(name, metas[uid]),
                    resource=resources.TRAFFIC_CLASSES,
                    value=str(pod_tree(limits[uid])),
                    reason=f"ingressLimit in the pod's annotation {ANNOTATION}",
                    inputs={"limit": limits[uid]},
                )
                wanted[f"{_PEER}/{uid}"] = [claim]
        await self._keep_scopes(_PEER, wanted)
        self._limited.set(len(wanted), direction="ingress")
        missing = len(limits) - len(wanted)
        self.degrade(
            f"{missing} pods with an ingressLimit have no virtual interface (veth) of their own, "
            "or it is not known yet"
            if missing
            else "",
            part="ends",
        )

    def _show(self, rates: Sequence[ClassRates]) -> None:
        found = {each.minor: each for each in rates}
        for minor, name in {LINK: "link", **NAMES}.items():
            each = found.get(minor)
            for bound, value in (
                ("rate", each.rate if each else 0),
                ("ceil", each.ceil if each else 0),
            ):
                self._bandwidth.set(value, **{"class": name, "bound": bound})


def _addresses_of_node(node: Node | None) -> Iterator[Address]:
    for each in node.addresses if node else ():
        try:
            yield ip_address(each.address)
        except ValueError:  # a name
            continue


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("TCNetworkQoS", None, TCNetworkQoS())
