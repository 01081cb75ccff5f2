"""Assumed pods, and what the API server says of them."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from koord.cluster import kinds
from koord.cluster.account import AccountKind
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import (
    ClusterNamespace,
    ClusterPod,
    DisruptionBudget,
    PriorityClass,
)
from koord.cluster.kinds import NODE, POD, UsageReport
from koord.cluster.pools import Holding
from koord.cluster.storage import CLAIM, VOLUME, Claim, Volume
from koord.cluster.view import View
from koord.controlplane.testing import make_workload
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.cache import AssumeError, SchedulerCache
from tests.support.clusters import finished, node, pod, read_node, read_pod


def web(bound: str = "", **more: Any) -> ClusterPod:
    return read_pod(pod("web", bound, requests={"cpu": "1"}, **more))


class World:
    def __init__(self, expiry: float = 0.0) -> None:
        self.clock = SimulatedClock()
        self.state = SchedulerCache(self.clock, expiry=expiry)
        for name in ("a", "b"):
            self.state.put(NODE, read_node(node(name)))
        self.state.put(POD, web())

    def cpu(self) -> dict[str, int]:
        """Requested milli-cores by node."""
        view = self.state.view()
        column = view.resources["cpu"]
        return {view.node(row).name: int(view.requested[row, column]) for row in range(len(view))}


def test_an_assumed_pod_takes_room_at_once() -> None:
    """It is among the pods of its node, and its workload's."""
    made = World()
    placed = made.state.assume(web(), "a")
    assert placed.node == "a"
    assert made.state.pods_of_node("a") == (placed,)
    assert made.cpu() == {"a": 1000, "b": 0}
    assert made.state.is_assumed(placed.uid)


def test_the_api_server_confirms_it() -> None:
    """From then on the pod is as it says."""
    made = World()
    uid = made.state.assume(web(), "a").uid
    made.state.finish_binding(uid)
    made.state.put(POD, web("a"))
    assert not made.state.is_assumed(uid)
    assert made.cpu() == {"a": 1000, "b": 0}
    assert not made.state.forget(uid)
    assert made.cpu() == {"a": 1000, "b": 0}


CARDS = AccountKind("cards", lambda pod: [Holding(pod.node, pod.annotations and (("0", 1),))])


def test_what_is_chosen_for_an_assumed_pod_is_in_the_account_until_it_is_forgotten() -> None:
    """Also after a change of the pod that does not have it yet, and once the pod is bound."""
    made = World()
    made.state.snapshot.keep_account(CARDS)
    key = "example.com/cards"
    uid = made.state.assume(web(), "a").uid

    def cards() -> Mapping[str, int]:
        return made.state.view().account.pool(CARDS, "a").allocated

    assert not cards()
    annotated = made.state.annotate(uid, {key: "0", "absent": None})
    assert annotated is not None
    assert annotated.annotations == ((key, "0"),)
    made.state.put(POD, web(labels={"app": "new"}))
    assert cards() == {"0": 1}
    assert made.state.forget(uid)
    assert not cards()
    assert made.state.annotate(uid, {key: "0"}) is None
    made.state.assume(web(), "a")
    made.state.annotate(uid, {key: "0"})
    made.state.put(POD, replace(web("a"), annotations=((key, "0"),)))
    assert cards() == {"0": 1}
    made.state.remove(POD, "default/web")
    assert not cards()


def test_a_pod_may_be_assumed_with_what_is_chosen_for_it_already() -> None:
    """It is as one that is annotated afterwards."""
    key, worlds = "example.com/cards", (World(), World())
    for made in worlds:
        made.state.snapshot.keep_account(CARDS)
    one, other = (made.state for made in worlds)
    at_once = one.assume(web(), "a", {key: "0", "absent": None})
    later = other.annotate(other.assume(web(), "a").uid, {key: "0", "absent": None})
    assert at_once == later
    for state in (one, other):
        state.put(POD, web(labels={"app": "new"}))
        assert state.view().account.pool(CARDS, "a").allocated == {"0": 1}
        assert state.forget(at_once.uid)
        assert not state.view().account.pool(CARDS, "a").allocated


def test_an_assumed_pod_keeps_the_requests_that_it_was_assumed_with() -> None:
    """Such as those for its node; a change of its own requests ends that."""
    made = World()
    larger = read_pod(pod("web", requests={"cpu": "2"}))
    made.state.assume(larger, "a")
    made.state.put(POD, replace(web(), nominated_node="a"))
    assert made.cpu() == {"a": 2000, "b": 0}
    made.state.put(POD, read_pod(pod("web", requests={"cpu": "3"})))
    assert made.cpu() == {"a": 3000, "b": 0}


def test_the_api_server_corrects_it() -> None:
    """Bound elsewhere by another scheduler: the pod is where it says."""
    made = World()
    uid = made.state.assume(web(), "a").uid
    made.state.put(POD, web("b"))
    assert not made.state.is_assumed(uid)
    assert made.cpu() == {"a": 0, "b": 1000}


def test_a_change_of_a_pod_that_is_not_bound_yet_does_not_move_it() -> None:
    """Such as the status patch of its nomination; forgotten, it has the change."""
    made = World()
    uid = made.state.assume(web(), "a").uid
    changed = web(labels={"app": "new"})
    made.state.put(POD, changed)
    assert made.cpu() == {"a": 1000, "b": 0}
    (placed,) = made.state.pods_of_node("a")
    assert placed.labels == {"app": "new"}
    assert made.state.forget(uid)
    assert made.state.pod(changed.key) == changed
    assert made.cpu() == {"a": 0, "b": 0}


def test_a_pod_that_is_deleted_or_finished_is_not_assumed_any_more() -> None:
    """Nor is one whose name another pod has now."""
    for gone in (
        lambda state: state.remove(POD, "default/web", "uid-default-web"),
        lambda state: state.remove(POD, "default/web"),
        lambda state: state.put(POD, read_pod(finished(pod("web")))),
        lambda state: state.put(POD, read_pod(_another())),
    ):
        made = World()
        uid = made.state.assume(web(), "a").uid
        gone(made.state)
        assert not made.state.is_assumed(uid)
        assert made.state.assumed_count == 0
        assert made.cpu() == {"a": 0, "b": 0}
        assert not made.state.forget(uid)


def _another() -> Any:
    other = pod("web")
    return {**other, "metadata": {**other["metadata"], "uid": "another"}}


def test_the_deletion_of_an_earlier_pod_of_its_name_changes_nothing() -> None:
    """Its uid is another."""
    made = World()
    uid = made.state.assume(web(), "a").uid
    made.state.remove(POD, "default/web", "an earlier one")
    assert made.state.is_assumed(uid)
    assert made.cpu() == {"a": 1000, "b": 0}


def test_what_cannot_be_assumed_is_refused() -> None:
    """And nothing is changed."""
    made = World()
    with pytest.raises(AssumeError, match="found that there is no such node"):
        made.state.assume(web(), "c")
    made.state.assume(web(), "a")
    with pytest.raises(AssumeError, match="found that it is assumed to be on node a"):
        made.state.assume(web(), "b")
    assert made.cpu() == {"a": 1000, "b": 0}
    made.state.put(POD, web("a"))
    with pytest.raises(AssumeError, match="found that it is bound to node a"):
        made.state.assume(web(), "b")
    made.state.remove(POD, "default/web")
    with pytest.raises(AssumeError, match="found that it has gone"):
        made.state.assume(web(), "a")


def test_an_assumed_pod_waits_for_a_node_that_is_gone_for_a_while() -> None:
    """As any pod does."""
    made = World()
    uid = made.state.assume(web(), "a").uid
    made.state.remove(NODE, "a")
    assert made.cpu() == {"b": 0}
    made.state.put(NODE, read_node(node("a")))
    assert made.cpu() == {"b": 0, "a": 1000}
    made.state.forget(uid)
    assert made.cpu() == {"b": 0, "a": 0}


def test_by_default_assumed_pods_never_expire() -> None:
    """As in Kubernetes."""
    made = World()
    uid = made.state.assume(web(), "a").uid
    made.state.finish_binding(uid)
    made.clock.tick(1e6)
    assert made.state.expire() == 0
    assert made.state.is_assumed(uid)


def test_with_an_expiry_a_binding_must_be_confirmed_in_its_time() -> None:
    """Counted from the end of the binding, not from the start."""
    made = World(expiry=30.0)
    uid = made.state.assume(web(), "a").uid
    made.clock.tick(100)
    assert made.state.expire() == 0
    made.state.finish_binding(uid)
    made.clock.tick(29)
    assert made.state.expire() == 0
    made.clock.tick(1)
    assert made.state.expire() == 1
    assert made.cpu() == {"a": 0, "b": 0}
    assert made.state.expire() == 0


class Seen:
    """Changes as a state reports them: key and uid of the object before and after."""

    def __init__(self, state: SchedulerCache) -> None:
        self.changes: list[tuple[str, str | None, str | None]] = []
        state.observe(self)

    def __call__(self, kind: ObjectKind[Any], old: Any, new: Any) -> None:
        self.changes.append((kind.name, *(one and (one.node or one.uid) for one in (old, new))))

    def take(self) -> list[tuple[str, str | None, str | None]]:
        found, self.changes = self.changes, []
        return found


def test_changes_are_those_of_the_api_server() -> None:
    """What is assumed is none; what is put again as it was is none, either."""
    made, pod = World(), web()
    seen, uid = Seen(made.state), pod.uid
    made.state.assume(web(), "a")
    made.state.put(POD, web())
    assert seen.take() == []
    assert made.state.get(POD, web().key) == web()
    made.state.put(POD, web("a"))
    assert seen.take() == [("pod", uid, "a")]
    made.state.put(POD, web("a"))
    assert seen.take() == []
    made.state.remove(POD, web().key, "another")
    assert seen.take() == []
    made.state.remove(POD, web().key, uid)
    assert seen.take() == [("pod", "a", None)]
    made.state.remove(POD, web().key, uid)
    assert seen.take() == []


def test_another_pod_of_the_same_name_is_a_removal_and_an_addition() -> None:
    """Both are reported, although there was only one event."""
    made = World()
    seen, old = Seen(made.state), web()
    new = replace(old, uid="other")
    made.state.put(POD, new)
    assert seen.take() == [("pod", old.uid, None), ("pod", None, "other")]


def test_every_kind_is_found_by_its_key() -> None:
    """Also those that the snapshot keeps, and workloads."""
    state = SchedulerCache(SimulatedClock())
    objects: list[tuple[ObjectKind[Any], Any]] = [
        (kinds.NODE, read_node(node("a"))),
        (kinds.POD, web()),
        (CLAIM, Claim("default", "data")),
        (VOLUME, Volume("pv")),
        (kinds.NAMESPACE, ClusterNamespace("default", {})),
        (kinds.NODE_METRIC, UsageReport("a")),
        (kinds.BUDGET, DisruptionBudget("default", "web", None)),
        (kinds.PRIORITY_CLASS, PriorityClass("high", 1)),
        (kinds.REPLICA_SET, make_workload("ReplicaSet", "web")),
    ]
    for kind, item in objects:
        key = item.key
        assert state.get(kind, key) is None
        state.put(kind, item)
        assert state.get(kind, key) is item
        state.remove(kind, key, getattr(item, "uid", ""))
        assert state.get(kind, key) is None


def test_pods_are_counted_while_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no cycle counts all of them."""
    monkeypatch.setattr("koord_scheduler.cache._UPDATE_BATCH", 10)
    state, counted = SchedulerCache(SimulatedClock()), []
    monkeypatch.setattr(View, "count_pods", lambda view: counted.append(len(view.pods(0))))
    state.put(NODE, read_node(node("n1")))
    for number in range(39):
        state.put(POD, read_pod(pod(f"p{number}", "n1")))
    assert counted == [9, 19, 29, 39]


def test_a_confirmation_without_news_changes_no_row() -> None:
    """What is kept for the row of an assumed pod stays right."""
    made = World()
    made.state.assume(web(), "a")
    before = made.state.view()
    made.state.put(POD, web("a"))
    assert made.state.assumed_count == 0
    assert made.state.view() is before


def with_conditions(
    bound: str, *types: str, status: str = "True", **status_more: Any
) -> ClusterPod:
    made = pod("web", bound, requests={"cpu": "1"})
    at = "2026-07-24T06:52:45Z"
    conditions = [{"type": one, "status": status, "lastTransitionTime": at} for one in types]
    made["status"] = {**made.get("status", {}), "conditions": conditions, **status_more}
    return read_pod(made)


def test_that_the_pod_is_scheduled_is_no_news() -> None:
    """API servers say so in each confirmation; a row is looked at once for a pod, not twice."""
    made = World()
    made.state.assume(web(), "a")
    before, seen = made.state.view(), Seen(made.state)
    made.state.put(POD, with_conditions("a", "PodScheduled"))
    assert made.state.view() is before
    assert made.state.assumed_count == 0
    assert seen.take() == [("pod", web().uid, "a")]

    later = with_conditions("a", "PodScheduled", "Initialized")
    made.state.put(POD, later)
    assert made.state.pods_of_node("a") == (later,)


@pytest.mark.parametrize(
    "news",
    [
        replace(web("a"), node="b"),
        replace(web("a"), deleting=True),
        replace(web("a"), started=1.0),
        replace(web("a"), priority=5),
        read_pod(pod("web", "a", requests={"cpu": "2"})),
        read_pod(pod("web", "a", requests={"cpu": "1"}, labels={"zone": "z"})),
        with_conditions("a", "PodScheduled", "Ready"),
        with_conditions("a", "PodScheduled", phase="Succeeded"),
    ],
)
def test_any_other_news_in_a_confirmation_count(news: ClusterPod) -> None:
    made = World()
    made.state.assume(web(), "a")
    before = made.state.view()
    made.state.put(POD, news)
    assert made.state.pods_of_node(news.node) == (news,)
    assert made.state.get(POD, news.key) == news
    assert made.state.view() is not before


def test_a_pod_that_had_been_rejected_is_not_taken_for_one_still() -> None:
    """Its condition said that it is not scheduled."""
    made = World()
    made.state.put(POD, with_conditions("", "PodScheduled", status="False"))
    made.state.assume(web(), "a")
    confirmed = with_conditions("a", "PodScheduled")
    made.state.put(POD, confirmed)
    assert made.state.pods_of_node("a") == (confirmed,)


def test_a_resized_pod_is_as_the_api_server_says_once_it_is_confirmed() -> None:
    made = World()
    larger = read_pod(pod("web", "", requests={"cpu": "3"}))
    made.state.assume(larger, "a")
    assert made.cpu() == {"a": 3000, "b": 0}
    made.state.put(POD, with_conditions("a", "PodScheduled"))
    assert made.cpu() == {"a": 1000, "b": 0}
