"""Admission of pods to quotas (worked examples 39 to 45), and checks of trees."""

import pytest

from koord.api.elasticquota import DEFAULT_QUOTA, ROOT_QUOTA, Amounts, ElasticQuota
from koord_scheduler_plugins.elastic_quota.checks import (
    AdmissionOptions,
    TreeOptions,
    admission,
    list_text,
    tree_problems,
)
from koord_scheduler_plugins.elastic_quota.runtime import (
    QuotaState,
    RuntimeOptions,
    Sums,
    compute,
)
from koord_scheduler_plugins.elastic_quota.tree import build_trees


def quota(name: str, high: Amounts, low: Amounts | None = None, **more: object) -> ElasticQuota:
    return ElasticQuota(name=name, max=high, min=low or {}, weight=high, **more)  # type: ignore[arg-type]


def cores(count: int) -> Amounts:
    return {"cpu": count * 1000}


def state(
    *quotas: ElasticQuota, total: Amounts, enabled: bool = True, **sums: object
) -> QuotaState:
    tree = build_trees({one.name: one for one in quotas})[""]
    return compute(tree, Sums(**sums), total, RuntimeOptions(enabled=enabled))  # type: ignore[arg-type]


def test_a_pod_beyond_the_runtime_is_rejected():
    """Example 39."""
    found = state(
        quota("q", cores(50)), total=cores(7), used={"q": cores(6)}, requested={"q": cores(8)}
    )
    rejection = admission(found, "q", cores(2))

    assert rejection is not None
    assert rejection.message == (
        "Insufficient quotas, quotaName: q, runtime: cpu:7, used: cpu:6, pod's request: cpu:2, "
        "exceedDimensions: [cpu]"
    )
    assert (rejection.quota, rejection.resources, rejection.error) == ("q", ("cpu",), False)
    assert admission(found, "q", cores(1)) is None
    assert admission(found, "q", cores(2), freed=cores(1)) is None


def test_a_runtime_of_zero_admits_nothing():
    """Example 40."""
    found = state(quota("q", cores(50)), total={}, requested={"q": cores(1)})
    rejection = admission(found, "q", cores(1))

    assert rejection is not None
    assert rejection.resources == ("cpu",)
    assert "used: <empty>" in rejection.message


def test_a_resource_that_max_lacks_is_not_limited():
    """Example 41."""
    found = state(quota("q", cores(50)), total=cores(50), requested={"q": cores(1)})

    assert admission(found, "q", {**cores(1), "gpu": 8}) is None


def test_without_runtime_quotas_max_is_the_limit():
    """Example 42."""
    found = state(quota("q", cores(5)), total={}, used={"q": cores(3)}, enabled=False)

    assert admission(found, "q", cores(2)) is None
    assert admission(found, "q", cores(3)) is not None


def test_pods_that_are_not_preemptible_count_against_min():
    """Example 43."""
    found = state(
        quota("q", cores(50), cores(5)),
        total=cores(50),
        used={"q": cores(4)},
        non_preemptible_used={"q": cores(4)},
        requested={"q": cores(6)},
    )
    rejection = admission(found, "q", cores(2), preemptible=False)

    assert rejection is not None
    assert rejection.message == (
        "Insufficient non-preemptible quotas, quotaName: q, min: cpu:5, nonPreemptibleUsed: cpu:4, "
        "pod's request: cpu:2, exceedDimensions: [cpu]"
    )
    assert admission(found, "q", cores(2)) is None
    assert admission(found, "q", cores(1), preemptible=False) is None


def test_other_resources_than_those_of_the_pod_are_looked_at_by_option():
    """Example 44."""
    found = state(
        quota("q", {**cores(50), "memory": 10}),
        total={**cores(50), "memory": 10},
        used={"q": {"memory": 11}},
        requested={"q": {**cores(1), "memory": 11}},
    )
    rejection = admission(found, "q", cores(1), options=AdmissionOptions(all_resources=True))

    assert rejection is not None
    assert rejection.resources == ("memory",)
    assert admission(found, "q", cores(1)) is None


def test_the_limit_of_an_ancestor_is_checked_by_option():
    """Example 45."""
    found = state(
        quota("parent", cores(10), is_parent=True),
        quota("child", cores(50), cores(2), parent="parent"),
        quota("other", cores(50), parent="parent"),
        total=cores(50),
        used={"other": cores(9)},
        requested={"other": cores(9), "child": cores(2)},
    )
    options = AdmissionOptions(parents=True)
    rejection = admission(found, "child", cores(2), options=options)

    assert rejection is not None
    assert rejection.message == (
        "Insufficient quotas, quotaNameTopo: [parent child], runtime: cpu:10, used: cpu:9, "
        "pod's request: cpu:2, exceedDimensions: [cpu]"
    )
    assert rejection.quota == "parent"
    assert admission(found, "child", cores(2)) is None
    assert admission(found, "child", cores(1), options=options) is None


def test_the_default_quota_is_limited_by_its_max():
    found = state(quota(DEFAULT_QUOTA, cores(3)), total=cores(50), used={DEFAULT_QUOTA: cores(3)})

    assert admission(found, DEFAULT_QUOTA, cores(1)) is not None


def test_a_quota_that_is_not_there():
    rejection = admission(state(total={}), "q", cores(1))

    assert rejection is not None
    assert rejection.error
    assert rejection.message == "Could not find the specified ElasticQuota"


def test_lists_in_messages():
    assert list_text({"memory": 2, "cpu": 1500}) == "cpu:1500m,memory:2"
    assert list_text({}) == "<empty>"


PARENT = quota("p", cores(100), cores(60), is_parent=True)


@pytest.mark.parametrize(
    ("quotas", "name", "wanted"),
    [
        (
            [
                PARENT,
                quota("a", cores(100), cores(30), parent="p"),
                quota("b", cores(100), cores(40), parent="p"),
            ],
            "p",
            "checkMinQuotaSum all children's MinQuota > current MinQuota, current: p",
        ),
        (
            [quota("a", cores(1), cores(2))],
            "a",
            "resourceKey cpu of quota a min 2 > max 1",
        ),
        (
            [quota("a", {}, cores(2))],
            "a",
            "resourceKey cpu of quota a is included in min, which is not included in max",
        ),
        (
            [quota("a", cores(1), strict=("cpu",))],
            "a",
            "resourceKey cpu of quota a max 1 < used 5",
        ),
        (
            [quota("a", {}, strict=("cpu",))],
            "a",
            "resourceKey cpu of quota a is included in used, which is not included in max but "
            "should check max >= used",
        ),
        (
            [quota("p", cores(9)), quota("a", cores(9), parent="p")],
            "a",
            "a has parentName p but the parentQuotaInfo's IsParent is false",
        ),
        (
            [PARENT, quota("a", {"gpu": 1}, parent="p")],
            "a",
            "checkSubAndParentGroupQuotaKey failed: a's max keys are not the same with p's",
        ),
        (
            [PARENT, quota("a", cores(9), {"gpu": 1}, parent="p")],
            "a",
            "checkSubAndParentGroupQuotaKey failed: a's min keys are not all included in p's",
        ),
        (
            [PARENT, quota("a", cores(9), parent="p", tree="t")],
            "a",
            "a tree id is different from parent p, [t] vs []",
        ),
        ([quota("a", {}, parent="x")], "a", "a has parentName x but it does not exist"),
        ([quota("a", {}, problems=("odd",))], "a", "odd"),
        ([quota("a", {}, is_parent=True)], "a", "quota a is a parent and has bound pods"),
    ],
)
def test_problems_of_trees(quotas, name, wanted):
    tree = build_trees({one.name: one for one in quotas})[""]

    assert wanted in tree_problems(tree, {"a": cores(5)}, {"a"})[name]


def test_a_good_tree_has_no_problems():
    quotas = [PARENT, quota("a", cores(100), cores(60), parent="p")]
    tree = build_trees({one.name: one for one in quotas})[""]

    assert tree_problems(tree, {}, {"a"}) == {}


def test_options_relax_the_checks():
    wide = quota("p", {**cores(9), "gpu": 1}, is_parent=True, forced=True)
    tree = build_trees({"p": wide, "a": quota("a", cores(9), parent="p")})[""]

    assert set(tree_problems(tree, {}, {"p"})) == {"a", "p"}
    relaxed = TreeOptions(subset_keys=True, parents_have_pods=True)
    assert tree_problems(tree, {}, {"p"}, relaxed) == {}


def test_the_root_is_no_quota_of_a_tree():
    tree = build_trees({ROOT_QUOTA: quota(ROOT_QUOTA, {})})[""]

    assert tree.quotas == ()
