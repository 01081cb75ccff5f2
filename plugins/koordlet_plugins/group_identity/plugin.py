"""The plugin: claims group identities on kernels that have them."""

from collections.abc import Iterator

from koord.api.pods.pod import Pod
from koord.api.qos import KubeQoS
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    Level,
    MetricCache,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.pods import ReconcilingPlugin, containers_of, host_applications
from koordlet_plugins.group_identity.rules import (
    CPU_QOS,
    Identities,
    PodIdentity,
    identities,
    pod_identity,
)

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

    def wants(self, pod: Pod) -> PodIdentity:
        found = pod_identity(pod)
        if found.forgotten:
            self.log.warning(
                "identity.not_enabled",
                pod=f"{pod.namespace}/{pod.name}",
                annotation=CPU_QOS,
                hint='without "enable": true the group identity is 0',
            )
        return found

    def claims(self, meta: PodMeta, wants: PodIdentity, rule: Identities) -> Iterator[Claim]:
        return identity_claims(meta, wants, rule)

    def claims_ahead(self, meta: PodMeta) -> tuple[Claim, ...]:
        return super().claims_ahead(meta) if self._supported else ()

    async def reconcile(self) -> None:
        """As ReconcilingPlugin.reconcile, on kernels with identities, once their switch is on."""
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


def identity_claims(meta: PodMeta, wants: PodIdentity, rule: Identities) -> Iterator[Claim]:
    """Return the claims of a pod, its containers and its sandbox, which all have one identity."""
    if wants.own is None:
        value = rule.of_pod(wants.qos, meta.kube_qos)
        reason = f"CPU QoS of {wants.qos or meta.kube_qos} pods in the NodeSLO"
    else:
        value, reason = wants.own, f"the pod's annotation {CPU_QOS}"
        if wants.forgotten:
            reason += ", which does not say enable"
    yield _claim(Target.of_pod(meta), value, reason)
    for container in containers_of(meta):
        yield _claim(Target.of_container(meta, container), value, reason)
    if meta.sandbox:
        yield _claim(Target.below_pod(meta, meta.sandbox), value, reason)


def _claim(target: Target, value: int, reason: str) -> Claim:
    return Claim(target=target, resource=resources.CPU_BVT, value=value, reason=reason)
