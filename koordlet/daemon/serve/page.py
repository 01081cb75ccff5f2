"""Builds what the agent shows on its status page. Imported only while the page is served."""

import dataclasses
from importlib.resources import files

from koord.component.page.serving import Page
from koordlet.daemon.components import DaemonComponents
from koordlet.executor.claims.inforce import cpu_limits
from koordlet.executor.claims.target import Level
from koordlet.server.page.marks import Marks
from koordlet.server.page.source import AgentPage, AgentPageSources


def agent_page(components: DaemonComponents, marks: Marks) -> Page:
    """The page with its view."""
    view = files("koordlet.server.page").joinpath("agent.js").read_bytes()
    return Page(source=build_agent_page(components, marks), views={"agent.js": view})


def build_agent_page(components: DaemonComponents, marks: Marks) -> AgentPage:
    """Make it of a daemon's components. marks has been listening since actions were built."""
    acting, settings = components.acting, components.settings
    return AgentPage(
        AgentPageSources(
            node=settings.node_name,
            cache=components.measuring.cache,
            states=components.states,
            health=components.health,
            cpu_limits=lambda: cpu_limits(acting.actions.claims.snapshot(Level.QOS)),
            plugins=lambda: [dataclasses.asdict(each) for each in acting.plugins.describe()],
            dry_run=acting.dry_run.describe,
            decisions=acting.actions.decisions.explain,
            explain=acting.explainer.explain,
            flush=acting.audit.flush,
            audit=acting.audit.answer,
            marks=marks,
        ),
        components.clock,
    )
