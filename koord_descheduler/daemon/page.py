"""Builds the status page. Imported only while it is served."""

from collections.abc import Callable
from importlib.resources import files

from koord.component.page.serving import Page
from koord.util.clock import Clock
from koord.util.health import Health
from koord_descheduler.daemon.live import LiveConfiguration
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.ledger.ledger import Ledger
from koord_descheduler.page.source import DeschedulerPage, PageSources

_VIEWS = ("descheduler.js", "heatmap.js")


def descheduler_page(
    health: Health,
    decisions: Decisions,
    ledger: Ledger,
    live: LiveConfiguration,
    is_leader: Callable[[], bool],
    clock: Clock,
) -> Page:
    """Return the page with its views, for clients that may read the configuration."""
    sources = PageSources(
        health=health,
        decisions=decisions,
        is_leader=is_leader,
        configuration=lambda: live.configuration,
        entries=lambda: ledger.entries,
        pauses=lambda: ledger.pauses,
    )
    views = {name: files("koord_descheduler.page").joinpath(name).read_bytes() for name in _VIEWS}
    return Page(source=DeschedulerPage(sources, clock), views=views, path="/configz")
