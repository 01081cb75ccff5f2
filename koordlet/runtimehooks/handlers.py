"""Answers the requests of the runtime."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from koord.api.pod import EXTENDED_RESOURCES, Pod
from koord.api.pod import Container as PodContainer
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.timebudget import in_slices
from koordlet.executor.claims.claim import Change, ChangeListener, InitialValue, Target
from koordlet.executor.kernel.view import Kernel
from koordlet.host.cgroups.cgroupfiles import QUOTA_PERIOD_US
from koordlet.host.cgroups.layout import Layout, qos_of
from koordlet.host.resource import Level
from koordlet.host.resources import CPUSET_CPUS, CPUSET_CPUS_WANTED
from koordlet.rules.allocations import ALLOCATIONS
from koordlet.runtimehooks.adjustments import (
    NOTHING,
    Adjustment,
    Injected,
    adjustments,
    container_adjustment,
    linux_resources,
)
from koordlet.runtimehooks.connection import CallError
from koordlet.runtimehooks.hooks import (
    HookError,
    HookOptions,
    HookResponse,
    HookResponses,
    PluginHooks,
    Stage,
    pod_name,
)
from koordlet.runtimehooks.wire import (
    Code,
    ConfigureRequest,
    ConfigureResponse,
    Container,
    ContainerRequest,
    ContainerState,
    ContainerUpdate,
    CreateContainerResponse,
    LinuxContainerUpdate,
    LinuxResources,
    Message,
    NriEvent,
    PodSandbox,
    PodSandboxRequest,
    StateChangeEvent,
    SynchronizeRequest,
    SynchronizeResponse,
    UpdateContainerResponse,
    malformed,
)
from koordlet.statesinformer.podmeta import (
    STATIC_POD_UID,
    ContainerMeta,
    PodMeta,
    has_allocations,
    without_annotations,
)

MAX_CONTAINERS = 256  # of a pod
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_CRIO = "cri-o"


def listed_pod(sandbox: PodSandbox, pods: Iterable[PodMeta]) -> PodMeta | None:
    """Return the pod of a sandbox among those that are known; None: it is not."""
    for meta in pods:
        if sandbox.uid and sandbox.uid in (meta.uid, meta.pod.annotations.get(STATIC_POD_UID)):
            return meta
    return None


def pod_meta(sandbox: PodSandbox, listed: PodMeta | None, layout: Layout) -> PodMeta | None:
    """Return a pod without its containers, as it is listed or else as the runtime describes it.

    What the latter says was given to it does not count: its requests are not known. None: it is
    not a pod of the kubelet.
    """
    group = _pod_group(sandbox, layout)
    if not group or not sandbox.uid:
        return None
    if listed is not None:
        return replace(listed, cgroup=group, containers=(), sandbox="")
    pod = Pod(
        namespace=sandbox.namespace,
        name=sandbox.name,
        uid=sandbox.uid,
        labels=sandbox.labels,
        annotations=sandbox.annotations,
        phase="Pending",
        qos=qos_of(group),
        containers=tuple(map(PodContainer, _annotated(sandbox))),
    )
    return without_annotations(PodMeta(pod, group, (), pod.qos_class, pod.qos), ALLOCATIONS)


def with_container(
    meta: PodMeta, container: Container, layout: Layout, runtime: str
) -> PodMeta | None:
    """Return a pod with this one container; None: its id or name cannot be used.

    runtime: of the ids, as Kubernetes writes them.
    """
    if not _ID.fullmatch(container.id) or not container.name:
        return None
    container_id = f"{_CRIO if _CRIO in runtime else runtime}://{container.id}"
    group = layout.container_dir(meta.cgroup, container_id)
    pod = meta.pod
    if container.name not in {one.name for one in pod.containers + pod.init_containers}:
        pod = replace(pod, containers=(*pod.containers, _described(container)))
    return replace(meta, pod=pod, containers=(ContainerMeta(container.name, container_id, group),))


def _pod_group(sandbox: PodSandbox, layout: Layout) -> str:
    """The cgroup of a pod; "" where it is none below that of all pods."""
    group = sandbox.linux.cgroup_parent.strip("/") if sandbox.linux else ""
    if "/" not in group and group.endswith(".slice"):  # as systemd alone knows it
        group = layout.pod_dir(qos_of(group), sandbox.uid)
    below = group.startswith(f"{layout.root}/")
    return group if below and Target(Level.POD, group).is_valid else ""


def _annotated(sandbox: PodSandbox) -> list[str]:
    """The containers that the annotation of batch resources names; what is wrong there comes up
    where it is used."""
    try:
        found = json.loads(sandbox.annotations.get(EXTENDED_RESOURCES, "{}"))
        return [str(name) for name in found.get("containers") or ()][:MAX_CONTAINERS]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


def _described(container: Container) -> PodContainer:
    """A container whose spec is not known: its CPU limit as the runtime has it."""
    resources = container.linux.resources if container.linux else None
    cpu = (resources or LinuxResources()).cpu
    if cpu is None or not cpu.quota or cpu.quota < 0:
        return PodContainer(container.name)
    milli = cpu.quota * 1000 // (cpu.period or QUOTA_PERIOD_US)
    return PodContainer(container.name, limits={"cpu": f"{milli}m"})


M = TypeVar("M", bound=Message)

MAX_SYNCHRONIZED = 16384  # containers of a node
JOURNAL_TIMEOUT = 1.0  # seconds for the journal; the runtime waits two for a response
LISTED_WITHIN = 0.5  # seconds until the requests of a new pod are known
_UNLISTED = "what the pod was given is left out: its requests are not known yet"
_LARGE = 64 << 10  # bytes of a message that is not decoded on the event loop

STAGE_EVENTS = {
    Stage.RUN_SANDBOX: NriEvent.RUN_POD_SANDBOX,
    Stage.REMOVE_SANDBOX: NriEvent.REMOVE_POD_SANDBOX,
    Stage.CREATE_CONTAINER: NriEvent.CREATE_CONTAINER,
    Stage.START_CONTAINER: NriEvent.START_CONTAINER,
    Stage.UPDATE_CONTAINER: NriEvent.UPDATE_CONTAINER,
}

log = get_logger("koordlet.runtimehooks")


class PodStates(Protocol):
    """The pods of the node; koordlet.statesinformer.StatesInformer."""

    def pods(self) -> Sequence[PodMeta]: ...

    def pod(self, uid: str) -> PodMeta | None: ...

    def has_synced(self) -> bool: ...

    async def pods_changed(self) -> None: ...


@dataclass(kw_only=True)
class NriPlugin:
    """The plugin of one connection, as NRI calls it."""

    options: HookOptions
    rules: PluginHooks
    pods: PodStates
    kernel: Kernel
    expect: Callable[[Sequence[InitialValue]], Awaitable[list[str]]]  # as Writer.expect
    responses: HookResponses
    listeners: Sequence[ChangeListener]
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
            "StartContainer": self._start_container,
            "UpdateContainer": self._update_container,
            "RunPodSandbox": self._run_sandbox,
            "RemovePodSandbox": self._nothing,
            "StateChange": self._state_change,
        }
        found = methods.get(method)
        if found is None:
            raise CallError(Code.UNIMPLEMENTED, f"no method {method!r:.80}")
        try:
            response = await found(payload)
        except HookError as err:
            raise CallError(Code.UNKNOWN, str(err)) from err
        return b"" if response is None else response.encode()

    async def _configure(self, payload: bytes) -> ConfigureResponse:
        request = ConfigureRequest.decode(payload)
        self.runtime = f"{request.runtime_name} {request.runtime_version}".strip()
        if request.config:
            hint = "use --runtime-hooks-disable-stages"
            log.warning("nri.configuration_ignored", runtime=self.runtime, hint=hint)
        stages = set(self.options.stages)
        if not self.rules.has_start_hooks():
            stages.discard(Stage.START_CONTAINER)  # containers need not wait for a response
        return ConfigureResponse(sum(STAGE_EVENTS[stage].bit for stage in stages))

    async def _nothing(self, payload: bytes) -> None:
        """Nothing to do: pods that end are seen in the cgroup tree."""

    async def _state_change(self, payload: bytes) -> None:
        """Handle a state change: RunPodSandbox or StartContainer from an older runtime.

        RemovePodSandbox is handled here too, and needs nothing.
        """
        request = await _decoded(StateChangeEvent, payload)
        if request.event == NriEvent.RUN_POD_SANDBOX and request.pod is not None:
            await self._prepare(request.pod)
        elif request.event == NriEvent.START_CONTAINER:
            await self._start(request.pod, request.container)

    async def _start_container(self, payload: bytes) -> None:
        request = await _decoded(ContainerRequest, payload)
        await self._start(request.pod, request.container)

    async def _start(self, sandbox: PodSandbox | None, container: Container | None) -> None:
        """Set up the first process of a container, which waits to run the program."""
        if sandbox is not None and container is not None:
            meta = self._with(await self._known(sandbox), container)
            if meta is not None:
                await self.rules.start(meta)

    async def _run_sandbox(self, payload: bytes) -> None:
        request = await _decoded(PodSandboxRequest, payload)
        if request.pod is not None:
            await self._prepare(request.pod)

    async def _prepare(self, sandbox: PodSandbox) -> None:
        """Set the pod's own values. The runtime does not wait for slow ones; they still finish."""
        meta = await self._known(sandbox)
        if meta is not None and not self.responses.ended:
            await self.rules.prepare(meta)

    async def _create_container(self, payload: bytes) -> CreateContainerResponse:
        request = await _decoded(ContainerRequest, payload)
        container = request.container
        if request.pod is None or container is None:
            return CreateContainerResponse()
        asked = container.linux.resources if container.linux else None
        decision = await self._decide(request.pod, container, asked, Stage.CREATE_CONTAINER)
        if decision is None:
            return CreateContainerResponse()
        decision.injected = await self.rules.inject(decision.meta)
        decision.left.extend(decision.injected.failed)
        await self._record([decision])
        return CreateContainerResponse(
            container_adjustment(decision.adjusted, decision.injected.real)
        )

    async def _update_container(self, payload: bytes) -> UpdateContainerResponse:
        request = await _decoded(ContainerRequest, payload)
        container = request.container
        if request.pod is None or container is None:
            return UpdateContainerResponse()
        decision = await self._decide(
            request.pod, container, request.resources, Stage.UPDATE_CONTAINER, only_requested=True
        )
        if decision is None:
            return UpdateContainerResponse()
        await self._record([decision])
        update = _update(container.id, decision.adjusted)
        return UpdateContainerResponse((update,) if update else ())

    async def _synchronize(self, payload: bytes) -> SynchronizeResponse:
        """Take in what runs already, and return the updates of containers that differ."""
        request = await _decoded(SynchronizeRequest, payload)
        self._sandboxes |= {pod.id: pod for pod in request.pods}
        self._containers += request.containers
        most = max(len(self._sandboxes), len(self._containers))
        if most > MAX_SYNCHRONIZED:
            raise malformed("Synchronize", f"at most {MAX_SYNCHRONIZED} containers", most)
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
        decisions: list[_ContainerDecision] = []
        ends = self.clock.monotonic() + JOURNAL_TIMEOUT
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
                log.warning("nri.synchronize_truncated", containers=len(decisions))
                break
        await self._record(decisions, run=True)
        updates = (_update(each.container.id, each.adjusted) for each in decisions)
        return [update for update in updates if update is not None]

    async def _decide(
        self,
        sandbox: PodSandbox,
        container: Container,
        asked: LinuxResources | None,
        stage: Stage,
        *,
        only_requested: bool = False,
    ) -> "_ContainerDecision | None":
        """Return what the plugins want; None: it is no container of the kubelet's.

        Raises:
            HookError: a plugin failed, and the policy is Fail.
        """
        meta = self._with(await self._known(sandbox), container)
        if meta is None or self.responses.ended:
            return None
        group = meta.containers[0].cgroup
        hook_decision = await self.rules.claims_for(meta, stage)
        left = list(hook_decision.failed)
        wanted = adjustments(hook_decision.real, group, asked, only_requested=only_requested)
        return _ContainerDecision(
            meta,
            container,
            stage,
            await self._within_pod(meta, wanted, left),
            adjustments(hook_decision.dry_run, group, asked, only_requested=only_requested),
            left,
        )

    async def _known(self, sandbox: PodSandbox) -> PodMeta | None:
        """The pod; None: it is not one of the kubelet, or too little is known of this node.

        What it was given counts only once its requests are known, so that is waited for.

        Raises:
            HookError: they are not known in time, and the policy is Fail.
        """
        if not self.pods.has_synced():
            return None
        found = self._listed(sandbox)
        if found is None and has_allocations(sandbox.annotations):
            found = await self._wait_until_listed(sandbox)
        return pod_meta(sandbox, found, self.kernel.layout)

    def _listed(self, sandbox: PodSandbox) -> PodMeta | None:
        """The pod as the kubelet or the API server lists it; None: not yet."""
        found = self.pods.pod(sandbox.uid)
        known = self.pods.pods() if found is None else (found,)  # a static pod has another uid
        return listed_pod(sandbox, known)

    async def _wait_until_listed(self, sandbox: PodSandbox) -> PodMeta | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTED_WITHIN):
                while (found := self._listed(sandbox)) is None:
                    await self.pods.pods_changed()
                return found
        self.rules.fail("allocations", f"{sandbox.namespace}/{sandbox.name}", _UNLISTED)
        return None

    def _with(self, known: PodMeta | None, container: Container) -> PodMeta | None:
        """The pod with this one container; None: one of them cannot be used."""
        runtime = self.runtime if "cri-o" in self.runtime else self.options.runtime
        if known is None:
            return None
        return with_container(known, container, self.kernel.layout, runtime)

    async def _within_pod(
        self, meta: PodMeta, wanted: list[Adjustment], left: list[str]
    ) -> list[Adjustment]:
        """Return the adjustments that fit the pod's cgroup: a container cannot have more CPUs."""
        kept = []
        for one in wanted:
            if one.key.resource is CPUSET_CPUS_WANTED:
                there = await self.kernel.read(CPUSET_CPUS, meta.cgroup)
                if there is None or not one.value <= there:
                    left.append(f"{one.key.resource.name}: not all of them are the pod's so far")
                    continue
            kept.append(one)
        return kept

    async def _record(
        self, decisions: Sequence["_ContainerDecision"], *, run: bool = False
    ) -> None:
        """Record the original values; a value whose record fails is not adjusted.

        run: the containers run, and nobody has asked for a change of them.
        The rest is explained and audited once the runtime has its response. At the end of the agent
        nothing is adjusted any more: it would be set after everything is restored.
        """
        if self.responses.ended:
            for decision in decisions:
                decision.adjusted.clear()
        with self.responses.recording():
            await self._record_originals(decisions, run=run)
        asyncio.get_running_loop().call_soon(self._explain, decisions, self.clock.wall())

    async def _record_originals(
        self, decisions: Sequence["_ContainerDecision"], *, run: bool
    ) -> None:
        expected = [one.expected(runs=run) for decision in decisions for one in decision.adjusted]
        problems = iter(await self._problems(expected))
        for decision in decisions:
            pairs = [(one, next(problems)) for one in decision.adjusted]
            decision.adjusted[:] = [one for one, why in pairs if not why]
            decision.left.extend(f"{one.key.resource.name}: {why}" for one, why in pairs if why)

    async def _problems(self, expected: list[InitialValue]) -> list[str]:
        if not expected:
            return []
        try:
            async with asyncio.timeout(JOURNAL_TIMEOUT):
                return await self.expect(expected)
        except TimeoutError:
            return ["the journal took too long; the plugin sets it later"] * len(expected)

    def _explain(self, decisions: Sequence["_ContainerDecision"], at: float) -> None:
        for decision in decisions:
            for one in decision.adjusted:
                self._notify(one)
            if decision.is_notable:
                self.responses.add(decision.response(at))

    def _notify(self, one: Adjustment) -> None:
        change = Change("set", one.key, one.owners, one.asked, one.value, one.reason, one.inputs)
        for listener in self.listeners:
            listener(change)


@dataclass(slots=True)
class _ContainerDecision:
    """The decision about one container."""

    meta: PodMeta
    container: Container
    stage: Stage
    adjusted: list[Adjustment]
    in_dry_run: list[Adjustment]
    left: list[str]  # why something is not adjusted
    injected: Injected = NOTHING

    @property
    def is_notable(self) -> bool:
        """Whether there is anything to explain."""
        return bool(self.adjusted or self.in_dry_run or self.left or any(self.injected))

    def response(self, at: float) -> HookResponse:
        """It as /explain has it."""
        return HookResponse(
            at=at,
            stage=self.stage,
            pod=pod_name(self.meta),
            uid=self.meta.uid,
            container=self.container.name,
            group=self.meta.containers[0].cgroup,
            adjusted=tuple(self.adjusted),
            dry_run=tuple(self.in_dry_run),
            left=tuple(self.left),
            injected=self.injected,
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
