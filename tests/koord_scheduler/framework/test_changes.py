"""Plugins learn of changes of the cluster's objects."""

from msgspec.structs import replace

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import NODE, POD
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.framework.interfaces import Changes
from tests.support.scheduler.framework import make_pod

Seen = list[tuple[ClusterPod | None, ClusterPod | None]]


def test_functions_are_called_for_their_kind_in_the_order_in_which_they_came() -> None:
    changes, seen = Changes(SimulatedClock()), list[str]()
    changes.subscribe(POD, lambda old, new: seen.append("first"))
    changes.subscribe(POD, lambda old, new: seen.append("second"))
    changes.subscribe(NODE, lambda old, new: seen.append("node"))
    changes.notify(POD, None, make_pod())
    assert seen == ["first", "second"]


def test_one_for_labels_learns_of_pods_that_have_or_had_them() -> None:
    changes, seen, every = Changes(SimulatedClock()), Seen(), Seen()
    changes.subscribe(POD, lambda old, new: every.append((old, new)))
    labels = frozenset({"team", "crew"})
    changes.subscribe(POD, lambda old, new: seen.append((old, new)), labels=labels)
    plain, team = make_pod(labels={"app": "a"}), make_pod(labels={"team": "b"})
    annotated, grouped = (
        replace(plain, annotations=(("x", "y"),)),
        replace(plain, workload_group="g"),
    )
    expected: Seen = [
        (None, team),
        (team, plain),
        (plain, team),
        (annotated, None),
        (plain, grouped),
    ]
    for old, new in [(None, plain), (plain, plain), *expected, (plain, None)]:
        changes.notify(POD, old, new)
    assert seen == expected
    assert len(every) == len(expected) + 3


def test_one_that_raises_keeps_no_other_from_learning() -> None:
    changes, seen, pod = Changes(SimulatedClock()), Seen(), make_pod()

    def fails(old: ClusterPod | None, new: ClusterPod | None) -> None:
        raise ValueError("no")

    changes.subscribe(POD, fails)
    changes.subscribe(POD, lambda old, new: seen.append((old, new)))
    changes.notify(POD, pod, None)
    assert seen == [(pod, None)]
