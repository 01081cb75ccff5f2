"""All HTTP extenders of a configuration, asked about one pod at a time.

Source: Kubernetes, pkg/scheduler/extender.go and schedule_one.go.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from koord.cluster.facts import ClusterPod
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.logs import LimitedLog, get_logger
from koord_scheduler.config.v1 import Extender
from koord_scheduler.extenders.client import ExtenderClient, ExtenderFailed
from koord_scheduler.extenders.messages import MAX_SCORE, Arguments, BindArguments, NodeVictims
from koord_scheduler.framework.handle import Victims
from koord_scheduler.framework.results import MAX_NODE_SCORE
from koord_scheduler.framework.status import Status

EXTENDER = "Extender"  # by this name rejections are noted; any event may help
_DROPPED = "node(s) were left out by an extender without a reason"

log = get_logger("koord_scheduler.extenders")


class WholeObjects(Protocol):
    """Objects as the API server has them, which extenders get."""

    async def pod(self, pod: ClusterPod) -> bytes:
        """Return a pod. Raises KoordError: it cannot be had, or is another one by now."""

    async def nodes(self, names: Sequence[str]) -> tuple[bytes, ...]:
        """Return those of the nodes that there are. Raises KoordError: they cannot be had."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """What extenders leave of the nodes."""

    names: tuple[str, ...]
    rejections: Mapping[str, Status] = field(default_factory=dict)  # of the others, by node


class Extenders:
    """Asks them in the order of the configuration: those that may fail come last."""

    def __init__(self, settings: Iterable[Extender], objects: WholeObjects, clock: Clock) -> None:
        self._clients = [ExtenderClient(one, clock) for one in settings]
        self._objects = objects
        self._failures = LimitedLog(log, clock)

    @property
    def choosing(self) -> bool:
        """Whether any of them filters or scores nodes."""
        return any(
            one.settings.filter_verb or one.settings.prioritize_verb for one in self._clients
        )

    def filters(self, pod: ClusterPod) -> bool:
        """Whether any of them filters nodes for the pod."""
        return any(one.settings.filter_verb and one.is_interested(pod) for one in self._clients)

    async def filter(self, pod: ClusterPod, names: Sequence[str]) -> Filtered:
        """Ask one after the other which nodes pass; each sees what those before it left.

        Raises:
            KoordError: one that must not fail has failed.
        """
        left, rejections = tuple(names), dict[str, Status]()
        for one in self._clients:
            if not left:
                break
            if not one.settings.filter_verb or not one.is_interested(pod):
                continue
            try:
                answer = await one.filter(await self._arguments(one, pod, left))
            except KoordError as err:
                self._failed(one, "filter", err)
                continue
            passed = frozenset(answer.names or ())
            for name in left:
                if name not in passed:
                    rejections[name] = _rejection(name, answer.failed, answer.unresolvable)
            left = tuple(name for name in left if name in passed)
        return Filtered(left, rejections)

    async def prioritize(self, pod: ClusterPod, names: Sequence[str]) -> Mapping[str, int]:
        """Ask all at once for scores; return what they add to the totals of nodes.

        One that fails adds nothing.
        """
        asked = [
            one for one in self._clients if one.settings.prioritize_verb and one.is_interested(pod)
        ]
        answers = await asyncio.gather(*(self._scores(one, pod, tuple(names)) for one in asked))
        totals: dict[str, int] = {}
        for one, scores in zip(asked, answers, strict=True):
            factor = one.settings.weight * (MAX_NODE_SCORE // MAX_SCORE)
            for name, score in scores.items():
                totals[name] = totals.get(name, 0) + score * factor
        return totals

    async def preempt(
        self, pod: ClusterPod, candidates: Mapping[str, Victims]
    ) -> Mapping[str, Victims]:
        """As PreemptExtenders.preempt; they are asked one after the other."""
        known = {victim.uid: victim for pods, _ in candidates.values() for victim in pods}
        left = {
            name: NodeVictims(tuple(one.uid for one in pods), violations)
            for name, (pods, violations) in candidates.items()
        }
        for one in self._clients:
            if not left or not one.settings.preempt_verb or not one.is_interested(pod):
                continue
            try:
                left = await self._preempt(one, pod, left, known)
            except KoordError as err:
                self._failed(one, "preempt", err)
        return {
            name: (tuple(known[uid] for uid in found.uids), found.violations)
            for name, found in left.items()
        }

    async def bind(self, pod: ClusterPod, node: str) -> bool:
        """Have the extender bind the pod that does so; return whether there is one.

        Raises:
            ExtenderFailed: it must not fail, and did.
        """
        for one in self._clients:
            if one.settings.bind_verb and one.is_interested(pod):
                try:
                    await one.bind(BindArguments(pod.namespace, pod.name, pod.uid, node))
                except ExtenderFailed as err:
                    self._failed(one, "bind", err)
                else:
                    return True
        return False

    async def close(self) -> None:
        """Close all connections."""
        for one in self._clients:
            await one.close()

    async def _arguments(
        self, one: ExtenderClient, pod: ClusterPod, names: tuple[str, ...]
    ) -> Arguments:
        nodes = None if one.settings.node_cache_capable else await self._objects.nodes(names)
        return Arguments(await self._objects.pod(pod), names, nodes)

    async def _scores(
        self, one: ExtenderClient, pod: ClusterPod, names: tuple[str, ...]
    ) -> Mapping[str, int]:
        try:
            return await one.prioritize(await self._arguments(one, pod, names))
        except KoordError as err:
            self._failures.warning("extender.failed", verb="prioritize", error=str(err))
            return {}

    async def _preempt(
        self,
        one: ExtenderClient,
        pod: ClusterPod,
        left: Mapping[str, NodeVictims],
        known: Mapping[str, ClusterPod],
    ) -> dict[str, NodeVictims]:
        whole = None
        if not one.settings.node_cache_capable:
            wanted = {uid for found in left.values() for uid in found.uids}
            whole = {uid: await self._objects.pod(known[uid]) for uid in wanted}
        answer = await one.preempt(await self._objects.pod(pod), left, whole)
        kept = {}
        for name, found in answer.items():
            if name not in left:
                raise ExtenderFailed(f"extender {one.name}: {name[:253]} was no candidate")
            for uid in found.uids:
                if uid not in known or known[uid].node != name:
                    raise ExtenderFailed(f"extender {one.name}: no pod {uid[:253]} on {name}")
            if found.uids:
                kept[name] = found
            elif not one.settings.ignorable:
                raise ExtenderFailed(f"extender {one.name}: {name} has no victims")
        return kept

    def _failed(self, one: ExtenderClient, verb: str, error: KoordError) -> None:
        """Go on without an extender that may fail; raise what it was otherwise."""
        if not one.settings.ignorable:
            raise error
        self._failures.warning("extender.skipped", verb=verb, error=str(error))


def _rejection(name: str, failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> Status:
    if name in unresolvable:
        return Status.unresolvable(unresolvable[name]).of(EXTENDER)
    if name in failed:
        return Status.unschedulable(failed[name]).of(EXTENDER)
    return Status.unresolvable(_DROPPED).of(EXTENDER)
