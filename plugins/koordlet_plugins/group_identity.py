"""Set the group identity of pods, by which Anolis and Alibaba Cloud kernels favour LS pods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.annotations import pod_annotation
from koord.api.gojson import between, shape_of, wire
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import CPUPolicy, CPUQoS, ResourceQoS
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.pods import ReconcilingPlugin, containers_of, host_applications

CPU_QOS = "koordinator.sh/cpuQOS"  # annotation of an LS pod


@dataclass(frozen=True, slots=True)
class Identities:
    """Identities by class; None: CPU QoS of that class is not enabled, which counts as 0."""

    lsr: int | None = None  # of LSE and LSR pods
    ls: int | None = None
    be: int | None = None

    @property
    def enabled(self) -> bool:
        """Whether any class has one."""
        return (self.lsr, self.ls, self.be) != (None, None, None)

    def of_class(self, qos: KubeQoS) -> int:
        """Return the identity of a Kubernetes QoS class's cgroup; Guaranteed's holds all others."""
        return {KubeQoS.BURSTABLE: self.ls, KubeQoS.BEST_EFFORT: self.be}.get(qos) or 0

    def of_pod(self, qos: QoSClass, kube_qos: KubeQoS) -> int:
        """Return the identity of a pod, by the class of its label, else by its Kubernetes class."""
        if qos in self._by_label:
            return self._by_label[qos] or 0
        if kube_qos is KubeQoS.GUARANTEED:
            return (self.ls if self.lsr is None else self.lsr) or 0
        return self.of_class(kube_qos)

    def of_application(self, qos: str) -> int:
        """Return the identity of a host application, by its class in the NodeSLO."""
        return self._by_label.get(qos) or 0

    @property
    def _by_label(self) -> Mapping[str, int | None]:
        lsr, ls, be = self.lsr, self.ls, self.be
        return {QoSClass.LSE: lsr, QoSClass.LSR: lsr, QoSClass.LS: ls, QoSClass.BE: be}


def identities(settings: ResourceQoS) -> Identities:
    """Return the identities in a NodeSLO; with another CPU policy there are none."""
    if settings.policies.cpu is not CPUPolicy.GROUP_IDENTITY:
        return Identities()
    return Identities(*(_identity(one.cpu) for one in (settings.lsr, settings.ls, settings.be)))


def _identity(settings: CPUQoS) -> int | None:
    return settings.group_identity if settings.enable else None


@dataclass(frozen=True, slots=True)
class _PodCPUQoS:
    """The annotation. None: not set."""

    enable: bool | None = wire("enable")
    group_identity: int | None = wire("groupIdentity", limit=between(-1, 2))


class PodIdentity(NamedTuple):
    """The class and identity in a pod's label and annotation."""

    qos: QoSClass  # of its label; may be NONE
    own: int | None = None  # instead of that of its class
    forgotten: bool = False  # the annotation has an identity without enable, which makes it 0


_STRUCT = shape_of(_PodCPUQoS)


def pod_identity(pod: Pod) -> PodIdentity:
    """Return the identity in a pod's label and annotation; only LS pods may have an annotation.

    Raises:
        InvalidObject: the annotation is malformed, or its identity is not within -1 to 2.
    """
    qos = pod.raw_qos_class
    found = pod_annotation(pod, CPU_QOS, _STRUCT)
    if found is None or qos is not QoSClass.LS:
        return PodIdentity(qos)
    if not found.enable:
        return PodIdentity(qos, 0, found.enable is None and found.group_identity is not None)
    return PodIdentity(qos, found.group_identity)


NAME = "GroupIdentity"
_CLASSES = "QoS classes"  # scopes of claims
_APPLICATIONS = "host applications"
_SWITCHES = "switches"


class GroupIdentity(ReconcilingPlugin[Identities, PodIdentity]):
    """Keeps the group identities of QoS classes, pods and containers."""

    gates = (NAME,)
    may_claim = (
        *(
            ClaimScope(resources.CPU_BVT, level)
            for level in (Level.QOS, Level.POD, Level.CONTAINER)
        ),
        ClaimScope(resources.SCHED_GROUP_IDENTITY, Level.NODE),
        ClaimScope(resources.SCHED_CORE, Level.NODE),
    )
    follows = (StateType.NODE_SLO_SPEC,)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._supported: bool | None = None  # None: not known before there are pods
        self._has_switch = False
        self._stuck = ""  # why the kernel's switch cannot be set

    def rule(self) -> Identities | None:
        slo = self.states.node_slo()
        found = identities(slo.resource_qos) if slo else Identities()
        return found if found.enabled else None

    def pod_settings(self, pod: Pod) -> PodIdentity:
        found = pod_identity(pod)
        if found.forgotten:
            self.log.warning(
                "identity.enable_failed",
                pod=f"{pod.namespace}/{pod.name}",
                annotation=CPU_QOS,
                hint='without "enable": true the group identity is 0',
            )
        return found

    def claims(self, meta: PodMeta, pod_settings: PodIdentity, rule: Identities) -> Iterator[Claim]:
        return identity_claims(meta, pod_settings, rule)

    def early_claims(self, meta: PodMeta) -> tuple[Claim, ...]:
        return super().early_claims(meta) if self._supported else ()

    async def reconcile(self) -> None:
        """Reconcile pods, classes and applications, on kernels whose identities are switched on."""
        if not await self._is_supported():
            return
        rule = self.rule()
        if rule is not None and not await self._switch_on():
            return
        await self.keep(_CLASSES, self._class_claims(rule) if rule else ())
        await self.keep(_APPLICATIONS, self._application_claims(rule) if rule else ())
        await super().reconcile()
        if rule is None:
            await self.withdraw_all(scope=_SWITCHES)

    async def _is_supported(self) -> bool:
        if self._supported is None and self.states.pods():
            group = self.kernel.layout.root
            self._has_switch = await self.kernel.supports(resources.SCHED_GROUP_IDENTITY)
            has_file = await self.kernel.supports(resources.CPU_BVT, group)
            self._supported = has_file or self._has_switch
            if not self._supported:
                self.log.info("kernel.unsupported", needs=resources.CPU_BVT.needs)
        return bool(self._supported)

    async def _switch_on(self) -> bool:
        """Switch group identities on, and before that core scheduling off, which excludes them."""
        if not self._has_switch:
            return True
        wanted = {resources.SCHED_GROUP_IDENTITY: 1}
        if await self.kernel.supports(resources.SCHED_CORE):
            wanted = {resources.SCHED_CORE: 0, **wanted}
        for resource, value in wanted.items():
            outcome = await self.claim(
                Target.node(),
                resource,
                value,
                reason="group identities need it, instead of core scheduling",
                scope=_SWITCHES,
            )
            if not outcome.holds:
                self._report_stuck(outcome.message)
                return False
        self._report_stuck("")
        return True

    def _report_stuck(self, why: str) -> None:
        if why and why != self._stuck:
            self.log.warning("identity.switch_failed", error=why)
        self._stuck = why

    def _class_claims(self, rule: Identities) -> Iterator[Claim]:
        for qos in KubeQoS:
            target = Target.qos_class(self.kernel.layout, qos)
            yield _claim(target, rule.of_class(qos), f"CPU QoS of {qos} pods in the NodeSLO")

    def _application_claims(self, rule: Identities) -> Iterator[Claim]:
        for app in host_applications(self.states):
            target = Target.of_host_application(self.kernel.layout, app)
            reason = f"CPU QoS of the host application {app.name}, {app.qos or 'without a class'}"
            yield _claim(target, rule.of_application(app.qos), reason)


def identity_claims(meta: PodMeta, pod_settings: PodIdentity, rule: Identities) -> Iterator[Claim]:
    """Return the claims of a pod, its containers and its sandbox, which all have one identity."""
    if pod_settings.own is None:
        value = rule.of_pod(pod_settings.qos, meta.kube_qos)
        reason = f"CPU QoS of {pod_settings.qos or meta.kube_qos} pods in the NodeSLO"
    else:
        value, reason = pod_settings.own, f"the pod's annotation {CPU_QOS}"
        if pod_settings.forgotten:
            reason += ", which does not say enable"
    yield _claim(Target.of_pod(meta), value, reason)
    for container in containers_of(meta):
        yield _claim(Target.of_container(meta, container), value, reason)
    if meta.sandbox:
        yield _claim(Target.below_pod(meta, meta.sandbox), value, reason)


def _claim(target: Target, value: int, reason: str) -> Claim:
    return Claim(target=target, resource=resources.CPU_BVT, value=value, reason=reason)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, GroupIdentity())
