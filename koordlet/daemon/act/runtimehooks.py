"""Runtime hooks: built once the container runtime offers its socket, so that none costs nothing."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import Histogram

from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.stop import Stop
from koordlet.daemon.act.actions import Actions
from koordlet.daemon.settings.hookflags import STAGES
from koordlet.daemon.settings.settings import Settings
from koordlet.features import INJECTORS
from koordlet.metriccache.cache import MetricCache
from koordlet.plugin.pods import PodRoundsPlugin, ReconcilingPlugin
from koordlet.qosmanager.manager import QOSManager
from koordlet.statesinformer.informer import StatesInformer

if TYPE_CHECKING:
    from koordlet.runtimehooks.client import RuntimeHooks
    from koordlet.runtimehooks.injections import Injector
    from koordlet.runtimehooks.rules import Hook, StartHook

LOOK = 10.0  # seconds between looks for the socket
SOON = 0.2  # seconds between looks for the first round of the plugins


@dataclass(kw_only=True, slots=True)
class HooksPart:
    """The runtime hooks as a part of the daemon."""

    settings: Settings
    states: StatesInformer
    actions: Actions
    plugins: QOSManager
    clock: Clock
    times: Histogram  # of its invocations
    cache: MetricCache
    _hooks: "RuntimeHooks | None" = field(default=None, init=False)
    _injectors: "tuple[Injector, ...]" = field(default=(), init=False)

    async def run(self, stop: Stop) -> None:
        """Wait for the socket and the plugins, then serve the runtime until stop."""
        while not stop.is_set() and not (self._is_offered() and self.plugins.have_begun()):
            await stop.sleep(SOON if self._is_offered() else LOOK)
        if not stop.is_set():
            await self.actions.lock.judged()  # which takes a moment, and a runtime does not wait
            self._hooks = self._hooks or self._build()
            await self._hooks.run(stop)

    async def settle(self) -> None:
        """As RuntimeHooks.settle."""
        if self._hooks is not None:
            await self._hooks.settle()

    def health(self) -> PartHealth:
        """That of the connection; without a socket ok, unless a gate is of no use then."""
        if not self._is_offered():
            idle = ", ".join(filter(self.settings.gates.enabled, INJECTORS))
            if not idle:
                return PartHealth(OK.status, detail={"socket": "none"})
            reason = (
                f"{idle}: wanted the container runtime's socket {self._socket}, found none; switch "
                "NRI on in the runtime, and in a cluster use the component nri"
            )
            return PartHealth(Status.DEGRADED, reason)
        return self._hooks.health() if self._hooks else OK

    def explain(self, place: str) -> list[dict[str, object]]:
        """The latest answers to the runtime about a pod or cgroup, latest first; "": all."""
        return self._hooks.answers.explain(place) if self._hooks else []

    def _is_offered(self) -> bool:
        return os.path.lexists(self._socket)

    @property
    def _socket(self) -> Path:
        return self.settings.paths.var_run / self.settings.options.hooks.socket.value.strip("/")

    def _build(self) -> "RuntimeHooks":
        # Costs memory that a node without NRI does not need.
        from koordlet.runtimehooks.answers import Answers
        from koordlet.runtimehooks.client import RuntimeHooks
        from koordlet.runtimehooks.handlers import Plugin
        from koordlet.runtimehooks.options import FailurePolicy, HookOptions, Stage
        from koordlet.runtimehooks.rules import Rules

        flags, actions, answers = self.settings.options.hooks, self.actions, Answers()
        options = HookOptions(
            node=self.settings.node_name,
            name=flags.name.value,
            index=flags.index.value,
            runtime=flags.runtime.value,
            failure_policy=FailurePolicy(flags.failure_policy.value),
            stages=frozenset(map(Stage, set(STAGES) - set(flags.disabled_stages.value))),
            connect_timeout=flags.connect_timeout.value,
            backoff=flags.backoff.value,
            backoff_factor=flags.backoff_factor.value,
            backoff_cap=flags.backoff_cap.value,
        )
        is_dry_run = actions.claims.is_in_dry_run
        rules = Rules(
            self._running,
            is_dry_run,
            options,
            self.clock,
            self.times,
            self._injecting,
            self._starting,
        )

        def plugin() -> Plugin:
            return Plugin(
                options=options,
                rules=rules,
                pods=self.states,
                kernel=actions.kernel,
                expect=actions.expect,
                answers=answers,
                listeners=actions.listeners,
                clock=self.clock,
            )

        return RuntimeHooks(self._socket, options, plugin, answers, self.clock)

    def _starting(self) -> "Iterator[StartHook]":
        """The running plugins that have something to do before programs run."""
        from koordlet.runtimehooks.rules import StartHook

        for name, plugin, _ in self.plugins.running():
            if isinstance(plugin, PodRoundsPlugin) and plugin.before_start:
                yield StartHook(name, plugin)

    def _injecting(self) -> "Iterator[Injector]":
        """The injectors whose gates are on; made, and loaded, with the first."""
        wanted = [name for name in INJECTORS if self.settings.gates.enabled(name)]
        if wanted and not self._injectors:
            from koordlet.daemon.act.injectors import build_injectors

            self._injectors = build_injectors(self.settings, self.cache)
        return (each for each in self._injectors if each.name in wanted)

    def _running(self) -> "Iterator[Hook]":
        """The running plugins that decide on pods."""
        from koordlet.runtimehooks.rules import Hook

        for name, plugin, meter in self.plugins.running():
            if isinstance(plugin, ReconcilingPlugin):
                yield Hook(name, plugin, meter)
