"""Build the parts that talk to the API server and the kubelet. Imported only in a cluster."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from prometheus_client import CollectorRegistry

from koord.api.machine import NODE_CPU_INFO, Machine, NodeCpuInfo, NumaMemory
from koord.api.node import AddressType, Node
from koord.api.nodeslo import NodeSLO
from koord.component.http.guard import RATE, TokenGuard
from koord.component.supervisor import Component, ComponentSet, GatedComponent, LazyComponent
from koord.kube.authorization import (
    AdmissionCheck,
    Reviews,
    User,
    check_own_node,
    check_pod_allocations,
)
from koord.kube.client import ApiClient, EventMetrics, KubeMetrics
from koord.kube.credentials import ApiConfig, credentials_of
from koord.kube.errors import ConfigError, KubeError
from koord.kube.events import Event, EventRecorder, EventType, ObjectRef
from koord.kube.eviction import PodEvictions
from koord.kube.kubeconfig import find_config
from koord.kube.managedobjects import NODE_METRIC, NODE_SLO, ManagedObject
from koord.kube.transport import Limits, Object, Transport
from koord.util.clock import Clock
from koord.util.filewatch import DirectoryWatch
from koordlet import NAME
from koordlet.collectors.node_info import NODE_NUMA_INFO
from koordlet.daemon.flags import DaemonFlags
from koordlet.daemon.other_agents import OtherAgent
from koordlet.daemon.settings import Settings
from koordlet.host.topology import NumaNode
from koordlet.kubelet import KubeletClient, KubeletMetrics, KubeletOptions, own_pod_uid
from koordlet.manager_fallback import ManagerRoleMode
from koordlet.manager_fallback.roles import ManagerRoleOptions, ManagerRoles
from koordlet.metriccache.cache import MetricCache
from koordlet.reporter.cluster_sink import ClusterSink
from koordlet.reporter.loop import FleetPace
from koordlet.reporter.object_reconciler import TopologyReporter
from koordlet.rules.other_agent import image_of, other_agent_pod
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kube_sources import (
    KubeNodeMetric,
    KubeTopology,
    OwnObjectSource,
    StatusWriters,
    kube_node,
    kube_node_slo,
)
from koordlet.statesinformer.pod_lists import KubeletPods, KubePods, NodePods, PodListGuard
from koordlet.statesinformer.pod_source import PodChangeNotifiers
from koordlet.statesinformer.topology_source import KubeletSource, TopologySource


class NotAllowed(KubeError):
    """A plugin wants to do by hand what dry run, budgets and explanations are there for."""


class PluginClient:
    """Passes requests on, except those that end pods: these go through ExtensionPlugin.evict."""

    available = True

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Return an object or a list."""
        return await self._client.get(path, query)

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection and return it as stored."""
        if _is_about_pods(path, "eviction"):
            raise _not_allowed("create", path)
        return await self._client.create(path, body)

    async def patch(self, path: str, body: object, content_type: str) -> Object:
        """Patch an object and return it as stored."""
        return await self._client.patch(path, body, content_type)

    async def delete(self, path: str) -> None:
        """Delete an object."""
        if _is_about_pods(path):
            raise _not_allowed("delete", path)
        await self._client.delete(path)


def _is_about_pods(path: str, subresource: str = "") -> bool:
    """Whether a request for this path may reach pods, or such a part of one. A server unquotes."""
    parts = unquote(path).partition("?")[0].split("/")
    return "pods" in parts and (not subresource or subresource in parts)


def _not_allowed(verb: str, path: str) -> NotAllowed:
    return NotAllowed(f"{verb} {path}: wanted an eviction, found one by hand; use self.evict()")


@dataclass(frozen=True, slots=True)
class ClusterPods:
    """The parts that a PodSource needs in a cluster."""

    listing: NodePods | KubePods
    alarms: PodChangeNotifiers
    cgroup_events: DirectoryWatch


def build_pods(
    settings: Settings,
    states: StatesInformer,
    clock: Clock,
    *,
    client: ApiClient,
    kubelet: KubeletClient,
) -> ClusterPods:
    """Make the parts; without an interval for the kubelet the API server alone lists pods."""
    alarms = PodChangeNotifiers()
    guard = PodListGuard(alarms.rescan)

    def of_server() -> KubePods:
        return KubePods(client, settings.node_name, guard, clock)

    listing: NodePods | KubePods
    if interval := settings.options.kubelet_sync_interval.value:
        of_kubelet = KubeletPods(kubelet, guard, clock, interval=interval, ask=alarms.repoll)
        listing = NodePods(of_kubelet, of_server, guard, states.node, clock)
    else:
        listing = of_server()
    return ClusterPods(listing, alarms, DirectoryWatch(alarms.rescan.set))


def build_manager_roles(
    options: DaemonFlags,
    *,
    node: OwnObjectSource[Node],
    node_metric: OwnObjectSource[Any],
    node_slo: OwnObjectSource[Any],
    client: ApiClient,
    clock: Clock,
    registry: CollectorRegistry,
    observe_only: Callable[[], Awaitable[str]],
    node_name: str,
    emit: Callable[[Event], None],
) -> ManagerRoles | None:
    """Return the manager roles; None: there are none, or another agent has them.

    observe_only returns, once that is known, why nothing may be written; "": it may be.
    """

    def report(message: str) -> None:
        # On the Node: on the ConfigMap there would be one of each node of the cluster.
        about = ObjectRef("v1", "Node", node_name, uid=node_name)  # as the kubelet's events
        emit(Event(about, EventType.WARNING, "ConfigRejected", message, "koordlet-duties"))

    kept = _managed_objects(options, node_metric, node_slo)
    if not kept:
        return None
    role_options = ManagerRoleOptions(
        mode=options.manager_duties.value,
        config_namespace=options.config_namespace.value,
        config_name=options.slo_config_name.value,
    )
    return ManagerRoles(
        role_options,
        kept,
        node,
        client=client,
        clock=clock,
        registry=registry,
        observe_only=observe_only,
        report=report,
    )


def _managed_objects(
    options: DaemonFlags, node_metric: OwnObjectSource[Any], node_slo: OwnObjectSource[Any]
) -> list[tuple[ManagedObject, OwnObjectSource[Any]]]:
    """The objects to keep: not those that are not used, or that a file stands for.

    With a file for the Node the cluster's is not followed, which has to own the objects.
    """
    if options.manager_duties.value is ManagerRoleMode.OFF or options.node_file.value:
        return []
    kept = [(NODE_METRIC, node_metric)] if options.enable_node_metric_report.value else []
    return kept if options.nodeslo_file.value else [*kept, (NODE_SLO, node_slo)]


GATE = "NodeTopologyReport"
HUGE_PAGES_GATE = "HugePageReport"
_KIB = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The topology is always known to this daemon; its gate decides whether it is reported."""

    source: TopologySource
    report: GatedComponent


def build_topology(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
    *,
    client: ApiClient,
    kubelet: KubeletClient,
    node: OwnObjectSource[Node],
    observe_only: Callable[[], str],
) -> Topology:
    """Make both parts. observe_only is the reason for no report, "" when it may be made."""
    options, gates, name = settings.options, settings.gates, settings.node_name
    interval = options.node_topology_sync_interval.value
    ask = None if options.disable_query_kubelet_config.value else kubelet.configz
    source = TopologySource(
        states,
        clock,
        machine=lambda: _machine(cache),
        kubelet=KubeletSource(ask, settings.paths.kubelet, clock),
        huge_pages=lambda: gates.enabled(HUGE_PAGES_GATE),
        interval=interval,
    )
    own = KubeTopology(client, name, clock)
    reporter = TopologyReporter(
        client,
        name,
        states,
        own,
        clock,
        interval=interval,
        owner=states.node if options.node_file.value else node.current,
        observe_only=observe_only,
    )
    return Topology(
        source=source, report=GatedComponent(gates, GATE, clock, reporter.run, reporter.health)
    )


def _machine(cache: MetricCache) -> Machine | None:
    """The machine as the collector has read it last; None until it has."""
    cpus, nodes = cache.get(NODE_CPU_INFO), cache.get(NODE_NUMA_INFO)
    if not isinstance(cpus, NodeCpuInfo) or not isinstance(nodes, tuple):
        return None
    return Machine(cpus.basics, cpus.topology, {node.id: _memory(node) for node in nodes})


def _memory(node: NumaNode) -> NumaMemory:
    pages = {kib * _KIB: count * kib * _KIB for kib, count in node.huge_pages.items()}
    return NumaMemory(node.memory.total, pages)


EVICTING = "koordlet-qosManager"  # component of the events on evictions, as Koordinator's


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The parts of a daemon in a cluster that a standalone one lacks. Close it at the end."""

    client: ApiClient
    kubelet: KubeletClient
    plugin_client: PluginClient
    events: EventRecorder
    evictions: PodEvictions
    node: OwnObjectSource[Node]
    node_slo: OwnObjectSource[NodeSLO]
    node_metric: KubeNodeMetric
    pods: ClusterPods
    sink: ClusterSink
    pace: FleetPace
    guard: TokenGuard[User]
    topology: Topology
    devices: GatedComponent
    manager_roles: ManagerRoles | None  # None: they are left to others
    check_own_node: Callable[[], Awaitable[AdmissionCheck]]
    check_pod_allocations: Callable[[], Awaitable[AdmissionCheck]]

    def add_to(self, components: ComponentSet) -> None:
        """Add the components that send to the API server, and register their health."""
        components.health.register("tokens", self.guard.health)
        components.runs["events"] = self.events.run
        components.add("topology report", self.topology.report)
        components.add("device report", self.devices)
        if self.manager_roles is not None:
            components.health.register_group(self.manager_roles.name, self.manager_roles.health)
            components.runs[self.manager_roles.name] = self.manager_roles.run

    async def close(self) -> None:
        """Close all connections."""
        await self.kubelet.close()
        await self.client.close()


def connect(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
    registry: CollectorRegistry,
    other_agent: OtherAgent,
) -> Cluster:
    """Make the parts. Nothing is sent yet: the API server may be away.

    Raises:
        ConfigError: it is not clear which API server to use, or as which user.
    """
    options, node = settings.options, settings.node_name
    config = _api_config(settings)
    client, kubelet = _clients(config, options, states, clock, registry)
    events = EventRecorder(
        client,
        node,
        clock,
        count=EventMetrics(registry, NAME).count,
        observe_only=other_agent.wait_observe_only,
    )
    own_node = kube_node(client, node, states, clock, events.emit)
    node_slo = kube_node_slo(client, node, states, clock, events.emit)
    node_metric = KubeNodeMetric(client, node, states, clock, events.emit)
    other_agent.add_signs(
        partial(_pod_sign, config, states, options.other_agent_namespaces.value),
        partial(_writer_sign, node_metric.others),
    )
    return Cluster(
        client=client,
        kubelet=kubelet,
        plugin_client=PluginClient(client),
        events=events,
        evictions=PodEvictions(client, events, clock, EVICTING),
        node=own_node,
        node_slo=node_slo,
        node_metric=node_metric,
        pods=build_pods(settings, states, clock, client=client, kubelet=kubelet),
        sink=ClusterSink(
            client, node, node_metric.target, clock, observe_only=other_agent.wait_observe_only
        ),
        pace=FleetPace(node, node_metric.target, clock),
        guard=_guard(options, client, clock, registry),
        topology=build_topology(
            settings,
            states,
            cache,
            clock,
            client=client,
            kubelet=kubelet,
            node=own_node,
            observe_only=other_agent.observe_only,
        ),
        devices=_device_report(
            settings,
            cache,
            clock,
            client=client,
            owner=states.node if options.node_file.value else own_node.current,
            observe_only=other_agent.observe_only,
        ),
        manager_roles=build_manager_roles(
            options,
            node=own_node,
            node_metric=node_metric,
            node_slo=node_slo,
            client=client,
            clock=clock,
            registry=registry,
            observe_only=other_agent.wait_observe_only,
            node_name=node,
            emit=events.emit,
        ),
        check_own_node=partial(check_own_node, client, node, clock),
        check_pod_allocations=partial(
            check_pod_allocations, client, config.namespace or "default", clock
        ),
    )


def _device_report(
    settings: Settings,
    cache: MetricCache,
    clock: Clock,
    *,
    client: ApiClient,
    owner: Callable[[], Node | None],
    observe_only: Callable[[], str],
) -> GatedComponent:
    def make() -> Component:
        from koordlet.daemon.devices import build_device_report

        return build_device_report(
            settings, cache, clock, client=client, owner=owner, observe_only=observe_only
        )

    late = LazyComponent(make)
    return GatedComponent(settings.gates, "Accelerators", clock, late.run, late.health)


def _pod_sign(config: ApiConfig, states: StatesInformer, namespaces: Collection[str]) -> str:
    """Another koordlet among the pods of this node; "" when there is none."""
    pods = (meta.pod for meta in states.pods())
    found = other_agent_pod(pods, own_pod_uid(config), namespaces)
    if found is None:
        return ""
    return f"pod {found.namespace}/{found.name} runs another koordlet ({image_of(found)})"


def _writer_sign(others: StatusWriters) -> str:
    """Another writer of the reports that are ours to write; "" when there is none."""
    name = others.present
    return f"{name} writes the status of this node's NodeMetric, too" if name else ""


def _api_config(settings: Settings) -> ApiConfig:
    """Return the API server to use, and the user."""
    config = find_config(
        settings.options.kubeconfig.value,
        settings.environ,
        home=Path(settings.environ.get("HOME", "/nonexistent")),
    )
    if config is None:
        raise ConfigError(
            settings.mode.reason,
            wanted="an API server",
            found="no kubeconfig and no service account",
            hint="name a kubeconfig with --kubeconfig, or use --standalone",
        )
    return config


def _clients(
    config: ApiConfig,
    options: DaemonFlags,
    states: StatesInformer,
    clock: Clock,
    registry: CollectorRegistry,
) -> tuple[ApiClient, KubeletClient]:
    """The clients of the API server and of the kubelet, as the same user."""
    credentials = credentials_of(config, clock)  # one for both: an exec plugin may cost seconds
    transport = Transport(
        config,
        clock,
        limits=Limits(qps=options.kube_api_qps.value, burst=options.kube_api_burst.value),
        credentials=credentials,
        observe=KubeMetrics(registry, NAME).observe,
        user_agent=NAME,
    )
    kubelet = KubeletClient(
        config,
        states.node,
        clock,
        _kubelet_options(options),
        credentials=credentials,
        observe=KubeletMetrics(registry).observe,
    )
    return ApiClient(transport, clock), kubelet


def _guard(
    options: DaemonFlags, client: ApiClient, clock: Clock, registry: CollectorRegistry
) -> TokenGuard[User]:
    reviews = Reviews(client, clock, options.auth_token_audiences.value)
    # Reports come first: what strangers cause gets a share of the requests.
    share = options.kube_api_qps.value / 4
    rate = min(RATE, share) if share > 0 else RATE
    return TokenGuard(reviews, clock, registry, name=NAME, rate=rate)


def _kubelet_options(options: DaemonFlags) -> KubeletOptions:
    ca_file = options.kubelet_ca_file.value
    return KubeletOptions(
        address_type=AddressType(options.kubelet_preferred_address_type.value),
        timeout=options.kubelet_sync_timeout.value,
        ca_file=Path(ca_file) if ca_file else None,
        insecure=options.kubelet_insecure_tls.value,
        read_only_port=options.kubelet_read_only_port.value,
    )
