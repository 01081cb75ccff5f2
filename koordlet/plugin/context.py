"""Everything that the daemon, or the test kit, hands to one plugin."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from koord.util.errors import Unavailable
from koordlet.executor.claims.claim import Claims, NoClaims
from koordlet.executor.evictions.eviction import Evicts, UnavailableEvictor
from koordlet.executor.kernel.view import NoKernel
from koordlet.plugin.selfreport import SelfReport

if TYPE_CHECKING:
    from koord.util.clock import Clock
    from koordlet.executor.kernel.view import Kernel
    from koordlet.metriccache.kinds import AnyKind
    from koordlet.plugin.metrics import PluginMetrics


class Log(Protocol):
    """The plugin's own logger: a constant event name, `noun.verb`, and facts as keys."""

    def debug(self, event: str, **facts: Any) -> Any: ...
    def info(self, event: str, **facts: Any) -> Any: ...
    def warning(self, event: str, **facts: Any) -> Any: ...
    def error(self, event: str, **facts: Any) -> Any: ...


class Publishes(Protocol):
    """Takes the values of a plugin's own metric kinds."""

    def publish(self, kind: "AnyKind", values: Mapping[tuple[str, ...], float]) -> int:
        """As ExtensionPlugin.publish."""


class NoPublisher:
    """Publisher of a plugin that has not been set up."""

    def publish(self, kind: "AnyKind", values: Mapping[tuple[str, ...], float]) -> int:
        raise Unavailable(
            f"wanted to publish {kind.name}, found a plugin that has not been set up; "
            "publish from setup on"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginContext:
    """Everything that a plugin works with, beside the arguments of its methods.

    The first five are there from init_flags on. The others are from setup on; until then, and
    where the agent lacks them, they raise Unavailable.
    """

    log: Log
    metrics: "PluginMetrics"
    clock: "Clock"
    gate_is_on: Callable[[str], bool]
    health: SelfReport = field(default_factory=SelfReport)
    kernel: "Kernel" = field(default_factory=NoKernel)
    claims: Claims = field(default_factory=NoClaims)
    evictor: Evicts = field(default_factory=UnavailableEvictor)
    publisher: Publishes = field(default_factory=NoPublisher)
