"""The status page of koord-scheduler: the queue, the latest decisions, a pod's scores, nodes.

Imported only while the page is served.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

from koord.component.page.sections import SectionPage, health_section
from koord.component.page.serving import Page
from koord.util.clock import Clock
from koord.util.health import Health
from koord_scheduler.framework.extension.providers import node_parts
from koord_scheduler.framework.nominator import WaitingPod
from koord_scheduler.framework.types import NodeInfo, QueuedPod
from koord_scheduler.planning.report import MAX_KEY_LENGTH, Running, explanation

MAX_PODS = 200  # that wait
MAX_HOLDERS = 500  # pods of a node that are named
MAX_NODES = 20  # of the scores of a pod, and of the nodes that are excluded

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSources:
    """The sources of the page. All are called on the event loop and must be quick."""

    health: Health
    is_leader: Callable[[], bool]
    serves: bool  # a kube-scheduler, as its extender, and schedules nothing itself
    running: Callable[[], Running | None]  # None: plugins are made, or it serves
    permits: Callable[[], Iterable[WaitingPod]]


class SchedulerPage(SectionPage):
    """All methods belong to the event loop."""

    title = "koord-scheduler"
    view = "scheduler.js"

    def __init__(self, sources: PageSources, clock: Clock) -> None:
        super().__init__(clock)
        self._sources = sources

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return where a pod would go now, as /explain, but shorter; or the parts of a node."""
        running = self._sources.running()
        if not 0 < len(name) <= MAX_KEY_LENGTH or running is None:
            return None
        if kind == "node":
            return _node(running, name)
        if kind != "pod":
            return None
        found = await explanation(running, name, is_leader=self._sources.is_leader())
        if found is None or found["decision"] is None:
            return found
        return {**found, "decision": _shortened(found["decision"])}

    async def _read(self) -> Json:
        sources, running = self._sources, self._sources.running()
        state = {
            "leads": sources.is_leader(),
            "serves": sources.serves,
            "profiles": [] if running is None else sorted(running.scheduler.profiles),
        }
        sections = {"health": health_section(sources.health), "state": state}
        return sections if running is None else {**sections, **self._pods(running)}

    def _pods(self, running: Running) -> Json:
        """Return the sections about pods."""
        scheduler, state = running.scheduler, running.state
        queue, recent = scheduler.queue, scheduler.recent
        to_wall = self._clock.wall() - self._clock.monotonic()
        permits = [_permit(one) for one in islice(self._sources.permits(), MAX_PODS)]
        left = MAX_PODS - len(permits)
        return {
            "counts": {
                "nodes": len(state.snapshot),
                "pods": state.snapshot.pod_count,
                **queue.pending,
                "in_flight": len(queue.in_flight),
                "bindings": scheduler.bindings,
                "bound": recent.bound,
                "failed": recent.failed,
            },
            "queue": permits + [_waiting(*one, to_wall) for one in queue.some(left)],
            "recent": [
                {
                    "t": one.at,
                    "pod": one.pod,
                    "node": one.node,
                    "message": one.message,
                    "seconds": one.seconds,
                    "attempts": one.attempts,
                }
                for one in reversed(recent.kept)
            ],
        }


def _node(running: Running, name: str) -> Json | None:
    """Return the parts of a node by plugin and the pods that have some; None: no such node."""
    nodes = running.state.view()
    row = nodes.row(name)
    if row is None:
        return None
    profiles = (one.plugins for one in running.scheduler.profiles.values())
    numbers: dict[str, int] = {}  # of pods that are named
    plugins = {
        plugin: [
            {
                "place": one.place,
                "name": one.name,
                "used": round(one.used, 2),
                "note": one.note,
                "pods": [
                    numbers.setdefault(pod, len(numbers))
                    for pod in one.pods
                    if pod in numbers or len(numbers) < MAX_HOLDERS
                ],
            }
            for one in parts
        ]
        for plugin, parts in node_parts(profiles, NodeInfo(nodes, row)).items()
    }
    return {"node": name, "pods": list(numbers), "plugins": plugins}


def _waiting(place: str, queued: QueuedPod, to_wall: float) -> Json:
    if queued.gating_plugin:
        why = f"kept by {queued.gating_plugin}"
    else:
        why = ", ".join(sorted(queued.rejecting_plugins))
        why = f"rejected by {why}" if why else "it was not tried yet" * (queued.attempts == 0)
    return {
        "uid": queued.pod.uid,
        "pod": queued.key,
        "place": place,
        "since": round(queued.timestamp + to_wall, 1),
        "attempts": queued.attempts,
        "why": why,
    }


def _permit(one: WaitingPod) -> Json:
    return {
        "uid": one.pod.uid,
        "pod": one.pod.key,
        "place": "permit",
        "since": None,
        "attempts": None,
        "why": f"reserved on {one.pod.node}; waits for {', '.join(one.pending_plugins)}",
    }


def _shortened(decision: Json) -> Json:
    """A decision with the first nodes of each table."""
    tables = ("scores", "excluded")
    return {**decision, **{name: decision[name][:MAX_NODES] for name in tables}}


def scheduler_page(sources: PageSources, clock: Clock) -> Page:
    """The page with its view, for those who may read the configuration."""
    view = files("koord_scheduler.page").joinpath("scheduler.js").read_bytes()
    page = SchedulerPage(sources, clock)
    return Page(source=page, views={"scheduler.js": view}, path="/configz")
