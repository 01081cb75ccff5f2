"""From Reserve to bound claims: what is assumed, patched and awaited, and all that goes wrong."""

import asyncio
import json
from collections.abc import Callable

import pytest

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import NODE, POD
from koord.controlplane.testing import api_error_response
from koord.kube.transport import Call
from koord_scheduler.framework.status import Code, CycleState, Status
from koord_scheduler.plugin.storage import CLAIM, VOLUME
from koord_scheduler_plugins.volume_binding import VolumeBinding
from koord_scheduler_plugins.volume_binding.podvolumes import VolumeBindingArgs
from koord_scheduler_plugins.volume_binding.tables import is_older
from tests.support.clusters import Json
from tests.support.scheduler.volumes import Storage

PV_PATH = "/api/v1/persistentvolumes/pv"
CLAIM_PATH = "/api/v1/namespaces/default/persistentvolumeclaims/data"
NOTE = "volume.kubernetes.io/selected-node"


class World(Storage):
    """A pod with the claim data on its way to node n1; the API server takes patches over."""

    def __init__(self, seconds: int = 60) -> None:
        super().__init__()
        self.clock = self.kit.clock
        for name in ("n1", "n2"):
            self.node(name, zone=name)
        self.storage_class()
        self.claim("data")
        self.patches: list[tuple[str, Json]] = []
        self.fault: int = 0
        self.kit.server.answer(self._patch)
        self.plugin = self.another(seconds)
        self.states: dict[str, CycleState] = {}

    def another(self, seconds: int = 60) -> VolumeBinding:
        """The plugin of one more profile."""
        args = VolumeBindingArgs(bind_timeout_seconds=seconds)
        return VolumeBinding(args, self.handle())

    def reserve(self, name: str = "web", node: str = "n1", *claims: str) -> Status | None:
        """Up to Reserve."""
        pod = self.pod(name, *(claims or ("data",)))
        state = self.states[name] = CycleState()
        status = self.plugin.pre_filter(state, pod, self.view())
        return status or self.plugin.reserve(state, pod, node)

    def unreserve(self, name: str = "web") -> None:
        self.plugin.unreserve(self.states[name], self.pod_of(name), "n1")

    def pod_of(self, name: str) -> ClusterPod:
        found = self.cluster.state.pod(f"default/{name}")
        assert found is not None
        return found

    def begin(self, name: str = "web") -> "asyncio.Task[Status | None]":
        """PreBind, as a task."""
        work = self.plugin.pre_bind(self.states[name], self.pod_of(name), "n1")
        return asyncio.create_task(work)

    async def zones(self, *claims: str) -> str:
        """Where another pod with these claims could go."""
        found = await self.search(self.plugin, self.wanted(*claims, name="later"))
        view = self.view()
        return " ".join(
            sorted(view.node(row).name for row in range(len(view)) if found.feasible[row])
        )

    def _patch(self, call: Call) -> Json | None:
        if call.method != "PATCH":
            return None
        if self.fault:
            raise api_error_response(call, self.fault, "Scripted", "no")
        self.patches.append((call.path, json.loads(call.body or b"{}")))
        self.version += 1
        return {"metadata": {"name": "x", "resourceVersion": str(self.version)}}


def message(status: Status | None) -> str:
    assert status is not None
    assert status.code is Code.ERROR
    return status.message


async def test_a_volume_is_made_for_the_node() -> None:
    """The claim is patched, and awaited by its changes: nothing is asked again and again."""
    world = World()
    assert world.reserve() is None
    state, pod = world.states["web"], world.pod_of("web")
    assert world.plugin.pre_bind_pre_flight(state, pod, "n1") is None
    binding = world.begin()
    await world.clock.settle()
    claim = world.cluster.state.get(CLAIM, "default/data")
    assert claim is not None
    meta = {"uid": "uid-data", "resourceVersion": claim.resource_version}
    assert world.patches == [(CLAIM_PATH, {"metadata": {**meta, "annotations": {NOTE: "n1"}}})]
    asked = len(world.kit.server.calls)

    world.claim("data", annotations={NOTE: "n1"})
    await world.clock.settle()
    assert not binding.done()
    world.claim("data", "new", annotations={NOTE: "n1"})
    await world.clock.settle()
    assert not binding.done(), "its volume has not come yet"
    world.volume("new", "n1", claimRef={"namespace": "default", "name": "data", "uid": "uid-data"})
    await world.clock.settle()
    assert await binding is None
    assert len(world.kit.server.calls) == asked


async def test_a_volume_that_is_there_is_kept_for_the_claim() -> None:
    """The smallest one that the node reaches; the annotation says that nobody chose it by hand."""
    world = World()
    world.volume("large", "n1", size="9Gi")
    world.volume("pv", "n1", size="2Gi")
    world.volume("elsewhere", "n2")
    assert world.reserve() is None
    binding = world.begin()
    await world.clock.settle()
    ((path, patch),) = world.patches
    assert path == PV_PATH
    assert patch["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
    assert patch["metadata"]["uid"] == "uid-pv"
    reference = patch["spec"]["claimRef"]
    assert reference.pop("resourceVersion")
    assert reference == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "default",
        "name": "data",
        "uid": "uid-data",
    }
    kept = {"namespace": "default", "name": "data", "uid": "uid-data"}
    world.volume("pv", "n1", size="2Gi", claimRef=kept, phase="Bound")
    await world.clock.settle()
    assert not binding.done()
    world.claim("data", "pv")
    await world.clock.settle()
    assert await binding is None


async def test_a_volume_that_a_person_keeps_for_the_claim_stays_the_persons() -> None:
    """Its reference is completed, without the annotation."""
    world = World()
    world.volume("pv", "n1", claimRef={"namespace": "default", "name": "data"})
    assert world.reserve() is None
    binding = world.begin()
    await world.clock.settle()
    ((_, patch),) = world.patches
    assert "annotations" not in patch["metadata"]
    world.claim("data", "pv")
    assert await binding is None


async def test_what_is_assumed_counts_for_other_pods_and_profiles() -> None:
    """Until it is given up; a claim that two pods share is for one node."""
    world = World()
    world.storage_class(provisioner="")
    world.volume("pv", "n1")
    world.claim("other")
    assert await world.zones("other") == "n1"
    assert world.reserve() is None
    assert await world.zones("other") == ""
    world.plugin = world.another()
    assert await world.zones("other") == "", "in another profile, too"
    assert await world.zones("data") == "n1"
    world.unreserve()
    assert await world.zones("other") == "n1"
    world.unreserve()

    world.storage_class()
    world.cluster.state.remove(VOLUME, "pv")
    assert await world.zones("other") == "n1 n2"
    assert world.reserve("web", "n1", "other") is None
    assert await world.zones("other") == "n1"
    world.unreserve()
    assert await world.zones("other") == "n1 n2"


async def test_nothing_is_left_to_do_for_bound_claims() -> None:
    """Nothing is assumed, patched or awaited."""
    world = World()
    world.volume("pv", "n1")
    world.claim("data", "pv")
    assert world.reserve() is None
    status = world.plugin.pre_bind_pre_flight(world.states["web"], world.pod_of("web"), "n1")
    assert status is not None
    assert status.code is Code.SKIP
    assert await world.begin() is None
    world.unreserve()
    assert not world.patches
    empty = CycleState()
    pod = world.wanted()
    assert world.plugin.reserve(empty, pod, "n1") is None
    world.plugin.unreserve(empty, pod, "n1")
    assert await world.plugin.pre_bind(empty, pod, "n1") is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda w: w.cluster.state.remove(CLAIM, "default/data"), 3),
        (lambda w: w.storage_class(provisioner=""), 3),
        (lambda w: w.cluster.state.remove(NODE, "n1"), 1),
        (lambda w: w.claim("data", annotations={NOTE: "n2"}), 3),
    ],
)
def test_what_has_changed_since_filter_is_noticed(
    change: Callable[[World], object], code: int
) -> None:
    """Reserve looks again, and assumes nothing."""
    world = World()
    pod, state = world.pod("web", "data"), CycleState()
    assert world.plugin.pre_filter(state, pod, world.view()) is None
    change(world)
    status = world.plugin.reserve(state, pod, "n1")
    assert status is not None
    assert status.code == code
    found = world.plugin.pre_bind_pre_flight(state, pod, "n1")
    assert found is not None
    assert found.code is Code.SKIP


@pytest.mark.parametrize("fault", [403, 404, 409, 422])
@pytest.mark.parametrize("static", [True, False])
async def test_a_patch_that_is_refused_fails_the_attempt(fault: int, static: bool) -> None:
    """What was assumed is given up with Unreserve; the next attempt sees the cluster as it is."""
    world = World()
    if static:
        world.volume("pv", "n1")
    assert world.reserve() is None
    world.fault = fault
    assert f"refused with {fault}" in message(await world.begin())
    world.unreserve()
    assert await world.zones("data") == "n1 n2"


async def test_an_api_server_in_trouble_fails_the_attempt() -> None:
    """After the client's own attempts."""
    world = World()
    assert world.reserve() is None
    world.fault = 500
    binding = world.begin()
    for _ in range(20):
        await world.clock.settle()
        if binding.done():
            break
        await world.clock.advance_to_next()
    assert "refused with 500" in message(await binding)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.cluster.state.remove(CLAIM, "default/data"), 'pvc "default/data" does not'),
        (
            lambda w: w.claim("data", meta={"uid": "another"}),
            'pvc "default/data" does not exist any more',
        ),
        (lambda w: w.claim("data"), "selectedNode annotation reset for PVC"),
        (lambda w: w.claim("data", annotations={NOTE: "n2"}), "provisioning failed for PVC"),
        (lambda w: w.cluster.state.remove(POD, "default/web"), "pod does not exist any more"),
        (lambda w: w.cluster.state.remove(NODE, "n1"), 'node "n1" does not exist any more'),
        (
            lambda w: (w.volume("new", "n2"), w.claim("data", "new", annotations={NOTE: "n1"})),
            'pv "new" node affinity doesn\'t match node "n1"',
        ),
    ],
)
async def test_what_ends_the_waiting_for_a_volume_that_is_made(
    change: Callable[[World], object], words: str
) -> None:
    """At once, by the change itself."""
    world = World()
    assert world.reserve() is None
    binding = world.begin()
    await world.clock.settle()
    change(world)
    await world.clock.settle()
    assert binding.done()
    assert words in message(await binding)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.cluster.state.remove(VOLUME, "pv"), 'pv "pv" does not exist any more'),
        (lambda w: w.cluster.state.remove(CLAIM, "default/data"), 'pvc "default/data" does not'),
        (lambda w: w.volume("pv", "n1"), 'ClaimRef got reset for pv "pv"'),
        (lambda w: w.volume("pv", "n2"), "node affinity doesn't match"),
    ],
)
async def test_what_ends_the_waiting_for_a_volume_that_was_there(
    change: Callable[[World], object], words: str
) -> None:
    world = World()
    world.volume("pv", "n1")
    assert world.reserve() is None
    binding = world.begin()
    await world.clock.settle()
    change(world)
    await world.clock.settle()
    assert binding.done()
    assert words in message(await binding)


async def test_the_time_is_limited_and_the_claim_is_named() -> None:
    """And nothing waits on when the attempt is over, or was cancelled."""
    world = World(seconds=60)
    assert world.plugin.pre_bind_timeout == 60
    assert world.reserve() is None
    binding = world.begin()
    await world.clock.settle()
    await world.clock.advance(59)
    assert not binding.done()
    await world.clock.advance(1)
    found = message(await binding)
    wanted = "wanted its claims bound within 60 s, found that default/data is not"
    assert wanted in found

    binding = world.begin()
    await world.clock.settle()
    binding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await binding
    assert world.clock.sleepers == 0


async def test_two_pods_with_one_claim_wait_for_one_volume() -> None:
    """The second patches nothing; it fails when the first one gives up."""
    world = World()
    world.volume("pv", "n1")
    assert world.reserve("web") is None
    assert world.reserve("second") is None
    first, second = world.begin("web"), world.begin("second")
    await world.clock.settle()
    assert [path for path, _ in world.patches] == [PV_PATH]
    first.cancel()
    world.unreserve("web")
    await world.clock.settle()
    assert "ClaimRef got reset" in message(await second)


async def test_an_unrelated_change_of_a_volume_ends_the_assumption() -> None:
    """The patch would be refused, as it is made from the version before."""
    world = World()
    world.storage_class(provisioner="")
    world.volume("pv", "n1")
    world.claim("other")
    assert world.reserve() is None
    world.volume("pv", "n1", labels={"a": "b"})
    assert await world.zones("other") == "n1"


@pytest.mark.parametrize(
    ("version", "than", "older"),
    [("9", "10", True), ("10", "9", False), ("9", "9", False), ("a", "b", False), ("", "1", False)],
)
def test_versions(version: str, than: str, older: bool) -> None:
    """As numbers of any length."""
    assert is_older(version, than) == older


def test_digits_of_other_scripts_are_no_numbers() -> None:
    assert not is_older("\u0661", "99")
