"""Metrics of a daemon under test."""

from prometheus_client import CollectorRegistry

PASSES = "koordlet_sampling_pass_seconds"


def passes_of(registry: CollectorRegistry) -> float:
    """Return how many sampling passes it has made.

    Collects this family alone: tests that wait for a pass ask thousands of times.
    """
    for family in registry.restricted_registry([f"{PASSES}_count"]).collect():
        for sample in family.samples:
            if sample.name == f"{PASSES}_count":
                return sample.value
    return 0
