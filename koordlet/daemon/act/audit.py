"""The audit log of this daemon: written, served page by page, queried by koordletctl."""

from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from koord.component.components import ComponentSet
from koord.util.clock import Clock
from koordlet.daemon.settings.settings import Settings
from koordlet.executor.audit.changes import ChangeAudit
from koordlet.executor.audit.files import Budget
from koordlet.executor.audit.log import AuditLog
from koordlet.executor.audit.pages import AuditPages
from koordlet.executor.audit.query import AuditQuery
from koordlet.executor.audit.reader import AuditReader
from koordlet.executor.audit.wording import Wording
from koordlet.executor.audit.writer import AuditWriter
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.desired import Change, Listener
from koordlet.executor.claims.target import Level
from koordlet.host.errors import Unsupported
from koordlet.host.host import Host
from koordlet.plugin.base import ExtensionPlugin
from koordlet.server.events import EventSources


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """The log and its readers."""

    directory: Path
    log: AuditLog
    pages: AuditPages
    events: EventSources

    def add_to(self, components: ComponentSet) -> None:
        """Have it run."""
        components.add("audit log", self.log)
        components.runs["audit pages"] = self.pages.run

    async def flush(self) -> None:
        """Have readers see what was noted before."""
        await self.log.flush()

    def answer(self, query: AuditQuery) -> dict[str, object]:
        """Return what `koordletctl audit` shows. Blocks: not for the event loop."""
        return {
            "enabled": self.log.enabled(),
            "directory": str(self.directory),
            "problem": self.log.problem,
            "events": query.find(self.directory),
        }


def build_audit(settings: Settings, clock: Clock, registry: CollectorRegistry) -> Audit:
    """Make the parts; no file is touched before the first event."""
    options, gates = settings.options, settings.gates
    directory = Path(options.audit_log_dir.value)
    budget = Budget.of(options.audit_max_disk_space_mb.value)
    log = AuditLog(
        AuditWriter(directory, budget, clock),
        clock,
        registry,
        enabled=lambda: gates.enabled("AuditEvents"),
        verbose=options.audit_verbose.value,
    )
    pages = AuditPages(
        lambda: AuditReader(directory), clock, most=options.audit_max_concurrent_readers.value
    )
    events = EventSources(
        pages=pages,
        flush=log.flush,
        served=lambda: gates.enabled("AuditEventsHTTPHandler"),
        recorded=log.enabled,
        most=options.audit_max_events_limit.value,
    )
    return Audit(directory=directory, log=log, pages=pages, events=events)


def audit_listener(settings: Settings, audit: AuditLog) -> Listener:
    """Return the listener that turns changes of values into events of the audit log."""
    host, registry = Host(settings.paths), settings.plugins.registry

    def path(key: Key) -> str:
        group = "" if key.target.level is Level.NODE else key.target.place
        try:
            return host.path(key.resource, group)
        except Unsupported:
            return str(key)

    def wording(change: Change) -> Wording | None:
        """The wording of the first owner that has one."""
        found = filter(None, map(registry.get, change.owners))
        return next(filter(None, (_words(each.plugin, change.key) for each in found)), None)

    return ChangeAudit(audit.note, path, wording)


def _words(plugin: ExtensionPlugin, key: Key) -> Wording | None:
    """A plugin's words for a value: those of its claim, else its own."""
    may_claim = (may.wording for may in plugin.may_claim if may.is_for(key))
    return next(filter(None, may_claim), plugin.wording)
