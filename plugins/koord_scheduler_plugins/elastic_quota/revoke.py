"""Revoking: pods are evicted from quotas that use more than they may for longer than tolerated.

Source: Koordinator, pkg/scheduler/plugins/elasticquota/quota_overuse_revoke.go.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter

from koord.api.elasticquota import SYSTEM_QUOTA, Amounts
from koord.api.podgroup import PodGroup
from koord.plugin import OK, HealthStatus, PartHealth, Stop, get_logger
from koord.plugin.kube import (
    PODS,
    Conflict,
    Event,
    EventType,
    KubeError,
    NotFound,
    ObjectRef,
    TooManyRequests,
)
from koord_scheduler.plugin import ClusterPod, Services, SharedPart
from koord_scheduler_plugins.elastic_quota.checks import list_text
from koord_scheduler_plugins.elastic_quota.preemption import (
    OverUse,
    QuotaPod,
    RunningGangs,
    over_use,
    quota_pod,
    revoked,
)
from koord_scheduler_plugins.elastic_quota.quotas import Quotas

MAX_EVICTIONS = 20  # in one round; the next one goes on
SLICE = 256  # nodes whose pods are looked at in one step

log = get_logger("koord_scheduler.elastic_quota")


class RevokeMetrics:
    """Metrics of revoking."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.evictions = Counter(
            "scheduler_elastic_quota_revoked_pods_total",
            "Pods of quotas that used more than they may, by result: evicted, blocked or error.",
            ["result"],
            registry=registry,
        )


@dataclass(slots=True)
class _Due:
    """A quota that pods are revoked from in this round."""

    used: dict[str, int]  # without what leaves already
    limit: Amounts
    pods: list[QuotaPod] = field(default_factory=list)  # its own ones on nodes


class QuotaRevoker(SharedPart):
    """Evicts pods of quotas that use too much, while this process leads."""

    def __init__(
        self,
        services: Services,
        quotas: Callable[[], Quotas],
        profile: str,
        *,
        delay: float,
        interval: float,
        pod_groups: Mapping[str, PodGroup] | None = None,
    ) -> None:
        """delay: seconds that use above the limit is tolerated. interval: seconds between rounds.

        pod_groups: those of the cluster, by namespace/name; live.

        profile: the scheduler name that events are from.
        """
        self._services = services
        self._quotas = quotas
        self._profile = profile
        self._delay = delay
        self._interval = interval
        self._metrics = services.metrics.own(RevokeMetrics)
        self._pod_groups = {} if pod_groups is None else pod_groups
        self._over: dict[str, OverUse] = {}
        self._error = ""

    async def run(self, stop: Stop) -> None:
        """Look at all quotas again and again until stop. How long each was over starts anew."""
        self._over.clear()
        while not await stop.sleep(self._interval):
            await self._round()

    async def wait_ready(self) -> None:
        """No cycle waits for it."""

    def health(self) -> PartHealth:
        """Degraded while pods cannot be evicted."""
        return PartHealth(HealthStatus.DEGRADED, self._error) if self._error else OK

    async def _round(self) -> None:
        quotas, before = self._quotas(), self._over
        due = self._due(quotas)
        if not due:
            return
        gangs = RunningGangs(self._pod_groups)
        await self._add_pods(quotas, due, gangs)
        left = MAX_EVICTIONS
        for name, found in due.items():
            victims = revoked(found.pods, found.used, found.limit, gangs.spare)
            if len(victims) > left:
                self._over[name] = before[name]  # the next round goes on
            for victim in victims[:left]:
                await self._evict(victim, found)
                gangs.lose(victim.gang)
            left -= len(victims[:left])

    def _due(self, quotas: Quotas) -> dict[str, _Due]:
        """Quotas that have used too much for too long."""
        now, due, states = self._services.clock.monotonic(), {}, {}
        for name in quotas.index.trees:
            state = quotas.state_of(name)
            if state is None or name == SYSTEM_QUOTA:
                continue
            used, limit = state.used(name), state.limit(name)
            known = self._over.get(name, OverUse(now))
            states[name], is_due = known.next(now, self._delay, over=bool(over_use(used, limit)))
            if is_due:
                due[name] = _Due(dict(used), limit)
        self._over = states
        return due

    async def _add_pods(self, quotas: Quotas, due: Mapping[str, _Due], gangs: RunningGangs) -> None:
        clock, nodes = self._services.clock, self._services.cluster.view()
        for row in range(len(nodes)):
            if row % SLICE == SLICE - 1:
                await clock.sleep(0)
            for pod in nodes.pods(row):
                gangs.count(pod)
            self._add_pods_of(quotas, due, nodes.pods(row))

    def _add_pods_of(
        self, quotas: Quotas, due: Mapping[str, _Due], pods: Collection[ClusterPod]
    ) -> None:
        for pod in pods:
            name = None if pod.finished else quotas.quota_of(pod)
            found = None if name is None else due.get(name[0])
            if name is None or found is None:
                continue
            if not pod.deleting:
                found.pods.append(quota_pod(pod, name[0], quotas.options.request(pod)))
            elif quotas.counts(pod):
                for key, amount in quotas.options.request(pod).items():
                    found.used[key] = found.used.get(key, 0) - amount

    async def _evict(self, pod: QuotaPod, found: _Due) -> None:
        """Evict exactly this pod; a PodDisruptionBudget may forbid it for now."""
        namespace, _, name = pod.key.partition("/")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = PODS.object(name, namespace=namespace, subresource="eviction")
        facts = {"pod": pod.key, "quota": pod.quota}
        try:
            await self._services.client.post(path, body)
        except (NotFound, Conflict):
            return  # it has gone, or its name is another pod's now
        except TooManyRequests as err:
            self._metrics.evictions.labels("blocked").inc()
            log.info("pod.revoke_blocked", **facts, error=str(err))
            return
        except KubeError as err:
            self._metrics.evictions.labels("error").inc()
            if not self._error:
                log.warning("pod.revoke_failed", **facts, error=str(err))
            self._error = f"pod {pod.key} of quota {pod.quota} cannot be evicted: {err}"
            return
        self._error = ""
        self._metrics.evictions.labels("evicted").inc()
        used, limit = list_text(found.used), list_text(found.limit)
        log.info("pod.revoked", **facts, used=used, limit=limit)
        text = f"quota {pod.quota} uses more than it may: used: {used}, runtime: {limit}"
        about = ObjectRef("v1", "Pod", name, namespace, pod.uid)
        self._services.events.emit(
            Event(about, EventType.WARNING, "QuotaRevoked", text[:1000], self._profile)
        )
