"""Usage of QoS classes, best-effort pods and host applications."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from math import floor

from prometheus_client import Metric

from koord.api.nodeslo import HostApplication
from koord.api.pod import BATCH_CPU, pod_request
from koord.api.qos import KubeQoS, QoSClass
from koordlet.collectors.engine.collector import FamilySpec, Tick
from koordlet.collectors.engine.usage import (
    HOST_APPS_SLOT,
    KUBEPODS_SLOT,
    NO_USAGE,
    HostAppsUsage,
    PreviousReadings,
    Rates,
    Usage,
)
from koordlet.host.cgroups.layout import host_app_group
from koordlet.host.resources import (
    CPU_PERIOD,
    CPU_QUOTA,
    CPU_USAGE,
    CPUSET_CPUS,
    MEMORY_STAT,
    MEMORY_USAGE,
)
from koordlet.metriccache.kinds import (
    HOST_APP_CPU_USAGE,
    HOST_APP_MEMORY_USAGE,
    HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE,
    NODE_BE,
    QOS_CPU_USAGE,
    QOS_MEMORY_USAGE,
    Cadence,
    Sample,
)
from koordlet.statesinformer.podmeta import PodMeta

GUARANTEED, BURSTABLE, BEST_EFFORT = "guaranteed", "burstable", "besteffort"  # qos_class values


def divide(kubepods: Usage, burstable: Usage | None, best_effort: Usage | None) -> dict[str, Usage]:
    """Return the usage by QoS class.

    Guaranteed pods have no group of their own: they lie in kubepods beside the two groups of the
    other classes, so theirs is the rest, known only when all three were measured.
    """
    measured = {BURSTABLE: burstable, BEST_EFFORT: best_effort}
    classes = {name: usage for name, usage in measured.items() if usage is not None}
    if burstable is not None and best_effort is not None:
        classes[GUARANTEED] = kubepods.minus(burstable).minus(best_effort)
    return classes


_QOS_CPU_USAGE_CORES = FamilySpec(
    "koordlet_qos_cpu_usage_cores",
    "CPU cores that the pods of a Kubernetes QoS class use.",
    ("node", "qos_class"),
    "cores",
)
_QOS_MEMORY_USAGE_BYTES = FamilySpec(
    "koordlet_qos_memory_usage_bytes",
    "Memory that the pods of a Kubernetes QoS class use, without page cache.",
    ("node", "qos_class"),
    "bytes",
)


class QosResourceCollector:
    """Reads three groups, and hands the usage of kubepods as a whole to SystemResourceCollector."""

    name = "qos_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._cpu = Rates(interval)
        self._latest: Mapping[str, Usage] = {}

    def collect(self, tick: Tick) -> Iterable[Sample]:
        self._latest = classes = self._classes(tick)
        for name, usage in classes.items():
            yield Sample(QOS_CPU_USAGE, usage.cpu, (name,))
            yield Sample(QOS_MEMORY_USAGE, usage.memory, (name,))

    def _classes(self, tick: Tick) -> Mapping[str, Usage]:
        kubepods = self._sum(tick, KubeQoS.GUARANTEED)
        burstable = self._sum(tick, KubeQoS.BURSTABLE)
        best_effort = self._sum(tick, KubeQoS.BEST_EFFORT)
        if kubepods is None:
            return {}
        KUBEPODS_SLOT.put(tick, kubepods)
        return divide(kubepods, burstable, best_effort)

    def _sum(self, tick: Tick, qos: KubeQoS) -> Usage | None:
        """Usage of a class's groups in all kubepods cgroups; GUARANTEED is kubepods as a whole."""
        groups = (self._usage(tick, layout.qos_dir(qos)) for layout in tick.layouts)
        measured = [usage for usage in groups if usage is not None]
        return reduce(Usage.plus, measured) if measured else None

    def _usage(self, tick: Tick, group: str) -> Usage | None:
        cpu, memory = tick.get_at(CPU_USAGE, group), tick.get(MEMORY_STAT, group)
        if cpu is None or memory is None:
            return None
        rate = self._cpu.rate(group, *cpu)
        return None if rate is None else Usage(rate / 1e9, memory.usage)

    def families(self) -> Iterator[Metric]:
        latest = [((self._node, name), usage) for name, usage in self._latest.items()]
        yield _QOS_CPU_USAGE_CORES.metric(((values, usage.cpu) for values, usage in latest))
        yield _QOS_MEMORY_USAGE_BYTES.metric(((values, usage.memory) for values, usage in latest))


_BE_KEY = "cpu"  # the only be_resource that Koordinator knows


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


def usage_milli_cores(increase_ns: int, seconds: float) -> int:
    """Return the milli-cores used, cut the way Koordinator does: to whole milliseconds first."""
    return floor(increase_ns // 1_000_000 / (seconds * 1000) * 1000)


_BE_SUPPRESS_BE_USED_CPU_CORES = FamilySpec(
    "koordlet_be_suppress_be_used_cpu_cores",
    "CPU cores that best-effort pods use.",
    ("node",),
    "cores",
)


class BEResourceCollector:
    """Samples each of the three figures by itself; what cannot be known is absent."""

    name = "be_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._previous: PreviousReadings[int] = PreviousReadings(interval)
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
        yield _be_sample("request", self._requested)
        if limit is not None:
            yield _be_sample("real-limit", limit)
        if usage is not None:
            yield _be_sample("usage", usage)

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
        before = self._previous.exchange(group, now, at)
        if before is None or now < before[0] or at <= before[1]:
            return None
        return usage_milli_cores(now - before[0], at - before[1])

    def families(self) -> Iterator[Metric]:
        used = self._used_milli
        if used is not None:
            yield _BE_SUPPRESS_BE_USED_CPU_CORES.metric([((self._node,), used / 1000)])


def _be_sample(allocation: str, milli: int) -> Sample:
    return Sample(NODE_BE, milli, (_BE_KEY, allocation))


def _real_limit(tick: Tick, group: str, containers: tuple[str, ...]) -> int | None:
    own = tick.get(CPUSET_CPUS, group)
    quota, period = tick.get(CPU_QUOTA, group), tick.get(CPU_PERIOD, group)
    if own is None or quota is None or period is None:
        return None
    # A container that has just ended says nothing about the others.
    sizes = [len(found[0]) for found in tick.get_all(CPUSET_CPUS, containers) if found is not None]
    return real_limit_milli([len(own), *sizes], quota, period)


_HOST_APPLICATION_RESOURCE_USAGE = FamilySpec(
    "koordlet_host_application_resource_usage",
    "Usage of a host application: cpu in cores, memory in bytes without page cache.",
    ("node", "host_application_name", "resource", "priority_class", "qos"),
    "cores, bytes",
)


class HostApplicationCollector:
    """Without a NodeSLO there are no host applications, which is a usage of zero.

    Memory taken off the node's for the system's share is without page cache, as the node's is.
    """

    name = "host_application"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._cpu = Rates(interval)
        self._latest: tuple[tuple[HostApplication, Usage], ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        layout = tick.layouts[0]
        samples: list[Sample] = []
        measured: list[tuple[HostApplication, Usage]] = []
        inside, outside = NO_USAGE, NO_USAGE
        for app in tick.slo.host_applications if tick.slo else ():
            group = host_app_group(layout, app)
            usage = self._usage(tick, app.name, group)
            with_cache = tick.get(MEMORY_USAGE, group)
            if usage is None or with_cache is None:
                continue
            measured.append((app, usage))
            samples += _app_samples(app.name, usage, with_cache)
            if f"{group}/".startswith(f"{layout.root}/"):
                inside = inside.plus(usage)
            else:
                outside = outside.plus(usage)
        self._cpu.purge(tick.monotonic)
        HOST_APPS_SLOT.put(tick, HostAppsUsage(inside, outside))
        self._latest = tuple(measured)
        return samples

    def _usage(self, tick: Tick, name: str, group: str) -> Usage | None:
        cpu, memory = tick.get_at(CPU_USAGE, group), tick.get(MEMORY_STAT, group)
        if cpu is None or memory is None:
            return None
        rate = self._cpu.rate(name, *cpu)
        return None if rate is None else Usage(rate / 1e9, memory.usage)

    def families(self) -> Iterator[Metric]:
        yield _HOST_APPLICATION_RESOURCE_USAGE.metric(
            (
                ((self._node, app.name, resource, app.priority, app.qos), value)
                for app, usage in self._latest
                for resource, value in (("cpu", usage.cpu), ("memory", usage.memory))
            )
        )


def _app_samples(name: str, usage: Usage, with_page_cache: int) -> Iterator[Sample]:
    key = (name,)
    yield Sample(HOST_APP_CPU_USAGE, usage.cpu, key)
    yield Sample(HOST_APP_MEMORY_USAGE, usage.memory, key)
    yield Sample(HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE, with_page_cache, key)
