"""Both forms of the plugin, and what is kept from cycle to cycle, against a plain recount."""

from random import Random
from typing import Any

import pytest

from koord.api.reservation import AFFINITY, ALLOCATED
from koord_scheduler.plugin import ClusterPod, CycleState
from koord_scheduler.plugin.koordinator import HypotheticalCluster
from koord_scheduler.plugin.testing import PluginHarness, make_pod
from koord_scheduler_plugins.node_resources import NodeResourcesFit
from koord_scheduler_plugins.reservation.consumers import allocated_text
from koord_scheduler_plugins.reservation.plugin import ReservationPlugin
from koord_scheduler_plugins.reservation.status import RESERVATIONS
from tests.support.reservations import reservation_json

NODES, ROUNDS, CORE = 6, 60, 1000
APPS = ("web", "db")
CHANGES = (*("reserve", "consume", "alter") * 2, "pod", "leave", "end")
POLICIES = ("", "Aligned", "Restricted")


class Model:
    """A cluster whose reservations and consumers come and go, as plain dictionaries."""

    def __init__(self, harness: PluginHarness, draw: Random) -> None:
        self.harness, self.draw = harness, draw
        self.reservations: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, tuple[str, int, str]] = {}  # node, cpu and reservation
        self.number = 0

    def change(self) -> None:
        kind = self.draw.choice(
            ("reserve", "reserve", "pod", "consume", "consume", "leave", "end", "alter", "alter")
        )
        getattr(self, kind)()

    def free(self, node: str) -> int:
        """What neither pods nor reservations hold, in thousandths of a core."""
        used = sum(cpu for place, cpu, _ in self.pods.values() if place == node)
        held = sum(
            self.left(name) for name, one in self.reservations.items() if one["node"] == node
        )
        return 8 * CORE - used - held

    def left(self, name: str) -> int:
        used = sum(cpu for _, cpu, given in self.pods.values() if given == name)
        return max(0, int(self.reservations[name]["cpu"]) - used)

    def taken(self, name: str) -> bool:
        once = self.reservations[name]["once"]
        return once and any(given == name for _, _, given in self.pods.values())

    def reserve(self) -> None:
        node, cpu = f"n{self.draw.randrange(NODES)}", self.draw.randrange(1, 4) * CORE
        if self.free(node) < cpu:
            return
        self.number += 1
        name = f"r{self.number}"
        policy, once = self.draw.choice(POLICIES), self.draw.random() < 0.4
        app = self.draw.choice(APPS)
        one = {"node": node, "cpu": cpu, "policy": policy, "once": once, "app": app}
        self.reservations[name] = one
        if self.draw.random() < 0.2:
            one["labels"] = {"scheduling.koordinator.sh/reservation-order": str(self.number)}
        self.put(name)

    def put(self, name: str) -> None:
        one = self.reservations[name]
        more: dict[str, Any] = {"allocatePolicy": one["policy"]} if one["policy"] else {}
        requests = {"cpu": f"{one['cpu']}m"}
        item = reservation_json(
            name,
            requests,
            node=one["node"],
            labels=one.get("labels"),
            owners=[{"labelSelector": {"matchLabels": {"app": one["app"]}}}],
            allocateOnce=one["once"],
            unschedulable=one.get("unschedulable", False),
            status={"allocatable": requests},
            **more,
        )
        self.harness.informers.apply(RESERVATIONS, item)

    def alter(self) -> None:
        """Another policy, or cordoned, or not any more; its pod stays the same."""
        if self.reservations:
            name = self.draw.choice(sorted(self.reservations))
            one = self.reservations[name]
            if self.draw.random() < 0.5:
                one["policy"] = self.draw.choice(POLICIES)
            else:
                one["unschedulable"] = not one.get("unschedulable", False)
            self.put(name)

    def pod(self) -> None:
        node = f"n{self.draw.randrange(NODES)}"
        self.place(node, min(self.free(node), CORE), "")

    def consume(self) -> None:
        names = [name for name in self.reservations if not self.taken(name)]
        if names:
            name = self.draw.choice(names)
            self.place(self.reservations[name]["node"], min(self.left(name), CORE), name)

    def place(self, node: str, cpu: int, given: str) -> None:
        if cpu <= 0:
            return
        self.number += 1
        name = f"p{self.number}"
        annotations = {ALLOCATED: allocated_text(given, f"uid-{given}")} if given else {}
        self.harness.cluster.pod(name, node, cpu=f"{cpu}m", annotations=annotations)
        self.pods[name] = node, cpu, given

    def leave(self) -> None:
        if self.pods:
            name = self.draw.choice(sorted(self.pods))
            del self.pods[name]
            self.harness.cluster.delete("pod", f"default/{name}")

    def end(self) -> None:
        if self.reservations and self.draw.random() < 0.5:
            name = self.draw.choice(sorted(self.reservations))
            del self.reservations[name]
            self.pods = {
                key: (node, cpu, "" if given == name else given)
                for key, (node, cpu, given) in self.pods.items()
            }
            self.harness.informers.delete(RESERVATIONS, name)

    def feasible(self, app: str, cpu: int, *, required: bool) -> set[str]:
        """Nodes where a pod fits in one reservation and what is free, or beside them."""
        found = set()
        for number in range(NODES):
            node = f"n{number}"
            mine = [
                (self.left(name), one["policy"])
                for name, one in self.reservations.items()
                if (one["node"], one["app"], one.get("unschedulable", False)) == (node, app, False)
                and not self.taken(name)
            ]
            fits = any(
                cpu <= left + self.free(node) and (policy != "Restricted" or cpu <= left)
                for left, policy in mine
            )
            if fits or (not required and cpu <= self.free(node)):
                found.add(node)
        return found


def asking(number: int, app: str, cpu: int, *, required: bool) -> ClusterPod:
    annotations = {AFFINITY: "{}"} if required else {}
    return make_pod(
        f"ask{number}", cpu=f"{cpu}m", labels={"app": app}, annotations=annotations, phase="Pending"
    )


@pytest.mark.parametrize("seed", range(12))
async def test_pods_fit_where_one_reservation_and_free_room_suffice(seed: int) -> None:
    """The harness also compares what is reused with what is computed anew."""
    draw = Random(seed)
    harness = PluginHarness(
        ReservationPlugin, name="Reservation", extra_plugins={"NodeResourcesFit": NodeResourcesFit}
    )
    for number in range(NODES):
        harness.cluster.node(f"n{number}", cpu="8")
    async with harness:
        model = Model(harness, draw)
        for number in range(ROUNDS):
            model.change()
            app, cpu = draw.choice(APPS), draw.choice((1, 2, 3)) * CORE
            required = draw.random() < 0.3
            pod = asking(number, app, cpu, required=required)
            found = set(harness.decide(pod).feasible)
            assert found == model.feasible(app, cpu, required=required), (number, app, cpu)


async def test_a_result_is_not_reused_when_only_the_reservation_has_changed() -> None:
    harness = PluginHarness(ReservationPlugin, name="Reservation")
    harness.cluster.node("n0", cpu="8")
    async with harness:
        model = Model(harness, Random(0))
        model.reservations["r"] = one = {"node": "n0", "cpu": 2000, "once": False, "app": "web"}
        found = []
        for number, policy in enumerate((*POLICIES, "Aligned")):
            one["policy"] = policy
            model.put("r")
            asked = asking(number, "web", 3000, required=True)
            found.append(harness.decide(asked).feasible)
    assert found == [("n0",), ("n0",), (), ("n0",)]


async def test_a_view_without_the_pod_of_a_reservation_spoils_no_later_one() -> None:
    """As one that another transformer, or this one, has made."""
    harness = PluginHarness(
        ReservationPlugin, name="Reservation", extra_plugins={"NodeResourcesFit": NodeResourcesFit}
    )
    harness.cluster.node("n0", cpu="4")
    async with harness:
        model = Model(harness, Random(0))
        one = {"node": "n0", "cpu": 4000, "once": False, "app": "web", "policy": "Aligned"}
        model.reservations["r"] = one
        model.put("r")
        pod = asking(0, "web", 4000, required=True)
        plugin = harness.subject
        assert isinstance(plugin, ReservationPlugin)
        without = HypotheticalCluster(harness.cluster.state.view())
        without.remove("default/reservation:r", "n0")
        plugin.before_pre_filter(CycleState(), pod, without.view())
        assert harness.decide(pod).feasible == ("n0",)


async def test_a_pinned_reservation_says_why_other_nodes_are_none() -> None:
    harness = PluginHarness(ReservationPlugin, name="Reservation")
    for name in ("n0", "n1"):
        harness.cluster.node(name, cpu="4")
    async with harness:
        item = reservation_json(
            "r", node="", phase="Pending", template={"nodeName": "n1", "schedulerName": "test"}
        )
        harness.informers.apply(RESERVATIONS, item)
        pod = harness.cluster.state.pod("default/reservation:r")
        assert pod is not None
        found = harness.decide(pod)
    assert found.feasible == ("n1",)
    assert found.rejections == {"n0": "node(s) didn't match the nodeName specified by reservation"}
