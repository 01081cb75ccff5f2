"""Trees of quotas, and which quota a pod belongs to (worked examples 38 and 47 to 49)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.elasticquota import DEFAULT_QUOTA, NAME, ROOT_QUOTA, ElasticQuota
from koord_scheduler_plugins.elastic_quota.runtime import Sums, compute
from koord_scheduler_plugins.elastic_quota.tree import (
    build_trees,
    good_parents,
    index_quotas,
    tree_root,
    unique,
)

DEFAULT = (DEFAULT_QUOTA, "")


def quota(name: str, parent: str = ROOT_QUOTA, **more: object) -> ElasticQuota:
    return ElasticQuota(name=name, parent=parent, max={"cpu": 10}, weight={"cpu": 1}, **more)  # type: ignore[arg-type]


def trees(*quotas: ElasticQuota, **more: object) -> object:
    return build_trees({one.name: one for one in quotas}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "quotas", "wanted"),
    [
        pytest.param({NAME: "x"}, [], DEFAULT, id="47"),
        pytest.param({NAME: "x"}, [quota("x")], ("x", ""), id="47, created"),
        pytest.param(
            {},
            [quota("ns1", namespace="ns1"), quota("other", namespaces=("ns1",))],
            ("ns1", ""),
            id="48",
        ),
        pytest.param({}, [quota("ns1", namespace="ns2")], DEFAULT, id="not in the namespace"),
        pytest.param({NAME: "a"}, [quota("a"), quota("b")], ("a", ""), id="49, before"),
        pytest.param({NAME: "b"}, [quota("a"), quota("b")], ("b", ""), id="49, after"),
        pytest.param({}, [quota("o", namespaces=("ns1",))], ("o", ""), id="bound"),
        pytest.param({NAME: "t"}, [quota("t", tree="t1")], ("t", "t1"), id="tree"),
        pytest.param({NAME: ROOT_QUOTA}, [quota(ROOT_QUOTA)], DEFAULT, id="root"),
    ],
)
def test_the_quota_of_a_pod(labels, quotas, wanted):
    index = index_quotas(quotas, multi_tree=True)

    assert index.quota_of(labels, "ns1") == wanted


def test_without_a_default_quota_only_the_label_counts():
    """Example 38."""
    index = index_quotas(
        [quota("a", namespaces=("ns",)), quota("ns", namespace="ns")], default=False
    )

    assert index.quota_of({}, "ns") is None
    assert index.quota_of({NAME: "unknown"}, "ns") is None
    assert index.quota_of({NAME: "a"}, "ns") == ("a", "")


def test_without_multi_tree_all_quotas_are_in_the_default_tree():
    assert index_quotas([quota("a", tree="t")]).quota_of({NAME: "a"}, "ns") == ("a", "")
    assert set(build_trees({"a": quota("a", tree="t")})) == {""}


@given(st.permutations([("a", 5.0), ("b", 2.0), ("c", 2.0), ("d", None)]))
def test_the_oldest_quota_has_a_namespace_in_any_order(order):
    quotas = [quota(name, created=created, namespaces=("ns",)) for name, created in order]
    index = index_quotas(quotas)

    assert index.quota_of({}, "ns") == ("b", "")
    assert set(index.problems) == {"a", "c", "d"}
    assert index.problems["a"] == ("quota a's annotation namespace ns is already bound to quota b")


def test_of_quotas_with_one_name_the_oldest_counts():
    old, new = quota("q", namespace="y", created=1.0), quota("q", namespace="x", created=2.0)
    found, problems = unique([new, old])

    assert found == {"q": old}
    assert problems == {"x/q": "quota q is ignored: y/q has the same name and is older"}


def test_quotas_without_a_way_to_the_root_may_use_nothing():
    tree = trees(quota("a", "gone"), quota("b", "a"), quota("ok"))[""]  # type: ignore[index]

    assert set(tree.detached) == {"a", "b"}
    assert tree.problems["a"] == "a has parentName gone but it does not exist"
    assert tree.problems["b"] == "b has parentName a, which is not connected to the root"
    state = compute(tree, Sums(requested={"a": {"cpu": 9}, "ok": {"cpu": 9}}), {"cpu": 10})
    assert state.limit("a") == {"cpu": 0}
    assert state.limit("ok") == {"cpu": 9}


def test_a_circle_of_parents_leaves_the_last_good_parents():
    known = good_parents(trees(quota("a"), quota("b", "a"), quota("c", "b")).values())  # type: ignore[attr-defined]
    circle = [quota("a", "c"), quota("b", "a"), quota("c", "b")]

    tree = trees(*circle, parents=known)[""]  # type: ignore[index]

    assert tree.path("c") == ("a", "b", "c")
    assert not tree.detached
    assert tree.problems["a"] == (
        "quota a is its own ancestor: a -> c -> b -> a; its parent stays koordinator-root-quota"
    )
    assert set(trees(*circle)[""].detached) == {"a", "b", "c"}  # type: ignore[index]


@given(st.lists(st.sampled_from((ROOT_QUOTA, *"abcdef")), min_size=6, max_size=6))
def test_every_quota_is_placed_or_detached_with_a_problem(parents):
    quotas = [quota(name, parent) for name, parent in zip("abcdef", parents, strict=True)]
    tree = trees(*quotas)[""]  # type: ignore[index]

    placed = {one.name for one in tree.quotas}
    assert placed | set(tree.detached) == set("abcdef")
    assert not placed & set(tree.detached)
    assert set(tree.detached) == set(tree.problems)
    assert all(tree.parents[place] < place for place in range(len(tree.quotas)))
    for children in tree.children:  # neighbours: runtimes are divided by slices
        assert list(children) == list(
            range(children[0], children[0] + len(children)) if children else ()
        )
    for name in placed:
        assert tree.find(tree.path(name)[0]).parent == ROOT_QUOTA


def test_of_several_roots_of_a_tree_the_oldest_counts():
    quotas = [
        quota("a", tree="t", is_root=True, created=2.0),
        quota("b", tree="t", is_root=True, created=1.0),
    ]
    root = tree_root(trees(*quotas, multi_tree=True)["t"])  # type: ignore[index]

    assert root is not None
    assert root.name == "b"


def test_a_quota_with_another_parent_is_not_put_in_its_old_place():
    tree = trees(quota("a"), quota("b"))[""]  # type: ignore[index]

    with pytest.raises(ValueError, match="quota b is not in its place"):
        tree.with_quota(quota("b", "a"))
