"""Fills a metric cache with half an hour of samples, so that a benchmark need not wait for them."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from koord.util.clock import Clock, Stamp, SystemClock
from koord.util.ownedfiles import OwnedDirectory
from koordlet.host.cgroups.tree import CgroupTree, reference_hierarchy
from koordlet.host.files import parse_file
from koordlet.host.procfiles import parse_boot_id
from koordlet.metriccache import kinds
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import DEFAULT_INTERVALS, Kind, RetentionClass, Sample
from koordlet.statesinformer.podmeta import PodMeta, discovered_pod

RETENTIONS = {RetentionClass.NODE: 1800.0, RetentionClass.POD: 300.0}
_NODE_KINDS = (
    kinds.NODE_CPU_USAGE,
    kinds.NODE_MEMORY_USAGE,
    kinds.SYS_CPU_USAGE,
    kinds.SYS_MEMORY_USAGE,
)
_POD_KINDS = (kinds.POD_CPU_USAGE, kinds.POD_MEMORY_USAGE, kinds.POD_CPU_THROTTLED)
_CONTAINER_KINDS = (
    kinds.CONTAINER_CPU_USAGE,
    kinds.CONTAINER_MEMORY_USAGE,
    kinds.CONTAINER_CPU_THROTTLED,
)


def open_cache(directory: Path | None, boot_id: str, clock: Clock) -> MetricCache:
    """A cache with the daemon's default intervals and retentions."""
    place = directory and OwnedDirectory.open(directory.parent) / directory.name
    return MetricCache(place, boot_id, clock, intervals=DEFAULT_INTERVALS, retentions=RETENTIONS)


def fill(cache: MetricCache, clock: Clock, pods: Sequence[PodMeta], runtime: str = "") -> None:
    """Append a sample a second: of the node for 30 minutes, of pods and containers for 5.

    runtime: the container runtime that lists of pods name; "": there is no list.
    """
    now = Stamp(clock.wall(), clock.boottime())
    pod_keys = [(pod.uid,) for pod in pods]
    prefix = f"{runtime}://" if runtime else ""
    container_keys = [(f"{prefix}{c.container_id}",) for pod in pods for c in pod.containers]
    series = [(kind, ()) for kind in _NODE_KINDS]
    pod_series = [(kind, key) for kind in _POD_KINDS for key in pod_keys]
    pod_series += [(kind, key) for kind in _CONTAINER_KINDS for key in container_keys]
    for ago in range(round(RETENTIONS[RetentionClass.NODE]), 0, -1):
        wanted = series if ago > RETENTIONS[RetentionClass.POD] else series + pod_series
        at = Stamp(now.wall - ago, now.boot - ago)
        cache.append(at, [_sample(kind, key, ago, i) for i, (kind, key) in enumerate(wanted)])


def _sample(kind: Kind, key: tuple[str, ...], ago: int, number: int) -> Sample:
    """A value that goes up and down, in cores or bytes."""
    value = 1.0 + number % 7 + math.sin(ago / 20 + number)
    return Sample(kind, value * (2**28 if kind.unit == "bytes" else 1.0), key)


def main(run_dir: str, runtime: str = "") -> None:
    """Write the history of this host's pods as a daemon with that run directory would have."""
    clock = SystemClock()
    tree = CgroupTree(reference_hierarchy(Path("/sys/fs/cgroup")), clock)
    boot_id = parse_file(Path("/proc/sys/kernel/random/boot_id"), parse_boot_id)
    cache = open_cache(Path(run_dir) / "metrics", boot_id, clock)
    fill(cache, clock, [discovered_pod(pod) for pod in tree.scan().pods], runtime)
    cache.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
