"""Build the agent's status page. Imported only while the page is served."""

import dataclasses
from importlib.resources import files

from koord.component.page.serving import Page
from koordlet.daemon.components import DaemonComponents
from koordlet.executor.claims.table import cpu_limits
from koordlet.host.resource import Level
from koordlet.server.page import AgentPage, AgentPageSources, ChangeAnnotations


def agent_page(components: DaemonComponents, annotations: ChangeAnnotations) -> Page:
    """The page with its view."""
    view = files("koordlet.server.page").joinpath("agent.js").read_bytes()
    return Page(source=build_agent_page(components, annotations), views={"agent.js": view})


def build_agent_page(components: DaemonComponents, annotations: ChangeAnnotations) -> AgentPage:
    """Build the status page of a daemon. annotations has listened since actions were built."""
    qos, settings = components.qos, components.settings
    return AgentPage(
        AgentPageSources(
            node=settings.node_name,
            cache=components.measuring.cache,
            states=components.states,
            health=components.health,
            cpu_limits=lambda: cpu_limits(qos.executors.claims.snapshot(Level.QOS)),
            plugins=lambda: [dataclasses.asdict(each) for each in qos.plugins.describe()],
            dry_run=qos.dry_run.describe,
            decisions=qos.executors.decisions.explain,
            explain=qos.explainer.explain,
            flush=qos.audit.flush,
            audit=qos.audit.answer,
            annotations=annotations,
        ),
        components.clock,
    )
