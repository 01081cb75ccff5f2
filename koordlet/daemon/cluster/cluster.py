"""The parts that talk to the API server. Imported only where there is one."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from koord.api.nodes.node import AddressType, Node
from koord.api.slo.nodeslo import NodeSLO
from koord.component.components import ComponentSet, Part
from koord.component.gated import Gated, Late
from koord.component.http.tokenguard import RATE, TokenGuard
from koord.kube.access.config import ApiConfig
from koord.kube.access.credentials import credentials_of
from koord.kube.access.findconfig import find_config
from koord.kube.client import ApiClient
from koord.kube.errors import ConfigError
from koord.kube.events import EventRecorder
from koord.kube.eviction import PodEvictions
from koord.kube.metrics import EventMetrics, KubeMetrics
from koord.kube.ownnode import AdmissionCheck, check_own_node
from koord.kube.podallocations import check_pod_allocations
from koord.kube.reviews import Reviews, User
from koord.kube.transport import Limits, Transport
from koord.util.clock import Clock
from koordlet import NAME
from koordlet.daemon.agents.otheragent import OtherAgent
from koordlet.daemon.cluster.pluginclient import PluginClient
from koordlet.daemon.cluster.pods import ClusterPods, build_pods
from koordlet.daemon.report.duties import build_duties
from koordlet.daemon.report.topology import Topology, build_topology
from koordlet.daemon.settings.flags import DaemonFlags
from koordlet.daemon.settings.settings import Settings
from koordlet.kubelet.client import KubeletClient, KubeletOptions
from koordlet.kubelet.metrics import KubeletMetrics
from koordlet.kubelet.ownpod import own_pod_uid
from koordlet.manager_fallback.duties import ManagerDuties
from koordlet.metriccache.cache import MetricCache
from koordlet.reporter.cluster import ClusterSink
from koordlet.reporter.pace import FleetPace
from koordlet.rules.other_agent import image_of, other_agent_pod
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.objects.kubesources import (
    KubeNodeMetric,
    OwnObject,
    kube_node,
    kube_node_slo,
)
from koordlet.statesinformer.objects.statuswriters import StatusWriters

EVICTING = "koordlet-qosManager"  # component of the events on evictions, as Koordinator's


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The parts of a daemon in a cluster that a standalone one lacks. Close it at the end."""

    client: ApiClient
    kubelet: KubeletClient
    plugin_client: PluginClient
    events: EventRecorder
    evictions: PodEvictions
    node: OwnObject[Node]
    node_slo: OwnObject[NodeSLO]
    node_metric: KubeNodeMetric
    pods: ClusterPods
    sink: ClusterSink
    pace: FleetPace
    guard: TokenGuard[User]
    topology: Topology
    devices: Gated
    duties: ManagerDuties | None  # None: they are left to others
    check_own_node: Callable[[], Awaitable[AdmissionCheck]]
    check_pod_allocations: Callable[[], Awaitable[AdmissionCheck]]

    def add_to(self, components: ComponentSet) -> None:
        """Have run what sends to the API server, and register its health."""
        components.health.register("tokens", self.guard.health)
        components.runs["events"] = self.events.run
        components.add("topology report", self.topology.report)
        components.add("device report", self.devices)
        if self.duties is not None:
            components.health.register_group(self.duties.name, self.duties.health)
            components.runs[self.duties.name] = self.duties.run

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
        observe_only=other_agent.judged,
    )
    own_node = kube_node(client, node, states, clock, events.emit)
    node_slo = kube_node_slo(client, node, states, clock, events.emit)
    node_metric = KubeNodeMetric(client, node, states, clock, events.emit)
    other_agent.look_for(
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
        sink=ClusterSink(client, node, node_metric.target, clock, observe_only=other_agent.judged),
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
        duties=build_duties(
            options,
            node=own_node,
            node_metric=node_metric,
            node_slo=node_slo,
            client=client,
            clock=clock,
            registry=registry,
            observe_only=other_agent.judged,
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
) -> Gated:
    def make() -> Part:
        from koordlet.daemon.report.devices import build_device_report

        return build_device_report(
            settings, cache, clock, client=client, owner=owner, observe_only=observe_only
        )

    late = Late(make)
    return Gated(settings.gates, "Accelerators", clock, late.run, late.health)


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
