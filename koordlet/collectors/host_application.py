"""Usage of host applications: programs outside of pods that the NodeSLO names."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from koord.api.slo.nodeslo import HostApplication
from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.rates import Rates
from koordlet.collectors.usageslots import HOST_APPS, NOTHING, HostAppsUsage, Usage
from koordlet.host.cgroups.layout import host_app_group
from koordlet.host.resources import CPU_USAGE, MEMORY_STAT, MEMORY_USAGE
from koordlet.metriccache.kinds import (
    HOST_APP_CPU_USAGE,
    HOST_APP_MEMORY_USAGE,
    HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE,
    Cadence,
)
from koordlet.metriccache.sample import Sample


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
        inside, outside = NOTHING, NOTHING
        for app in tick.slo.host_applications if tick.slo else ():
            group = host_app_group(layout, app)
            usage = self._usage(tick, app.name, group)
            with_cache = tick.get(MEMORY_USAGE, group)
            if usage is None or with_cache is None:
                continue
            measured.append((app, usage))
            samples += _samples(app.name, usage, with_cache)
            if f"{group}/".startswith(f"{layout.root}/"):
                inside = inside.plus(usage)
            else:
                outside = outside.plus(usage)
        self._cpu.purge(tick.monotonic)
        HOST_APPS.put(tick, HostAppsUsage(inside, outside))
        self._latest = tuple(measured)
        return samples

    def _usage(self, tick: Tick, name: str, group: str) -> Usage | None:
        cpu, memory = tick.get_at(CPU_USAGE, group), tick.get(MEMORY_STAT, group)
        if cpu is None or memory is None:
            return None
        rate = self._cpu.rate(name, *cpu)
        return None if rate is None else Usage(rate / 1e9, memory.usage)

    def families(self) -> Iterator[Metric]:
        yield gauge(
            "koordlet_host_application_resource_usage",
            "Usage of a host application: cpu in cores, memory in bytes without page cache.",
            ("node", "host_application_name", "resource", "priority_class", "qos"),
            (
                ((self._node, app.name, resource, app.priority, app.qos), value)
                for app, usage in self._latest
                for resource, value in (("cpu", usage.cpu), ("memory", usage.memory))
            ),
        )


def _samples(name: str, usage: Usage, with_page_cache: int) -> Iterator[Sample]:
    key = (name,)
    yield Sample(HOST_APP_CPU_USAGE, usage.cpu, key)
    yield Sample(HOST_APP_MEMORY_USAGE, usage.memory, key)
    yield Sample(HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE, with_page_cache, key)
