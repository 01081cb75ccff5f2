"""The hooks of plugins for a pod that is about to start: options, claims, responses."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from prometheus_client import Histogram

from koord.api.nodemetric import time_text
from koord.component.plugins.execution import Meter
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.logs import get_logger
from koordlet.executor.claims.claim import Claim
from koordlet.runtimehooks.adjustments import (
    NOTHING,
    Adjustment,
    Injected,
    Injection,
    Injector,
    OwnedClaim,
)
from koordlet.statesinformer.podmeta import PodMeta


class FailurePolicy(StrEnum):
    """The values of --runtime-hooks-plugin-failure-policy."""

    IGNORE = "Ignore"  # a plugin that fails adjusts nothing
    FAIL = "Fail"  # the runtime gets the error, and the container is not made


class Stage(StrEnum):
    """The moments that can be left out, with Koordinator's names."""

    RUN_SANDBOX = "PreRunPodSandbox"
    CREATE_CONTAINER = "PreCreateContainer"
    START_CONTAINER = "PreStartContainer"
    UPDATE_CONTAINER = "PreUpdateContainerResources"
    REMOVE_SANDBOX = "PreRemoveRunPodSandbox"


@dataclass(frozen=True, kw_only=True, slots=True)
class HookOptions:
    """The flags. Durations are in seconds."""

    node: str
    name: str
    index: str
    runtime: str  # of container ids
    failure_policy: FailurePolicy
    stages: frozenset[Stage]
    connect_timeout: float
    backoff: float  # first pause
    backoff_factor: float
    backoff_cap: float


HOOK_TIMEOUT = 0.5  # seconds for an injector or a start; the runtime waits two for a response

log = get_logger("koordlet.runtimehooks")


class HookRule(Protocol):
    """A plugin's rule for pods that do not run yet; koordlet.plugin.pods.ReconcilingPlugin."""

    def early_claims(self, meta: PodMeta) -> Sequence[Claim]: ...

    async def prepare(self, meta: PodMeta) -> None: ...


class Hook(NamedTuple):
    """A running plugin that decides on pods."""

    name: str
    rule: HookRule
    meter: Meter


class Starter(Protocol):
    """A plugin that sets up a container before its program runs; PodRoundsPlugin does so."""

    async def start(self, meta: PodMeta) -> None: ...


class StartHook(NamedTuple):
    """A running plugin that has something to do then."""

    name: str
    plugin: Starter


class HookError(Exception):
    """A plugin failed, and the policy is that the runtime gets to know."""


class HookDecision(NamedTuple):
    """The claims on a pod: of plugins that act, and of those in dry-run."""

    real: tuple[OwnedClaim, ...]
    dry_run: tuple[OwnedClaim, ...]
    failed: tuple[str, ...]  # plugin: error


class PluginHooks:
    """Asks the plugins that run now, in the order of their names."""

    def __init__(
        self,
        hooks: Callable[[], Iterable[Hook]],
        is_dry_run: Callable[[str], Awaitable[bool]],
        options: HookOptions,
        clock: Clock,
        times: Histogram,
        injectors: Callable[[], Iterable[Injector]] = tuple,
        starts: Callable[[], Iterable[StartHook]] = tuple,
    ) -> None:
        """times: milliseconds, by node, hook, stage and status. injectors: those that are on."""
        self._injectors = injectors
        self._starts = starts
        self._hooks = hooks
        self._is_dry_run = is_dry_run
        self._options = options
        self._clock = clock
        self._times = times

    async def claims_for(self, meta: PodMeta, stage: Stage) -> HookDecision:
        """Return what the plugins claim of a pod.

        Raises:
            HookError: one failed, and the policy is Fail.
        """
        real: list[OwnedClaim] = []
        dry_run: list[OwnedClaim] = []
        failed: list[str] = []
        for hook in self._sorted_hooks():
            into = dry_run if await self._is_dry_run(hook.name) else real
            began = self._clock.monotonic()
            try:
                with hook.meter.step():
                    claims = hook.rule.early_claims(meta)
            except Exception as err:  # the plugin's own code, on a pod's own annotations
                failed.append(self._failed(hook.name, stage, began, meta, err))
            else:
                into += [OwnedClaim(hook.name, claim) for claim in claims]
                self._observe(hook.name, stage, began, "succeeded")
        return HookDecision(tuple(real), tuple(dry_run), tuple(failed))

    async def inject(self, meta: PodMeta) -> Injected:
        """Return what is added to the container of a pod. Raises HookError as ask does."""
        stage = Stage.CREATE_CONTAINER
        real: list[Injection] = []
        dry_run: list[Injection] = []
        failed: list[str] = []
        for injector in self._injectors():
            acts = not await self._is_dry_run(injector.name)
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(HOOK_TIMEOUT):
                    found = await injector.inject(meta, dry_run=not acts)
            except Exception as err:  # on a pod's own annotations
                failed.append(self._failed(injector.name, stage, began, meta, err))
            else:
                into = real if acts else dry_run
                into += [replace(found, owner=injector.name)] if found else []
                self._observe(injector.name, stage, began, "succeeded")
        return Injected(tuple(real), tuple(dry_run), tuple(failed))

    async def prepare(self, meta: PodMeta) -> None:
        """Set the plugins' claims of a new pod. Raises HookError as ask does."""
        stage = Stage.RUN_SANDBOX
        for hook in self._sorted_hooks():
            began = self._clock.monotonic()
            try:
                await hook.meter.drive(_prepared(hook.rule, meta))
            except Exception as err:
                self._failed(hook.name, stage, began, meta, err)
            else:
                self._observe(hook.name, stage, began, "succeeded")

    def has_start_hooks(self) -> bool:
        """Whether a plugin has something to do before programs run."""
        return any(True for _ in self._starts())

    async def start(self, meta: PodMeta) -> None:
        """Let the plugins set up the container of a pod. Raises HookError as ask does."""
        stage = Stage.START_CONTAINER
        for hook in self._starts():
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(HOOK_TIMEOUT):
                    await hook.plugin.start(meta)
            except Exception as err:
                self._failed(hook.name, stage, began, meta, err)
            else:
                self._observe(hook.name, stage, began, "succeeded")

    def fail(self, hook: str, pod: str, error: str) -> None:
        """Report what cannot be done for a pod. Raises HookError as ask does."""
        log.warning("hook.failed", hook=hook, pod=pod, error=error)
        if self._options.failure_policy is FailurePolicy.FAIL:
            raise HookError(f"{hook}: {error}")

    def _sorted_hooks(self) -> list[Hook]:
        return sorted(self._hooks(), key=lambda hook: hook.name)

    def _failed(self, hook: str, stage: Stage, began: float, meta: PodMeta, err: Exception) -> str:
        """Count a failure, and return it. Raises HookError as ask does."""
        self._observe(hook, stage, began, "failed")
        error = _error_text(err)
        pod = f"{meta.pod.namespace}/{meta.pod.name}"
        log.warning("hook.failed", hook=hook, stage=stage.value, pod=pod, error=error)
        message = f"{hook}: {error}"
        if self._options.failure_policy is FailurePolicy.FAIL:
            raise HookError(message) from err
        return message

    def _observe(self, hook: str, stage: Stage, began: float, status: str) -> None:
        milliseconds = (self._clock.monotonic() - began) * 1000
        self._times.labels(self._options.node, hook, stage.value, status).observe(milliseconds)


def _error_text(err: Exception) -> str:
    if isinstance(err, TimeoutError):
        return f"not done within {HOOK_TIMEOUT} s, as the runtime waits for the answer"
    return error_text(err)


async def _prepared(rule: HookRule, meta: PodMeta) -> None:
    await rule.prepare(meta)


MAX_RESPONSES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class HookResponse:
    """One answer. dry_run: what would have been adjusted; left: why something was not."""

    at: float  # Unix seconds
    stage: Stage
    pod: str
    uid: str
    container: str
    group: str
    adjusted: tuple[Adjustment, ...]
    dry_run: tuple[Adjustment, ...] = ()
    left: tuple[str, ...] = ()
    injected: Injected = NOTHING

    def to_json(self) -> dict[str, object]:
        """Return it as /explain has it."""
        return {
            "at": time_text(self.at),
            "stage": self.stage.value,
            "pod": self.pod,
            "uid": self.uid,
            "container": self.container,
            "cgroup": self.group,
            "adjusted": list(map(_as_json, self.adjusted)),
            "inDryRun": list(map(_as_json, self.dry_run)),
            "left": list(self.left),
            "injected": [one.to_json() for one in self.injected.real],
            "injectedInDryRun": [one.to_json() for one in self.injected.dry_run],
        }


class HookResponses:
    """Keeps the latest ones, of whatever connection, and whether all of them are recorded."""

    def __init__(self) -> None:
        self._kept: deque[HookResponse] = deque(maxlen=MAX_RESPONSES)
        self._being_recorded = 0  # requests
        self._all_recorded = asyncio.Event()
        self._all_recorded.set()
        self.ended = False  # nothing is adjusted any more

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let all_recorded wait for what is done meanwhile."""
        self._being_recorded += 1
        self._all_recorded.clear()
        try:
            yield
        finally:
            self._being_recorded -= 1
            if not self._being_recorded:
                self._all_recorded.set()

    async def all_recorded(self) -> None:
        """Return when the original values of all that is answered are recorded."""
        await self._all_recorded.wait()

    def add(self, response: HookResponse) -> None:
        """Keep one."""
        self._kept.append(response)

    def explain(self, place: str = "") -> list[dict[str, object]]:
        """The answers about a pod (namespace/name, name, UID) or cgroup, latest first; "": all."""
        return [one.to_json() for one in _about(reversed(self._kept), place)]


def pod_name(meta: PodMeta) -> str:
    """Return namespace/name."""
    return f"{meta.pod.namespace}/{meta.pod.name}"


def _about(responses: Iterable[HookResponse], place: str) -> Iterable[HookResponse]:
    for one in responses:
        names = (one.pod, one.pod.partition("/")[2], one.uid)
        if not place or place in names or f"{one.group}/".startswith(f"{place}/"):
            yield one


def _as_json(adjustment: Adjustment) -> dict[str, object]:
    resource = adjustment.key.resource
    return {
        "resource": resource.name,
        "unit": resource.unit,
        "value": _plain(adjustment.value),
        "asked": _plain(adjustment.asked),
        "plugins": list(adjustment.owners),
        "reason": adjustment.reason,
        "inputs": dict(adjustment.inputs),
    }


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value
