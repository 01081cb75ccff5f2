"""What a configuration means: all defaults filled in, plugins by extension point."""

from dataclasses import dataclass

from koord.controlplane.sections import ClientConnection
from koord_scheduler.config.profiles import Profile
from koord_scheduler.config.v1 import Extender, LeaderElection


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The configuration of one koord-scheduler."""

    leader_election: LeaderElection
    client_connection: ClientConnection
    parallelism: int  # without effect
    enable_profiling: bool  # without effect
    enable_contention_profiling: bool  # without effect
    delay_cache_until_active: bool  # without effect
    percentage_of_nodes_to_score: int | None  # of all profiles; each has its own in effect
    pod_initial_backoff: int  # seconds
    pod_max_backoff: int  # seconds; 0: no backoff
    profiles: tuple[Profile, ...]
    extenders: tuple[Extender, ...]  # as they are asked: those that may fail come last

    @property
    def not_built(self) -> tuple[str, ...]:
        """Plugins that profiles name and this build does not have, each once."""
        return tuple(dict.fromkeys(name for one in self.profiles for name in one.not_built))
