"""Builds the status page. Imported only while it is served."""

from importlib.resources import files

from koord.component.page.serving import Page
from koord.util.clock import Clock
from koord_scheduler.page.source import PageSources, SchedulerPage


def scheduler_page(sources: PageSources, clock: Clock) -> Page:
    """The page with its view, for those who may read the configuration."""
    view = files("koord_scheduler.page").joinpath("scheduler.js").read_bytes()
    page = SchedulerPage(sources, clock)
    return Page(source=page, views={"scheduler.js": view}, path="/configz")
