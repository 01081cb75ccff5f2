"""Plans (one cycle in dry-run) and explanations (of past cycles), as JSON."""

import argparse
import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from koord.cluster.dump import Dump
from koord.cluster.state import ClusterState
from koord.component.http.responses import json_body, json_bytes
from koord.controlplane.commands import dump_report, register_installed, time_text
from koord.controlplane.offline import (
    DiscardingEventRecorder,
    EmptyInformers,
    FixedWallClock,
    UnreachableTransport,
)
from koord.kube.client import ApiClient
from koord.util.errors import KoordError
from koord_descheduler.config import GROUP_VERSION, KIND, Configuration, HistoryDependent
from koord_descheduler.framework.evictor import (
    Action,
    CycleDecisions,
    Decisions,
    EvictionLimiter,
    FrameworkMetrics,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.framework.handle import Informers, Migrations, Services
from koord_descheduler.framework.profile import (
    Descheduler,
    PluginRegistry,
    ProfileError,
    ProfilePlugins,
    build_profile,
    profile_settings,
)

DEFAULT_LOW_THRESHOLDS: Mapping[str, float] = {"cpu": 45, "memory": 55}
DEFAULT_HIGH_THRESHOLDS: Mapping[str, float] = {"cpu": 75, "memory": 80}
KEPT_NAMESPACES = ("kube-system", "koordinator-system")


def default_plan_configuration(
    low: Mapping[str, float] = DEFAULT_LOW_THRESHOLDS,
    high: Mapping[str, float] = DEFAULT_HIGH_THRESHOLDS,
) -> bytes:
    """Return a configuration file: LowNodeLoad with these thresholds, in percent of allocatable.

    All else is as in the configuration that Koordinator ships, where LowNodeLoad is not enabled.
    """
    namespaces = {"exclude": list(KEPT_NAMESPACES)}
    args = {
        "LowNodeLoad": {
            "evictableNamespaces": namespaces,
            "lowThresholds": dict(low),
            "highThresholds": dict(high),
        },
        "MigrationController": {"evictionPolicy": "Eviction", "namespaces": namespaces},
    }
    profile = {
        "name": "koord-descheduler",
        "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        "pluginConfig": [{"name": name, "args": one} for name, one in args.items()],
    }
    document = {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "deschedulingInterval": "10s",
        "profiles": [profile],
    }
    return json.dumps(document).encode()


def offline_services(
    cluster: ClusterState, now: float, informers: Informers | None = None
) -> Services:
    """Return services for a cluster as it was at so many Unix seconds.

    informers: of the objects that the state does not have; None: nothing is known of them.
    """
    clock = FixedWallClock(now)
    return Services(
        client=ApiClient(UnreachableTransport(), clock),
        events=DiscardingEventRecorder(),
        informers=EmptyInformers() if informers is None else informers,
        cluster=cluster,
        decisions=Decisions(),
        migrations=Migrations(),
        clock=clock,
        metrics=FrameworkMetrics(CollectorRegistry()),
    )


class UnbuildableProfiles(KoordError):
    """Plugins of the configuration cannot be made; the message has all that is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The evictions that a cycle would make, with reasons."""

    at: float  # Unix seconds; the time for which it is made
    considered: int  # nodes that are ready and selected by the configuration
    nodes: tuple[NodeDecision, ...]
    pods: tuple[PodDecision, ...]
    errors: tuple[str, ...] = ()  # of plugins; the rest of the cycle was done
    unknown: tuple[str, ...] = ()  # what nodes have, though pods have some of it

    def only(self, node: str) -> "Plan":
        """Return the part of the plan that concerns one node, as a source or as a candidate."""
        return replace(
            self,
            nodes=tuple(one for one in self.nodes if one.node == node),
            pods=tuple(one for one in self.pods if node in (one.node, *one.candidates)),
        )

    def count(self, action: Action) -> int:
        """The number of pods of which that would become."""
        return sum(one.action is action for one in self.pods)


async def make_plan(
    configuration: Configuration, registry: PluginRegistry, services: Services
) -> Plan:
    """Return what a cycle would do now. Nothing is evicted, whatever the configuration says.

    What plugins would wait for over several cycles counts as if it had lasted so long already.

    Raises:
        UnbuildableProfiles: as it says.
    """
    services = replace(services, decisions=Decisions())
    await services.hardware.listed()
    limits = configuration.limits
    limiter = EvictionLimiter(
        per_node=limits.per_node, per_namespace=limits.per_namespace, total=limits.total
    )
    profiles = await _build(configuration, registry, services, limiter)
    try:
        result = await Descheduler(
            profiles,
            services.cluster.nodes,
            limiter,
            services.metrics,
            services.clock,
            decisions=services.decisions,
            interval=0,
            node_selector=configuration.node_selector,
        ).run_once()
        cycle = services.decisions.cycles[-1]
        return Plan(
            at=cycle.began,
            considered=result.nodes,
            nodes=tuple(cycle.nodes()),
            pods=tuple(cycle.pods()),
            errors=tuple(result.errors),
            unknown=tuple(services.hardware.gaps(services.cluster.view())),
        )
    finally:
        await _close(profiles)


async def _build(
    configuration: Configuration,
    registry: PluginRegistry,
    services: Services,
    limiter: EvictionLimiter,
) -> list[ProfilePlugins]:
    profiles: list[ProfilePlugins] = []
    errors: list[str] = []
    for settings in profile_settings(configuration):
        planned = replace(settings, dry_run=True, args=_as_if_lasting(settings.args))
        try:
            profiles.append(await build_profile(planned, registry, services, limiter))
        except ProfileError as err:
            errors.append(str(err))
    if errors:
        await _close(profiles)
        raise UnbuildableProfiles("; ".join(errors))
    return profiles


def _as_if_lasting(args: Mapping[str, object]) -> dict[str, object]:
    return {
        name: one.as_if_lasting() if isinstance(one, HistoryDependent) else one
        for name, one in args.items()
    }


async def _close(profiles: list[ProfilePlugins]) -> None:
    while profiles:
        await profiles.pop().close()


def percents(text: str) -> dict[str, float]:
    """Read the value of an option: cpu=45,memory=55."""
    found = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        try:
            found[name.strip()] = float(amount)
        except ValueError:
            raise argparse.ArgumentTypeError(f"wanted cpu=45,memory=55, found {text!r}") from None
    return found


def installed_plugins(name: str) -> PluginRegistry:
    """The plugins that are installed; what is wrong with one is a warning of the command."""
    return register_installed(name, PluginRegistry())


Json = dict[str, Any]


def plan_report(plan: Plan, dump: Dump | None = None) -> Json:
    """Return a plan, and what was read of the dump that it is made from."""
    report: Json = {
        "kind": "Plan",
        "at": time_text(plan.at),
        "nodesConsidered": plan.considered,
        "evictions": plan.count(Action.EVICT),
        **decisions_report(plan.nodes, plan.pods),
        "errors": list(plan.errors),
        "unknown": list(plan.unknown),
    }
    if dump is not None:
        report["input"] = dump_report(dump)
    return report


def decisions_report(nodes: Sequence[NodeDecision], pods: Sequence[PodDecision]) -> Json:
    """Return decisions, in the order in which they are given."""
    return {"nodes": [_node(one) for one in nodes], "pods": [_pod(one) for one in pods]}


def _node(one: NodeDecision) -> Json:
    return {
        "profile": one.profile,
        "plugin": one.plugin,
        "node": one.node,
        "verdict": one.verdict,
        "reason": one.reason,
        "hint": one.hint,
        "facts": _facts(one.facts),
    }


def _pod(one: PodDecision) -> Json:
    return {
        "profile": one.profile,
        "plugin": one.plugin,
        "pod": one.pod,
        "node": one.node,
        "action": one.action.value,
        "reason": one.reason,
        "candidates": list(one.candidates),
        "facts": _facts(one.facts),
    }


def _facts(facts: Mapping[str, float]) -> dict[str, float | None]:
    """null where a figure is none: JSON has neither NaN nor infinity."""
    return {name: value if math.isfinite(value) else None for name, value in facts.items()}


MAX_PER_CYCLE = 1000  # decisions of one kind of a cycle in a response
MAX_NAME_LENGTH = 512  # characters of a question


@dataclass(frozen=True, slots=True)
class Question:
    """About what: a node, a pod, or with neither about all."""

    node: str = ""  # name
    pod: str = ""  # namespace/name; a name alone means pods of that name in all namespaces

    def about_node(self, one: NodeDecision) -> bool:
        return not self.pod and self.node in ("", one.node)

    def about_pod(self, one: PodDecision) -> bool:
        """Whether a pod is covered; a question about a node covers pods on it or bound for it."""
        if self.pod:
            return one.pod == self.pod or one.pod.partition("/")[2] == self.pod
        return not self.node or self.node in (one.node, *one.candidates)


def explanation(cycles: Iterable[CycleDecisions], question: Question, *, is_leader: bool) -> Json:
    """Return what was decided about the subject of a question, the newest cycle first.

    is_leader: whether this replica leads; another one decides nothing.
    """
    return {
        "kind": "Explanation",
        "leader": is_leader,
        "node": question.node,
        "pod": question.pod,
        "cycles": [_cycle(one, question) for one in reversed(tuple(cycles))],
    }


def explain_handler(
    decisions: Decisions, is_leader: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of /explain?node=…|pod=…. The caller that mounts it guards it."""

    async def explain(request: web.Request) -> web.Response:
        question = Question(request.query.get("node", ""), request.query.get("pod", ""))
        if len(question.node) + len(question.pod) > MAX_NAME_LENGTH:
            raise web.HTTPBadRequest(text=f"wanted at most {MAX_NAME_LENGTH} characters\n")
        cycles = [one.copy() for one in decisions.cycles]  # the loop goes on with the others
        found = await asyncio.to_thread(explanation, cycles, question, is_leader=is_leader())
        return json_body(await asyncio.to_thread(json_bytes, found))

    return explain


def _cycle(cycle: CycleDecisions, question: Question) -> Json:
    nodes = [one for one in cycle.nodes() if question.about_node(one)]
    pods = [one for one in cycle.pods() if question.about_pod(one)]
    shown = decisions_report(nodes[:MAX_PER_CYCLE], pods[:MAX_PER_CYCLE])
    left_out = len(nodes) + len(pods) - len(shown["nodes"]) - len(shown["pods"])
    return {"began": time_text(cycle.began), **shown, "leftOut": left_out}
