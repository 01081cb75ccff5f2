"""Evicts through the API server, and not everywhere."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord.plugin import KoordError
from koord.plugin.args import FieldError, Seconds, invalid, takes_args
from koord_descheduler.plugin import ClusterPod, EvictOptions, Evictor, Handle, check_unique


@dataclass(frozen=True, kw_only=True, slots=True)
class GentleEvictorArgs:
    """How pods end, and which ones stay."""

    grace_period: Seconds = 30.0  # seconds
    protected: tuple[str, ...] = ("kube-system",)  # namespaces

    def validate(self) -> Iterator[FieldError]:
        if self.grace_period < 0:
            yield invalid(("gracePeriod",), self.grace_period, "wanted 0 s or more")
        yield from check_unique(("protected",), self.protected)


@takes_args(GentleEvictorArgs)
class GentleEvictor(Evictor):
    """Filter and evict plugin in one."""

    def __init__(self, args: GentleEvictorArgs, handle: Handle) -> None:
        self._args = args
        self._services = handle.services

    def filter(self, pod: ClusterPod) -> bool:
        return pod.namespace not in self._args.protected and not pod.deleting

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        """No budget that covers the pod may be used up; the API server has the last word."""
        budgets = self._services.cluster.budgets.values()
        return all(budget.allowed > 0 for budget in budgets if budget.covers(pod))

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name},
            "deleteOptions": {
                "gracePeriodSeconds": round(self._args.grace_period),
                # Keeps a new pod of the same name from ending in place of this one.
                "preconditions": {"uid": pod.uid},
            },
        }
        try:
            await self._services.client.post(path, body)
        except KoordError:  # a budget, or it is gone already: the next cycle decides again
            done = False
        else:
            done = True
        self._services.metrics.evicted.count(
            result="success" if done else "error",
            strategy=options.plugin_name,
            namespace=pod.namespace,
            node=pod.node,
        )
        return done
