"""What is given away is the same in whichever order events have come.

A scheduler that has lived through random events is compared with one that learns of the objects
that are left, and of nothing else. The events: objects of all kinds come, change, go, and are made
anew under their name, several times in a row and in any order among kinds; pods are assumed and
forgotten; somebody looks now and then. Quotas in a circle and absurd Reservations come and go, too:
of these the last good state counts while they are there.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from koord.api.elasticquota import NAME, NAMESPACES, PARENT, PREEMPTIBLE
from koord.api.podgroup import (
    GROUP_LABEL,
    LIGHTWEIGHT_MIN_LABEL,
    LIGHTWEIGHT_NAME_LABEL,
    read_pod_group,
)
from koord.api.reservation import ALLOCATED, OPERATING_MODE, OWNERS, RESERVE_POD_NAME
from koord.cluster.account import EMPTY_POOL, AccountKind
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord.cluster.kinds import NODE, POD
from koord.controlplane.testing import FakeCluster
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.plugin.testing.harness import fake_services
from koord_scheduler.scheduling.scheduler import CacheControl
from koord_scheduler_plugins.coscheduling.gangs import GANGS, GangDefaults, Gangs
from koord_scheduler_plugins.coscheduling.plugin import Coscheduling
from koord_scheduler_plugins.coscheduling.serving import POD_GROUPS
from koord_scheduler_plugins.coscheduling.topology import ATTRACTED
from koord_scheduler_plugins.device_share.allocated import DEVICES
from koord_scheduler_plugins.device_share.plugin import DeviceShare
from koord_scheduler_plugins.elastic_quota.checks import AdmissionOptions
from koord_scheduler_plugins.elastic_quota.quotas import LeavingPods, QuotaOptions
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS, QuotaTracker
from koord_scheduler_plugins.node_numa_resource.holdings import NUMA_HOLDINGS
from koord_scheduler_plugins.node_numa_resource.plugin import NodeNUMAResource
from koord_scheduler_plugins.reservation.consumers import CONSUMERS, allocated_text
from koord_scheduler_plugins.reservation.plugin import ReservationPlugin
from koord_scheduler_plugins.reservation.status import RESERVATIONS
from koord_scheduler_plugins.reservation.tracker import ReservationTracker
from tests.support import clusters
from tests.support.clusters import read_node, read_pod
from tests.support.reservations import reservation_json

Json = dict[str, Any]
Key = tuple[str, str]  # kind, and the key of the object
NODES, PODS = ("n0", "n1"), ("p0", "p1", "p2", "p3", "p4")
OPERATING = PODS[:2]  # pods that may act as reservations
QUOTA_NAMES, GROUPS, ROOMS = ("q0", "q1", "q2", "q3"), ("g0", "g1"), ("r0", "r1")
KINDS = ("node", "pod", "pod", "pod", "pod", "quota", "quota", "group", "room", "room")
CARD = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
ABSURD: tuple[Json, ...] = (
    {"owners": [{}]},
    {"ttl": "-5s"},
    {"template": None},
    {"allocatePolicy": "Sideways"},
)
DECODER = Decoder(
    reads_of(ReservationPlugin)
    | reads_of(DeviceShare)
    | reads_of(NodeNUMAResource)
    | reads_of(Coscheduling)
)


class Copy:
    """What one replica of the scheduler knows."""

    def __init__(self, leaving: LeavingPods) -> None:
        self.clock = SimulatedClock()
        self.state = SchedulerCache(self.clock)
        cluster = FakeCluster(self.clock, self.state)
        self.services = fake_services(cluster, decoder=DECODER)
        self.state.observe(self.services.changes.notify)
        control = CacheControl(self.state, self.services.forgotten, self.clock)
        self.services.control.set(control)
        for kind in (DEVICES, NUMA_HOLDINGS):
            self.state.keep_account(kind)
        options = QuotaOptions(leaving=leaving)
        self.quotas = QuotaTracker(self.services, options, AdmissionOptions())
        self.reservations = ReservationTracker(self.services)
        self.gangs = Gangs(self.state, GangDefaults())
        followed = self.services.custom_resources.follow(POD_GROUPS, read_pod_group)
        self.gangs.pod_groups = followed.objects

    # Events.

    def put(self, key: Key, item: Json) -> None:
        informers: Any = self.services.informers
        match key[0]:
            case "node":
                self.state.put(NODE, read_node(item))
            case "pod":
                self.state.put(POD, read_pod(item, DECODER))
            case kind:
                informers.apply(FOLLOWED[kind], item)

    def delete(self, key: Key) -> None:
        informers: Any = self.services.informers
        match key:
            case ("node", name):
                self.state.remove(NODE, name)
            case ("pod", name):
                self.state.remove(POD, name)
            case (kind, name):
                informers.delete(FOLLOWED[kind], name)

    def assume(self, key: str, node: str, annotations: Mapping[str, str]) -> bool:
        """Assume a pod as a cycle does that has found this node; return whether it can be."""
        pod = self.state.pod(key)
        there = pod is not None and self.state.view().row(node) is not None
        if pod is None or not there or pod.node or pod.finished:
            return False
        self.state.assume(pod, node)
        self.state.annotate(pod.uid, annotations)
        return True

    def look(self) -> None:
        self.state.view()
        self.quotas.current()

    # What is given away.

    def contents(self) -> Json:
        view, account = self.state.view(), self.state.account
        rows = range(len(view))
        return {
            "nodes": {view.node(row).name: self._amounts(view.requested, row) for row in rows},
            "pods": {
                pod.key: (pod.uid, pod.node, pod.spec.requests, dict(pod.annotations))
                for row in rows
                for pod in view.pods(row)
            },
            "account": {
                kind.name: {
                    name: pool
                    for name in account.other_pools(kind, None)
                    if (pool := account.pool(kind, name)) != EMPTY_POOL
                }
                for kind in account.kinds
            },
            "quotas": self._quotas(),
            "gangs": {name: self.gangs.gang(name) for name in self.gangs.known()},
            "rooms": self._rooms(),
        }

    def _amounts(self, table: Any, row: int) -> Mapping[str, int]:
        names = self.state.view().resources
        return {name: int(table[row, at]) for name, at in names.items() if table[row, at]}

    def _quotas(self) -> Json:
        quotas = self.quotas.current()
        found: Json = {}
        for name in sorted(quotas.index.trees):
            state = quotas.state_of(name)
            if state is not None:
                each = state.limit, state.runtime, state.request, state.used
                found[name] = [_nonzero(one(name)) for one in each]
                found[name].append(_nonzero(state.non_preemptible_used(name)))
        keys = sorted(self.state.keys(POD))
        found["of pods"] = {key: quotas.quota_of(self.state.pod(key)) for key in keys}  # type: ignore[arg-type]
        found["problems"] = quotas.problems
        return found

    def _rooms(self) -> Json:
        tracker, account = self.reservations, self.state.account
        pods = [self.state.pod(key) for key in sorted(self.state.keys(POD))]
        on_nodes = {one.uid: one for node in NODES for one in tracker.on_node(node)}
        named = {one.uid: one for one in tracker.reservations.values()}
        found: Json = {}
        for uid, one in (named | on_nodes).items():
            pod = tracker.pod_in(one, account)
            left = None if pod is None else (pod.node, pod.spec.requests, pod.annotations)
            found[uid] = tracker.info(one, account), left
        found["nodes"] = sorted(tracker.nodes)
        found["available"] = sorted(on_nodes)
        found["candidates"] = {
            pod.key: sorted(tracker.index.candidates(pod)) for pod in pods if pod is not None
        }
        return found


FOLLOWED = {"quota": QUOTAS, "group": POD_GROUPS, "room": RESERVATIONS}


def _nonzero(amounts: Mapping[str, int]) -> Mapping[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


# Random objects.


def life(chance: Random) -> int:
    """The end of a uid: mostly an object changes, and now and then it is another one."""
    return int(chance.random() < 0.25)


def make_node(chance: Random, name: str) -> Json:
    found = clusters.node(name, None, {"cpu": str(chance.randint(2, 8)), "pods": "10"})
    found["metadata"]["uid"] = f"{name}-{life(chance)}"
    return found


def make_pod(chance: Random, name: str) -> Json:
    """A pod in any state, some of which nobody would expect after one another."""
    labels: dict[str, str] = {"app": chance.choice(("web", "db"))}
    annotations: dict[str, str] = {}
    node = chance.choice(("", "", *NODES, *NODES, "gone"))
    if chance.random() < 0.7:
        labels[NAME] = chance.choice((*QUOTA_NAMES, "nobody"))
    if chance.random() < 0.3:
        labels[PREEMPTIBLE] = "false"
    if chance.random() < 0.3:
        labels[GROUP_LABEL] = chance.choice(GROUPS)
    elif chance.random() < 0.2:
        labels |= {LIGHTWEIGHT_NAME_LABEL: "light", LIGHTWEIGHT_MIN_LABEL: "2"}
    if name in OPERATING and chance.random() < 0.6:
        labels[OPERATING_MODE] = "Reservation"
        annotations[OWNERS] = json.dumps([{"labelSelector": {"matchLabels": {"app": "web"}}}])
    if node:
        annotations |= taken(chance)
    space, requests = chance.choice("aab"), {"cpu": str(chance.randint(1, 3)), **CARD}
    found = clusters.pod(name, node, labels, requests, space)
    uid = f"{space}-{name}-{life(chance)}"
    found["metadata"] |= {"uid": uid, "annotations": annotations}
    phase = "Running" if node else "Pending"
    if chance.random() < 0.1:
        phase = chance.choice(("Succeeded", "Failed"))
    found["status"] = {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}
    if chance.random() < 0.15:
        found["metadata"] |= {
            "deletionTimestamp": chance.choice(("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z")),
            "deletionGracePeriodSeconds": 30,
        }
    return found


def taken(chance: Random) -> dict[str, str]:
    """Annotations in which it is written what a pod has been given."""
    found = {}
    if chance.random() < 0.7:
        name = chance.choice((*ROOMS, *(f"a-{pod}" for pod in OPERATING)))
        found[ALLOCATED] = allocated_text(name, f"{name}-{life(chance)}")
    if chance.random() < 0.3:
        found[DEVICE_ALLOCATED] = devices(chance)
    if chance.random() < 0.3:
        found[RESOURCE_STATUS] = json.dumps({"cpuset": chance.choice(("0-1", "2", "0-3"))})
    return found


def devices(chance: Random) -> str:
    given = {name: str(chance.choice((25, 50))) for name in CARD}
    return json.dumps({"gpu": [{"minor": chance.randint(0, 1), "resources": given}]})


def make_quota(chance: Random, name: str, *, wild: bool = False) -> Json:
    """wild: it may have any parent, itself too."""
    older = [one for one in QUOTA_NAMES if wild or one < name]
    parent = chance.choice((*older, "", "")) if older else ""
    high, times = chance.randint(0, 12), life(chance)
    annotations = {}
    if chance.random() < 0.3:
        annotations[NAMESPACES] = json.dumps(["a"])
    return {
        "metadata": {
            "namespace": chance.choice(("quotas", "quotas", "a")),
            "name": name,
            "uid": f"{name}-{times}",
            "creationTimestamp": f"2026-07-0{times + 1}T00:00:00Z",
            "labels": {PARENT: parent} if parent else {},
            "annotations": annotations,
        },
        "spec": {"min": {"cpu": str(chance.randint(0, high))}, "max": {"cpu": str(high)}},
    }


def make_group(chance: Random, name: str) -> Json:
    meta = {"namespace": "a", "name": name, "uid": f"{name}-{life(chance)}"}
    return {"metadata": meta, "spec": {"minMember": chance.randint(1, 4)}}


def make_room(chance: Random, name: str, *, wild: bool = False) -> Json:
    """A Reservation; wild: its spec may make no sense."""
    phase = chance.choice(("Pending", "Available", "Available", "Succeeded", "Failed"))
    requests = {"cpu": str(chance.randint(1, 4)), **CARD}
    node = chance.choice(NODES) if phase != "Pending" else ""
    more: Json = {}
    if chance.random() < 0.5:
        more["allocatePolicy"] = chance.choice(("Aligned", "Restricted"))
    annotations = {}
    if node and chance.random() < 0.3:
        annotations[DEVICE_ALLOCATED] = devices(chance)
    app = chance.choice(("web", "db"))
    found = reservation_json(
        name,
        requests,
        node=node,
        phase=phase,
        annotations=annotations,
        owners=[{"labelSelector": {"matchLabels": {"app": app}}}],
        allocateOnce=chance.random() < 0.5,
        status={"allocatable": requests} if node else {},
        **more,
    )
    found["metadata"]["uid"] = f"{name}-{life(chance)}"
    if wild:
        found["spec"] |= chance.choice(ABSURD)
    return found


NAMES = {"node": NODES, "pod": PODS, "quota": QUOTA_NAMES, "group": GROUPS, "room": ROOMS}
MAKERS: dict[str, Callable[..., Json]] = {
    "node": make_node,
    "pod": make_pod,
    "quota": make_quota,
    "group": make_group,
    "room": make_room,
}
WILD = ("quota", "room")


class Lived:
    """A scheduler that lives through events, and the objects that are left."""

    def __init__(self, leaving: LeavingPods) -> None:
        self.copy = Copy(leaving)
        self.objects: dict[Key, Json] = {}
        self.assumed: dict[str, tuple[str, str, dict[str, str]]] = {}  # key, node, by uid
        self.odd: set[Key] = set()  # objects of which an earlier state may count

    def happen(self, chance: Random) -> None:
        what = chance.random()
        if what < 0.55:
            kind = chance.choice(KINDS)
            self.put(chance, kind, chance.choice(NAMES[kind]), wild=chance.random() < 0.2)
        elif what < 0.7:
            self.delete(chance)
        elif what < 0.75 and self.objects:
            key = chance.choice(list(self.objects))
            self.copy.put(key, self.objects[key])
        elif what < 0.9:
            self.schedule(chance)
        else:
            self.copy.look()

    def put(self, chance: Random, kind: str, name: str, *, wild: bool) -> None:
        wild = wild and kind in WILD
        item = MAKERS[kind](chance, name, **{"wild": True} if wild else {})
        meta = item["metadata"]
        space = meta.get("namespace")
        key = kind, f"{space}/{name}" if space else name
        self.objects[key] = item
        self.odd.discard(key)
        if wild:
            self.odd.add(key)
        self.copy.put(key, item)

    def delete(self, chance: Random) -> None:
        if self.objects:
            key = chance.choice(list(self.objects))
            del self.objects[key]
            self.odd.discard(key)
            self.copy.delete(key)

    def schedule(self, chance: Random) -> None:
        """Assume a pod that waits, a Reservation's own too, or forget one."""
        state = self.copy.state
        if self.assumed and chance.random() < 0.4:
            state.forget(chance.choice(list(self.assumed)))
        else:
            own = [f"default/{RESERVE_POD_NAME}{name}" for name in ROOMS]
            pods = [key for kind, key in self.objects if kind == "pod"]
            key, node = chance.choice([*pods, *own]), chance.choice(NODES)
            annotations = taken(chance)
            pod = state.pod(key)
            if pod is not None and self.copy.assume(key, node, annotations):
                self.assumed[pod.uid] = key, node, annotations
        self.forget_others()

    def forget_others(self) -> None:
        is_assumed = self.copy.state.is_assumed
        self.assumed = {uid: one for uid, one in self.assumed.items() if is_assumed(uid)}

    def end(self, chance: Random) -> None:
        """No object is left of which an earlier state counts, and no pod waits on no node."""
        for kind, key in sorted(self.odd):
            name = key.rpartition("/")[2]
            del self.objects[kind, key]
            self.copy.delete((kind, key))
            self.put(chance, kind, name, wild=False)
        self.forget_others()
        for uid, (_, node, _) in self.assumed.items():
            if ("node", node) not in self.objects:
                self.copy.state.forget(uid)
        self.forget_others()

    def rebuilt(self, leaving: LeavingPods, chance: Random) -> Copy:
        """One that learns of what is left, in any order."""
        copy = Copy(leaving)
        left = list(self.objects.items())
        chance.shuffle(left)
        for key, item in left:
            copy.put(key, item)
        for key, node, annotations in self.assumed.values():
            assert copy.assume(key, node, annotations), key
        return copy


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=25, max_size=60),
    st.integers(0, 2**32 - 1),
    st.sampled_from(LeavingPods),
)
def test_the_account_is_that_of_the_objects_that_are_left(
    events: Sequence[int], order: int, leaving: LeavingPods
) -> None:
    lived = Lived(leaving)
    for seed in events:
        lived.happen(Random(seed))
    lived.end(Random(order))
    found = lived.copy.contents()
    wanted = lived.rebuilt(leaving, Random(order)).contents()
    for part, contents in wanted.items():
        assert found[part] == contents, part


@pytest.mark.parametrize("kind", [GANGS, ATTRACTED, CONSUMERS, DEVICES, NUMA_HOLDINGS])
def test_pods_that_a_kind_is_not_asked_about_hold_nothing(kind: AccountKind) -> None:
    """Without annotations and workload group, whatever other labels and requests they have."""
    assert kind.labels is not None
    every = (GROUP_LABEL, LIGHTWEIGHT_NAME_LABEL, LIGHTWEIGHT_MIN_LABEL, OPERATING_MODE, NAME)
    labels = {key: "1" for key in every if key not in kind.labels}
    for node in ("", "n0"):
        pod = read_pod(clusters.pod("p0", node, labels, {"cpu": "1", **CARD}), DECODER)
        assert not kind.holdings(pod)
