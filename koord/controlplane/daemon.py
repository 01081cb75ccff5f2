"""A daemon of the control plane: the parts that each has, to which it adds its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from koord.component.components import ComponentSet
from koord.component.http.exposition import Exposition
from koord.component.leaderelection.elector import LeaderElector
from koord.component.leaderelection.metrics import LeaderMetrics
from koord.component.page.serving import Page
from koord.component.tasks import Run
from koord.controlplane.connection import Connection
from koord.controlplane.effective import effective_text
from koord.controlplane.flags import CONFIG_VERBOSITY
from koord.controlplane.lifecycle import Lifecycle, add_common_components, new_elector
from koord.controlplane.program import Program
from koord.controlplane.serving import HomeLoop, HttpSources, Servers
from koord.controlplane.settings import CommonSettings
from koord.util.clock import Clock
from koord.util.health import Health
from koord.util.logs import get_logger
from koord.util.stop import Stop


class CommonParts:
    """The parts of one daemon that every daemon has; `elect` and `serve` make the last of them."""

    def __init__(
        self,
        program: Program,
        settings: CommonSettings[Any, Any],
        connection: Connection[Any],
        exposition: Exposition,
        clock: Clock,
    ) -> None:
        self.components = ComponentSet(Health())
        self._home = HomeLoop(self.components.health)
        self.lifecycle = Lifecycle(self.components, self._home, clock)
        self._program = program
        self._settings = settings
        self._connection = connection
        self._exposition = exposition
        self._clock = clock
        self._elector: LeaderElector | None = None
        self._log = get_logger(f"{program.name.replace('-', '_')}.daemon")

    def elect(self, work: Run, *, hostname: str, component: str) -> None:
        """Have this replica stand for election; without a call it always leads.

        component is the name in which events are sent.
        """
        self._elector = new_elector(
            self._settings.configuration.leader_election,
            self._connection,
            self._home,
            work,
            self._clock,
            hostname=hostname,
            metrics=LeaderMetrics(self._exposition.internal),
            component=component,
        )

    def leads(self) -> bool:
        """Whether this replica leads right now."""
        return self._elector is None or self._elector.leading

    def follows(self) -> bool:
        """Whether another replica has led before this one."""
        return self._elector is not None and self._elector.follows

    async def lead(self, work: Run, stop: Stop) -> None:
        """Work while this replica leads; see Lifecycle.lead."""
        await self.lifecycle.lead(self._elector, work, stop)

    def serve(
        self,
        plain: Iterable[str],
        configuration: Callable[[], object],
        create: Callable[[HttpSources], web.Application],
        page: Callable[[], Page],
    ) -> None:
        """Make what listens, and take all common parts in, of which the certificate is the last.

        page: makes the status page, if there is to be one.

        Raises:
            CertificateError: it cannot be used.
        """
        sources = HttpSources(
            exposition=self._exposition,
            health=self.components.health,
            clock=self._clock,
            guard=self._connection.guard,
            configuration=configuration,
            page=page() if self._settings.options.status_page.value else None,
            home=self._home,
        )
        self._servers = Servers(plain, self._settings.options, sources, lambda: create(sources))
        add_common_components(self.components, self._connection, self._exposition, self._elector)

    def announce(self, facts: Mapping[str, object], document: object) -> None:
        """Log that the daemon has started, and what of its settings has no effect.

        document is the configuration, without what nobody should read in a log.
        """
        settings = self._settings
        self._log.info(
            "daemon.started",
            version=self._program.version,
            server=self._connection.server,
            config=str(settings.config_path or ""),
            **facts,
            leader_elect=self._elector is not None,
        )
        for event, warned in settings.warnings():
            self._log.warning(event, **warned)
        if settings.options.v.value >= CONFIG_VERBOSITY:
            self._log.info("config.effective", config=effective_text(document))

    async def run(
        self,
        work: Run,
        close: Callable[[], Awaitable[None]],
        stop: Stop | None,
        reread: Callable[[], None] | None = None,
    ) -> None:
        """Start, work until stop, and stop; see Lifecycle.run."""
        self.components.add("certificate", self._servers.certificate)
        await self.lifecycle.run(self._servers, work, close, stop, reread)


@asynccontextmanager
async def beside(clock: Clock) -> AsyncIterator[Callable[[Run], object]]:
    """Have parts run beside a block: each that is handed to the function, until the block ends."""
    stop = Stop(clock)
    try:
        async with asyncio.TaskGroup() as group:
            try:
                yield lambda run: group.create_task(_of(run, stop))
            finally:
                stop.set()
    except ExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from None  # whoever knows it need not know of the group


async def _of(run: Run, stop: Stop) -> None:
    await run(stop)
