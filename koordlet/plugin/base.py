"""The class that QoS plugins derive from, its limits, and the context of a plugin."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from koord.util.clock import Clock
from koord.util.errors import OptionError, Unavailable
from koord.util.stop import Stop
from koordlet.executor.claims.claim import (
    Claim,
    ClaimOutcome,
    Claims,
    ClaimScope,
    Key,
    Part,
    UnavailableClaims,
)
from koordlet.executor.evictions.eviction import (
    Eviction,
    EvictionHandler,
    EvictionRequest,
    SuppressedEviction,
    UnavailableEvictor,
)
from koordlet.executor.kernel.view import NoKernel
from koordlet.plugin.interfaces import Client, States
from koordlet.plugin.publishing import Published
from koordlet.statesinformer.podmeta import PodMeta

if TYPE_CHECKING:
    from koord.api.eviction import EvictionOutcome
    from koord.api.pod import Pod
    from koord.component.flags import FeatureSpec, FlagSet
    from koordlet.executor.claims.claim import AuditText, Target
    from koordlet.executor.kernel.view import Kernel
    from koordlet.host.resource import Resource
    from koordlet.metriccache.cache import MetricCache
    from koordlet.metriccache.kinds import AnyKind
    from koordlet.plugin.metrics import PluginMetrics


MAX_REASON = 200  # characters of one reason
MAX_PARTS = 8  # of a plugin that report something at a time


class SelfReport:
    """Reasons why one plugin works with less, one for each of its parts. For any thread."""

    def __init__(self) -> None:
        self._reasons: Mapping[str, str] = {}  # replaced as a whole

    @property
    def text(self) -> str:
        """All reasons in one line; "" for none."""
        return "; ".join(self._reasons.values())

    def degrade(self, reason: str, part: str) -> None:
        """Set the reason why a part of the plugin is degraded; "": it is well again."""
        others = {name: text for name, text in self._reasons.items() if name != part}
        if not reason:
            self._reasons = others
        elif len(others) < MAX_PARTS:
            self._reasons = {**others, part: _bounded(reason)}

    def clear(self) -> None:
        """Forget all reasons: the run that reported them is over."""
        self._reasons = {}


def _bounded(reason: str) -> str:
    """One line of printable text."""
    text = "".join(c if c.isprintable() else " " for c in str(reason)[: 2 * MAX_REASON])
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


class Log(Protocol):
    """The plugin's own logger: a constant event name, `noun.verb`, and facts as keys."""

    def debug(self, event: str, **facts: Any) -> Any: ...
    def info(self, event: str, **facts: Any) -> Any: ...
    def warning(self, event: str, **facts: Any) -> Any: ...
    def error(self, event: str, **facts: Any) -> Any: ...


class MetricPublisher(Protocol):
    """Takes the values of a plugin's own metric kinds."""

    def publish(self, kind: "AnyKind", values: Mapping[tuple[str, ...], float]) -> int:
        """Publish values of a declared kind; see ExtensionPlugin.publish."""


class NoPublisher:
    """Publisher of a plugin that has not been set up."""

    def publish(self, kind: "AnyKind", values: Mapping[tuple[str, ...], float]) -> int:
        raise Unavailable(
            f"wanted to publish {kind.name}, found a plugin that has not been set up; "
            "publish from setup on"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginContext:
    """Everything that a plugin works with, in addition to the arguments of its methods.

    The first five are there from init_flags on. The others are from setup on; until then, and
    where the agent lacks them, they raise Unavailable.
    """

    log: Log
    metrics: "PluginMetrics"
    clock: "Clock"
    gate_is_on: Callable[[str], bool]
    health: SelfReport = field(default_factory=SelfReport)
    kernel: "Kernel" = field(default_factory=NoKernel)
    claims: Claims = field(default_factory=UnavailableClaims)
    evictor: EvictionHandler = field(default_factory=UnavailableEvictor)
    publisher: MetricPublisher = field(default_factory=NoPublisher)


def eviction_request(
    plugin: "ExtensionPlugin",
    pod: "PodMeta | Pod",
    reason: str,
    feature: str,
    *,
    grace_seconds: int | None = None,
    inputs: Mapping[str, float | str] | None = None,
    candidates: Iterable[str] = (),
) -> EvictionRequest:
    """Return the request; the arguments are those of ExtensionPlugin.evict.

    Raises:
        OptionError: reason, feature or grace_seconds cannot be used.
    """
    if not reason:
        raise OptionError("evict reason", reason, "say why, with the numbers that decided")
    if feature not in ("", plugin.name, *plugin.gates):
        known = ", ".join((plugin.name, *plugin.gates))
        raise OptionError("evict feature", feature, f"use one of {known}")
    if grace_seconds is not None and grace_seconds < 0:
        raise OptionError("evict grace_seconds", grace_seconds, "use 0 or more, or None")
    return EvictionRequest(
        plugin=plugin.name,
        feature=feature or plugin.name,
        pod=pod_of(pod),
        reason=reason,
        grace_seconds=grace_seconds,
        cgroup=pod.cgroup if isinstance(pod, PodMeta) else "",
        inputs=inputs or {},
        candidates=tuple(candidates),
    )


def pod_of(pod: "PodMeta | Pod") -> "Pod":
    """Return the Pod object, also of a PodMeta."""
    return pod.pod if isinstance(pod, PodMeta) else pod


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a plugin may take before it is stopped; its class overrides what does not fit."""

    round: float = 30.0  # seconds one turn of stop.every(...) may last
    silence: float = 600.0  # seconds a run that is in no round may go without doing anything
    grace: float = 5.0  # seconds run may take to return after the stop signal, then it is cancelled
    stop: float = 10.0  # seconds stop() may take
    memory: float = 32 * 2**20  # bytes the process may grow by while the plugin's own code runs


WAITS_FOR_EVENTS = Limits(silence=math.inf)  # for a run that only waits, for pods for example


class ExtensionPlugin(ABC):
    """A part of the agent that watches, or acts on, what the agent measures.

    The daemon calls init_flags of all plugins, then setup of the enabled ones, then their run. One
    that is switched on later gets its setup then. Switching a plugin's gate off ends its run and
    its callbacks, and on again starts another run without a second setup. An exception in one
    plugin breaks that plugin only, and a run that failed is started again after a while.

    Everything runs on the agent's event loop: a plugin that holds it for two seconds is
    interrupted. Work that needs longer belongs into asyncio.to_thread.
    """

    spec: ClassVar["FeatureSpec | None"] = None
    """The gate that the plugin adds to --feature-gates when its class is the entry point.

    None: an alpha gate that is off by default, or no gate of its own when gates names others.
    """
    gates: ClassVar[tuple[str, ...]] = ()
    """Gates that also enable the plugin, any of them, in addition to its own."""
    modes: ClassVar[tuple[str, ...]] = ()
    """Gates that change what it does, without enabling it; ask gate()."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Gates of the collectors whose metrics it reads; /healthz names those that are off."""
    limits: ClassVar[Limits] = Limits()
    may_claim: ClassVar[tuple[ClaimScope, ...]] = ()
    """The kernel values it may claim. Of two that may claim the same and are both enabled, the one
    that was enabled second is rejected until the first is disabled."""
    publishes: ClassVar[tuple[Published, ...]] = ()
    """The metric kinds of its own that it publishes."""
    audit_text: ClassVar["AuditText | None"] = None
    """The audit log's text for values that have no wording of their own; None: as any value."""

    name: str
    """The name it was registered under."""
    log: Log
    """Its own logger. This and the following are bound before init_flags."""
    metrics: "PluginMetrics"
    clock: Clock
    kernel: "Kernel"
    """Kernel values to look at, off the event loop; bound before setup."""
    __context: PluginContext | None = None  # mangled, so that a plugin may have its own _context

    def bind(self, context: PluginContext) -> None:
        """Take what the daemon hands over; it does this before init_flags, and before setup."""
        self.__context = context
        self.log, self.metrics, self.clock = context.log, context.metrics, context.clock
        self.kernel = context.kernel

    @property
    def context(self) -> PluginContext:
        """Everything that the daemon has handed over, for the other attributes and methods.

        Raises:
            Unavailable: nothing yet.
        """
        if self.__context is None:
            raise Unavailable(
                f"{type(self).__name__}: wanted what the daemon hands over, found a plugin that it "
                "has not bound; use it from init_flags on, in a test with PluginHarness"
            )
        return self.__context

    def init_flags(self, flags: "FlagSet") -> None:  # noqa: B027 - most plugins have no flags
        """Define command line flags; called on every plugin, enabled or not.

        Values are there from setup on. Name flags after the plugin: a name that is taken breaks
        the plugin that came second.
        """

    @abstractmethod
    def setup(self, client: Client, metric_cache: "MetricCache", states_informer: States) -> None:
        """Keep what run will need; called once, when the plugin is enabled for the first time.

        Callbacks that it registers are called while the plugin is enabled: with the states of the
        moment when a run begins, and after each change.

        Raises:
            Exception: anything; the plugin is then left out, and /healthz says why.
        """

    @abstractmethod
    async def run(self, stop: Stop) -> None:
        """Do the plugin's work until stop is set; `async for _ in stop.every(seconds)` paces it."""

    async def stop(self) -> None:  # noqa: B027 - most plugins have nothing to clean up
        """Clean up after run has ended, however it ended."""

    def gate(self, name: str) -> bool:
        """Whether a feature gate is on now, for a plugin that serves or heeds several."""
        return self.context.gate_is_on(name)

    async def evict(
        self,
        pod: "PodMeta | Pod",
        *,
        reason: str,
        feature: str = "",
        grace_seconds: int | None = None,
        inputs: Mapping[str, float | str] | None = None,
        candidates: Iterable[str] = (),
    ) -> Eviction:
        """End a pod through the Eviction API; return the outcome, within ten seconds.

        A plugin ends pods by this method only: PodDisruptionBudgets, dry-run and the node's
        budget (--evict-budget-per-hour) hold for it, and `koordletctl explain` shows it. Asking
        again for the same pod costs nothing while the response cannot have changed.

        reason is a sentence for people with the numbers that decided. feature is the gate that
        stands behind it when the plugin serves several, by default the plugin's name.
        grace_seconds, None: the pod's own grace period. inputs are the numbers in base units and
        candidates the pods that could be chosen, first victim first, for the record.

        Without an API server a pod is killed if --evict-fallback=kill; for that it has to be the
        PodMeta.

        Raises:
            Unavailable: the agent runs without Kubernetes.
            OptionError: reason, feature or grace_seconds cannot be used.
        """
        request = eviction_request(
            self,
            pod,
            reason,
            feature,
            grace_seconds=grace_seconds,
            inputs=inputs,
            candidates=candidates,
        )
        return await self.context.evictor.evict(request)

    async def kill_overdue(self, pod: "PodMeta", *, reason: str, feature: str = "") -> Eviction:
        """Report that a pod runs on after its eviction was accepted and its grace period is over.

        It is killed with --evict-fallback=kill, if this daemon saw the acceptance and the end of
        the grace period; else this is recorded. Raises as evict does.
        """
        return await self.context.evictor.kill_overdue(eviction_request(self, pod, reason, feature))

    def record_freed(self, pod: "PodMeta | Pod", freed: Mapping[str, float | str]) -> None:
        """Add the released amounts, in base units, to the record of a pod's eviction."""
        self.context.evictor.record_freed(pod_of(pod), freed)

    def record_suppressed(
        self, outcome: "EvictionOutcome", *, reason: str, message: str, feature: str = ""
    ) -> None:
        """Record that evictions are needed, and why none is requested."""
        held = SuppressedEviction(
            plugin=self.name,
            feature=feature or self.name,
            outcome=outcome,
            reason=reason,
            message=message,
        )
        self.context.evictor.record_suppressed(held)

    def announce(
        self, pod: "PodMeta | Pod", *, reason: str, message: str, warning: bool = True
    ) -> None:
        """Record a Kubernetes event on a pod; nothing happens without Kubernetes.

        reason is one word in CamelCase, message a sentence for people.
        """
        self.context.evictor.announce(pod_of(pod), warning=warning, reason=reason, message=message)

    def publish(self, kind: "AnyKind", values: Mapping[tuple[str, ...], float]) -> int:
        """Put values of one of the plugin's own kinds into the metric cache, by key.

        Call it once per moment and kind, about as often as the kind's cadence says: a value is the
        newest one for two intervals. Returns how many values were left out: of series beyond the
        kind's bound, or with property values that are too long or not printable.

        Raises:
            OptionError: the kind is not among publishes.
            UnknownSeries: a key is not one of the kind's.
        """
        return self.context.publisher.publish(kind, values)

    def degrade(self, reason: str, *, part: str = "") -> None:
        """Report in /healthz and `koordletctl plugins` that the plugin works with less; "": ended.

        reason is a sentence for people, cut to 200 characters. Several parts of a plugin
        each report their own. It holds until it is withdrawn, or the run ends.
        """
        self.context.health.degrade(reason, part)

    async def claim(
        self,
        target: "Target",
        resource: "Resource[Any]",
        value: Any,
        *,
        reason: str,
        inputs: Mapping[str, float | str] | None = None,
        part: Part = Part.VALUE,
        original: Any = None,
        scope: str = "",
    ) -> ClaimOutcome:
        """Claim a kernel value from now on; return the outcome.

        A plugin changes the kernel by this method only. The claim holds until it is
        withdrawn, replaced, or the plugin's run ends; then the original value is restored. The
        same claim again costs nothing. What a kernel does is an outcome, never an exception.

        reason is the rule in one sentence, inputs the numbers that decided, in base units. original
        is the value to restore where that follows from the pod's spec. A scope groups claims for
        claim_all.

        Raises:
            OptionError: the claim is not among may_claim, or its value cannot be used.
        """
        claim = Claim(
            target=target,
            resource=resource,
            value=value,
            reason=reason,
            inputs=inputs or {},
            part=part,
            original=original,
        )
        return await self.context.claims.claim(self.name, claim, scope)

    async def claim_all(self, claims: Iterable[Claim], *, scope: str = "") -> list[ClaimOutcome]:
        """Make these the plugin's only claims of a scope: its other claims of it are withdrawn.

        They are applied together, in an order that the kernel accepts. Raises as claim does;
        nothing has changed then.
        """
        return await self.context.claims.claim_all(self.name, claims, scope)

    async def withdraw(
        self, target: "Target", resource: "Resource[Any]", *, part: Part = Part.VALUE
    ) -> None:
        """Withdraw one claim; nothing happens when there is none."""
        await self.context.claims.withdraw(self.name, Key(target, resource), part)

    async def withdraw_all(self, *, scope: str | None = None) -> None:
        """Withdraw all claims of a scope; None: of every scope."""
        await self.context.claims.withdraw_all(self.name, scope)
