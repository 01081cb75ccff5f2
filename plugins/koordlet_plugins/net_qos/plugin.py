"""The plugin: one claim for the node's interface, and one for the veth peer of each limited pod."""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import ClassVar

from koord.api.annotations import place
from koord.api.networkqos import ANNOTATION, PodLimits, pod_limits
from koord.api.node import Node
from koord.api.nodeslo import NodeSLO
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import NetQoSPolicy
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    ExtensionPlugin,
    Level,
    MetricCache,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.network import MAJOR, Address, is_interface_name, parse_tree
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
from koordlet_plugins.net_qos.traffic import (
    BE,
    DEFAULT,
    LINK,
    LS,
    MAX_PODS,
    NAMES,
    SYSTEM,
    ClassRates,
    PodAddresses,
    PodTraffic,
    addresses_of,
    classes,
    leaf_of,
    node_tree,
    numbered,
    owners,
    pod_tree,
    recovered,
)


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
