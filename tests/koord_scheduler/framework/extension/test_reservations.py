"""Plugins that look at reservations: restored, filtered, nominated, scored, prepared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.extension.reservations import (
    ORDER_LABEL,
    NamedReservation,
    ReservationCache,
    ReservationFilterPlugin,
    ReservationNominator,
    ReservationPlugins,
    ReservationPreAllocationRestorePlugin,
    ReservationPreBindPlugin,
    ReservationRestorePlugin,
    ReservationScore,
    ReservationScoreExtensions,
    ReservationScorePlugin,
)
from koord_scheduler.framework.interfaces import PreBindPlugin, ReservePlugin
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import Code, CycleState, StateData, Status
from koord_scheduler.framework.types import NodeInfo, nodes_of
from tests.support.scheduler.framework import FreeCpu, Kit, make_pod, make_view

POD = make_pod("owner")


@dataclass(frozen=True)
class Kept:
    """A reservation of a test."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


def ordered(name: str, order: str) -> Kept:
    return Kept(name, {ORDER_LABEL: order})


@dataclass(frozen=True)
class Cpus(StateData):
    """What a plugin gives back."""

    count: int

    def clone(self) -> "Cpus":
        return self


async def profile_of(**plugins: Any) -> ProfilePlugins:
    return await Kit().profile(filter=plugins)


async def allocator_of(**plugins: Any) -> ReservationPlugins:
    return ReservationPlugins(await profile_of(**plugins))


class Restores(FreeCpu, ReservationRestorePlugin, ReservationPreAllocationRestorePlugin):
    def __init__(self, before: Status | None = None, answer: Any = None) -> None:
        self.before = before
        self.answer = answer

    def pre_restore_reservation(self, state: CycleState, pod: ClusterPod) -> Status | None:
        return self.before

    def restore_reservation(
        self,
        state: CycleState,
        pod: ClusterPod,
        matched: Sequence[NamedReservation],
        unmatched: Sequence[NamedReservation],
        node: NodeInfo,
    ) -> StateData | Status | None:
        answer: Status | None = self.answer
        return answer or (Cpus(len(matched)) if matched else None)

    def restore_reservation_pre_allocation(
        self,
        state: CycleState,
        reservation: NamedReservation,
        pods: Sequence[ClusterPod],
        node: NodeInfo,
    ) -> StateData | Status | None:
        return Cpus(10 * len(pods))


async def test_each_plugin_restores_what_it_keeps_of_each_node() -> None:
    allocator, state = await allocator_of(One=Restores(), Two=Restores()), CycleState()
    a, b = nodes_of(make_view(a="4", b="4"))
    found = allocator.restore(state, POD, [(a, [Kept("x"), Kept("y")], []), (b, [], [Kept("z")])])
    assert found == {"a": {"One": Cpus(2), "Two": Cpus(2)}, "b": {}}
    found = allocator.restore_pre_allocation(state, Kept("x"), [(a, [POD])])
    assert found == {"a": {"One": Cpus(10), "Two": Cpus(10)}}


@pytest.mark.parametrize(
    "plugin",
    [Restores(before=Status.unschedulable("no")), Restores(answer=Status.unschedulable("no"))],
)
async def test_a_rejection_of_restore_is_the_answer(plugin: Restores) -> None:
    allocator = await allocator_of(One=plugin)
    (a,) = nodes_of(make_view(a="4"))
    found = allocator.restore(CycleState(), POD, [(a, [Kept("x")], [])])
    assert isinstance(found, Status)
    assert (found.plugin, found.message) == ("One", "no")


class Rules(FreeCpu, ReservationFilterPlugin, ReservationScorePlugin):
    """Rejects by name, and scores by name."""

    def __init__(self, *rejected: str, scores: Mapping[str, int] | None = None) -> None:
        self.rejected = rejected
        self.scores = scores or {}

    def filter_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        return Status.unschedulable("in use") if reservation.name in self.rejected else None

    def filter_nominate_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        return self.filter_reservation(state, pod, reservation, node_name)

    def score_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> int:
        return self.scores.get(reservation.name, 0)


class Reverses(Rules, ReservationScoreExtensions):
    def normalize_reservation_score(
        self, state: CycleState, pod: ClusterPod, scores: list[ReservationScore]
    ) -> Status | None:
        highest = max(one.score for one in scores)
        for one in scores:
            one.score = highest - one.score
        return None


async def test_all_plugins_must_let_the_pod_have_it() -> None:
    allocator = await allocator_of(One=Rules(), Two=Rules("x"))
    assert allocator.filter(CycleState(), POD, Kept("y"), "a").ok
    assert allocator.filter(CycleState(), POD, Kept("x"), "a").plugin == "Two"


X, Y, Z = Kept("x"), Kept("y"), Kept("z")


@pytest.mark.parametrize(
    ("plugin", "matched", "options", "wanted"),
    [
        (Rules(), [], {}, None),
        (Rules("x"), [X], {"required": True}, X),
        (Rules("x"), [X], {}, None),
        (Rules(), [X], {}, X),
        (Rules("x"), [X, Y], {"earlier": X}, X),
        (Rules("x"), [X, Y], {}, Y),
        (Rules(scores={"y": 5}), [X, Y, Z], {}, Y),
        (Rules(), [X, ordered("y", "7"), ordered("z", "2")], {}, ordered("z", "2")),
        (Rules(scores={"x": 9}), [X, ordered("y", "0"), ordered("z", "-1")], {}, X),
        (Rules(scores={"x": 9}), [X, ordered("y", "9" * 30)], {}, X),
        (Reverses(scores={"y": 5}), [X, Y], {}, X),
    ],
)
async def test_the_reservation_that_a_pod_is_to_have(
    plugin: Rules, matched: list[Kept], options: dict[str, Any], wanted: Kept | None
) -> None:
    allocator, state = await allocator_of(One=plugin), CycleState()
    found = allocator.nominate(state, POD, "a", matched, **{"required": False, **options})
    assert found == wanted


@pytest.mark.parametrize("score", [-1, 101])
async def test_a_score_out_of_range_is_an_error_of_the_plugin(score: int) -> None:
    allocator = await allocator_of(One=Rules(scores={"x": score}))
    with pytest.raises(ExtensionPointError, match=f"found {score} of reservation x"):
        allocator.scores(CycleState(), POD, [X, Y], "a")


async def test_scores_are_summed_over_plugins() -> None:
    allocator = await allocator_of(One=Rules(scores={"x": 5}), Two=Rules(scores={"x": 1, "y": 9}))
    assert allocator.scores(CycleState(), POD, [X, Y], "a") == {"x": 6, "y": 9}


class Nominates(ReservePlugin, FreeCpu, ReservationNominator, ReservationCache):
    def __init__(self, answer: Status | None = None) -> None:
        self.answer = answer
        self.called: list[str] = []

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.called.append(f"reserve {node_name}")
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """There is nothing to release."""

    def nominate_reservation(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> NamedReservation | Status | None:
        return X

    def add_nominated_reservation(
        self, pod: ClusterPod, node_name: str, reservation: NamedReservation
    ) -> None:
        """It forgets at once."""

    def nominated_reservation(self, pod: ClusterPod, node_name: str) -> NamedReservation | None:
        return None

    def delete_nominated(self, pod: ClusterPod) -> None:
        self.called.append("delete")

    def reservation_nominate(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        self.called.append(f"nominate {node_name}")
        return self.answer

    def delete_reservation(self, reservation: NamedReservation) -> None:
        """It has none."""

    def reservation_of(self, pod: ClusterPod, node_name: str) -> NamedReservation | None:
        return None


async def test_the_nominator_learns_of_the_node_before_reserve_and_forgets_after_it() -> None:
    plugin = Nominates()
    profile = await Kit().profile(reserve={"One": plugin})
    assert PodBinding(profile).reserve(CycleState(), POD, "a").ok
    assert plugin.called == ["nominate a", "reserve a", "delete"]
    assert profile.handle.reservations().nominator is plugin
    assert profile.handle.reservations().cache is plugin


async def test_without_a_reservation_the_node_is_not_reserved() -> None:
    plugin = Nominates(Status.unschedulable("all are in use"))
    profile = await Kit().profile(reserve={"One": plugin})
    status = PodBinding(profile).reserve(CycleState(), POD, "a")
    assert (status.code, status.plugin) == (Code.UNSCHEDULABLE, "One")
    assert plugin.called == ["nominate a"]


async def test_of_several_nominators_the_last_one_counts() -> None:
    one, two = Nominates(), Nominates()
    assert (await allocator_of(One=one, Two=two)).nominator is two
    none = await allocator_of(Free=FreeCpu())
    assert (none.nominator, none.cache) == (None, None)
    assert none.chosen(CycleState(), POD, "a").ok


class Prepares(PreBindPlugin, ReservationPreBindPlugin):
    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.prepared: list[str] = []

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """It is about reservations."""

    async def pre_bind_reservation(
        self, state: CycleState, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        self.prepared.append(reservation.name)
        answer: Status | None = self.answer
        return answer


@pytest.mark.parametrize(
    ("answer", "code", "reached"),
    [
        (None, Code.SUCCESS, 1),
        (Status.unschedulable("no"), Code.UNSCHEDULABLE, 0),
        ("yes", Code.ERROR, 0),
        (Status.failed("no"), Code.ERROR, 0),
    ],
)
async def test_a_reservation_is_prepared_plugin_by_plugin(
    answer: Any, code: Code, reached: int
) -> None:
    last = Prepares()
    profile = await Kit().profile(preBind={"One": Prepares(answer), "Two": last})
    assert (await ReservationPlugins(profile).pre_bind(CycleState(), X, "a")).code is code
    assert len(last.prepared) == reached
