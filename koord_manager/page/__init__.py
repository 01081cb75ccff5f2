"""The status page of koord-manager: what each node offers, and what pods hold of it.

Imported only while the page is served.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from koord.cluster.view import View
from koord.component.page.sections import SectionPage, health_section
from koord.component.page.serving import Page
from koord.util.clock import Clock
from koord.util.health import Health
from koord_manager.cluster import ManagerCluster
from koord_manager.config import Configuration
from koord_manager.controllers.noderesource import NodeResources
from koord_manager.controllers.worker import NodeResourceMetrics
from koord_manager.explanation import MAX_NAME_LENGTH, node_report

MAX_NODES = 10_000  # of the map
MAX_RESOURCES = 16  # of the map
PERIOD = 5.0  # seconds between two lines: of 5,000 nodes some change each second

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSources:
    """The sources of the page. All belong to the event loop and are quick."""

    health: Health
    is_leader: Callable[[], bool]
    configuration: Callable[[], Configuration]
    plugins: Sequence[str]
    webhook: bool  # pods are mutated by the webhook
    cluster: ManagerCluster
    metrics: NodeResourceMetrics
    resources: NodeResources


class ManagerPage(SectionPage):
    """All methods belong to the event loop."""

    title = "koord-manager"
    view = "manager.js"

    def __init__(self, sources: PageSources, clock: Clock) -> None:
        super().__init__(clock)
        self._sources = sources

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return what a node offers and why, as /explain."""
        if kind != "node" or not 0 < len(name) <= MAX_NAME_LENGTH:
            return None
        found = self._sources.resources.explain(name)
        return None if found is None else node_report(*found)

    async def _read(self) -> Json:
        sources = self._sources
        configuration = sources.configuration()
        states = {name: sorted(one) for name, one in sources.metrics.states.items()}
        names = sorted({name for one in sources.metrics.offered.values() for name in one})
        view = sources.cluster.view()
        return {
            "health": health_section(sources.health),
            "state": {
                "leads": sources.is_leader(),
                "dry_run": configuration.dry_run,
                "max_decrease_percent": configuration.max_decrease_percent,
                "plugins": list(sources.plugins),
                "webhook": sources.webhook,
                "counts": dict(Counter(state for one in states.values() for state in one)),
            },
            "map": await asyncio.to_thread(node_map, view, names, states),
        }


def node_map(view: View, names: Sequence[str], states: Mapping[str, Sequence[str]]) -> Json:
    """Return what the nodes of a view offer of these resources, and what pods hold, in columns.

    Nodes are in the order of their names. Amounts are whole units. A resource that no node has and
    no pod holds is left out, and so is what is beyond the bounds.
    """
    nodes = sorted(view.traits.rows.items())[:MAX_NODES]
    rows = [row for _, row in nodes]
    allocatable, requested = view.allocatable[rows], view.requested[rows]
    resources: Json = {}
    for name in names:
        column = view.resources.get(name)
        if column is None or len(resources) == MAX_RESOURCES:
            continue
        offered, held = allocatable[:, column], requested[:, column]
        if offered.any() or held.any():
            resources[name] = {"offered": offered.tolist(), "held": held.tolist()}
    return {
        "nodes": [name for name, _ in nodes],
        "states": [list(states.get(name, ())) for name, _ in nodes],
        "resources": resources,
        "left_out": len(view) - len(nodes),
    }


def manager_page(sources: PageSources, clock: Clock) -> Page:
    """The page with its view, for those who may read the configuration."""
    view = files("koord_manager.page").joinpath("manager.js").read_bytes()
    page = ManagerPage(sources, clock)
    return Page(source=page, views={"manager.js": view}, period=PERIOD, path="/configz")
