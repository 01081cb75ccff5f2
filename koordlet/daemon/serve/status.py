"""The status of the running daemon: `koordletctl status`, and the gauges of its start."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

import koordlet
from koord.util.health import worst
from koordlet.daemon.components import DaemonComponents


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonStatus:
    """Describes one daemon. address is where HTTP listens now; started_at is in Unix seconds."""

    components: DaemonComponents
    run_dir: Path
    address: Callable[[], str]
    started_at: float

    def describe(self) -> Mapping[str, object]:
        """Return what `koordletctl status` shows."""
        components, settings = self.components, self.components.settings
        actions, live_config = components.acting.actions, components.serving.live_config
        health = components.health.parts()
        gates, working = settings.gates, settings.gates.working()
        cache = components.measuring.cache.stats()
        return {
            "version": koordlet.__version__,
            "node": settings.node_name,
            "pid": os.getpid(),
            "started": datetime.fromtimestamp(self.started_at, UTC).isoformat(timespec="seconds"),
            "mode": "standalone" if settings.mode.standalone else "cluster",
            "mode_reason": settings.mode.reason,
            "address": self.address(),
            "run_dir": str(self.run_dir),
            "cgroups": str(components.host.cgroups.flavour),
            "cgroup_driver": components.sources.driver(),
            "health": worst(health).value,
            "problems": {name: part.reason for name, part in health.items() if part.reason},
            "observe_only": actions.observe_only(),
            "claims": actions.claims.count(),
            "dry_run": settings.dry_run.to_json(),
            "evictions": {"per_hour": actions.budget.limit, "used": actions.budget.used},
            "gates_on": working,
            "gates_not_built": sorted(filter(gates.enabled, set(gates.names()) - set(working))),
            "manager_duties": _manager_duties(components),
            "needs_restart": list(live_config.needs_restart) if live_config else [],
            "values": actions.restorer.counts(),
            "pods": len(components.states.pods()),
            "series": cache.series,
            "cache_bytes": cache.file_bytes,
            "samples_dropped": {reason: n for reason, n in cache.dropped.items() if n},
        }

    def export_start(self, registry: CollectorRegistry) -> None:
        """Have the registry export the time of the start, and the version."""
        start = Gauge("koordlet_start_time", "Unix time of the start.", ["node"], registry=registry)
        start.labels(self.components.settings.node_name).set(int(self.started_at))
        build_info = Gauge("koordlet_build_info", "Always 1.", ["version"], registry=registry)
        build_info.labels(koordlet.__version__).set(1)


def _manager_duties(components: DaemonComponents) -> Mapping[str, str]:
    """The keeper of each object of this node; empty where nothing is kept for a manager."""
    cluster = components.cluster
    return cluster.duties.state() if cluster is not None and cluster.duties is not None else {}
