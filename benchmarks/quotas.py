"""Runtime quotas of 1,000 quotas in a tree of 5 levels: computed in full, and after one change."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.table import Row
from koord.api.elasticquota import ROOT_QUOTA, Amounts, ElasticQuota
from koord_scheduler_plugins.elastic_quota.runtime import (
    QuotaState,
    RuntimeOptions,
    Sums,
    compute,
    update,
)
from koord_scheduler_plugins.elastic_quota.tree import Tree, build_trees

LEVELS = (4, 20, 76, 250, 650)  # quotas of each level: 1,000
TOTAL: Amounts = {"cpu": 320_000_000, "memory": 1 << 50, "nvidia.com/gpu": 20_000}
TIMES = 60
FULL_BUDGET, CHANGE_BUDGET = 50.0, 2.0  # milliseconds


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time of a full computation, and after a pod, a min or a node has changed."""
    times = TIMES // 20 if smoke else TIMES
    chance = random.Random(1)
    tree, leaves = _tree(chance)
    sums = Sums(
        requested={
            name: {key: chance.randrange(3 * each // len(leaves)) for key, each in TOTAL.items()}
            for name in leaves
        }
    )
    options = RuntimeOptions(scale_min=True)
    full = _milliseconds(lambda: compute(tree, sums, TOTAL, options), times)
    yield Row("quotas: all of 1,000 quotas", full, "ms", FULL_BUDGET)
    state = compute(tree, sums, TOTAL, options)
    requests = _changes(times, lambda: _request_changed(state, chance.choice(leaves)))
    yield Row("quotas: one more pod, median", statistics.median(requests), "ms", CHANGE_BUDGET)
    yield Row("quotas: one more pod, worst", max(requests), "ms")
    more = {**TOTAL, "cpu": TOTAL["cpu"] + 64_000, "memory": TOTAL["memory"] + (256 << 30)}
    node = _milliseconds(lambda: update(state, tree, sums, more, []), times)
    yield Row("quotas: one more node", node, "ms", CHANGE_BUDGET)
    mins = _changes(times, lambda: _min_changed(state, chance.choice(tree.quotas)))
    yield Row("quotas: one min changed, median", statistics.median(mins), "ms", CHANGE_BUDGET)


def _tree(chance: random.Random) -> tuple[Tree, list[str]]:
    """A tree whose quotas have min and max of different sizes, and its leaves."""
    quotas: dict[str, ElasticQuota] = {}
    above = [ROOT_QUOTA]
    for level, count in enumerate(LEVELS):
        names = [f"q{level}-{at}" for at in range(count)]
        for at, name in enumerate(names):
            share = {key: each // count for key, each in TOTAL.items()}
            quotas[name] = ElasticQuota(
                name=name,
                parent=above[at % len(above)],
                min={key: chance.randrange(each + 1) for key, each in share.items()},
                max={key: 3 * each for key, each in share.items()},
                weight={key: chance.randrange(1, 3 * each + 2) for key, each in share.items()},
                lends=chance.random() < 0.9,
            )
        above = names
    return build_trees(quotas)[""], above


def _request_changed(state: QuotaState, name: str) -> Callable[[], object]:
    """A pod of 2 cores and 4 GiB comes to a quota."""
    own = state.sums.requested[name]
    more = {**own, "cpu": own["cpu"] + 2000, "memory": own["memory"] + (4 << 30)}
    sums = replace(state.sums, requested={**state.sums.requested, name: more})
    return lambda: update(state, state.tree, sums, state.total, [name])


def _min_changed(state: QuotaState, quota: ElasticQuota) -> Callable[[], object]:
    changed = replace(quota, min={**quota.min, "cpu": quota.min["cpu"] // 2})
    return lambda: update(
        state, state.tree.with_quota(changed), state.sums, state.total, [quota.name]
    )


def _changes(times: int, change: Callable[[], Callable[[], object]]) -> list[float]:
    return [_milliseconds(change(), 3) for _ in range(times)]


def _milliseconds(work: Callable[[], object], times: int) -> float:
    """Median CPU time of this thread."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return statistics.median(took) * 1e3
