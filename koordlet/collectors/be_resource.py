"""CPU of best-effort pods: what they may use, what they asked for, what they use."""

from collections.abc import Collection, Iterable, Iterator
from math import floor

from prometheus_client import Metric

from koord.api.pods.requests import BATCH_CPU, pod_request
from koord.api.qos import KubeQoS, QoSClass
from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.rates import Previous
from koordlet.host.resources import CPU_PERIOD, CPU_QUOTA, CPU_USAGE, CPUSET_CPUS
from koordlet.metriccache.kinds import NODE_BE, Cadence
from koordlet.metriccache.sample import Sample
from koordlet.statesinformer.model import PodMeta

_KEY = "cpu"  # the only be_resource that Koordinator knows


def real_limit_milli(cpuset_sizes: Collection[int], quota_us: int, period_us: int) -> int | None:
    """Return the milli-cores that best-effort pods can get at most.

    cpuset_sizes are those of the best-effort group and the containers in it. A size of 0 is a
    cpuset without a setting (v1 creates them so), hence no limit. quota_us is -1 for no limit.
    None: there is no limit at all.
    """
    limits = [size * 1000 for size in cpuset_sizes if size > 0]
    if quota_us >= 0 and period_us > 0:
        limits.append(quota_us * 1000 // period_us)
    return min(limits, default=None)


def usage_milli(increase_ns: int, seconds: float) -> int:
    """Return the milli-cores used, cut the way Koordinator does: to whole milliseconds first."""
    return floor(increase_ns // 1_000_000 / (seconds * 1000) * 1000)


class BEResourceCollector:
    """Samples each of the three figures by itself; what cannot be known is absent."""

    name = "be_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._previous: Previous[int] = Previous(interval)
        self._used_milli: int | None = None
        self._pods: tuple[PodMeta, ...] = ()
        self._requested = 0  # milli-cores, by the best-effort pods of these
        self._groups: tuple[str, ...] = ()  # of their containers

    def collect(self, tick: Tick) -> Iterable[Sample]:
        if tick.pods is not self._pods:
            self._take(tick.pods)
        group = tick.layouts[0].qos_dir(KubeQoS.BEST_EFFORT)
        limit = _real_limit(tick, group, self._groups)
        self._used_milli = usage = self._usage(tick, group)
        yield _sample("request", self._requested)
        if limit is not None:
            yield _sample("real-limit", limit)
        if usage is not None:
            yield _sample("usage", usage)

    def _take(self, pods: tuple[PodMeta, ...]) -> None:
        """Work out what follows from the pods alone, which are seldom others."""
        requesting = (pod.pod for pod in pods if pod.pod.raw_qos_class is QoSClass.BE)
        self._requested = sum(pod_request(pod, BATCH_CPU) for pod in requesting)
        best_effort = (pod for pod in pods if pod.kube_qos is KubeQoS.BEST_EFFORT)
        self._groups = tuple(each.cgroup for pod in best_effort for each in pod.containers)
        self._pods = pods

    def _usage(self, tick: Tick, group: str) -> int | None:
        usage = tick.get_at(CPU_USAGE, group)
        if usage is None:
            return None
        now, at = usage
        before = self._previous.swap(group, now, at)
        if before is None or now < before[0] or at <= before[1]:
            return None
        return usage_milli(now - before[0], at - before[1])

    def families(self) -> Iterator[Metric]:
        used = self._used_milli
        if used is not None:
            yield gauge(
                "koordlet_be_suppress_be_used_cpu_cores",
                "CPU cores that best-effort pods use.",
                ["node"],
                [((self._node,), used / 1000)],
            )


def _sample(allocation: str, milli: int) -> Sample:
    return Sample(NODE_BE, milli, (_KEY, allocation))


def _real_limit(tick: Tick, group: str, containers: tuple[str, ...]) -> int | None:
    own = tick.get(CPUSET_CPUS, group)
    quota, period = tick.get(CPU_QUOTA, group), tick.get(CPU_PERIOD, group)
    if own is None or quota is None or period is None:
        return None
    # A container that has just ended says nothing about the others.
    sizes = [len(found[0]) for found in tick.get_all(CPUSET_CPUS, containers) if found is not None]
    return real_limit_milli([len(own), *sizes], quota, period)
