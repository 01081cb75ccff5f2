"""Requests, runtimes and guarantees of trees (worked examples 15 to 37 and 54 to 56)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.elasticquota import DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA, Amounts, ElasticQuota
from koord_scheduler_plugins.elastic_quota.runtime import (
    QuotaState,
    RuntimeOptions,
    Sums,
    compute,
    update,
)
from koord_scheduler_plugins.elastic_quota.tree import Tree, build_trees, tree_totals

KEYS = ("cpu", "memory")
Pair = int | tuple[int, int] | None


def amounts(pair: Pair) -> Amounts:
    """Amounts of cpu, or of cpu and memory."""
    if pair is None:
        return {}
    return dict(zip(KEYS, pair if isinstance(pair, tuple) else (pair,), strict=False))


def quota(name: str, low: Pair = None, high: Pair = 10_000, **more: Any) -> ElasticQuota:
    high_amounts = amounts(high)
    values = {"weight": high_amounts} | more
    return ElasticQuota(name=name, min=amounts(low), max=high_amounts, **values)


def tree(*quotas: ElasticQuota) -> Tree:
    return build_trees({one.name: one for one in quotas})[""]


def state(
    quotas: list[ElasticQuota], requested: dict[str, Pair], total: Pair, **options: bool
) -> QuotaState:
    sums = Sums(requested={name: amounts(pair) for name, pair in requested.items()})
    return compute(tree(*quotas), sums, amounts(total), RuntimeOptions(**options))


@pytest.mark.parametrize(
    ("low", "high", "request_", "wanted"),
    [
        pytest.param(None, (64, 128), (96, 130), (64, 128), id="15"),
        pytest.param(None, (100, 200), (96, 130), (96, 130), id="16"),
        pytest.param((20, 40), (1000, 1000), (10, 30), (10, 30), id="17"),
        pytest.param((20, 40), (30, 60), (25, 45), (25, 45), id="18"),
        pytest.param((20, 40), (30, 60), (55, 75), (30, 60), id="18, beyond max"),
    ],
)
def test_a_quota_with_room_has_what_it_requests_within_max(low, high, request_, wanted):
    quotas = [quota("a", None, (1000, 1000)), quota("a-123", low, high, parent="a")]
    found = state(quotas, {"a-123": request_}, (1000, 1000))

    assert found.runtime("a-123") == amounts(wanted)
    assert found.child_request("a") == amounts(wanted)


@pytest.mark.parametrize(
    ("lends", "pods", "wanted"),
    [
        pytest.param((False, False, False), 0, (60, 20, 20), id="19"),
        pytest.param((False, False, False), 40, (60, 40, 20), id="20"),
        pytest.param((False, False, False), 60, (80, 60, 20), id="21"),
        pytest.param((True, False, True), 0, (20, 20, 0), id="22a"),
        pytest.param((True, False, True), 40, (40, 40, 0), id="22b"),
        pytest.param((True, False, True), 60, (60, 60, 0), id="22c"),
        pytest.param((True, False, False), 0, (40, 20, 20), id="23a"),
        pytest.param((True, False, False), 40, (60, 40, 20), id="23b"),
        pytest.param((True, False, False), 60, (80, 60, 20), id="23c"),
    ],
)
def test_requests_of_quotas_that_do_not_lend(lends, pods, wanted):
    quotas = [
        quota("q", 60, lends=lends[0]),
        quota("c1", 20, parent="q", lends=lends[1]),
        quota("c2", 20, parent="q", lends=lends[2]),
    ]
    found = state(quotas, {"c1": pods}, 1000)

    assert tuple(found.request(name).get("cpu", 0) for name in ("q", "c1", "c2")) == wanted


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [pytest.param(0, (10, 15, 20), id="24"), pytest.param(25, (25, 30, 30), id="25")],
)
def test_a_parent_that_does_not_lend_requests_its_min(pods, wanted):
    quotas = [
        quota("q1", 20, lends=False),
        quota("q2", 10, parent="q1", lends=False),
        quota("q3", 5, parent="q1", lends=False),
    ]
    found = state(quotas, {"q2": pods}, 1000)

    assert (
        found.request("q2")["cpu"],
        found.child_request("q1")["cpu"],
        found.request("q1")["cpu"],
    ) == wanted


@pytest.mark.parametrize(
    ("total", "parent_max", "child_max", "request_", "wanted"),
    [
        pytest.param((350, 1800), (300, 1024), (1000, 5000), (400, 1500), (300, 1024), id="26"),
        pytest.param((300, 9000), (600, 4096), (500, 2048), (500, 4096), (300, 2048), id="27"),
    ],
)
def test_total_and_max_of_the_parent_limit_a_child(total, parent_max, child_max, request_, wanted):
    quotas = [quota("p", None, parent_max), quota("c", None, child_max, parent="p")]
    found = state(quotas, {"c": request_}, total)

    assert found.limit("p") == found.limit("c") == amounts(wanted)


def test_a_second_quota_takes_what_is_not_in_the_min_of_the_first():
    """Examples 28 and 29."""
    first, second = quota("test1", (50, 80), (96, 160)), quota("test2", (40, 80), (96, 160))
    requested: dict[str, Pair] = {"test1": (120, 200)}

    assert state([first], requested, (96, 160)).limit("test1") == amounts((96, 160))

    both = state([first, second], {**requested, "test2": (150, 210)}, (96, 160))
    assert both.limit("test1") == amounts((53, 80))
    assert both.limit("test2") == amounts((43, 80))


@pytest.mark.parametrize(
    ("total", "requests", "scale", "mins", "runtimes"),
    [
        pytest.param(200, (200, 200, 200), True, (66_666,) * 3, (66_667, 66_667, 66_666), id="30"),
        pytest.param(600, (200, 200, 200), True, (100_000,) * 3, (200_000,) * 3, id="31"),
        pytest.param(200, (200, 0, 200), True, (66_666,) * 3, (100_000, 0, 100_000), id="32"),
        pytest.param(200, (200, 200, 200), False, (100_000,) * 3, (100_000,) * 3, id="33"),
    ],
)
def test_mins_beyond_the_total_are_scaled(total, requests, scale, mins, runtimes):
    names = ("a", "b", "c")
    quotas = [quota(name, 100_000, 1_000_000) for name in names]
    requested = {name: each * 1000 for name, each in zip(names, requests, strict=True)}
    found = state(quotas, requested, total * 1000, scale_min=scale)

    assert tuple(found.scaled_min(name)["cpu"] for name in names) == mins
    assert tuple(found.limit(name)["cpu"] for name in names) == runtimes


@pytest.mark.parametrize(
    ("pods", "child", "parent"),
    [
        pytest.param(5, (5, 10), (15, 20), id="35"),
        pytest.param(15, (15, 15), (20, 20), id="36"),
        pytest.param(25, (25, 25), (30, 30), id="37"),
    ],
)
def test_what_is_allocated_is_guaranteed(pods, child, parent):
    quotas = [quota("q1", 20), quota("q2", 10, parent="q1"), quota("q3", 5, parent="q1")]
    sums = Sums(used={"q2": {"cpu": pods}}, requested={"q2": {"cpu": pods}})
    found = compute(tree(*quotas), sums, amounts(1000), RuntimeOptions(guarantee=True))

    for name, wanted in (("q2", child), ("q1", parent)):
        assert (found.allocated(name)["cpu"], found.guaranteed(name)["cpu"]) == wanted


@pytest.mark.parametrize(
    ("root", "wanted"),
    [
        pytest.param({"total": {"cpu": 40}}, 60, id="54"),
        pytest.param({"total": {"cpu": 40}, "ignores_default_tree": True}, 100, id="54, ignored"),
        pytest.param({"total": {"cpu": 50}}, 50, id="55"),
        pytest.param(None, 100, id="55, deleted"),
    ],
)
def test_the_total_of_a_tree_is_taken_from_the_default_tree(root, wanted):
    quotas = {} if root is None else {"r": quota("r", tree="t", is_root=True, **root)}
    trees = build_trees(quotas, multi_tree=True)

    totals = tree_totals({"cpu": 100}, trees)

    assert totals[""] == {"cpu": wanted}
    assert root is None or totals["t"] == root["total"]


def test_what_default_and_system_quota_use_is_not_shared():
    """Example 56; nor do their requests take part in the division."""
    quotas = tree(quota("a"), quota(DEFAULT_QUOTA, None, 30), quota(SYSTEM_QUOTA, None, 7))
    used = {SYSTEM_QUOTA: {"cpu": 5}, DEFAULT_QUOTA: {"cpu": 10}}
    requested = {"a": {"cpu": 200}, DEFAULT_QUOTA: {"cpu": 90}}
    found = compute(quotas, Sums(used=used, requested=requested), {"cpu": 100})

    assert found.limit("a") == {"cpu": 85}
    assert found.limit(DEFAULT_QUOTA) == {"cpu": 30}
    assert found.used(ROOT_QUOTA) == {"cpu": 15}


def test_without_runtime_quotas_the_limit_is_max():
    found = state([quota("a", None, 70)], {"a": 10}, 20, enabled=False)

    assert found.limit("a") == {"cpu": 70}


def test_a_resource_that_max_lacks_is_neither_counted_nor_limited():
    found = state([quota("a"), quota("b", None, (50, 50))], {"a": (9, 9)}, (100, 100))

    assert found.request("a") == {"cpu": 9}
    assert found.limit("a") == {"cpu": 9}


# --- any tree: against a plain recursive form, and after any changes


class Plain:
    """The same rules as recursive functions of one resource, without anything kept."""

    def __init__(self, found: QuotaState, resource: str) -> None:
        self.tree, self.options, self.sums = found.tree, found.options, found.sums
        self.resource, self.available = resource, found.available.get(resource)

    def children(self, name: str) -> list[ElasticQuota]:
        return sorted((q for q in self.tree.quotas if q.parent == name), key=lambda q: q.name)

    def own(self, one: ElasticQuota, kind: str) -> int:
        sums: dict[str, Amounts] = getattr(self.sums, kind)
        return sums.get(one.name, {}).get(self.resource, 0) if self.resource in one.max else 0

    def lends(self, one: ElasticQuota) -> bool:
        return one.lends and not self.options.guarantee

    def limited(self, one: ElasticQuota) -> int:
        wanted = self.own(one, "requested") + sum(map(self.limited, self.children(one.name)))
        if not self.lends(one):
            wanted = max(wanted, one.min.get(self.resource, 0))
        return min(wanted, one.max.get(self.resource, wanted))

    def used(self, one: ElasticQuota) -> int:
        return self.own(one, "used") + sum(map(self.used, self.children(one.name)))

    def guaranteed(self, one: ElasticQuota) -> int:
        if not self.options.guarantee:
            return 0
        below = sum(map(self.guaranteed, self.children(one.name)))
        return max(self.own(one, "used") + below, one.min.get(self.resource, 0))

    def runtime(self, one: ElasticQuota) -> int | None:
        if one.parent == ROOT_QUOTA:
            total = self.available
        else:
            parent = self.tree.find(one.parent)
            assert parent is not None
            if self.resource not in parent.max:
                return None
            total = self.runtime(parent)
        return self.shares(one.parent, total)[one.name]

    def shares(self, parent: str, total: int | None) -> dict[str, int]:
        children = self.children(parent)
        low = {q.name: q.min.get(self.resource, 0) for q in children}
        whole = sum(low.values())
        if self.options.scale_min and total is not None and whole > max(total, 0):
            low = {name: max(total, 0) * each // whole for name, each in low.items()}
        found, wants = {}, {q.name: self.limited(q) for q in children}
        for q in children:
            base = max(low[q.name], self.guaranteed(q))
            found[q.name] = min(base, wants[q.name]) if self.lends(q) else base
        sharers = {
            q.name: q.weight.get(self.resource, 0)
            for q in children
            if wants[q.name] > found[q.name]
        }
        rest = (total or 0) - sum(found.values())
        while rest > 0 and sum(sharers.values()) > 0:
            whole, given = sum(sharers.values()), rest
            shares = {name: weight * given // whole for name, weight in sharers.items()}
            by_remainder = sorted(shares, key=lambda name: (-(sharers[name] * given % whole), name))
            for name in by_remainder[: given - sum(shares.values())]:
                shares[name] += 1
            rest = 0
            for name, share in shares.items():
                found[name] += share
                if found[name] >= wants[name]:
                    rest += found[name] - wants[name]
                    found[name] = wants[name]
                    del sharers[name]
        return found


SMALL = st.integers(0, 60)
LARGE = st.one_of(SMALL, st.integers(0, 2**63 - 1))
LISTS = st.dictionaries(st.sampled_from(KEYS), LARGE)
NAMES = tuple("abcdefgh")


@st.composite
def quotas_of(draw: st.DrawFn, name: str) -> ElasticQuota:
    above = (ROOT_QUOTA, *NAMES[: NAMES.index(name)])
    high = draw(st.dictionaries(st.sampled_from(KEYS), LARGE, min_size=1))
    return ElasticQuota(
        name=name,
        parent=draw(st.sampled_from(above)),
        lends=draw(st.booleans()),
        min=draw(LISTS),
        max=high,
        weight=draw(st.one_of(st.just(high), LISTS)),
    )


TREES = st.tuples(*map(quotas_of, NAMES))
SUMS = st.builds(
    Sums,
    requested=st.dictionaries(st.sampled_from(NAMES), LISTS),
    used=st.dictionaries(st.sampled_from((*NAMES, DEFAULT_QUOTA)), LISTS),
    non_preemptible_used=st.dictionaries(st.sampled_from(NAMES), LISTS),
)
OPTIONS = st.builds(RuntimeOptions, scale_min=st.booleans(), guarantee=st.booleans())


@settings(deadline=None)
@given(TREES, SUMS, LISTS, OPTIONS)
def test_a_state_is_that_of_the_plain_form(quotas, sums, total, options):
    found = compute(tree(*quotas), sums, total, options)

    for key in found.columns:
        plain = Plain(found, key)
        for one in found.tree.quotas:
            runtime = found.runtime(one.name).get(key)
            assert runtime == plain.runtime(one)
            assert found.used(one.name).get(key, 0) == plain.used(one)
            assert found.guaranteed(one.name).get(key, 0) == plain.guaranteed(one)
            if key in one.max and runtime is not None and not options.guarantee:
                assert runtime <= max(one.max[key], one.min.get(key, 0))


@settings(deadline=None)
@given(TREES, SUMS, LISTS, OPTIONS, st.data())
def test_a_state_after_changes_is_the_one_computed_anew(quotas, sums, total, options, data):
    found = compute(tree(*quotas), sums, total, options)
    for _ in range(3):
        name = data.draw(st.sampled_from(NAMES))
        known = found.tree.find(name)
        assert known is not None
        changed = replace(data.draw(quotas_of(name)), parent=known.parent)
        new_tree = found.tree.with_quota(changed) if data.draw(st.booleans()) else found.tree
        new_sums = replace(
            found.sums,
            requested={**found.sums.requested, name: data.draw(LISTS)},
            used={**found.sums.used, name: data.draw(LISTS)},
        )
        total = data.draw(st.one_of(st.just(total), LISTS))
        found = update(found, new_tree, new_sums, total, [name])
        anew = compute(new_tree, new_sums, total, options)

        assert set(found.columns) == set(anew.columns)
        for key, column in anew.columns.items():
            for slot in column.__slots__:
                assert getattr(found.columns[key], slot) == getattr(column, slot), (key, slot)


def test_a_change_leaves_the_state_before_it_as_it_was():
    before = state([quota("a"), quota("b")], {"a": 10, "b": 10}, 15)
    sums = Sums(requested={"a": {"cpu": 1}, "b": {"cpu": 10}})

    after = update(before, before.tree, sums, before.total, ["a"])

    assert (before.limit("a"), before.limit("b")) == ({"cpu": 8}, {"cpu": 7})
    assert (after.limit("a"), after.limit("b")) == ({"cpu": 1}, {"cpu": 10})


def test_a_change_of_one_resource_takes_over_the_others():
    before = state([quota("a", None, (9, 9))], {"a": (5, 5)}, (9, 9))
    sums = Sums(requested={"a": amounts((6, 5))})

    after = update(before, before.tree, sums, before.total, ["a"])

    assert after.columns["memory"] is before.columns["memory"]
    assert after.columns["cpu"] is not before.columns["cpu"]
