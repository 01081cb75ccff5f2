"""Both forms of the plugin, and what is kept from cycle to cycle, against a plain recount."""

from itertools import chain
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace as changed

from koord.api.node import NODE_RESERVATION
from koord.api.reservation import AFFINITY, ALLOCATED, EXACT_MATCH, RESTRICTED_OPTIONS
from koord_scheduler.plugin import ClusterPod, CycleState, NodeInfo, View
from koord_scheduler.plugin.koordinator import HypotheticalCluster, Transformed
from koord_scheduler.plugin.testing import PluginHarness, make_pod
from koord_scheduler.plugin.vector import Verdicts
from koord_scheduler_plugins.node_constraints import NodePorts
from koord_scheduler_plugins.node_resources import NodeResourcesFit
from koord_scheduler_plugins.reservation import rooms
from koord_scheduler_plugins.reservation.consumers import (
    CONSUMERS,
    allocated_text,
    pool_name,
    reservation_info,
)
from koord_scheduler_plugins.reservation.matches import Judgement, MatchCache, MatchColumns
from koord_scheduler_plugins.reservation.matching import read_demands
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
        labels = {"team": self.draw.choice("ab")}
        if self.draw.random() < 0.2:
            labels["scheduling.koordinator.sh/reservation-order"] = str(self.number)
        one["labels"] = labels
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


AFFINITIES = (
    "{}",
    '{"name":"r3"}',
    '{"reservationSelector":{"team":"a"}}',
    '{"requiredDuringSchedulingIgnoredDuringExecution":{"reservationSelectorTerms":'
    '[{"matchExpressions":[{"key":"zone","operator":"In","values":["z1"]}]}]}}',
)
EXACT = '{"resourceNames":["cpu"]}'


@pytest.mark.parametrize("seed", range(6))
async def test_kept_matches_are_those_that_are_found_anew(seed: int) -> None:
    """Whatever has changed since: reservations, what consumers hold, or the nodes."""
    draw, matched = Random(seed), 0
    harness = PluginHarness(ReservationPlugin, name="Reservation")
    for number in range(NODES):
        harness.cluster.node(f"n{number}", cpu="8")
    async with harness:
        plugin, model = harness.subject, Model(harness, draw)
        assert isinstance(plugin, ReservationPlugin)
        for number in range(3 * ROUNDS):
            model.change()
            if draw.random() < 0.1:
                labels = {"zone": draw.choice(("z1", "z2"))}
                harness.cluster.node(f"n{draw.randrange(NODES)}", cpu="8", labels=labels)
            pod = asking(0, draw.choice(APPS), draw.choice((1, 2)) * CORE, required=False)
            annotations = [(AFFINITY, draw.choice(AFFINITIES))] if draw.random() < 0.5 else []
            if draw.random() < 0.3:
                annotations.append((EXACT_MATCH, EXACT))
            pod = changed(pod, annotations=tuple(annotations))
            demands, nodes = read_demands(pod), harness.cluster.state.view()
            kept = plugin._cache.of(pod, demands, nodes)
            anew = MatchCache(plugin.tracker, plugin._matching).of(pod, demands, nodes)
            assert dict(kept.by_node) == dict(anew.by_node), number
            assert kept.ordered == anew.ordered
            for info in chain.from_iterable(kept.by_node.values()):
                pool = nodes.account.pool(CONSUMERS, pool_name(info.uid, info.reservation.node))
                assert info == reservation_info(info.reservation, pool.allocated)
                matched += 1
            if kept.nodes is not None:
                assert anew.nodes is not None
                for row in range(len(nodes)):
                    assert kept.nodes.pods(row) == anew.nodes.pods(row)
    assert matched > ROUNDS


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


async def test_a_pod_sees_nodes_without_the_pods_of_reservations_that_it_can_have() -> None:
    """Worked example 19.1; what consumers hold is counted once from the start."""
    harness = PluginHarness(
        ReservationPlugin, name="Reservation", extra_plugins={"NodePorts": NodePorts}
    )
    harness.cluster.node("n", cpu="32", memory="128Gi")

    def container(cpu: int, memory: int, port: int | None = None) -> dict[str, Any]:
        requests = {"cpu": str(cpu), "memory": f"{memory}Gi"}
        ports = [{"containerPort": port, "hostPort": port, "protocol": "TCP"}] if port else []
        return {"name": "main", "resources": {"requests": requests}, "ports": ports}

    def reserve(name: str, app: str, cpu: int, memory: int, port: int) -> None:
        owners = [{"labelSelector": {"matchLabels": {"app": app}}}]
        amounts = {"cpu": str(cpu), "memory": f"{memory}Gi"}
        template = {"containers": [container(cpu, memory, port)]}
        item = reservation_json(
            name, amounts, node="n", owners=owners, template=template, allocateOnce=False
        )
        harness.informers.apply(RESERVATIONS, item)

    async with harness:
        for name, given, *amounts in (
            ("pod-1", "", 4, 8, 8080),
            ("pod-2", "", 8, 16, 9090),
            ("consumer", "r1", 4, 8),
        ):
            annotations = {ALLOCATED: allocated_text(given, f"uid-{given}")} if given else {}
            spec = {"containers": [container(*amounts)]}
            harness.cluster.pod(name, "n", annotations=annotations, spec=spec)
        reserve("r1", "other", 12, 24, 8080)
        reserve("r2", "web", 8, 16, 7070)
        pod, view = asking(0, "web", 1000, required=False), harness.cluster.state.view()
        assert taken(view) == (32, 64)
        plugin, state = harness.subject, CycleState()
        assert isinstance(plugin, ReservationPlugin)
        seen = plugin.before_pre_filter(state, pod, view)
        assert isinstance(seen, Transformed)
        assert seen.nodes is not None
        assert taken(seen.nodes) == (24, 48)
        assert taken(view) == (32, 64)
        free = {}
        for port in (7070, 8080, 9090):
            asked = make_pod(
                f"asks-{port}",
                labels={"app": "web"},
                spec={"containers": [container(1, 1, port)]},
                phase="Pending",
            )
            free[port] = harness.decide(asked).feasible == ("n",)
        assert free == {7070: True, 8080: False, 9090: False}


def taken(nodes: View) -> tuple[int, int]:
    """Cores and GiB that the pods of the first node request."""
    cpu, memory = (nodes.requested_of(0, nodes.resources[one]) for one in ("cpu", "memory"))
    return cpu // CORE, memory >> 30


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


def random_reservation(draw: Random, number: int, node: str) -> dict[str, Any]:
    amounts = {
        name: str(draw.randrange(1, 5))
        for name in ("cpu", "example.com/gpu", "other.io/disk")
        if draw.random() < 0.7
    } or {"cpu": "2"}
    more: dict[str, Any] = {}
    policy = draw.choice(POLICIES)
    if policy:
        more["allocatePolicy"] = policy
    annotations = {}
    if draw.random() < 0.3:
        annotations[NODE_RESERVATION] = '{"resources":{"cpu":"1"}}'
    if draw.random() < 0.3:
        annotations[RESTRICTED_OPTIONS] = '{"resources":["cpu"]}'
    status = dict(amounts)
    if draw.random() < 0.3:
        status["pods"] = str(draw.randrange(3))
    return reservation_json(
        f"r{number}",
        amounts,
        node=node,
        annotations=annotations,
        allocateOnce=draw.random() < 0.2,
        status={"allocatable": status},
        **more,
    )


@pytest.mark.parametrize("seed", range(8))
async def test_nodes_are_judged_together_as_they_are_one_by_one(
    seed: int, monkeypatch: Any
) -> None:
    """Verdicts, reasons and scores, while consumers come and go and rows change their places."""
    monkeypatch.setattr(rooms, "FEW_NODES", 0)
    draw = Random(seed)
    args = {"ignoredResourceGroups": ["other.io"]} if seed % 2 else {}
    harness = PluginHarness(ReservationPlugin, name="Reservation", args=args)
    more: Any = {"allocatable": {"example.com/gpu": 4, "other.io/disk": 4}}
    together = 0
    for number in range(12):
        harness.cluster.node(f"n{number}", cpu="6", pods=draw.choice((3, 100)), **more)
    async with harness:
        plugin = harness.subject
        assert isinstance(plugin, ReservationPlugin)
        given: dict[str, str] = {}
        for number in range(80):
            node = f"n{draw.randrange(12)}"
            kind = draw.choice(("reserve", "reserve", "consume", "consume", "leave", "node"))
            if kind == "reserve":
                item = random_reservation(draw, number, node)
                harness.informers.apply(RESERVATIONS, item)
                given[f"r{number}"] = node
            elif kind == "consume" and given:
                name = draw.choice(sorted(given))
                text = allocated_text(name, f"uid-{name}")
                annotations = {ALLOCATED: text} if draw.random() < 0.8 else {}
                harness.cluster.pod(f"p{number}", given[name], cpu="1", annotations=annotations)
            elif kind == "leave":
                keys = sorted(pod.key for row in range(12) for pod in state_pods(harness, row))
                keys = [key for key in keys if key.startswith("default/p")]
                if keys:
                    harness.cluster.delete("pod", draw.choice(keys))
            elif kind == "node":
                harness.cluster.node(node, cpu="6", labels={"seen": str(number)}, **more)
            if number % 5 == 0:  # several pods that ask for the same share what is known
                requests = {
                    name: draw.randrange(4)
                    for name in ("cpu", "example.com/gpu", "other.io/disk")
                    if draw.random() < 0.7
                }
            pod = asking(number, "web", 1000, required=draw.random() < 0.3)
            spec = changed(
                pod.spec,
                requests=tuple(
                    sorted(
                        (name, value * (1000 if name == "cpu" else 1))
                        for name, value in requests.items()
                    )
                ),
            )
            pod, state = changed(pod, spec=spec), CycleState()
            seen = plugin.before_pre_filter(state, pod, harness.cluster.state.view())
            nodes = seen.nodes if isinstance(seen, Transformed) else None
            if nodes is None:
                continue
            verdicts = plugin.filter_all(state, pod, nodes)
            assert isinstance(verdicts, Verdicts)
            scores = plugin.score_all(state, pod, nodes)
            data = state.find("Reservation", rooms.CycleData)
            found = plugin._rooms.judge(data, nodes, (state, pod))
            together += 0 if found is None else len(found.rows)
            data.found.clear()
            for row in range(len(nodes)):
                number = int(verdicts.numbers[row])
                wanted = plugin.filter(state, pod, NodeInfo(nodes, row))
                assert (verdicts.rejections[number - 1] if number else None) == wanted
                assert scores[row] == plugin.score(state, pod, NodeInfo(nodes, row))
    assert together > 40


@pytest.mark.parametrize("seed", range(4))
async def test_a_judgement_follows_what_has_changed(seed: int) -> None:
    """It is the one that is made anew; consumers and other pods come to nodes and leave them."""
    draw, harness, there = Random(seed), PluginHarness(ReservationPlugin, name="Reservation"), []
    for number in range(20):
        harness.cluster.node(f"n{number}", cpu="6", pods=draw.choice((5, 100)))
    async with harness:
        plugin = harness.subject
        assert isinstance(plugin, ReservationPlugin)

        def reserve(number: int) -> None:
            policy = draw.choice(POLICIES)
            more = {"allocatePolicy": policy} if policy else {}
            item = reservation_json(
                f"r{number}", {"cpu": "3"}, node=f"n{number}", allocateOnce=False, **more
            )
            harness.informers.apply(RESERVATIONS, item)

        for number in range(20):
            reserve(number)
        kept = anew = 0
        for step in range(150):
            number = draw.randrange(20)
            if draw.random() < 0.2:
                reserve(number)  # with another policy: its node stays the same
            elif there and draw.random() < 0.4:
                harness.cluster.delete("pod", there.pop(draw.randrange(len(there))))
            else:
                text = allocated_text(f"r{number}", f"uid-r{number}")
                annotations = {ALLOCATED: text} if draw.random() < 0.5 else {}
                cpu = draw.choice(("1", "2"))
                harness.cluster.pod(f"p{step}", f"n{number}", cpu=cpu, annotations=annotations)
                there.append(f"default/p{step}")
            if draw.random() < 0.3:
                continue
            pod = asking(step, "web", draw.choice((2, 4)) * CORE, required=draw.random() < 0.5)
            demands, view = read_demands(pod), harness.cluster.state.view()
            matches = plugin._cache.of(pod, demands, view)
            assert matches.nodes is not None
            ask = matches.by_node, plugin.tracker, demands, matches.nodes, plugin._rooms._fit
            columns = MatchColumns()
            columns.changed(matches.by_node)
            found, wanted = matches.columns.judge(*ask), columns.judge(*ask)
            assert found is not None
            assert wanted is not None
            assert by_row(found) == by_row(wanted), step
            kept += matches.columns.judge(*ask) is found
            anew += len(wanted.rows) == 20
        assert kept == anew > 50


def by_row(found: Judgement) -> dict[int, tuple[Any, ...]]:
    columns = [one.tolist() for one in (found.fits, found.passes, found.reasons, found.scores)]
    return dict(zip(found.rows.tolist(), zip(*columns, strict=True), strict=True))


def state_pods(harness: PluginHarness, row: int) -> tuple[ClusterPod, ...]:
    return harness.cluster.state.view().pods(row)


async def test_pods_that_owners_do_not_tell_apart_share_what_matches() -> None:
    """As the pods of a StatefulSet; until an owner names a label in which they differ."""
    harness = PluginHarness(ReservationPlugin, name="Reservation")
    for name in ("n0", "n1"):
        harness.cluster.node(name, cpu="4")
    async with harness:
        plugin = harness.subject
        assert isinstance(plugin, ReservationPlugin)

        def matching(number: int, cpu: str = "1", **labels: str) -> tuple[list[str], int]:
            mine = {"app": "web", "pod": f"web-{number}", **labels}
            pod = make_pod(f"web-{number}", cpu=cpu, labels=mine, phase="Pending")
            found = plugin._cache.of(pod, read_demands(pod), harness.cluster.state.view())
            names = sorted(one.name for infos in found.by_node.values() for one in infos)
            return names, found.number

        harness.informers.apply(RESERVATIONS, reservation_json("all", node="n0"))
        first, other = matching(0), matching(1, cpu="2")
        assert first == other == (["all"], first[1])
        owners = [{"labelSelector": {"matchLabels": {"pod": "web-1"}}}]
        harness.informers.apply(RESERVATIONS, reservation_json("one", node="n1", owners=owners))
        assert (matching(0)[0], matching(1)[0]) == (["all"], ["all", "one"])
        assert matching(0, app="db")[0] == []
        harness.informers.delete(RESERVATIONS, "one")
        assert matching(0) == matching(1) == matching(2)
        by_name = [{"object": {"name": "web-2"}}]
        harness.informers.apply(RESERVATIONS, reservation_json("two", node="n1", owners=by_name))
        assert (matching(1)[0], matching(2)[0]) == (["all"], ["all", "two"])
        controller = [{"controller": {"kind": "Job", "name": "x"}}]
        harness.informers.apply(RESERVATIONS, reservation_json("job", owners=controller, node="n1"))
        assert matching(2)[0] == ["all", "two"]
