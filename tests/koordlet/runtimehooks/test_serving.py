"""Serving a runtime over a real socket: what is adjusted, what is refused, and coming again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.component.plugins.execution import Meter
from koord.util.clock import SystemClock
from koord.util.errors import InvalidObject, UnsafeFile
from koord.util.health import HealthStatus
from koord.util.stop import Stop
from koordlet.executor.claims.claim import Claim, Part, Target
from koordlet.host import paths
from koordlet.host import resources as r
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.devices import DeviceFile
from koordlet.host.paths import check_socket
from koordlet.plugin.pods.reconcile import EARLY, early_decision_times
from koordlet.rules.allocated_devices import BindMount
from koordlet.runtimehooks import handlers
from koordlet.runtimehooks import hooks as rules
from koordlet.runtimehooks.adjustments import Injection
from koordlet.runtimehooks.client import RuntimeHooks
from koordlet.runtimehooks.handlers import NriPlugin
from koordlet.runtimehooks.hooks import (
    FailurePolicy,
    Hook,
    HookOptions,
    HookResponses,
    PluginHooks,
    Stage,
    StartHook,
)
from koordlet.runtimehooks.wire import (
    PLUGIN,
    Code,
    ConfigureRequest,
    ConfigureResponse,
    Container,
    ContainerAdjustment,
    ContainerMount,
    ContainerRequest,
    CreateContainerResponse,
    KeyValue,
    LinuxContainer,
    LinuxContainerAdjustment,
    LinuxCPU,
    LinuxDevice,
    LinuxPodSandbox,
    LinuxResources,
    NriEvent,
    PodSandbox,
    PodSandboxRequest,
    StateChangeEvent,
    SynchronizeRequest,
    SynchronizeResponse,
    UpdateContainerResponse,
    frames,
)
from koordlet.statesinformer.podmeta import PodMeta
from tests.support.scripted_runtime import ScriptedRuntime

SANDBOX = PodSandbox(
    "s1", "web", "1", "jobs", annotations={"shares": "512"}, linux=LinuxPodSandbox("/kubepods/pod1")
)
ASKED = LinuxResources(cpu=LinuxCPU(shares=1024))
CONTAINER = Container("c1", "s1", "main", 3, LinuxContainer(ASKED))
CREATE = ContainerRequest(SANDBOX, CONTAINER).encode()


class Shares:
    """A rule: the shares in a pod's annotation, and CPU 1."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.cpus: frozenset[int] = frozenset()

    def early_claims(self, meta: PodMeta) -> list[Claim]:
        text = meta.pod.annotations.get("shares", "")
        if not text.isdigit():
            raise InvalidObject("annotation shares", wanted="a number", found=text)
        claims = []
        for container in meta.containers:
            target = Target.of_container(meta, container)
            claims.append(
                Claim(target=target, resource=r.CPU_SHARES, value=int(text), reason="asked for")
            )
            if self.cpus:
                claims.append(
                    Claim(
                        target=target, resource=r.CPUSET_CPUS_WANTED, value=self.cpus,
                        part=Part.PIN, reason="pinned",
                    )
                )  # fmt: skip
        return claims

    async def prepare(self, meta: PodMeta) -> None:
        self.early_claims(meta)
        self.prepared.append(meta.uid)


class Kernel:
    """A kernel in which pods have the CPUs 0 and 1."""

    layout = Layout.default(Driver.CGROUPFS)

    async def read(self, resource: object, group: str = "") -> frozenset[int]:
        return frozenset({0, 1})


@dataclass
class Bench:
    """The hooks of a daemon, and a runtime that is a test."""

    socket: Path
    policy: FailurePolicy = FailurePolicy.IGNORE
    stages: frozenset[Stage] = frozenset(Stage)
    rule: Shares = field(default_factory=Shares)
    dry_run: bool = False
    known: tuple[PodMeta, ...] = ()
    journal: list = field(default_factory=list)
    refusal: str = ""
    synced: bool = True
    injectors: list = field(default_factory=list)
    starts: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.registry = CollectorRegistry()
        self.responses = HookResponses()
        self.changes: list = []
        self.waiting, self.listed = asyncio.Event(), asyncio.Event()
        self.recording, self.disk = asyncio.Event(), asyncio.Event()
        self.disk.set()  # what is recorded is on it at once
        self.options = HookOptions(
            node="n1", name="koordlet_nri", index="00", runtime="containerd",
            failure_policy=self.policy, stages=self.stages, connect_timeout=5.0,
            backoff=0.01, backoff_factor=1.0, backoff_cap=0.01,
        )  # fmt: skip
        times = early_decision_times(self.registry)
        hooks = [Hook("Shares", self.rule, Meter("Shares", now=self.clock.monotonic))]
        self.rules = PluginHooks(
            lambda: hooks, self._is_dry_run, self.options, self.clock, times,
            lambda: self.injectors, lambda: self.starts,
        )  # fmt: skip
        self.hooks = RuntimeHooks(
            self.socket, self.options, self._plugin, self.responses, self.clock
        )
        self.runtime = ScriptedRuntime(self.socket)

    def pods(self) -> tuple[PodMeta, ...]:
        return self.known

    def pod(self, uid: str) -> PodMeta | None:
        return None

    def has_synced(self) -> bool:
        return self.synced

    async def pods_changed(self) -> None:
        self.waiting.set()
        await self.listed.wait()

    def list_pods(self, *pods: PodMeta) -> None:
        self.known = pods
        self.listed.set()

    async def expect(self, expected: list) -> list[str]:
        self.recording.set()
        await self.disk.wait()
        self.journal += [] if self.refusal else expected
        return [self.refusal] * len(expected)

    async def _is_dry_run(self, plugin: str) -> bool:
        return self.dry_run

    def _plugin(self) -> NriPlugin:
        return NriPlugin(
            options=self.options, rules=self.rules, pods=self, kernel=Kernel(),
            expect=self.expect, responses=self.responses, listeners=[self.changes.append],
            clock=self.clock,
        )  # fmt: skip

    def invoked(self, stage: str, status: str) -> float:
        labels = {"node": "n1", "hook": "Shares", "stage": stage, "status": status}
        return self.registry.get_sample_value(f"{EARLY}_count", labels) or 0.0

    async def create(self, payload: bytes = CREATE) -> CreateContainerResponse:
        response = await self.runtime.call("CreateContainer", payload)
        assert response.status is None, response.status
        return CreateContainerResponse.decode(response.payload)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "nri.sock")
    stop = Stop(made.clock)
    await made.runtime.listen()
    task = asyncio.create_task(made.hooks.run(stop))
    await made.runtime.plugin()
    yield made
    stop.set()
    await asyncio.wait_for(task, 5)
    await made.runtime.end()


async def test_configure_subscribes_what_is_answered(bench):
    """As Koordinator's mask; a configuration by the runtime's file is ignored."""
    request = ConfigureRequest(config="events: [all]", runtime_name="containerd")
    response = await bench.runtime.call("Configure", request.encode())

    assert ConfigureResponse.decode(response.payload).events == 141
    assert bench.runtime.registered == [bytes.fromhex("0a0c6b6f6f72646c65745f6e726912023030")]


async def test_a_container_gets_what_the_rule_says(bench):
    """After the original is recorded; the log of changes has it."""
    made = await bench.create()

    assert made.adjust.linux.resources == LinuxResources(cpu=LinuxCPU(shares=512))
    [expected] = bench.journal
    assert (expected.value, expected.original, expected.owners) == (512, 1024, ("Shares",))
    assert expected.key.target.place == "kubepods/pod1/c1"
    [change] = bench.changes
    assert (change.what, change.old, change.new) == ("set", 1024, 512)
    assert bench.invoked("PreCreateContainer", "succeeded") == 1
    [reported] = bench.responses.explain("jobs/web")
    assert reported["adjusted"][0]["value"] == 512
    assert bench.responses.explain("another") == []


async def test_in_dry_run_nothing_is_adjusted_and_it_is_explained(bench):
    bench.dry_run = True

    assert await bench.create() == CreateContainerResponse()

    assert not bench.journal
    assert not bench.changes
    [reported] = bench.responses.explain()
    assert reported["adjusted"] == []
    assert reported["inDryRun"][0] | {"inputs": {}} == {
        "resource": "cpu_shares", "unit": r.CPU_SHARES.unit, "value": 512, "asked": 1024,
        "plugins": ["Shares"], "reason": "asked for", "inputs": {},
    }  # fmt: skip


class Injecting:
    """Adds what a test says."""

    name = "GPUEnvInject"

    def __init__(self, made: Injection | Exception | None) -> None:
        self.made = made

    async def inject(self, meta: PodMeta, *, dry_run: bool) -> Injection:
        if self.made is None:
            await asyncio.Event().wait()
        if isinstance(self.made, Exception):
            raise self.made
        return self.made or Injection()


GPU = Injection(
    env={"NVIDIA_VISIBLE_DEVICES": "0"},
    mounts=(BindMount("/s", "/d"),),
    devices=(DeviceFile("/dev/infiniband/rdma_cm", 10, 58),),
)
WITHOUT_LIMITS = PodSandbox(  # the other rule adjusts nothing of it
    "s1", "web", "1", "jobs", {}, {"shares": "1024"}, LinuxPodSandbox("/kubepods/pod1")
)


async def test_variables_mounts_and_devices_are_added(bench):
    """Also to a container whose resources stay as they are; nothing of it is in the journal."""
    bench.injectors.append(Injecting(GPU))
    made = await bench.create(ContainerRequest(WITHOUT_LIMITS, CONTAINER).encode())

    assert made.adjust == ContainerAdjustment(
        mounts=(ContainerMount("/d", "bind", "/s", ("rbind",)),),
        env=(KeyValue("NVIDIA_VISIBLE_DEVICES", "0"),),
        linux=LinuxContainerAdjustment(
            devices=(LinuxDevice("/dev/infiniband/rdma_cm", "c", 10, 58, 0o666),)
        ),
    )
    assert not bench.journal
    [explained] = bench.responses.explain("jobs/web")
    assert explained["injected"] == [
        {
            "by": "GPUEnvInject",
            "env": {"NVIDIA_VISIBLE_DEVICES": "0"},
            "mounts": ["/s:/d"],
            "devices": ["/dev/infiniband/rdma_cm 10:58"],
        }
    ]


GIVEN = {"scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0}]}', "shares": "512"}


FAIL = FailurePolicy.FAIL


class Seeing(Injecting):
    """Records the annotations that it goes by."""

    def __init__(self) -> None:
        super().__init__(Injection())
        self.seen: list[dict[str, str]] = []

    async def inject(self, meta: PodMeta, *, dry_run: bool) -> Injection:
        self.seen.append(dict(meta.pod.annotations))
        return await super().inject(meta, dry_run=dry_run)


async def test_what_a_pod_was_given_waits_for_its_requests(bench):
    """The runtime says only what the pod's annotations are."""
    seeing = Seeing()
    bench.injectors.append(seeing)
    asked = asyncio.create_task(
        bench.create(ContainerRequest(replace(SANDBOX, annotations=GIVEN), CONTAINER).encode())
    )
    await bench.waiting.wait()
    pod = Pod("jobs", "web", "1", annotations=GIVEN)
    bench.list_pods(PodMeta(pod, "", (), QoSClass.LS, KubeQoS.BURSTABLE))
    await asked
    assert seeing.seen == [GIVEN]


async def test_a_pod_whose_requests_stay_unknown_is_given_nothing(bench, monkeypatch):
    monkeypatch.setattr(handlers, "LISTED_WITHIN", 0.0)
    seeing = Seeing()
    bench.injectors.append(seeing)
    payload = ContainerRequest(replace(SANDBOX, annotations=GIVEN), CONTAINER).encode()
    await bench.create(payload)
    assert seeing.seen == [{"shares": "512"}]

    monkeypatch.setattr(bench.rules, "_options", replace(bench.options, failure_policy=FAIL))
    response = await bench.runtime.call("CreateContainer", payload)
    assert "its requests are not known yet" in response.status.message


async def test_resources_and_variables_come_in_one_answer(bench):
    bench.injectors.append(Injecting(Injection(env={"A": "1"})))
    made = await bench.create()

    assert made.adjust.env == (KeyValue("A", "1"),)
    assert made.adjust.linux == LinuxContainerAdjustment(
        resources=LinuxResources(cpu=LinuxCPU(shares=512))
    )


async def test_in_dry_run_nothing_is_added_and_it_is_explained(bench):
    bench.injectors.append(Injecting(GPU))
    bench.dry_run = True

    assert await bench.create() == CreateContainerResponse()

    [explained] = bench.responses.explain()
    assert explained["injected"] == []
    assert explained["injectedInDryRun"][0]["env"] == {"NVIDIA_VISIBLE_DEVICES": "0"}


async def test_an_injector_without_anything_to_add_is_not_explained(bench):
    bench.injectors.append(Injecting(Injection()))

    made = await bench.create(ContainerRequest(WITHOUT_LIMITS, CONTAINER).encode())

    assert made == CreateContainerResponse()
    assert bench.responses.explain() == []


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (InvalidObject("gpu", wanted="one", found="none"), "wanted one"),
        (None, "not done within 0.01 s"),
    ],
)
async def test_an_injector_that_fails_or_hangs_costs_itself_only(bench, monkeypatch, made, why):
    monkeypatch.setattr(rules, "HOOK_TIMEOUT", 0.01)
    bench.injectors += [Injecting(made), Injecting(Injection(env={"A": "1"}))]

    answer = await bench.create()

    assert answer.adjust.env == (KeyValue("A", "1"),)
    assert answer.adjust.linux.resources == LinuxResources(cpu=LinuxCPU(shares=512))
    [left] = bench.responses.explain()[0]["left"]
    assert left.startswith("GPUEnvInject: ")
    assert why in left


async def test_without_a_record_nothing_is_adjusted(bench):
    """A full disk must not leave values behind that nobody can restore."""
    bench.refusal = "the journal is full"

    assert await bench.create() == CreateContainerResponse()

    assert bench.responses.explain()[0]["left"] == ["cpu_shares: the journal is full"]


async def test_a_journal_that_hangs_does_not_keep_the_runtime(bench, monkeypatch):
    """It drops plugins that take two seconds."""
    monkeypatch.setattr(handlers, "JOURNAL_TIMEOUT", 0.01)

    async def hang(expected: list) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(Bench, "expect", lambda self, expected: hang(expected))
    await bench.runtime.end()
    await bench.runtime.listen()
    await bench.runtime.plugin()

    assert await bench.create() == CreateContainerResponse()


async def test_more_cpus_than_the_pod_has_are_left_to_the_plugin(bench):
    """Best-effort pods may be squeezed; the runtime would fail to make the container."""
    bench.rule.cpus = frozenset({1, 7})
    made = await bench.create()
    assert made.adjust.linux.resources == LinuxResources(cpu=LinuxCPU(shares=512))

    bench.rule.cpus = frozenset({1})
    made = await bench.create()
    assert made.adjust.linux.resources.cpu.cpus == "1"


async def test_a_bad_annotation_costs_its_plugin_only(bench):
    pod = PodSandbox(
        "s1", "web", "1", "jobs", {}, {"shares": "x"}, LinuxPodSandbox("/kubepods/pod1")
    )

    assert (
        await bench.create(ContainerRequest(pod, CONTAINER).encode()) == CreateContainerResponse()
    )

    assert bench.invoked("PreCreateContainer", "failed") == 1
    assert "annotation shares" in bench.responses.explain()[0]["left"][0]


async def test_with_policy_fail_the_runtime_gets_the_error(tmp_path):
    bench = Bench(tmp_path / "nri.sock", policy=FailurePolicy.FAIL)
    pod = PodSandbox(
        "s1", "web", "1", "jobs", {}, {"shares": "x"}, LinuxPodSandbox("/kubepods/pod1")
    )
    plugin = bench._plugin()

    for method, payload in (
        ("CreateContainer", ContainerRequest(pod, CONTAINER)),
        ("RunPodSandbox", PodSandboxRequest(pod)),
    ):
        with pytest.raises(handlers.CallError, match="annotation shares"):
            await plugin.handle(method, payload.encode())
    # What runs already goes on.
    synchronize = SynchronizeRequest((pod,), (CONTAINER,))
    answer = await plugin.handle("Synchronize", synchronize.encode())
    assert SynchronizeResponse.decode(answer) == SynchronizeResponse()


async def test_with_policy_fail_an_injector_fails_the_container(tmp_path):
    """And nothing is recorded of a container that is not made."""
    bench = Bench(tmp_path / "nri.sock", policy=FailurePolicy.FAIL)
    bench.injectors.append(Injecting(InvalidObject("gpu", wanted="one", found="none")))

    with pytest.raises(handlers.CallError, match="GPUEnvInject: gpu: wanted one"):
        await bench._plugin().handle("CreateContainer", CREATE)

    assert not bench.journal


async def test_a_new_pod_is_prepared_by_both_kinds_of_runtimes(bench):
    """Older ones send all changes of states by one method."""
    await bench.runtime.call("RunPodSandbox", PodSandboxRequest(SANDBOX).encode())
    await bench.runtime.call("StateChange", StateChangeEvent(1, SANDBOX).encode())
    await bench.runtime.call("StateChange", StateChangeEvent(3, SANDBOX).encode())
    await bench.runtime.call("RemovePodSandbox", PodSandboxRequest(SANDBOX).encode())

    assert bench.rule.prepared == ["1", "1"]


class Starting:
    """Takes note of what is started."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def start(self, meta: PodMeta) -> None:
        self.seen.append((meta.pod.name, meta.containers[0].cgroup))


async def test_a_container_waits_for_what_its_first_process_gets(bench):
    """Older runtimes send it as a change of state. It is subscribed only if a plugin needs it."""
    starting = Starting()
    bench.starts.append(StartHook("OOMScoreAdj", starting))
    configured = await bench.runtime.call("Configure", ConfigureRequest().encode())
    request = ContainerRequest(SANDBOX, CONTAINER).encode()
    event = StateChangeEvent(NriEvent.START_CONTAINER, SANDBOX, CONTAINER).encode()

    responses = [
        await bench.runtime.call("StartContainer", request),
        await bench.runtime.call("StateChange", event),
        await bench.runtime.call("StartContainer", ContainerRequest(SANDBOX).encode()),
    ]

    assert ConfigureResponse.decode(configured.payload).events == 141 | 1 << 5
    assert [answer.status for answer in responses] == [None, None, None]
    assert len(starting.seen) == 2
    assert {name for name, _ in starting.seen} == {"web"}


async def test_a_start_that_hangs_does_not_keep_the_container(bench, monkeypatch):
    monkeypatch.setattr(rules, "HOOK_TIMEOUT", 0.01)
    bench.starts.append(StartHook("OOMScoreAdj", Hanging()))

    answer = await bench.runtime.call(
        "StartContainer", ContainerRequest(SANDBOX, CONTAINER).encode()
    )

    assert answer.status is None
    labels = {"node": "n1", "hook": "OOMScoreAdj", "stage": "PreStartContainer"}
    count = bench.registry.get_sample_value(f"{EARLY}_count", {**labels, "status": "failed"})
    assert count == 1


class Hanging:
    async def start(self, meta: PodMeta) -> None:
        await asyncio.Event().wait()


async def test_an_update_is_answered_for_the_container_itself(bench):
    """With its id, and only where the runtime is about to change something."""
    asked = LinuxResources(cpu=LinuxCPU(shares=2048, quota=70_000))
    request = ContainerRequest(SANDBOX, CONTAINER, asked)

    response = await bench.runtime.call("UpdateContainer", request.encode())

    [update] = UpdateContainerResponse.decode(response.payload).update
    assert update.container_id == "c1"
    assert update.linux.resources == LinuxResources(cpu=LinuxCPU(shares=512))
    assert bench.journal[0].original == 2048


async def test_after_the_end_nothing_is_adjusted(bench):
    """Not by another connection either: what is adjusted would not be restored."""
    await bench.hooks.settle()

    assert (await bench.create()).adjust is None
    await bench.runtime.end()
    await bench.runtime.listen()
    await bench.runtime.plugin()
    assert (await bench.create()).adjust is None


async def test_what_a_runtime_has_of_running_containers_is_recorded_as_that(bench):
    """Not as asked for: it may be what it was answered once."""
    await bench.runtime.call("Synchronize", SynchronizeRequest((SANDBOX,), (CONTAINER,)).encode())
    await bench.create()

    assert [(one.value, one.runs) for one in bench.journal] == [(512, True), (512, False)]


async def test_what_is_being_recorded_for_the_runtime_is_waited_for(bench):
    """The answer follows: what is not recorded yet would not be restored."""
    bench.disk.clear()
    creating = asyncio.create_task(bench.create())
    await bench.recording.wait()
    settling = asyncio.create_task(bench.hooks.settle())
    await asyncio.sleep(0)
    assert not settling.done()
    bench.disk.set()

    assert (await creating).adjust is not None
    await settling


async def test_a_decision_that_is_not_recorded_at_the_end_adjusts_nothing(bench, monkeypatch):
    """It would be set after everything is restored."""
    deciding, decided = asyncio.Event(), asyncio.Event()

    async def slow(meta, stage, claims_for=PluginHooks.claims_for):
        deciding.set()
        await decided.wait()
        return await claims_for(bench.rules, meta, stage)

    monkeypatch.setattr(bench.rules, "claims_for", slow)
    creating = asyncio.create_task(bench.create())
    await deciding.wait()
    await bench.hooks.settle()
    decided.set()

    assert (await creating).adjust is None
    assert bench.journal == []


async def test_at_the_end_no_new_pod_is_prepared(bench):
    """Its claims could come after everything is restored."""
    await bench.hooks.settle()

    await bench.runtime.call("RunPodSandbox", PodSandboxRequest(SANDBOX).encode())

    assert bench.rule.prepared == []


async def test_synchronize_comes_in_parts(bench):
    """Each part but the last is acknowledged; containers that have ended are left out."""
    first = SynchronizeRequest((SANDBOX,), (CONTAINER,), more=True)
    second = SynchronizeRequest((), (Container("c2", "s1", "other", 4, CONTAINER.linux),))

    part = await bench.runtime.call("Synchronize", first.encode())
    last = await bench.runtime.call("Synchronize", second.encode())

    assert SynchronizeResponse.decode(part.payload) == SynchronizeResponse(more=True)
    [update] = SynchronizeResponse.decode(last.payload).update
    assert (update.container_id, update.ignore_failure) == ("c1", True)


async def test_before_the_node_is_known_nothing_is_adjusted(bench):
    bench.synced = False

    assert await bench.create() == CreateContainerResponse()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        ContainerRequest(SANDBOX).encode(),
        ContainerRequest(container=CONTAINER).encode(),
        ContainerRequest(PodSandbox(), Container()).encode(),
    ],
)
async def test_a_request_without_its_parts_is_answered_with_nothing(bench, payload):
    """Koordinator's handler crashes on a sandbox without a linux section."""
    assert await bench.create(payload) == CreateContainerResponse()
    response = await bench.runtime.call("UpdateContainer", payload)
    assert UpdateContainerResponse.decode(response.payload) == UpdateContainerResponse()


async def test_what_is_not_served_is_unimplemented(bench):
    for method, service in (("StopContainer", "nri.pkg.api.v1alpha1.Plugin"), ("X", "Y")):
        response = await bench.runtime.call(method, service=service)
        assert response.status.code == Code.UNIMPLEMENTED


async def test_a_malformed_request_is_refused_and_the_next_one_served(bench):
    response = await bench.runtime.call("CreateContainer", b"\x0a\x05ab")
    assert response.status.code == Code.INVALID_ARGUMENT

    assert (await bench.create()).adjust is not None


@pytest.mark.parametrize(
    "content",
    [
        b"\0\0\0\1\xff\xff\xff\xff",  # a frame of 4 GiB
        frames(PLUGIN, b"\xff\xff\xff\xff\0\0\0\1\1\0"),  # a message of that size
        frames(PLUGIN, b"\0\0\0\1\0\0\0\1\1\0\xff"),  # a request that is none
        frames(PLUGIN, b"\0\0\0\0\0\0\0\1\x09\0"),  # of an unknown kind
    ],
)
async def test_what_is_not_the_protocol_ends_the_connection_and_another_is_made(bench, content):
    bench.runtime.send(content)
    await bench.runtime.gone()
    bench.runtime._came.clear()
    await bench.runtime.plugin()

    assert (await bench.create()).adjust is not None


async def test_frames_of_other_connections_are_dropped(bench):
    bench.runtime.send(frames(9, b"whatever"))

    assert (await bench.create()).adjust is not None


async def test_a_runtime_that_restarts_is_served_again(bench):
    await bench.runtime.end()
    await bench.runtime.listen()
    await bench.runtime.plugin()

    assert (await bench.create()).adjust is not None
    assert bench.hooks.connections == 2
    assert bench.hooks.health().status is HealthStatus.OK


async def test_another_users_socket_is_refused(tmp_path, monkeypatch):
    """Who listens there would decide what we think runs on this node."""
    socket = tmp_path / "nri.sock"
    socket.write_text("")
    with pytest.raises(UnsafeFile, match="no socket"):
        check_socket(socket)
    socket.unlink()
    bench = Bench(socket)
    await bench.runtime.listen()
    monkeypatch.setattr(paths, "is_trusted", lambda user: False)
    with pytest.raises(UnsafeFile, match="owner"):
        check_socket(socket)

    stop = Stop(bench.clock)
    task = asyncio.create_task(bench.hooks.run(stop))
    for _ in range(100):  # turns of the loop, in which it connects
        await asyncio.sleep(0)
    stop.set()
    await task
    await bench.runtime.end()

    assert not bench.runtime.registered
    assert "as its owner" in bench.hooks.health().reason


async def test_without_a_socket_all_is_well(tmp_path):
    bench = Bench(tmp_path / "nri.sock")
    stop = Stop(bench.clock)
    task = asyncio.create_task(bench.hooks.run(stop))
    await asyncio.sleep(0)
    stop.set()
    await task

    assert bench.hooks.health().status is HealthStatus.OK


def test_stages_that_are_disabled_are_not_subscribed(tmp_path):
    stages = frozenset({Stage.CREATE_CONTAINER})
    plugin = Bench(tmp_path / "nri.sock", stages=stages)._plugin()

    answer = asyncio.run(plugin.handle("Configure", b""))

    assert ConfigureResponse.decode(answer).events == 8
