"""Keep containers on the CPUs that the scheduler has given them, or on those that they share."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.annotations import RESOURCE_STATUS, ResourceStatus, resource_status
from koord.api.kubelet import STATIC
from koord.api.node import SYSTEM_QOS_RESOURCE, SystemQoS
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.plugin import InvalidObject
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    CpuPool,
    FlagSet,
    Level,
    MetricCache,
    NodeTopology,
    PluginRegistry,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.kernel import Part
from koordlet.plugin.metrics import PluginMetrics, UpstreamGauge
from koordlet.plugin.pods import ReconcilingPlugin, containers_of, host_applications

OWN_CPUS = frozenset({QoSClass.LSE, QoSClass.LSR})  # classes of pods that may have some


@dataclass(frozen=True, slots=True)
class Pools:
    """The CPUs of a node by the pods that may use them."""

    ls: tuple[CpuPool, ...]
    be: tuple[CpuPool, ...]
    system: frozenset[int] = frozenset()  # of pods of class SYSTEM; empty: none of their own
    by_kubelet: bool = False  # its static policy chooses the CPUs of pods without a class


@dataclass(frozen=True, slots=True)
class CpusetRule:
    """Settings for all pods. pools None: the node's topology is not known."""

    pools: Pools | None
    be_by_numa: bool = False  # whether BE pods are held to their NUMA nodes


class AssignedCpus(NamedTuple):
    """The class and the CPUs in a pod's label and annotation."""

    qos: QoSClass  # LSR for a pod without a class that has CPUs of its own
    status: ResourceStatus


class Choice(NamedTuple):
    """The CPUs for a container, and the reason."""

    cpus: frozenset[int]
    reason: str


def pools_of(topology: NodeTopology) -> Pools:
    """Return the CPUs of a node by the pods that may use them.

    Raises:
        InvalidObject: the CPUs that are set aside for the system are malformed.
    """
    return Pools(
        ls=topology.ls_pools,
        be=topology.be_pools,
        system=_system_cpus(topology.system_qos or SystemQoS()),
        by_kubelet=topology.cpu_manager.policy == STATIC,
    )


def _system_cpus(system: SystemQoS) -> frozenset[int]:
    try:
        return system.cpus
    except ValueError as err:
        where = f"node: {SYSTEM_QOS_RESOURCE}.cpuset"
        raise InvalidObject(where, wanted="a list of CPUs", found=system.cpuset) from err


def pod_cpus(pod: Pod) -> AssignedCpus:
    """Return the CPUs that the scheduler has chosen for a pod, and the pod's class.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    status, qos = resource_status(pod), pod.raw_qos_class
    if qos is QoSClass.NONE and status.cpus:
        qos = QoSClass.LSR
    return AssignedCpus(qos, status)


def choose_cpus(pod: AssignedCpus, kube_qos: KubeQoS, rule: CpusetRule) -> Choice | None:
    """Return the CPUs for the containers of a pod; None: this plugin makes no claim.

    kube_qos is that of the pod's cgroup.
    """
    if pod.status.cpus:
        return Choice(pod.status.cpus, f"CPUs of the pod's own, by {RESOURCE_STATUS}")
    pools = rule.pools
    if pools is None:
        return None
    if pod.qos is QoSClass.SYSTEM and pools.system:
        return Choice(pools.system, "CPUs that the node sets aside for the system")
    has_cpu = any(entry.has_cpu for entry in pod.status.numa)
    if has_cpu and (pod.qos is not QoSClass.BE or rule.be_by_numa):
        nodes = sorted({entry.node for entry in pod.status.numa})
        return _of_nodes(pools.be if pod.qos is QoSClass.BE else pools.ls, nodes)
    if pod.qos is not QoSClass.LS and (kube_qos is KubeQoS.BEST_EFFORT or pools.by_kubelet):
        return None
    return shared_cpus(pools)


def shared_cpus(pools: Pools) -> Choice | None:
    """Return the CPUs that all LS pods share; None: there are none."""
    return _union(pools.ls, "CPUs that pods of this node share")


def _of_nodes(pools: Collection[CpuPool], nodes: list[int]) -> Choice | None:
    """The shared CPUs of NUMA nodes; all shared CPUs when those nodes have none."""
    names = ", ".join(map(str, nodes))
    here = [pool for pool in pools if pool.node in nodes and pool.cpus]
    if here:
        return _union(here, f"shared CPUs of NUMA node {names}, by {RESOURCE_STATUS}")
    return _union(pools, f"all shared CPUs, as NUMA node {names} has none")


def _union(pools: Iterable[CpuPool], reason: str) -> Choice | None:
    cpus = frozenset(cpu for pool in pools for cpu in pool.cpus)
    return Choice(cpus, reason) if cpus else None


_PREFIX = "koordlet_cpuset_"


class _PoolMetrics:
    """The metrics of one kind of pool."""

    def __init__(self, metrics: PluginMetrics, kind: str, pods: str) -> None:
        self._cores = metrics.upstream_gauge(
            f"{_PREFIX}{kind}_cpu_cores", f"CPUs that {pods} pods share.", ["node"]
        )
        self._info: UpstreamGauge = metrics.upstream_gauge(
            f"{_PREFIX}{kind}_info",
            f"1 for each CPU that {pods} pods share, with the gate PerCPUMetric.",
            ["node", "cpu"],
        )

    def show(self, node: str, pools: tuple[CpuPool, ...], *, per_cpu: bool) -> None:
        cpus = sorted(cpu for pool in pools for cpu in pool.cpus)
        self._cores.replace({(node,): len(cpus)})
        self._info.replace({(node, str(cpu)): 1.0 for cpu in cpus if per_cpu})


class PoolMetrics:
    """Exports the pools, anew only after a change."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self._ls = _PoolMetrics(metrics, "share_pool", "LS")
        self._be = _PoolMetrics(metrics, "be_share_pool", "BE")
        self._shown: tuple[str, Pools, bool] | None = None

    def show(self, node: str, pools: Pools, *, per_cpu: bool) -> None:
        """Export the pools of a node. per_cpu: each CPU, too."""
        if self._shown == (node, pools, per_cpu):
            return
        self._shown = (node, pools, per_cpu)
        self._ls.show(node, pools.ls, per_cpu=per_cpu)
        self._be.show(node, pools.be, per_cpu=per_cpu)


NAME = "CPUSetAllocator"
BE_MANAGER, PER_CPU = "BECPUManager", "PerCPUMetric"
NO_LIMIT = -1
_APPLICATIONS = "host applications"  # a scope of claims
_KEY = "node system-qos-resource"
# LS: the class of a burstable pod without a label that has CPUs of its own
_QUOTA_CLASSES = frozenset({*OWN_CPUS, QoSClass.LS})


class CPUSetAllocator(ReconcilingPlugin[CpusetRule, AssignedCpus]):
    """Keeps the cpusets of containers and sandboxes."""

    gates = (NAME,)
    modes = (BE_MANAGER, PER_CPU)
    may_claim = (
        ClaimScope(resources.CPUSET_CPUS_WANTED, Level.CONTAINER, part=Part.PIN),
        ClaimScope(resources.CPUSET_CPUS_WANTED, Level.POD, part=Part.PIN),
        ClaimScope(resources.CPU_QUOTA, Level.POD, _QUOTA_CLASSES),
        ClaimScope(resources.CPU_QUOTA, Level.CONTAINER, _QUOTA_CLASSES),
    )
    follows = (StateType.NODE_TOPOLOGY, StateType.NODE_SLO_SPEC)

    def init_flags(self, flags: FlagSet) -> None:
        super().init_flags(flags)
        self._keeps_quota = flags.bool(
            "disable-unset-cpu-quota", False, "Leave pods with CPUs of their own their CPU quota"
        )

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._pools: Pools | None = None
        self._pool_metrics = PoolMetrics(self.metrics)

    def rule(self) -> CpusetRule:
        self._refresh_pools()
        node = self.states.node()
        if node is not None and self._pools is not None:
            self._pool_metrics.show(node.name, self._pools, per_cpu=self.gate(PER_CPU))
        return CpusetRule(self._pools, self.gate(BE_MANAGER))

    def pod_settings(self, pod: Pod) -> AssignedCpus:
        return pod_cpus(pod)

    def claims(
        self, meta: PodMeta, pod_settings: AssignedCpus, rule: CpusetRule
    ) -> Iterator[Claim]:
        unlimited = _is_unlimited(meta, pod_settings) and not self._keeps_quota.value
        if unlimited:
            yield _no_quota(Target.of_pod(meta))
        choice = choose_cpus(pod_settings, meta.kube_qos, rule)
        for target in _places(meta):
            if choice is not None:
                yield _cpuset(target, choice)
            if unlimited:
                yield _no_quota(target)

    async def reconcile(self) -> None:
        await super().reconcile()
        await self.keep(_APPLICATIONS, self._application_claims())

    def _application_claims(self) -> Iterator[Claim]:
        """Host applications of class LS share CPUs with the pods; other classes get no claim."""
        choice = shared_cpus(self._pools) if self._pools else None
        for app in host_applications(self.states) if choice else ():
            if choice and app.qos == QoSClass.LS:
                yield _cpuset(Target.of_host_application(self.kernel.layout, app), choice)

    def _refresh_pools(self) -> None:
        """Read the present topology; the last usable one stays in force."""
        topology = self.states.node_topology()
        if topology is None:
            return
        try:
            self._pools = pools_of(topology)
        except InvalidObject as err:
            self.rejections.reject(_KEY, err)
        else:
            self.rejections.accept(_KEY)


def _is_unlimited(meta: PodMeta, pod_settings: AssignedCpus) -> bool:
    """Whether a pod has CPUs of its own, which a quota would only take time from."""
    return (
        bool(pod_settings.status.cpus)
        and pod_settings.qos in OWN_CPUS
        and meta.qos in _QUOTA_CLASSES
    )


def _places(meta: PodMeta) -> Iterator[Target]:
    for container in containers_of(meta):
        yield Target.of_container(meta, container)
    if meta.sandbox:
        yield Target.below_pod(meta, meta.sandbox)


def _cpuset(target: Target, choice: Choice) -> Claim:
    return Claim(
        target=target,
        resource=resources.CPUSET_CPUS_WANTED,
        part=Part.PIN,
        value=choice.cpus,
        reason=choice.reason,
        inputs={"cpus": len(choice.cpus)},
    )


def _no_quota(target: Target) -> Claim:
    return Claim(
        target=target,
        resource=resources.CPU_QUOTA,
        value=NO_LIMIT,
        reason="no CPU quota: the pod has CPUs of its own",
    )


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, CPUSetAllocator())
