"""The rules of plugins for the pod that the runtime is about to start."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from prometheus_client import Histogram

from koord.component.plugins.meter import Meter
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.logs import get_logger
from koordlet.executor.claims.claim import Claim
from koordlet.runtimehooks.adjustments import Owned
from koordlet.runtimehooks.injections import Injected, Injection, Injector
from koordlet.runtimehooks.options import FailurePolicy, HookOptions, Stage
from koordlet.statesinformer.model import PodMeta

PATIENCE = 0.5  # seconds for an injector or a start; the runtime waits two for an answer

log = get_logger("koordlet.runtimehooks")


class Rule(Protocol):
    """What koordlet.plugin.pods.ReconcilingPlugin has for pods that are not there yet."""

    def claims_ahead(self, meta: PodMeta) -> Sequence[Claim]: ...

    async def prepare(self, meta: PodMeta) -> None: ...


class Hook(NamedTuple):
    """A running plugin that decides on pods."""

    name: str
    rule: Rule
    meter: Meter


class Starter(Protocol):
    """What koordlet.plugin.pods.PodRoundsPlugin has for containers before their program runs."""

    async def start(self, meta: PodMeta) -> None: ...


class StartHook(NamedTuple):
    """A running plugin that has something to do then."""

    name: str
    plugin: Starter


class HookError(Exception):
    """A plugin failed, and the policy is that the runtime gets to know."""


class Ruling(NamedTuple):
    """The claims on a pod: of plugins that act, and of those in dry-run."""

    real: tuple[Owned, ...]
    dry_run: tuple[Owned, ...]
    failed: tuple[str, ...]  # plugin: error


class Rules:
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

    async def ask(self, meta: PodMeta, stage: Stage) -> Ruling:
        """Return what the plugins claim of a pod.

        Raises:
            HookError: one failed, and the policy is Fail.
        """
        real: list[Owned] = []
        dry_run: list[Owned] = []
        failed: list[str] = []
        for hook in self._in_order():
            into = dry_run if await self._is_dry_run(hook.name) else real
            began = self._clock.monotonic()
            try:
                with hook.meter.step():
                    claims = hook.rule.claims_ahead(meta)
            except Exception as err:  # the plugin's own code, on a pod's own annotations
                failed.append(self._failed(hook.name, stage, began, meta, err))
            else:
                into += [Owned(hook.name, claim) for claim in claims]
                self._observe(hook.name, stage, began, "succeeded")
        return Ruling(tuple(real), tuple(dry_run), tuple(failed))

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
                async with asyncio.timeout(PATIENCE):
                    found = await injector.inject(meta, dry_run=not acts)
            except Exception as err:  # on a pod's own annotations
                failed.append(self._failed(injector.name, stage, began, meta, err))
            else:
                into = real if acts else dry_run
                into += [replace(found, owner=injector.name)] if found else []
                self._observe(injector.name, stage, began, "succeeded")
        return Injected(tuple(real), tuple(dry_run), tuple(failed))

    async def prepare(self, meta: PodMeta) -> None:
        """Have the plugins set what they claim of a new pod. Raises HookError as ask does."""
        stage = Stage.RUN_SANDBOX
        for hook in self._in_order():
            began = self._clock.monotonic()
            try:
                await hook.meter.drive(_prepared(hook.rule, meta))
            except Exception as err:
                self._failed(hook.name, stage, began, meta, err)
            else:
                self._observe(hook.name, stage, began, "succeeded")

    def want_starts(self) -> bool:
        """Whether a plugin has something to do before programs run."""
        return any(True for _ in self._starts())

    async def start(self, meta: PodMeta) -> None:
        """Have the plugins do that for the container of a pod. Raises HookError as ask does."""
        stage = Stage.START_CONTAINER
        for hook in self._starts():
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(PATIENCE):
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

    def _in_order(self) -> list[Hook]:
        return sorted(self._hooks(), key=lambda hook: hook.name)

    def _failed(self, hook: str, stage: Stage, began: float, meta: PodMeta, err: Exception) -> str:
        """Count a failure, and return it. Raises HookError as ask does."""
        self._observe(hook, stage, began, "failed")
        error = _in_words(err)
        pod = f"{meta.pod.namespace}/{meta.pod.name}"
        log.warning("hook.failed", hook=hook, stage=stage.value, pod=pod, error=error)
        message = f"{hook}: {error}"
        if self._options.failure_policy is FailurePolicy.FAIL:
            raise HookError(message) from err
        return message

    def _observe(self, hook: str, stage: Stage, began: float, status: str) -> None:
        milliseconds = (self._clock.monotonic() - began) * 1000
        self._times.labels(self._options.node, hook, stage.value, status).observe(milliseconds)


def _in_words(err: Exception) -> str:
    if isinstance(err, TimeoutError):
        return f"not done within {PATIENCE} s, as the runtime waits for the answer"
    return error_text(err)


async def _prepared(rule: Rule, meta: PodMeta) -> None:
    await rule.prepare(meta)
