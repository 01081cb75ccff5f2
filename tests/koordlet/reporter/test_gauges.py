"""The latest status as gauges under Koordinator's names."""

from koord.api.nodemetric import NodeMetricStatus, NumaUsage, Usage
from koordlet.reporter.status import status_families


def test_gauges_say_what_the_status_says():
    """CPU cut to thousandths of a core, memory to bytes; what is absent has no series."""
    status = NodeMetricStatus(
        update_time=0,
        node_usage=Usage(2.9996, 1000.7),
        numa_usages=(NumaUsage(1, Usage(1, 2), None),),
    )

    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in status_families("worker", status)
        for sample in family.samples
    }

    node, cpu, memory = ("node", "worker"), ("resource", "cpu"), ("resource", "memory")
    numa, core, byte = ("numa_node_id", "1"), ("unit", "core"), ("unit", "byte")
    assert samples == {
        ("koordlet_node_metric_node_usage", node, cpu, core): 2.999,
        ("koordlet_node_metric_node_usage", node, memory, byte): 1000,
        ("koordlet_node_metric_numa_node_usage", node, numa, cpu, core): 1,
        ("koordlet_node_metric_numa_node_usage", node, numa, memory, byte): 2,
    }
    assert [family.name for family in status_families("worker", status)] == [
        "koordlet_node_metric_node_usage",
        "koordlet_node_metric_system_usage",
        "koordlet_node_metric_numa_node_usage",
        "koordlet_node_metric_numa_system_usage",
    ]
