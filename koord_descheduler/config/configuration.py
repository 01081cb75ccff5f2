"""What a configuration means: all defaults filled in, plugins by extension point."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.api.labelselector import LabelSelector
from koord.controlplane.sections import ClientConnection
from koord_descheduler.config.points import Point
from koord_descheduler.config.v1alpha2 import EvictionLedger, LeaderElection


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionLimits:
    """Pods that may be evicted in one cycle, of all profiles together. None: no limit."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Plugins that run together."""

    name: str
    node_selector: LabelSelector | None = None  # None: all nodes
    dry_run: bool = False  # of this profile; the configuration's holds for all
    plugins: Mapping[Point, tuple[str, ...]] = field(default_factory=dict)  # in their order
    args: Mapping[str, object] = field(default_factory=dict)  # of enabled plugins, by their names

    def enabled(self, point: Point) -> tuple[str, ...]:
        """The plugins of an extension point, in the order in which they run."""
        return self.plugins.get(point, ())

    @property
    def names(self) -> frozenset[str]:
        """All plugins of the profile; each is built once."""
        return frozenset(name for point in Point for name in self.enabled(point))


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The configuration of one koord-descheduler."""

    leader_election: LeaderElection
    client_connection: ClientConnection
    enable_profiling: bool
    enable_contention_profiling: bool
    healthz_bind_address: str  # HOST:PORT of plain HTTP; port 0: off
    metrics_bind_address: str  # the same
    descheduling_interval: float  # seconds from start to start; 0: a single cycle
    dry_run: bool  # of all profiles
    node_selector: LabelSelector | None  # of all profiles; None: all nodes
    limits: EvictionLimits
    profiles: tuple[Profile, ...]  # in the order in which they run
    eviction_ledger: EvictionLedger = field(default_factory=EvictionLedger)

    def is_dry_run(self, profile: Profile) -> bool:
        """Whether a profile evicts nothing."""
        return self.dry_run or profile.dry_run
