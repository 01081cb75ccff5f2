"""Build the runtime hooks once the container runtime offers its socket."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import Histogram

from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.stop import Stop
from koordlet.daemon.executors import Executors
from koordlet.daemon.settings import Settings
from koordlet.daemon.upstream_flags import STAGES
from koordlet.features import INJECTORS
from koordlet.metriccache.cache import MetricCache
from koordlet.plugin.pods import PodRoundsPlugin, ReconcilingPlugin
from koordlet.qosmanager.manager import QOSManager
from koordlet.statesinformer.informer import StatesInformer

if TYPE_CHECKING:
    from koordlet.runtimehooks.adjustments import Injector
    from koordlet.runtimehooks.client import RuntimeHooks
    from koordlet.runtimehooks.hooks import Hook, StartHook


SOCKET_INTERVAL = 10.0  # seconds between looks for the socket
FIRST_ROUND_INTERVAL = 0.2  # seconds between looks for the first round of the plugins


@dataclass(kw_only=True, slots=True)
class HooksPart:
    """The runtime hooks as a part of the daemon."""

    settings: Settings
    states: StatesInformer
    executors: Executors
    plugins: QOSManager
    clock: Clock
    times: Histogram  # of its invocations
    cache: MetricCache
    _hooks: "RuntimeHooks | None" = field(default=None, init=False)
    _injectors: "tuple[Injector, ...]" = field(default=(), init=False)

    async def run(self, stop: Stop) -> None:
        """Wait for the socket and the plugins, then serve the runtime until stop."""
        while not stop.is_set() and not (self._is_offered() and self.plugins.have_started()):
            await stop.sleep(FIRST_ROUND_INTERVAL if self._is_offered() else SOCKET_INTERVAL)
        if not stop.is_set():
            await (
                self.executors.lock.wait_observe_only()
            )  # which takes a moment, and a runtime does not wait
            self._hooks = self._hooks or self._build()
            await self._hooks.run(stop)

    async def settle(self) -> None:
        """Settle the runtime hooks, if they have started; see RuntimeHooks.settle."""
        if self._hooks is not None:
            await self._hooks.settle()

    def health(self) -> PartHealth:
        """Return the health of the connection to the container runtime.

        Without a socket: degraded if an enabled gate needs it, ok otherwise.
        """
        if not self._is_offered():
            idle = ", ".join(filter(self.settings.gates.enabled, INJECTORS))
            if not idle:
                return PartHealth(OK.status, detail={"socket": "none"})
            reason = (
                f"{idle}: wanted the container runtime's socket {self._socket}, found none; switch "
                "NRI on in the runtime, and in a cluster use the component nri"
            )
            return PartHealth(HealthStatus.DEGRADED, reason)
        return self._hooks.health() if self._hooks else OK

    def explain(self, place: str) -> list[dict[str, object]]:
        """The latest responses to the runtime about a pod or cgroup, latest first; "": all."""
        return self._hooks.responses.explain(place) if self._hooks else []

    def _is_offered(self) -> bool:
        return os.path.lexists(self._socket)

    @property
    def _socket(self) -> Path:
        return self.settings.paths.var_run / self.settings.options.hooks.socket.value.strip("/")

    def _build(self) -> "RuntimeHooks":
        # Costs memory that a node without NRI does not need.
        from koordlet.runtimehooks.client import RuntimeHooks
        from koordlet.runtimehooks.handlers import NriPlugin
        from koordlet.runtimehooks.hooks import (
            FailurePolicy,
            HookOptions,
            HookResponses,
            PluginHooks,
            Stage,
        )

        flags, executors, responses = self.settings.options.hooks, self.executors, HookResponses()
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
        is_dry_run = executors.claims.is_in_dry_run
        rules = PluginHooks(
            self._running,
            is_dry_run,
            options,
            self.clock,
            self.times,
            self._injecting,
            self._starting,
        )

        def plugin() -> NriPlugin:
            return NriPlugin(
                options=options,
                rules=rules,
                pods=self.states,
                kernel=executors.kernel,
                expect=executors.expect,
                responses=responses,
                listeners=executors.listeners,
                clock=self.clock,
            )

        return RuntimeHooks(self._socket, options, plugin, responses, self.clock)

    def _starting(self) -> "Iterator[StartHook]":
        """The running plugins that have something to do before programs run."""
        from koordlet.runtimehooks.hooks import StartHook

        for name, plugin, _ in self.plugins.running():
            if isinstance(plugin, PodRoundsPlugin) and plugin.before_start:
                yield StartHook(name, plugin)

    def _injecting(self) -> "Iterator[Injector]":
        """The injectors whose gates are on; made, and loaded, with the first."""
        wanted = [name for name in INJECTORS if self.settings.gates.enabled(name)]
        if wanted and not self._injectors:
            from koordlet.daemon.devices import build_injectors

            self._injectors = build_injectors(self.settings, self.cache)
        return (each for each in self._injectors if each.name in wanted)

    def _running(self) -> "Iterator[Hook]":
        """The running plugins that decide on pods."""
        from koordlet.runtimehooks.hooks import Hook

        for name, plugin, meter in self.plugins.running():
            if isinstance(plugin, ReconcilingPlugin):
                yield Hook(name, plugin, meter)
