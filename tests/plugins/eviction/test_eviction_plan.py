"""One victim after the other, each counted once for all features that want something back."""

from collections.abc import Callable

from koord.api.pod import Pod
from koordlet_plugins.eviction.plan import EvictionPlan, EvictionTask, ReleaseTarget

USED, REQUEST = ReleaseTarget.USED, ReleaseTarget.REQUEST
GIB = 2**30
GAINS = {
    USED: {
        "b1": {"memory": 3 * GIB // 2},
        "b2": {"memory": 3 * GIB // 4},
        "m1": {"memory": 3 * GIB},
    },
    REQUEST: {"b1": {"batch-cpu": 1000}, "b2": {"batch-cpu": 500}, "m1": {"mid-cpu": 2000}},
}
B1, B2, M1 = (Pod("jobs", name, f"uid-{name}") for name in ("b1", "b2", "m1"))


def task(feature, target, amounts, *candidates, gains=None) -> EvictionTask:
    table = gains or GAINS[target]
    return EvictionTask(
        feature=feature,
        target=target,
        amounts=amounts,
        candidates=candidates,
        gain=lambda pod: table.get(pod.name, {}),
    )


def evict_all(plan: EvictionPlan, ends: Callable[[Pod], bool] = lambda pod: True) -> list[str]:
    """Evict until the plan is through; returns who was asked for."""
    asked = []
    while found := plan.next():
        pod = found[1]
        asked.append(pod.name)
        (plan.release if ends(pod) else plan.pass_over)(pod)
    return asked


def test_two_features_share_what_was_released():
    """A evicts two, so that B lacks only what they did not have."""
    plan = EvictionPlan(
        [
            task("A", USED, {"memory": 2 * GIB}, B1, B2),
            task("B", REQUEST, {"batch-cpu": 1200, "mid-cpu": 1500}, B1, B2, M1),
        ]
    )
    assert evict_all(plan) == ["b1", "b2", "m1"]
    assert plan.released == {
        (USED, "memory"): 21 * GIB // 4,
        (REQUEST, "batch-cpu"): 1500,
        (REQUEST, "mid-cpu"): 2000,
    }


def test_a_pod_that_ends_already_is_enough():
    """What it is about to give back is counted before anybody is asked for."""
    plan = EvictionPlan([task("A", USED, {"memory": 1}, B1, B2)])
    plan.release(B1)
    assert plan.next() is None


def test_a_pod_that_ends_already_is_counted():
    """Only what it does not give back is wanted from the next one."""
    plan = EvictionPlan([task("A", USED, {"memory": 2 * GIB}, B1, B2)])
    plan.release(B1)
    assert evict_all(plan) == ["b2"]
    assert plan.released[USED, "memory"] == 9 * GIB // 4


def test_only_what_is_above_zero_is_left():
    """Amounts below zero never remain, and what was released is taken off."""
    gains = {"b1": {"memory": GIB}}
    found = task("A", USED, {"cpu": 400, "memory": GIB}, B1, gains=gains)
    plan = EvictionPlan([found])
    plan.release(B1)
    assert plan.rest(found) == {"cpu": 400}
    other = task("A", USED, {"cpu": -400, "memory": GIB}, B1, gains=gains)
    plan = EvictionPlan([other])
    plan.release(B1)
    assert plan.rest(other) == {}


def test_a_pod_that_cannot_be_evicted_is_passed_over():
    """The next candidate comes in its place, and it does not come up again."""
    plan = EvictionPlan([task("A", USED, {"memory": 2 * GIB}, B1, B2, M1)])
    assert evict_all(plan, lambda pod: pod is not B1) == ["b1", "b2", "m1"]
    assert plan.released[USED, "memory"] == 15 * GIB // 4
    assert plan.wanting() == []


def test_a_pod_that_releases_nothing_is_not_evicted():
    """Who asks for nothing of what is wanted is no victim, whatever else it asks for."""
    gains = {"b1": {"batch-cpu": 0}, "b2": {"mid-cpu": 500}, "m1": {"batch-cpu": 1}}
    plan = EvictionPlan([task("A", REQUEST, {"batch-cpu": 900}, B1, B2, M1, gains=gains)])
    assert evict_all(plan) == ["m1"]
    assert [plan.rest(each) for each in plan.wanting()] == [{"batch-cpu": 899}]


def test_a_tier_that_has_given_enough_gives_nothing_more():
    """Candidates of another tier go on, those that come before them in order stay."""
    wanted = {"batch-cpu": 1000, "mid-cpu": 1500}
    plan = EvictionPlan([task("A", REQUEST, wanted, B1, B2, M1)])
    assert evict_all(plan) == ["b1", "m1"]


def test_a_resource_counts_once_however_many_features_count_it():
    """Of two opinions the larger one."""
    less = {"b1": {"memory": 1}}
    plan = EvictionPlan(
        [task("A", USED, {"memory": 5}, B1), task("B", USED, {"memory": 5}, B1, gains=less)]
    )
    assert plan.gain(B1) == {(USED, "memory"): 3 * GIB // 2}


def test_nothing_is_released_that_is_not_wanted_any_more():
    """What is measured after the first victim may end it early, but never wants more."""
    first = task("A", USED, {"memory": 3 * GIB}, B1, B2, M1)
    plan = EvictionPlan([first])
    plan.release(B1)
    plan.see([task("A", USED, {"memory": 9 * GIB})])
    assert plan.rest(first) == {"memory": 3 * GIB // 2}
    plan.see([task("A", USED, {"memory": GIB})])
    assert plan.rest(first) == {"memory": GIB}
    plan.see([])
    assert plan.next() is None


def test_a_task_that_wants_nothing_takes_no_part():
    """Its candidates do not count either."""
    plan = EvictionPlan([task("A", USED, {"memory": 0}, B1)])
    assert plan.features == frozenset()
    assert plan.gain(B1) == {}
