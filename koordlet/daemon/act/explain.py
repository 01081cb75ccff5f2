"""Explains decisions of plugins and the values in force: the answer of /explain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from koord.util.clock import Clock
from koord.util.slices import in_slices
from koordlet.daemon.act.actions import Actions
from koordlet.daemon.act.allocations import RefusedAllocations
from koordlet.daemon.act.runtimehooks import HooksPart
from koordlet.daemon.settings.settings import Settings
from koordlet.executor.claims.inforce import ClaimedValue, as_json, is_about
from koordlet.executor.lookups import look_at
from koordlet.host.host import Host
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.model import PodMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class Explainer:
    """Answers for a pod, a cgroup, or all."""

    settings: Settings
    states: StatesInformer
    actions: Actions
    host: Host
    clock: Clock
    hooks: HooksPart | None
    allocations: RefusedAllocations

    async def explain(self, place: str) -> Callable[[], Mapping[str, object]]:
        """Look now and return what makes the answer on any thread.

        place: namespace/name, name or UID of a pod, which may be gone by now, or a cgroup below or
        with the cgroup file system's path; "": everything. Values are what the kernel holds now;
        those that could not be read in time are as they were last, and say when that was.
        """
        actions, place = self.actions, self._below_root(place)
        pods = [pod for pod in self.states.pods() if _is(pod, place)]
        pod = place if _named(pods, place) or not pods else pods[0].uid
        about = await self._about(place, [pod.cgroup for pod in pods])
        seen = await look_at(actions.kernel, self.clock, [each.key for each in about])
        values = [
            (each, seen.get(each.key) or actions.claims.last_seen(each.value)) for each in about
        ]
        decisions = actions.decisions.explain(pod)
        asked = self.hooks.explain(pod) if self.hooks else []
        refused = self.allocations.explain(pod)
        head = {
            "dryRun": self.settings.dry_run.to_json(),
            "observeOnly": actions.observe_only(),
            "evictionBudget": {"perHour": actions.budget.limit, "used": actions.budget.used},
        }

        def answer() -> Mapping[str, object]:
            shown = [as_json(*each) for each in values]
            return {
                **head,
                "values": shown,
                "decisions": decisions,
                "runtimeHooks": asked,
                "refusedAllocations": refused,
            }

        return answer

    async def _about(self, place: str, groups: list[str]) -> list[ClaimedValue]:
        """The claimed values that concern a place, in order."""
        values = await self.actions.claims.slow_snapshot()
        found = [each async for each in in_slices(values) if is_about(each.key, place, groups)]
        return sorted(found, key=lambda each: (each.key.target.place, each.key.resource.name))

    def _below_root(self, place: str) -> str:
        """A cgroup as its path below the root, whichever hierarchy it was named in."""
        for hierarchy in self.host.cgroups.hierarchies():
            place = place.removeprefix(f"{hierarchy}/")
        return place.strip("/") if place.startswith("/") else place


def _is(pod: PodMeta, place: str) -> bool:
    return bool(place) and (_has_name(pod, place) or f"{place}/".startswith(f"{pod.cgroup}/"))


def _named(pods: list[PodMeta], place: str) -> bool:
    return any(_has_name(pod, place) for pod in pods)


def _has_name(pod: PodMeta, name: str) -> bool:
    return name in (pod.uid, pod.pod.name, f"{pod.pod.namespace}/{pod.pod.name}")
