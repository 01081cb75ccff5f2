"""Changes of the cluster's objects, for plugins that keep accounts of their own."""

from collections.abc import Callable
from typing import Any, TypeVar

from koord.cluster.decoder import Kind
from koord.component.plugins.failures import FailureLog
from koord.component.plugins.meter import running_plugin
from koord.util.clock import Clock
from koord.util.logs import get_logger

T = TypeVar("T")

OnChange = Callable[[T | None, T | None], None]
"""on_change(old, new): an object before and after; None where it is absent."""

log = get_logger("koord_scheduler.framework")


class Changes:
    """Calls plugins when an object was added, changed or removed. One event loop."""

    def __init__(self, clock: Clock) -> None:
        self._handlers: dict[str, list[tuple[str, OnChange[Any]]]] = {}  # by kind, with the plugin
        self._failures = FailureLog(log, clock)

    def subscribe(self, kind: Kind[T], on_change: OnChange[T]) -> None:
        """Have a function called after each change of a kind, when the cluster has it already.

        It must be cheap, as it holds up all else; what it raises is logged. A plugin subscribes
        when it is made, which is before the first list comes, and so learns of every object.
        """
        self._handlers.setdefault(kind.name, []).append((running_plugin(), on_change))

    def notify(self, kind: Kind[T], old: T | None, new: T | None) -> None:
        """Call all functions for this kind."""
        for plugin, on_change in self._handlers.get(kind.name, ()):
            try:
                on_change(old, new)
            except Exception as err:
                facts = {"watched": kind.name, "handler": getattr(on_change, "__qualname__", "")}
                self._failures.failed("change.failed", plugin, err, **facts)
