"""Queries for the type checker; `make lint` checks this file, nothing runs it.

An `ignore` that is not needed is an error, so each of them proves that the mistake is found.
"""

from typing import assert_type

from koordlet.plugin import MetricCache, keys, kinds
from koordlet.plugin.testing import PluginHarness


def good(cache: MetricCache, harness: PluginHarness) -> None:
    assert_type(cache.last(kinds.NODE_CPU_USAGE), float | None)
    assert_type(cache.last_values(kinds.POD_CPU_USAGE), dict[keys.PodKey, float])
    cache.last(kinds.NODE_PSI, "io", "10", "some")
    cache.last(kinds.NODE_PSI, psi_resource="io", psi_precision="10", psi_degree="some")
    cache.aggregate(kinds.NODE_CPU_USAGE, (), 60)
    cache.aggregate(kinds.NODE_PSI, kinds.NODE_PSI.key("io", "10", "some"), 60)
    for key in cache.last_values(kinds.POD_PSI):
        cache.last(kinds.POD_PSI, *key)
        assert_type(key.pod_uid, str)
    harness.hold(kinds.POD_CPU_USAGE, 1.0, "uid")


def mistakes(cache: MetricCache, harness: PluginHarness) -> None:
    cache.last(kinds.NODE_PSI, "io", "avg10", "some")  # type: ignore[arg-type]
    cache.last(kinds.NODE_PSI, "memory", "10", "some")  # type: ignore[arg-type]
    cache.last(kinds.NODE_PSI, "io", "10")  # type: ignore[call-arg]
    cache.last(kinds.NODE_CPU_USAGE, "cpu0")  # type: ignore[call-arg]
    cache.last(kinds.NODE_NUMA_CPU_USAGE, 0)  # type: ignore[arg-type]
    cache.aggregate(kinds.POD_CPU_USAGE, "uid", 60)  # type: ignore[misc]
    kinds.NODE_BE.key("cpu", "limit")  # type: ignore[arg-type]
    harness.hold(kinds.POD_CPU_USAGE, 1.0)  # type: ignore[call-arg]
