"""What the policies have in common."""

from typing import NamedTuple, Protocol

from koordlet.plugin import PodMeta
from koordlet_plugins.be_cpu_suppress.budget import Room
from koordlet_plugins.be_cpu_suppress.evidence import Evidence
from koordlet_plugins.be_cpu_suppress.node import NodeCpus


class Seen(NamedTuple):
    """What a round found out about the node, beside usage."""

    cores: int  # the node's capacity
    pods: tuple[PodMeta, ...]
    cpus: NodeCpus | None  # None: not enough is known to touch a cpuset


class Policy(Protocol):
    """One way to hold best-effort pods back.

    round and look return the cores that best-effort pods are limited to from now on; None: no limit
    is in force, or as far as look goes it is the one that was.
    """

    looks: bool  # whether it has any use for fast looks

    async def round(self, evidence: Evidence, seen: Seen) -> float | None:
        """Follow a round."""

    def must_give_way(self, room: Room) -> bool:
        """Whether fast looks ask for less than there is now. Pure, for any thread."""

    async def look(self, evidence: Evidence) -> float | None:
        """Follow fast looks, before the next round."""

    async def end(self) -> None:
        """Take everything back."""
