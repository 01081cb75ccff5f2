"""Devices and CPUs of reservations: given to their owners, and to nobody else."""

import json
from typing import Any

import pytest

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from koord.api.machine import parse_cpulist
from koord.api.reservation import AFFINITY, IGNORED
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord.cluster.kinds import NODE
from koord.controlplane.testing import api_error_response
from koord_scheduler_plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from koord_scheduler_plugins.device_share.allocated import DEVICES
from koord_scheduler_plugins.device_share.args import DeviceShareArgs
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from koord_scheduler_plugins.node_numa_resource.holdings import NUMA_HOLDINGS
from koord_scheduler_plugins.node_numa_resource.plugin import (
    TOPOLOGIES,
    NodeNUMAResource,
    NodeNUMAResourceArgs,
)
from koord_scheduler_plugins.reservation.plugin import ReservationPlugin
from tests.support.clusters import node, read_node
from tests.support.scheduler.devices import CORE, MEMORY, RATIO, device_object, gpu
from tests.support.scheduler.numa import topology_object
from tests.support.scheduler.reservations import World

Json = dict[str, Any]
LSR = {"koordinator.sh/qosClass": "LSR"}
MUST = {AFFINITY: "{}"}
CPUS, CARDS = 16, 2


class HeldWorld(World):
    """Nodes with two cards and 16 CPUs each; the profile has all three plugins."""

    async def open(self, *names: str, preempts: bool = False, **labels: str) -> "HeldWorld":
        """labels: of the nodes, with _ for -."""
        self.registry.register(
            "DeviceShare", lambda _, handle: DeviceShare(DeviceShareArgs(), handle)
        )
        self.registry.register(
            "NodeNUMAResource",
            lambda _, handle: NodeNUMAResource(NodeNUMAResourceArgs(), handle),
        )
        each = {"NodeNUMAResource": None, "DeviceShare": None}
        points = ("preFilter", "filter", "reserve", "preBind")
        more: Json = {point: dict(each) for point in points}
        if preempts:
            self.registry.register(
                "DefaultPreemption",
                lambda _, handle: DefaultPreemption(DefaultPreemptionArgs(), handle),
            )
            more["postFilter"] = {"DefaultPreemption": None}
        await self.begin(more=more)
        reads = reads_of(ReservationPlugin) | reads_of(DeviceShare) | reads_of(NodeNUMAResource)
        self.api.decoder = Decoder(reads)
        self.services.pod_decoder._decoder = self.api.decoder
        informers: Any = self.services.informers
        for name in names:
            amounts = {"cpu": str(CPUS), "pods": "110", CORE: "200", RATIO: "200"}
            self.api.nodes[name] = node(name, None, amounts)
            self.api.nodes[name]["metadata"]["labels"] = {
                f"node.koordinator.sh/{key.replace('_', '-')}": value
                for key, value in labels.items()
            }
            self.state.put(NODE, read_node(self.api.nodes[name]))
            informers.apply(DEVICE_OBJECTS, device_object(name, [gpu(0), gpu(1)]))
            informers.apply(TOPOLOGIES, topology_object(name, "1x2x4x2"))
        await self.settle()
        return self

    async def reserve(self, name: str, percent: int = 0, cpu: int = 0, **more: Any) -> None:
        """A Reservation of cards in percent, or of CPUs of its own."""
        if cpu:
            more = {"labels": LSR, **more}
        template = {
            "containers": [container(percent, cpu)],
            "priority": 9999,
            **more.pop("template", {}),
        }
        await self.reservation(name, template=template, **more)
        await self.advance(1)  # its status is written anew: its annotations have changed before

    async def owner(
        self,
        name: str,
        percent: int = 0,
        cpu: int = 0,
        app: str = "web",
        priority: int = 9999,
        **annotations: str,
    ) -> str:
        """A pod of the owner of all reservations; of another app, of none."""
        labels = {"app": app, **(LSR if cpu else {})}
        key = self.api.add_pod(
            name, labels=labels, containers=[container(percent, cpu)], priority=priority
        )
        if annotations:
            self.api.change(key, metadata={"annotations": annotations})
        await self.settle()
        return key

    def annotation(self, key: str, name: str) -> Json:
        annotations = self.api.pods[key]["metadata"].get("annotations") or {}
        found: Json = json.loads(annotations.get(name) or "{}")
        return found

    def cards(self, key: str) -> dict[int, int]:
        """Percent by minor that a pod has."""
        found = self.annotation(key, DEVICE_ALLOCATED).get("gpu", ())
        return {one["minor"]: int(one["resources"][CORE]) for one in found}

    def cards_of(self, name: str) -> dict[int, int]:
        annotations = self.api.reservations[name]["metadata"]["annotations"]
        found = json.loads(annotations[DEVICE_ALLOCATED])["gpu"]
        return {one["minor"]: int(one["resources"][CORE]) for one in found}

    def cpus(self, key: str) -> str:
        found: str = self.annotation(key, RESOURCE_STATUS).get("cpuset", "")
        return found

    def zones(self, key: str) -> dict[int, str]:
        """CPU by NUMA node that a pod has."""
        found = self.annotation(key, RESOURCE_STATUS).get("numaNodeResources", ())
        return {one["node"]: one["resources"]["cpu"] for one in found}

    def message(self, key: str) -> str:
        """Why a pod is pending."""
        conditions = self.api.pods[key]["status"]["conditions"]
        found: str = next(one["message"] for one in conditions if one["type"] == "PodScheduled")
        return found

    def cpus_of(self, name: str) -> str:
        annotations = self.api.reservations[name]["metadata"]["annotations"]
        found: str = json.loads(annotations[RESOURCE_STATUS])["cpuset"]
        return found

    def used(self, name: str = "n0") -> dict[int, int]:
        """Percent by minor that the account has given away of a node."""
        pool = self.state.view().account.pool(DEVICES, name)
        return {
            int(key.split("/")[1]): amount
            for key, amount in pool.allocated.items()
            if key.endswith(f"/{CORE}")
        }

    def used_cpus(self, name: str = "n0") -> list[str]:
        """The lists of CPUs that the account has given away of a node."""
        pool = self.state.view().account.pool(NUMA_HOLDINGS, name)
        return sorted(key.split("/")[2] for key in pool.allocated if key.startswith("pod/"))


def container(percent: int, cpu: int) -> Json:
    amounts = {CORE: str(percent), RATIO: str(percent)} if percent else {}
    if cpu:
        amounts["cpu"] = str(cpu)
    return {"name": "main", "resources": {"requests": amounts, "limits": dict(amounts)}}


@pytest.fixture
async def world():
    made = await HeldWorld().open("n0")
    yield made
    await made.end()


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
async def test_an_owner_gets_the_card_of_its_reservation(world: HeldWorld, policy: str) -> None:
    await world.reserve("r", 100, allocatePolicy=policy)
    held = world.cards_of("r")
    stranger = await world.owner("stranger", 100, app="other")
    assert set(world.cards(stranger)).isdisjoint(held)
    late = await world.owner("late", 100, app="other")
    assert world.where(late) == ""
    first = await world.owner("first", 100)
    assert (world.given(first), world.cards(first)) == ("r", held)
    assert world.used() == {0: 100, 1: 100}


async def test_what_is_left_of_a_card_is_the_reservations(world: HeldWorld) -> None:
    """Its pod holds what consumers leave; with the last one it has all of it again."""
    await world.reserve("r", 200, allocatePolicy="Restricted")
    first = await world.owner("first", 50)
    assert world.given(first) == "r"
    assert world.used() == {0: 100, 1: 100}
    stranger = await world.owner("stranger", 50, app="other")
    assert world.where(stranger) == ""
    second = await world.owner("second", 100)
    assert set(world.cards(second)).isdisjoint(world.cards(first))
    third = await world.owner("third", 50)
    assert world.cards(third) == world.cards(first)
    assert world.used() == {0: 100, 1: 100}
    for key in (first, second, third):
        world.api.delete_pod(key)
    await world.settle()
    assert world.used() == {0: 100, 1: 100}
    world.api.drop("r")
    await world.settle()
    await world.advance(600)
    assert world.used() == {0: 50} or world.used() == {1: 50}  # the stranger's


async def test_a_restricted_reservation_gives_no_more_than_it_has(world: HeldWorld) -> None:
    await world.reserve("r", 50, allocatePolicy="Restricted")
    first = await world.owner("first", 30, **MUST)
    assert world.cards(first).keys() == world.cards_of("r").keys()
    second = await world.owner("second", 30, **MUST)
    assert world.where(second) == ""


async def test_beyond_an_aligned_reservation_the_node_gives(world: HeldWorld) -> None:
    await world.reserve("r", 50, allocatePolicy="Aligned")
    (minor,) = world.cards_of("r")
    first = await world.owner("first", 80)
    assert (world.given(first), world.cards(first)) == ("r", {minor: 80})
    assert world.used() == {minor: 80}


async def test_of_several_reservations_an_owner_gets_the_cards_of_its_own(
    world: HeldWorld,
) -> None:
    """The other card is reserved by a reservation that the pod matches, too."""
    for name in ("a", "b"):
        await world.reserve(name, 100, allocateOnce=True, allocatePolicy="Restricted")
    keys = [await world.owner(name, 100) for name in ("first", "second")]
    assert sorted(world.given(key) for key in keys) == ["a", "b"]
    for key in keys:
        assert world.cards(key) == world.cards_of(world.given(key))
    assert world.used() == {0: 100, 1: 100}


async def test_an_owner_that_needs_two_cards_fits_in_no_single_reservation(
    world: HeldWorld,
) -> None:
    for name in ("a", "b"):
        await world.reserve(name, 100, allocatePolicy="Aligned")
    key = await world.owner("both", 200)
    assert world.where(key) == ""


async def test_a_reservation_is_right_again_after_a_failed_binding(world: HeldWorld) -> None:
    await world.reserve("r", 100, allocatePolicy="Restricted")
    held = world.cards_of("r")

    def refuse(call: Any) -> None:
        raise api_error_response(call, 500, "InternalError", "not now")

    world.api.faults += [refuse] * 20
    key = await world.owner("first", 100)
    assert world.where(key) == ""
    assert world.used() == held
    world.api.faults.clear()
    await world.advance(120)
    assert (world.where(key), world.cards(key)) == ("n0", held)


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
async def test_an_owner_gets_the_cpus_of_its_reservation(world: HeldWorld, policy: str) -> None:
    await world.reserve("r", cpu=8, allocatePolicy=policy)
    held = world.cpus_of("r")
    stranger = await world.owner("stranger", cpu=8, app="other")
    assert world.where(stranger) == "n0"
    first = await world.owner("first", cpu=8)
    assert (world.given(first), world.cpus(first)) == ("r", held)
    assert world.used_cpus() == sorted([held, world.cpus(stranger)])


async def test_cpus_that_are_left_stay_reserved(world: HeldWorld) -> None:
    await world.reserve("r", cpu=8, allocatePolicy="Restricted")
    first = await world.owner("first", cpu=4)
    stranger = await world.owner("stranger", cpu=8, app="other")
    second = await world.owner("second", cpu=4)
    assert [world.given(one) for one in (first, stranger, second)] == ["r", "", "r"]
    lists = [world.cpus(one) for one in (first, stranger, second)]
    assert world.used_cpus() == sorted(lists)
    assert len(set(lists)) == 3


async def test_after_a_takeover_all_is_as_the_objects_say(world: HeldWorld) -> None:
    await world.reserve("r", 200, cpu=4, allocatePolicy="Restricted")
    first = await world.owner("first", 50, cpu=2)
    assert world.given(first) == "r"
    before = world.used(), world.used_cpus()
    other = await HeldWorld().open("n0")
    other.api.pods = world.api.pods
    for key in other.api.pods:  # before the Reservation, as it happens after a restart
        other.api._publish(key)
    other.api.put(world.api.reservations["r"])
    await other.settle()
    assert (other.used(), other.used_cpus()) == before
    second = await other.owner("second", 50, cpu=2)
    assert other.given(second) == "r"
    assert other.used() == before[0]
    await other.end()


async def test_what_a_reservation_says_beyond_its_requests_does_not_count(
    world: HeldWorld,
) -> None:
    text = json.dumps({"gpu": [{"minor": at, "resources": {CORE: "100"}} for at in (0, 1)]})
    await world.reserve(
        "r", cpu=2, annotations={DEVICE_ALLOCATED: text}, node="n0", phase="Available"
    )
    assert world.used() == {}
    key = await world.owner("stranger", 200, app="other")
    assert world.where(key) == "n0"


async def test_devices_of_a_resized_reservation_are_held(world: HeldWorld) -> None:
    """Koordinator's gate ResizePod has allocatable name all that the given cards have."""
    whole = {CORE: "100", RATIO: "100", MEMORY: "16Gi"}
    text = json.dumps({"gpu": [{"minor": 0, "resources": whole}]})
    await world.reserve(
        "r",
        100,
        annotations={DEVICE_ALLOCATED: text},
        node="n0",
        phase="Available",
        status={"allocatable": whole},
    )
    assert world.used() == {0: 100}
    assert world.cards(await world.owner("stranger", 100, app="other")) == {1: 100}
    assert world.cards(await world.owner("mine", 100)) == {0: 100}


@pytest.mark.parametrize("policy", ["Aligned", "Restricted"])
async def test_what_an_attempt_has_written_that_failed_is_in_no_way(
    world: HeldWorld, policy: str
) -> None:
    """Its annotations stay on the pod, which had no node in the end."""
    await world.reserve("r", 100, cpu=4, allocateOnce=True, allocatePolicy=policy)
    held = world.cards_of("r"), world.cpus_of("r")

    def refuse(call: Any) -> None:
        if call.path.endswith("/binding"):
            raise api_error_response(call, 500, "InternalError", "not now")

    world.api.faults += [refuse] * 8
    key = await world.owner("first", 100, cpu=4)
    assert (world.where(key), world.given(key)) == ("", "r")
    assert (world.cards(key), world.cpus(key)) == held
    world.api.faults.clear()
    await world.advance(120)
    assert (world.where(key), world.cards(key), world.cpus(key)) == ("n0", *held)
    assert world.used_cpus() == [held[1]]


OVER: Json = {"preAllocation": True, "allocatePolicy": "Restricted", "allocateOnce": True}


async def test_a_reservation_takes_over_the_cpus_of_a_pod(world: HeldWorld) -> None:
    """There is no room for both beside each other: 8 CPUs are reserved, 4 of them in use."""
    stranger = await world.owner("stranger", cpu=8, app="other")
    first = await world.owner("first", cpu=4)
    held = world.cpus(first)
    await world.reserve("r", cpu=8, **OVER)
    assert world.given(first) == "r"
    assert (world.where(first), world.cpus(first)) == ("n0", held)
    of_reservation = parse_cpulist(world.cpus_of("r"))
    assert parse_cpulist(held) < of_reservation
    assert of_reservation.isdisjoint(parse_cpulist(world.cpus(stranger)))
    assert world.status()["currentOwners"][0]["name"] == "first"


async def test_a_reservation_takes_over_the_cards_of_a_pod(world: HeldWorld) -> None:
    stranger = await world.owner("stranger", 100, app="other")
    first = await world.owner("first", 100)
    await world.reserve("r", 100, **OVER)
    assert world.given(first) == "r"
    assert world.cards_of("r") == world.cards(first)
    assert world.cards_of("r").keys().isdisjoint(world.cards(stranger))


async def test_pods_whose_cards_a_reservation_cannot_have_are_not_taken_over(
    world: HeldWorld,
) -> None:
    """It wants half of a card; the first pod has parts of two, the second one of one."""
    keys = [await world.owner(name, 60) for name in ("a", "b")]
    both = await world.owner("both", 30)
    assert len({*world.cards(keys[0]), *world.cards(keys[1])}) == 2
    world.api.delete_pod(keys[0])
    await world.settle()
    await world.reserve("r", 60, **OVER)
    taken = [key for key in (keys[1], both) if world.given(key) == "r"]
    assert len(taken) == 1
    assert world.cards_of("r").keys() == world.cards(taken[0]).keys()


@pytest.fixture
async def aligned():
    """A node that gives all of a pod from one NUMA node; each of the two has 8 CPUs."""
    made = await HeldWorld().open("n0", numa_topology_policy="SingleNUMANode")
    yield made
    await made.end()


async def share(
    world: HeldWorld, name: str, cpu: int, app: str = "web", percent: int = 0, **more: str
) -> str:
    """A pod without CPUs of its own. percent: of a card."""
    labels = {"app": app, **{key: value for key, value in more.items() if key == IGNORED}}
    containers = [container(percent, cpu)]
    key = world.api.add_pod(name, labels=labels, containers=containers, priority=9999)
    if AFFINITY in more:
        world.api.change(key, metadata={"annotations": {AFFINITY: more[AFFINITY]}})
    await world.settle()
    return key


async def test_beside_a_reservation_only_what_it_does_not_have_is_left(aligned: HeldWorld) -> None:
    """V12 and V13: 7 of 8 CPUs are reserved, of which a consumer has 4."""
    await aligned.reserve("r", cpu=7, labels={})
    owner = await share(aligned, "owner", 4)
    assert (aligned.given(owner), aligned.zones(owner)) == ("r", {0: "4"})
    full = await share(aligned, "full", 8, "other")
    assert aligned.zones(full) == {1: "8"}
    two = await share(aligned, "two", 2, "other")
    assert aligned.where(two) == ""
    one = await share(aligned, "one", 1, "other")
    assert aligned.zones(one) == {0: "1"}


async def test_reservations_of_the_numa_node_that_a_pod_gets(aligned: HeldWorld) -> None:
    """V16 and V17: the NUMA node is chosen first; the pod gets a reservation only there.

    A pod that must have a reservation goes where it is.
    """
    await aligned.reserve("a", cpu=8, labels={}, allocatePolicy="Restricted")
    first = await share(aligned, "first", 4)
    assert (aligned.given(first), aligned.zones(first)) == ("a", {0: "4"})
    await aligned.reserve("b", cpu=8, labels={}, allocatePolicy="Restricted")
    aligned.api.drop("a")
    aligned.api.delete_pod(first)
    await aligned.settle()
    beside = await share(aligned, "beside", 4)
    assert (aligned.given(beside), aligned.zones(beside)) == ("", {0: "4"})
    aligned.api.delete_pod(beside)
    await aligned.settle()
    must = await share(aligned, "must", 4, **MUST)
    assert (aligned.given(must), aligned.zones(must)) == ("b", {1: "4"})
    more = await share(aligned, "more", 8, **MUST)
    assert aligned.where(more) == ""


async def test_what_a_reservation_lacks_of_the_numa_node_that_its_owner_needs(
    aligned: HeldWorld,
) -> None:
    """V18: the pod needs the card of NUMA node 0, its reservation has CPU of NUMA node 1.

    Here the reservation counts among the hints, before a NUMA node is chosen.
    """
    informers: Any = aligned.services.informers
    informers.apply(DEVICE_OBJECTS, device_object("n0", [gpu(0, numa=0, pcie="0")]))
    blocker = await share(aligned, "blocker", 8, "other")
    await aligned.reserve("b", cpu=8, labels={}, allocatePolicy="Restricted")
    aligned.api.delete_pod(blocker)
    await aligned.settle()
    must = await share(aligned, "must", 4, percent=100, **MUST)
    assert aligned.message(must).startswith(
        "0/1 nodes are available: 1 Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11],"
        "gpu prefer [01] among [01],reservation prefer [11] among [11]. "
    )
    bound = await aligned.owner("bound", 100, 4, **MUST)
    assert aligned.message(bound).startswith(
        "0/1 nodes are available: 1 Reservation(s) not enough cpus available to satisfy request. "
    )
    free = await share(aligned, "free", 4, percent=100)
    assert (aligned.given(free), aligned.zones(free)) == ("", {0: "4"})


async def test_the_numa_node_of_a_reserved_card_is_chosen(aligned: HeldWorld) -> None:
    """The card of the other NUMA node is free, and comes first without the reservation."""
    cards = [gpu(minor, numa=minor, pcie=str(minor)) for minor in range(CARDS)]
    informers: Any = aligned.services.informers
    informers.apply(DEVICE_OBJECTS, device_object("n0", cards))
    stranger = await aligned.owner("stranger", 100, app="other")
    await aligned.reserve("r", 100, allocatePolicy="Restricted")
    assert (aligned.cards(stranger), aligned.cards_of("r")) == ({0: 100}, {1: 100})
    aligned.api.delete_pod(stranger)
    await aligned.settle()
    first = await aligned.owner("first", 100, **MUST)
    assert (aligned.given(first), aligned.cards(first)) == ("r", {1: 100})


@pytest.mark.parametrize(("full", "wanted"), [("s", "r"), ("r", "s"), ("", "r")])
async def test_the_reservation_with_more_of_its_card_left_is_given(full: str, wanted: str) -> None:
    """Both have room for the pod; by amounts the fuller one would come first."""
    world = await HeldWorld().open("n0")
    for name in ("r", "s"):
        owners = [{"app": "web", name: "y"}, {"app": "both"}]
        await world.reserve(
            name,
            100,
            allocateOnce=False,
            allocatePolicy="Restricted",
            owners=[{"labelSelector": {"matchLabels": labels}} for labels in owners],
        )
    if full:
        labels = {"app": "web", full: "y"}
        world.api.add_pod("first", labels=labels, containers=[container(40, 0)], priority=9999)
        await world.settle()
    second = await world.owner("second", 40, app="both")
    assert world.given(second) == wanted
    await world.end()


async def test_a_pod_that_ignores_reservations_has_their_cpus(world: HeldWorld) -> None:
    """V15."""
    await world.owner("stranger", cpu=8, app="other")
    await world.reserve("r", cpu=8)
    key = await world.owner("first", cpu=4)
    assert world.given(key) == "r"
    labels = {"app": "other", IGNORED: "true", **LSR}
    ignoring = world.api.add_pod(
        "ignoring", labels=labels, containers=[container(0, 4)], priority=9999
    )
    await world.settle()
    assert (world.where(ignoring), world.given(ignoring)) == ("n0", "")
    mine = parse_cpulist(world.cpus(ignoring))
    assert mine < parse_cpulist(world.cpus_of("r"))
    assert mine.isdisjoint(parse_cpulist(world.cpus(key)))


@pytest.mark.parametrize(
    ("kind", "app", "leaves"),
    [
        # spec 08, P5: what the victim leaves is its reservation's again, and so its owners'
        ("cpu", "web", True),
        ("cpu", "other", False),
        ("card", "web", True),
        ("card", "other", False),
        # P6: of a reservation that has none of these, the node's
        ("beside", "web", True),
        ("beside", "other", True),
    ],
)
async def test_what_a_victim_with_a_reservation_leaves(kind: str, app: str, leaves: bool) -> None:
    """Nobody is evicted for a pod that the reservation would not let in."""
    world = await HeldWorld().open("n0", preempts=True)
    percent, cpu = (0, CPUS) if kind == "cpu" else (200, 0)
    if kind == "beside":
        await world.reserve("r", template={"containers": [container(0, 1)]})
    else:
        await world.reserve("r", percent, cpu, allocatePolicy="Restricted")
    victim = await world.owner("victim", percent, cpu or int(kind == "beside"), priority=9100)
    assert (world.where(victim), world.given(victim)) == ("n0", "r")
    high = await world.owner("high", percent, cpu, app=app, priority=9900)
    assert ("deletionTimestamp" in world.api.pods[victim]["metadata"]) is leaves
    world.api.delete_pod(victim)
    await world.settle()
    await world.advance(30)
    assert world.where(high) == ("n0" if leaves else "")
    await world.end()
