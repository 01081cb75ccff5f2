"""Metrics of a leader election, under the names that Kubernetes' components have.

Source: Kubernetes, component-base/metrics/prometheus/clientgo/leaderelection.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge


class LeaderMetrics:
    """Who leads, and how smoothly leases are renewed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.leads = Gauge(
            "leader_election_master_status",
            "1 while this replica leads by the lease of that name, 0 while it stands by.",
            ["name"],
            registry=registry,
        )
        self.slow_renewals = Counter(
            "leader_election_slowpath_total",
            "Renewals that had to read the lease anew, because the last version known was refused.",
            ["name"],
            registry=registry,
        )
