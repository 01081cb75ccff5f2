"""Policy cpuset: best-effort pods get few whole CPUs. Also their CPU pool under other policies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from koord.api.pods.resourcestatus import is_pinned
from koordlet.plugin import Claim, ExtensionPlugin, Target, resources
from koordlet_plugins.be_cpu_suppress.cpus import BestEffortCpus
from koordlet_plugins.be_cpu_suppress.evidence import Evidence, Room
from koordlet_plugins.be_cpu_suppress.policy import (
    NodeFindings,
    Places,
    best_effort_group,
    find_places,
)

SCOPE = "cpuset"
FEW = (
    "best-effort pods get as many CPUs as the threshold leaves them beside all others: "
    "fewer at once, a tenth of the node's CPUs more per round"
)
POOL = "best-effort pods may use all CPUs but those of LSE pods and those that are set aside"


@dataclass(frozen=True, slots=True)
class CpusetRound:
    """Findings of a round: the CPUs, and the cgroups that they are for."""

    cpus: BestEffortCpus
    static: bool  # the kubelet gives CPUs to containers itself, so only theirs are few
    places: Places


class CpusetPolicy:
    """Keeps the claimed CPUs: they are the present number of CPUs, in dry-run, too."""

    looks = True

    def __init__(self, plugin: ExtensionPlugin) -> None:
        self._plugin = plugin
        self._round: CpusetRound | None = None
        self._held: frozenset[int] = frozenset()  # empty: nothing is in force
        self._claims: list[Claim] = []
        self._behind: tuple[frozenset[int], CpusetRound] | None = None  # inputs of the claims

    async def round(self, evidence: Evidence, seen: NodeFindings) -> float | None:
        """As Policy.round. Without a CPU that they may use, nothing changes."""
        if seen.cpus is None:
            return None
        places = await find_places(self._plugin.kernel, seen.pods)
        self._round = CpusetRound(*seen.cpus, places)
        held = self._held or await self._found()
        return None if held is None else await self._follow(evidence, self._round, held)

    def must_give_way(self, room: Room) -> bool:
        """As Policy.must_give_way."""
        known, held = self._round, len(self._held)
        return known is not None and held > 0 and known.cpus.count(room, held) < held

    async def look(self, evidence: Evidence) -> float | None:
        """As Policy.look."""
        known = self._round
        if known is None or not self.must_give_way(evidence.room):
            return None
        return await self._follow(evidence, known, self._held)

    async def pool(self, seen: NodeFindings) -> None:
        """Claim the whole pool for best-effort pods, while another policy limits them.

        Pinned containers keep their CPUs.
        """
        if seen.cpus is None:
            return
        self._forget()
        cpus = seen.cpus.cpus
        if cpus.whole_node or not cpus.pool:
            await self._plugin.withdraw_all(scope=SCOPE)
            return
        places = await find_places(self._plugin.kernel, seen.pods)
        pinned = {meta.uid for meta in seen.pods if is_pinned(meta.pod)}
        free = (place for place in places.containers if place.uid not in pinned)
        claims = _claims((places.group, *places.pods, *free), cpus.pool, POOL)
        await self._plugin.claim_all(claims, scope=SCOPE)

    async def end(self) -> None:
        """As Policy.end."""
        self._forget()
        await self._plugin.withdraw_all(scope=SCOPE)

    def _forget(self) -> None:
        self._round, self._held, self._behind = None, frozenset(), None

    async def _found(self) -> frozenset[int] | None:
        group = best_effort_group(self._plugin.kernel.layout)
        return await self._plugin.kernel.read(resources.CPUSET_CPUS, group.place)

    async def _follow(
        self, evidence: Evidence, known: CpusetRound, held: frozenset[int]
    ) -> float | None:
        chosen = known.cpus.choose(known.cpus.count(evidence.room, len(held)))
        if not chosen:
            return None
        if self._behind != (chosen, known):  # else the claims have the numbers that were decisive
            self._claims = list(_wanted(known, chosen, evidence))
            self._behind = chosen, known
        outcomes = await self._plugin.claim_all(self._claims, scope=SCOPE)
        holds = any(
            outcome.holds and claim.value == chosen
            for outcome, claim in zip(outcomes, self._claims, strict=True)
        )
        self._held = chosen if holds else frozenset()
        return len(chosen) if holds else None


def _wanted(known: CpusetRound, chosen: frozenset[int], evidence: Evidence) -> Iterator[Claim]:
    places = known.places
    if not known.static:
        return _claims(places.all, chosen, FEW, evidence)
    return chain(
        _claims((places.group, *places.pods), known.cpus.pool, POOL),
        _claims(places.containers, chosen, FEW, evidence),
    )


def _claims(
    places: Iterable[Target], cpus: frozenset[int], reason: str, evidence: Evidence | None = None
) -> Iterator[Claim]:
    inputs = evidence.inputs() if evidence else {}
    for place in places:
        yield Claim(
            target=place,
            resource=resources.CPUSET_CPUS_WANTED,
            value=cpus,
            reason=reason,
            inputs=inputs,
        )
