"""Answers the requests of the runtime."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.slices import in_slices
from koordlet.executor.claims.desired import Change, Expected, Listener
from koordlet.executor.kernel.view import Kernel
from koordlet.host.resources import CPUSET_CPUS, CPUSET_CPUS_WANTED
from koordlet.runtimehooks.adjustments import Adjustment, adjustments, linux_resources
from koordlet.runtimehooks.answers import Answer, Answers, pod_name
from koordlet.runtimehooks.connection import CallError
from koordlet.runtimehooks.options import HookOptions, Stage
from koordlet.runtimehooks.rules import HookError, Rules
from koordlet.runtimehooks.sandboxes import pod_meta, with_container
from koordlet.runtimehooks.wire.errors import malformed
from koordlet.runtimehooks.wire.messages import (
    ConfigureRequest,
    ConfigureResponse,
    Container,
    ContainerAdjustment,
    ContainerRequest,
    ContainerState,
    ContainerUpdate,
    CreateContainerResponse,
    Event,
    LinuxContainerAdjustment,
    LinuxContainerUpdate,
    LinuxResources,
    PodSandbox,
    PodSandboxRequest,
    StateChangeEvent,
    SynchronizeRequest,
    SynchronizeResponse,
    UpdateContainerResponse,
)
from koordlet.runtimehooks.wire.protobuf import Message
from koordlet.runtimehooks.wire.ttrpc import Code
from koordlet.statesinformer.model import PodMeta

M = TypeVar("M", bound=Message)

MOST_SYNCHRONIZED = 16384  # containers of a node
PATIENCE = 1.0  # seconds for the journal; the runtime waits two for an answer
_LARGE = 64 << 10  # bytes of a message that is not decoded on the event loop

STAGE_EVENTS = {
    Stage.RUN_SANDBOX: Event.RUN_POD_SANDBOX,
    Stage.REMOVE_SANDBOX: Event.REMOVE_POD_SANDBOX,
    Stage.CREATE_CONTAINER: Event.CREATE_CONTAINER,
    Stage.UPDATE_CONTAINER: Event.UPDATE_CONTAINER,
}

log = get_logger("koordlet.runtimehooks")


class Pods(Protocol):
    """The pods of the node; koordlet.statesinformer.StatesInformer."""

    def pods(self) -> Sequence[PodMeta]: ...

    def pod(self, uid: str) -> PodMeta | None: ...

    def has_synced(self) -> bool: ...


@dataclass(kw_only=True)
class Plugin:
    """The plugin of one connection, as NRI calls it."""

    options: HookOptions
    rules: Rules
    pods: Pods
    kernel: Kernel
    expect: Callable[[Sequence[Expected]], Awaitable[list[str]]]  # as Writer.expect
    answers: Answers
    listeners: Sequence[Listener]
    clock: Clock
    runtime: str = ""  # name and version, from Configure on
    synchronized: int = 0  # containers
    _sandboxes: dict[str, PodSandbox] = field(default_factory=dict)  # of a Synchronize in parts
    _containers: list[Container] = field(default_factory=list)

    async def handle(self, method: str, payload: bytes) -> bytes:
        """Answer a request.

        Raises:
            CallError: the runtime gets this error.
            WireError: the request is malformed.
        """
        methods: dict[str, Callable[[bytes], Awaitable[Message | None]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "Shutdown": self._nothing,
            "CreateContainer": self._create_container,
            "UpdateContainer": self._update_container,
            "RunPodSandbox": self._run_sandbox,
            "RemovePodSandbox": self._nothing,
            "StateChange": self._state_change,
        }
        found = methods.get(method)
        if found is None:
            raise CallError(Code.UNIMPLEMENTED, f"no method {method!r:.80}")
        try:
            answer = await found(payload)
        except HookError as err:
            raise CallError(Code.UNKNOWN, str(err)) from err
        return b"" if answer is None else answer.encode()

    async def _configure(self, payload: bytes) -> ConfigureResponse:
        request = ConfigureRequest.decode(payload)
        self.runtime = f"{request.runtime_name} {request.runtime_version}".strip()
        if request.config:
            hint = "use --runtime-hooks-disable-stages"
            log.warning("nri.configuration_ignored", runtime=self.runtime, hint=hint)
        return ConfigureResponse(sum(STAGE_EVENTS[stage].bit for stage in self.options.stages))

    async def _nothing(self, payload: bytes) -> None:
        """Nothing to do: pods that end are seen in the cgroup tree."""

    async def _state_change(self, payload: bytes) -> None:
        """As older runtimes send RunPodSandbox and RemovePodSandbox."""
        request = await _decoded(StateChangeEvent, payload)
        if request.event == Event.RUN_POD_SANDBOX and request.pod is not None:
            await self._prepare(request.pod)

    async def _run_sandbox(self, payload: bytes) -> None:
        request = await _decoded(PodSandboxRequest, payload)
        if request.pod is not None:
            await self._prepare(request.pod)

    async def _prepare(self, sandbox: PodSandbox) -> None:
        """Have the pod's own values set. What takes too long is finished without the runtime."""
        meta = self._known(sandbox)
        if meta is not None:
            await self.rules.prepare(meta)

    async def _create_container(self, payload: bytes) -> CreateContainerResponse:
        request = await _decoded(ContainerRequest, payload)
        container = request.container
        if request.pod is None or container is None:
            return CreateContainerResponse()
        asked = container.linux.resources if container.linux else None
        adjusted = await self._adjust(request.pod, container, asked, Stage.CREATE_CONTAINER)
        resources = linux_resources(adjusted)
        if resources is None:
            return CreateContainerResponse()
        linux = LinuxContainerAdjustment(resources=resources)
        return CreateContainerResponse(ContainerAdjustment(linux=linux))

    async def _update_container(self, payload: bytes) -> UpdateContainerResponse:
        request = await _decoded(ContainerRequest, payload)
        container = request.container
        if request.pod is None or container is None:
            return UpdateContainerResponse()
        adjusted = await self._adjust(
            request.pod, container, request.resources, Stage.UPDATE_CONTAINER, only_asked=True
        )
        update = _update(container.id, adjusted)
        return UpdateContainerResponse((update,) if update else ())

    async def _synchronize(self, payload: bytes) -> SynchronizeResponse:
        """Take in what runs already, and return the updates of containers that differ."""
        request = await _decoded(SynchronizeRequest, payload)
        self._sandboxes |= {pod.id: pod for pod in request.pods}
        self._containers += request.containers
        most = max(len(self._sandboxes), len(self._containers))
        if most > MOST_SYNCHRONIZED:
            raise malformed("Synchronize", f"at most {MOST_SYNCHRONIZED} containers", most)
        if request.more:
            return SynchronizeResponse(more=True)
        sandboxes, containers = self._sandboxes, self._containers
        self._sandboxes, self._containers = {}, []
        updates = await self._updates(sandboxes, containers)
        self.synchronized = len(containers)
        log.info("nri.synchronized", containers=len(containers), updated=len(updates))
        return SynchronizeResponse(tuple(updates))

    async def _updates(
        self, sandboxes: dict[str, PodSandbox], containers: Iterable[Container]
    ) -> list[ContainerUpdate]:
        """The updates of containers that run; those that take too long are left to the plugins."""
        decisions: list[_Decision] = []
        ends = self.clock.monotonic() + PATIENCE
        asked_for = Stage.UPDATE_CONTAINER in self.options.stages
        async for container in in_slices(containers if asked_for else ()):
            sandbox = sandboxes.get(container.pod_sandbox_id)
            if sandbox is None or container.state not in ContainerState.living():
                continue
            asked = container.linux.resources if container.linux else None
            with suppress(HookError):  # the container runs already
                decision = await self._decide(sandbox, container, asked, Stage.UPDATE_CONTAINER)
                decisions += [decision] if decision else []
            if self.clock.monotonic() > ends:
                log.warning("nri.synchronize_cut_short", containers=len(decisions))
                break
        await self._record(decisions)
        updates = (_update(each.container.id, each.adjusted) for each in decisions)
        return [update for update in updates if update is not None]

    async def _adjust(
        self,
        sandbox: PodSandbox,
        container: Container,
        asked: LinuxResources | None,
        stage: Stage,
        *,
        only_asked: bool = False,
    ) -> list[Adjustment]:
        """Return the adjustments of a container, whose originals are recorded by then.

        Raises:
            HookError: a plugin failed, and the policy is Fail.
        """
        decision = await self._decide(sandbox, container, asked, stage, only_asked=only_asked)
        if decision is None:
            return []
        await self._record([decision])
        return decision.adjusted

    async def _decide(
        self,
        sandbox: PodSandbox,
        container: Container,
        asked: LinuxResources | None,
        stage: Stage,
        *,
        only_asked: bool = False,
    ) -> "_Decision | None":
        """Return what the plugins want; None: it is no container of the kubelet's.

        Raises:
            HookError: as _adjust.
        """
        known = self._known(sandbox)
        runtime = self.runtime if "cri-o" in self.runtime else self.options.runtime
        meta = known and with_container(known, container, self.kernel.layout, runtime)
        if not meta:
            return None
        group = meta.containers[0].cgroup
        ruling = await self.rules.ask(meta, stage)
        left = list(ruling.failed)
        wanted = adjustments(ruling.real, group, asked, only_asked=only_asked)
        return _Decision(
            meta,
            container,
            stage,
            await self._within_pod(meta, wanted, left),
            adjustments(ruling.dry_run, group, asked, only_asked=only_asked),
            left,
        )

    def _known(self, sandbox: PodSandbox) -> PodMeta | None:
        """The pod; None: it is not one of the kubelet, or too little is known of this node."""
        if not self.pods.has_synced():
            return None
        found = self.pods.pod(sandbox.uid)
        known = self.pods.pods() if found is None else (found,)  # a static pod has another uid
        return pod_meta(sandbox, known, self.kernel.layout)

    async def _within_pod(
        self, meta: PodMeta, wanted: list[Adjustment], left: list[str]
    ) -> list[Adjustment]:
        """Those that the pod's cgroup allows: with more CPUs no container can be made in it."""
        kept = []
        for one in wanted:
            if one.key.resource is CPUSET_CPUS_WANTED:
                there = await self.kernel.read(CPUSET_CPUS, meta.cgroup)
                if there is None or not one.value <= there:
                    left.append(f"{one.key.resource.name}: not all of them are the pod's so far")
                    continue
            kept.append(one)
        return kept

    async def _record(self, decisions: Sequence["_Decision"]) -> None:
        """Have the originals recorded; what cannot be is not adjusted. Explain the rest."""
        expected = [one.expected for decision in decisions for one in decision.adjusted]
        problems = iter(await self._problems(expected))
        for decision in decisions:
            pairs = [(one, next(problems)) for one in decision.adjusted]
            decision.adjusted[:] = [one for one, why in pairs if not why]
            decision.left.extend(f"{one.key.resource.name}: {why}" for one, why in pairs if why)
            for one in decision.adjusted:
                self._notify(one)
            if decision.adjusted or decision.in_dry_run or decision.left:
                self.answers.add(decision.answer(self.clock.wall()))

    async def _problems(self, expected: list[Expected]) -> list[str]:
        if not expected:
            return []
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.expect(expected)
        except TimeoutError:
            return ["the journal took too long; the plugin sets it later"] * len(expected)

    def _notify(self, one: Adjustment) -> None:
        change = Change("set", one.key, one.owners, one.asked, one.value, one.reason, one.inputs)
        for listener in self.listeners:
            listener(change)


@dataclass(frozen=True, slots=True)
class _Decision:
    """What is to become of one container."""

    meta: PodMeta
    container: Container
    stage: Stage
    adjusted: list[Adjustment]
    in_dry_run: list[Adjustment]
    left: list[str]  # why something is not adjusted

    def answer(self, at: float) -> Answer:
        """It as /explain has it."""
        return Answer(
            at=at,
            stage=self.stage,
            pod=pod_name(self.meta),
            uid=self.meta.uid,
            container=self.container.name,
            group=self.meta.containers[0].cgroup,
            adjusted=tuple(self.adjusted),
            dry_run=tuple(self.in_dry_run),
            left=tuple(self.left),
        )


def _update(container_id: str, adjusted: Iterable[Adjustment]) -> ContainerUpdate | None:
    resources = linux_resources(adjusted)
    if resources is None:
        return None
    linux = LinuxContainerUpdate(resources)
    return ContainerUpdate(container_id, linux, ignore_failure=True)


async def _decoded(of: type[M], payload: bytes) -> M:
    """Decode a message, a large one off the event loop. Raises WireError."""
    if len(payload) < _LARGE:
        return of.decode(payload)
    return await asyncio.to_thread(of.decode, payload)
