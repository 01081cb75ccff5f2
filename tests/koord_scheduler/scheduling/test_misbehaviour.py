"""What a plugin does wrong at any point costs the pod that it did it to, and no other."""

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.controlplane.testing import api_error_response
from koord.kube.transport import Call
from koord_scheduler.framework.calls import TimeLimits
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    FilterPlugin,
    NormalizeScorePlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PreBindPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    ReservePlugin,
    ScorePlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.status import CycleState, NodeScore, Scores, Status, Verdicts, Wait
from koord_scheduler.framework.types import NodeInfo
from tests.support.scheduler.framework import FreeCpu
from tests.support.scheduler.loop import Loop

Act = Callable[[], Any]
POINTS = ["preFilter", "filter", "preScore", "score", "reserve", "permit", "preBind", "bind"]
POINTS += ["postBind"]
STEP = 0.2  # seconds that a plugin may hold the loop here
LATE = 30.0  # simulated seconds that a binding may take


class Misbehaves(
    PreFilterPlugin,
    FilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    NormalizeScorePlugin,
    ReservePlugin,
    PermitPlugin,
    PreBindPlugin,
    BindPlugin,
    PostBindPlugin,
):
    """Does at one point what a test wants, for the pod "bad"."""

    def __init__(self, point: str, act: Act) -> None:
        self.point = point
        self.act = act

    def _at(self, point: str, pod: ClusterPod, default: Any = None) -> Any:
        return self.act() if (point, pod.name) == (self.point, "bad") else default

    async def _later(self, point: str, pod: ClusterPod, default: Any = None) -> Any:
        found = self._at(point, pod, default)
        return await found if asyncio.iscoroutine(found) else found

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Any:
        return self._at("preFilter", pod)

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        found: Status | None = self._at("filter", pod)
        return found

    def pre_score(self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask) -> Any:
        return self._at("preScore", pod)

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        score: int = self._at("score", pod, 1)
        return score

    def normalize_score(self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]) -> Any:
        return self._at("normalizeScore", pod)

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Any:
        return self._at("reserve", pod)

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._at("unreserve", pod)

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        found: Wait | Status | None = self._at("permit", pod)
        return found

    def pre_bind_pre_flight(self, state: CycleState, pod: ClusterPod, node_name: str) -> Any:
        return self._at("preBindPreFlight", pod)

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        found: Status | None = await self._later("preBind", pod)
        return found

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        found: Status | None = await self._later("bind", pod, Status.skip())
        return found

    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        await self._later("postBind", pod)


class MisbehavesAtOnce(VectorFilterPlugin, VectorScorePlugin):
    """As Misbehaves, in the vector form."""

    def __init__(self, point: str, act: Callable[[View], Any]) -> None:
        self.point = point
        self.act = act

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        if (self.point, pod.name) != ("filter", "bad"):
            return np.ones(len(nodes), np.bool_)
        mask: Mask = self.act(nodes)
        return mask

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        if (self.point, pod.name) != ("score", "bad"):
            return np.ones(len(nodes), np.int64)
        scores: Scores = self.act(nodes)
        return scores


async def built(odd: Plugin, *points: str) -> Loop:
    """A scheduler with the plugin at these points, and two nodes."""
    loop = Loop()
    default = {"filter": {"FreeCpu": FreeCpu()}, "bind": {"PostingBinder": loop.binder}}
    plugins = {point: {"Odd": odd, **default.get(point, {})} for point in points}
    await loop.build(**plugins, limits=TimeLimits(step=STEP, bind=LATE))
    await loop.start()
    loop.api.add_node("a")
    loop.api.add_node("b")
    return loop


async def check_costs(loop: Loop, message: str) -> str:
    """The pod "bad" among others comes back later, and its event says why. Return its key."""
    before, bad, after = (loop.api.add_pod(name) for name in ("before", "bad", "after"))
    await loop.settle()
    assert loop.where(before)
    assert loop.where(after)
    if loop.place(bad) == "":  # its binding hangs
        await loop.advance(LATE)
    assert (loop.where(bad), loop.place(bad), loop.state.assumed_count) == ("", "backoff", 0)
    [(_, reason, text)] = [one for one in loop.events if one[0] == "bad"]
    assert reason == "FailedScheduling"
    assert '"Odd"' in text
    assert message in text
    return bad


def raises() -> None:
    raise KeyError("weight")


def leaves() -> None:
    raise SystemExit(3)


def holds() -> None:
    time.sleep(10)


def refuse(call: Call) -> None:
    raise api_error_response(call, 500, "Fault", "no")


def fails() -> Status:
    return Status.failed("broken")


SYNC = ["preFilter", "filter", "preScore", "reserve", "permit", "preBindPreFlight"]
BINDING = ["preBind", "bind"]
ACTS: list[tuple[str, Act, str]] = [
    *(
        (point, raises, "KeyError('weight')")
        for point in [*SYNC, "score", "normalizeScore", *BINDING]
    ),
    *((point, leaves, "found a call of sys.exit") for point in ("filter", "permit", "bind")),
    *(
        (point, holds, f"wanted an end within {STEP:g} s")
        for point in ("filter", "score", "permit", "reserve", *BINDING)
    ),
    *((point, fails, "broken") for point in [*SYNC, "normalizeScore", *BINDING]),
    *((point, lambda: "yes", "wanted a Status") for point in [*SYNC, *BINDING]),
    ("score", lambda: None, "wanted a whole number as the score of node"),
    ("score", lambda: "many", "wanted a whole number as the score of node"),
    ("score", lambda: float("nan"), "wanted a whole number as the score of node"),
    ("score", lambda: 2**70, "wanted a whole number as the score of node"),
    ("score", lambda: -1, "invalid score -1"),
    ("score", lambda: 101, "invalid score 101"),
    ("permit", lambda: Wait(float("nan")), "wanted seconds to wait"),
    ("permit", lambda: Wait(-1.0), "wanted seconds to wait"),
    ("preBind", lambda: asyncio.Event().wait(), f"wanted an end within {LATE:g} s"),
    ("bind", lambda: asyncio.Event().wait(), f"wanted an end within {LATE:g} s"),
]


@pytest.mark.parametrize(
    ("point", "act", "message"), ACTS, ids=lambda value: value if isinstance(value, str) else None
)
async def test_what_is_done_to_one_pod_costs_no_other(point: str, act: Act, message: str) -> None:
    """It is tried again; its event names the plugin, the point and what was wrong."""
    odd = Misbehaves(point, act)
    loop = await built(odd, *POINTS)
    bad = await check_costs(loop, message)
    odd.point = ""
    await loop.advance(15)
    assert loop.where(bad)
    await loop.end()


@pytest.mark.parametrize(
    ("point", "act", "message"),
    [
        ("filter", lambda nodes: None, "wanted a mask of shape (2,), found None"),
        ("filter", lambda nodes: [True, True], "wanted a mask of shape (2,), found [True, True]"),
        ("filter", lambda nodes: np.ones((2, 2), np.bool_), "found shape (2, 2)"),
        ("filter", lambda nodes: np.ones(2, np.int64), "wanted a mask of bool, found one of int64"),
        ("filter", lambda nodes: np.ones(2), "wanted a mask of bool, found one of float64"),
        ("filter", lambda nodes: Verdicts(np.array([0, 2]), ()), "wanted numbers from 0 to 0"),
        ("filter", lambda nodes: time.sleep(10), f"wanted an end within {STEP:g} s"),
        ("filter", lambda nodes: nodes.requested.fill(0), "read-only"),
        ("score", lambda nodes: None, "wanted a column of shape (2,), found None"),
        ("score", lambda nodes: np.ones(3), "found shape (3,)"),
        ("score", lambda nodes: np.array(["1", "2"]), "wanted a column of numbers"),
        ("score", lambda nodes: np.array([None, None]), "wanted a column of numbers"),
        ("score", lambda nodes: np.array([1.0, np.nan]), "wanted scores that are numbers"),
        ("score", lambda nodes: np.array([1.0, np.inf]), "wanted scores that are numbers"),
        ("score", lambda nodes: np.array([1, -1]), "invalid score -1"),
        ("score", lambda nodes: np.array([101, 1]), "invalid score 101"),
        ("score", lambda nodes: time.sleep(10), f"wanted an end within {STEP:g} s"),
        ("score", lambda nodes: nodes.resources.update(cpu=7), "has no attribute"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_so_it_is_in_the_vector_form(
    point: str, act: Callable[[View], Any], message: str
) -> None:
    """Neither shape nor type nor range is taken on trust."""
    odd = MisbehavesAtOnce(point, act)
    loop = await built(odd, "filter", "score")
    bad = await check_costs(loop, message)
    odd.point = ""
    await loop.advance(15)
    assert loop.where(bad)
    await loop.end()


class Meddles(VectorFilterPlugin, VectorScorePlugin, FilterPlugin, ScorePlugin):
    """Changes whatever it is given, and later what it has returned; and has its results kept."""

    def __init__(self) -> None:
        self.returned: list[Any] = []
        self.refused = 0

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable:
        return 0

    score_reuse_key = filter_reuse_key

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return 1

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        self.meddle(pod, nodes)
        self.returned.append(np.ones(len(nodes), np.bool_))
        mask: Mask = self.returned[-1]
        return mask

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        self.meddle(pod, nodes)
        self.returned.append(np.ones(len(nodes), np.int64))
        scores: Scores = self.returned[-1]
        return scores

    def meddle(self, pod: ClusterPod, nodes: View) -> None:
        """Try each change; count those that are refused."""
        for earlier in self.returned:
            earlier[:] = 0
        node, spec = nodes.node(0), pod.spec
        changes: list[Callable[[], Any]] = [
            lambda: setattr(pod, "node", "a"),
            lambda: setattr(pod, "priority", 1000),
            lambda: setattr(spec, "requests", ()),
            lambda: spec.requests.clear(),  # type: ignore[attr-defined]
            lambda: pod.labels.update(app="other"),  # type: ignore[attr-defined]
            lambda: setattr(node, "unschedulable", True),
            lambda: node.labels.update(zone="other"),  # type: ignore[attr-defined]
            lambda: nodes.allocatable.fill(0),
            lambda: nodes.requested.fill(0),
            lambda: nodes.generation.fill(0),
            lambda: nodes.amounts_of(0)[0].fill(0),
            lambda: nodes.traits.unschedulable.fill(True),
            lambda: nodes.traits.ready.fill(False),
            lambda: nodes.traits.rows.clear(),  # type: ignore[attr-defined]
            lambda: nodes.resources.clear(),  # type: ignore[attr-defined]
            lambda: nodes.placed.row.fill(0),
        ]
        for change in changes:
            with pytest.raises((AttributeError, TypeError, ValueError)):
                change()
            self.refused += 1


async def test_nothing_that_a_plugin_changes_is_seen_by_others() -> None:
    """Neither in this cycle nor in later ones, where results for equal pods are kept."""
    odd = Meddles()
    loop = await built(odd, "filter", "score")
    keys = [loop.api.add_pod(f"w{at}", labels={"app": "web"}) for at in range(9)]
    await loop.settle()
    assert odd.refused
    placed = [loop.where(key) for key in keys]
    assert (placed.count("a"), placed.count("b"), placed.count("")) == (4, 4, 1)
    view = loop.state.view()
    assert view.requested[:, view.resources["cpu"]].tolist() == [4000, 4000]
    messages = {one[2] for one in loop.events if one[1] == "FailedScheduling"}
    assert messages == {"0/2 nodes are available: 2 Insufficient cpu."}
    await loop.end()


@pytest.mark.parametrize("act", [raises, holds, leaves])
@pytest.mark.parametrize("point", ["unreserve", "postBind"])
async def test_what_cannot_fail_a_pod_any_more_is_logged(point: str, act: Act) -> None:
    """Its room is free after Unreserve, and it stays bound after PostBind."""
    odd = Misbehaves(point, act)
    loop = await built(odd, *POINTS)
    await loop.settle()
    if point == "unreserve":
        loop.api.faults += [lambda call: None, refuse]  # its nomination, and its binding
    bad = loop.api.add_pod("bad")
    await loop.settle()
    if point == "unreserve":
        assert (loop.place(bad), loop.state.assumed_count) == ("backoff", 0)
    await loop.advance(2)
    good = loop.api.add_pod("good")
    await loop.settle()
    assert loop.where(bad)
    assert loop.where(good)
    await loop.end()
