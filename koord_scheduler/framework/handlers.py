"""Handlers that plugins register: changes of objects, failed and forgotten pods, start-up hooks."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import ClusterPod
from koord.component.plugins.execution import FailureLog, PluginCode, PluginTimeout, running_plugin
from koord.component.plugins.registry import PluginError, is_coroutine_function
from koord.component.plugins.shared import READY_TIMEOUT, STEP
from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord_scheduler.framework.status import Status
from koord_scheduler.framework.types import QueuedPod

T = TypeVar("T")

OnChange = Callable[[T | None, T | None], None]
"""on_change(old, new): an object before and after; None where it is absent."""

log = get_logger("koord_scheduler.framework")


class Changes:
    """Calls plugins when an object was added, changed or removed. One event loop."""

    def __init__(self, clock: Clock) -> None:
        self._handlers: dict[str, list[tuple[str, OnChange[Any]]]] = {}  # by kind, with the plugin
        self._failures = FailureLog(log, clock)

    def subscribe(self, kind: ObjectKind[T], on_change: OnChange[T]) -> None:
        """Call a function after each change of a kind, when the cluster state has it already.

        The function must be fast, as it blocks all else; an exception from it is logged. A plugin
        subscribes when it is made, before the first list comes, so it sees every object.
        """
        self._handlers.setdefault(kind.name, []).append((running_plugin(), on_change))

    def notify(self, kind: ObjectKind[T], old: T | None, new: T | None) -> None:
        """Call all functions for this kind."""
        for plugin, on_change in self._handlers.get(kind.name, ()):
            try:
                on_change(old, new)
            except Exception as err:
                facts = {"watched": kind.name, "handler": getattr(on_change, "__qualname__", "")}
                self._failures.failed("change.failed", plugin, err, **facts)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedPod:
    """A pod whose attempt failed."""

    profile: str
    pod: ClusterPod  # as it was tried
    queued: QueuedPod
    status: Status  # the plugin that rejected it is in it
    plugins: frozenset[str]  # all that have rejected it, or another pod of its group
    nominated_node: str | None  # "": a nomination that there was is void; None: as it was


FailureFilter = Callable[[FailedPod], bool]
"""Return whether the failure is handled, and others need not be asked."""


class FailureFilters:
    """Filters of plugins for failed pods, before and after they are requeued."""

    def __init__(self, clock: Clock) -> None:
        self._before: list[tuple[str, FailureFilter]] = []  # with the plugin that it is from
        self._after: list[tuple[str, FailureFilter]] = []
        self._failures = FailureLog(log, clock)

    def register(
        self, before: FailureFilter | None = None, after: FailureFilter | None = None
    ) -> None:
        """Add filters; they are asked in the order in which they were added.

        before: where it returns True, the pod is neither requeued nor reported: the plugin has
        handled it completely. after: asked whatever the filters before returned.
        """
        if before is not None:
            self._before.append((running_plugin(), before))
        if after is not None:
            self._after.append((running_plugin(), after))

    def before(self, failed: FailedPod) -> bool:
        """Whether one of them has handled the failure."""
        return self._any(self._before, failed)

    def after(self, failed: FailedPod) -> None:
        """Ask until one has handled it."""
        self._any(self._after, failed)

    def _any(self, filters: Iterable[tuple[str, FailureFilter]], failed: FailedPod) -> bool:
        for plugin, each in filters:
            try:
                if each(failed):
                    return True
            except Exception as err:  # of a plugin; the pod must not be lost for it
                name = getattr(each, "__qualname__", "")
                facts = {"handler": name, "pod": failed.pod.key}
                self._failures.failed("failure_filter.failed", plugin, err, **facts)
        return False


class ForgetHandlers:
    """Called when a plugin has a pod taken off its node that was assumed there."""

    def __init__(self, clock: Clock) -> None:
        self._handlers: list[tuple[str, Callable[[ClusterPod], None]]] = []
        self._failures = FailureLog(log, clock)

    def register(self, handler: Callable[[ClusterPod], None]) -> None:
        """Add a function that drops what its plugin keeps about a pod."""
        self._handlers.append((running_plugin(), handler))

    def forgotten(self, pod: ClusterPod) -> None:
        """Call all of them, whatever becomes of each."""
        for plugin, each in self._handlers:
            try:
                each(pod)
            except Exception as err:
                name = getattr(each, "__qualname__", "")
                facts = {"handler": name, "pod": pod.key}
                self._failures.failed("forget_handler.failed", plugin, err, **facts)


StartHook = Callable[[], Awaitable[None]]


class HookFailed(KoordError):
    """A start-up hook of a plugin has failed; the daemon cannot start."""


class StartHooks:
    """Hooks of plugins, run once when the cluster is known, before the first pod is tried."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hooks: list[tuple[str, StartHook]] = []
        self._running: tuple[str, float] | None = None  # the plugin, and since when
        self._late: list[str] = []

    def add(self, plugin: str, hook: StartHook) -> None:
        """Add a coroutine function: it finds in the cluster's state every object there is.

        It has a minute; then it is cancelled, and scheduling begins without it.

        Raises:
            PluginError: it is no coroutine function.
        """
        if not is_coroutine_function(hook):
            wanted = "wanted a start-up hook that is async def and takes nothing"
            raise PluginError(f"plugin {plugin}: {wanted}, found {hook!r:.80}", plugin)
        self._hooks.append((plugin, hook))

    def health(self) -> PartHealth:
        """Unhealthy while one runs; degraded when one was cancelled."""
        if self._running is not None:
            plugin, began = self._running
            seconds = self._clock.monotonic() - began
            reason = f"plugin {plugin}: its start-up hook runs for {seconds:.0f} s"
            return PartHealth(HealthStatus.UNHEALTHY, reason)
        if self._late:
            late = [f"plugin {plugin}: its start-up hook did not end" for plugin in self._late]
            return PartHealth(
                HealthStatus.DEGRADED, f"{'; '.join(late)} within {READY_TIMEOUT:g} s"
            )
        return OK

    async def run(self) -> None:
        """Run all, one after the other.

        Raises:
            HookFailed: one has raised, or held the event loop.
        """
        try:
            for plugin, hook in self._hooks:
                self._running = plugin, self._clock.monotonic()
                await self._run(plugin, hook)
        finally:
            self._running = None

    async def _run(self, plugin: str, hook: StartHook) -> None:
        code = PluginCode(plugin, self._clock, step_seconds=STEP)
        try:
            await code.run(hook, READY_TIMEOUT)
        except PluginTimeout as err:
            self._late.append(plugin)
            log.error("start_hook.timed_out", plugin=plugin, error=str(err))  # noqa: TRY400 - it says it all
        except Exception as err:
            text = error_text(err)
            raise HookFailed(f"plugin {plugin}: its start-up hook failed: {text}") from err
