"""The plugin: claims the CPUs of containers."""

from collections.abc import Iterator

from koord.api.pods.pod import Pod
from koord.api.qos import QoSClass
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    FlagSet,
    InvalidObject,
    Level,
    MetricCache,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.claims import Part
from koordlet.plugin.pods import ReconcilingPlugin, containers_of, host_applications
from koordlet_plugins.cpuset_allocator.poolmetrics import PoolMetrics
from koordlet_plugins.cpuset_allocator.rules import (
    OWN_CPUS,
    AssignedCpus,
    Choice,
    CpusetRule,
    Pools,
    choose_cpus,
    pod_cpus,
    pools_of,
    shared_cpus,
)

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

    def wants(self, pod: Pod) -> AssignedCpus:
        return pod_cpus(pod)

    def claims(self, meta: PodMeta, wants: AssignedCpus, rule: CpusetRule) -> Iterator[Claim]:
        unlimited = _is_unlimited(meta, wants) and not self._keeps_quota.value
        if unlimited:
            yield _no_quota(Target.of_pod(meta))
        choice = choose_cpus(wants, meta.kube_qos, rule)
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


def _is_unlimited(meta: PodMeta, wants: AssignedCpus) -> bool:
    """Whether a pod has CPUs of its own, which a quota would only take time from."""
    return bool(wants.status.cpus) and wants.qos in OWN_CPUS and meta.qos in _QUOTA_CLASSES


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
