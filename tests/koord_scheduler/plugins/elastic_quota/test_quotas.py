"""All quotas at one moment: however it came about, it is what the objects say."""

import dataclasses
from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koord.api.elasticquota import (
    DEFAULT_QUOTA,
    NAME,
    PREEMPTIBLE,
    SYSTEM_QUOTA,
    ElasticQuota,
)
from koord.cluster.account import Account
from koord_scheduler_plugins.elastic_quota.quotas import (
    QUOTA_PODS,
    LeavingPods,
    QuotaOptions,
    Quotas,
    pod_group,
    pod_request,
    pool_name,
    start,
)
from tests.support.clusters import finished, pod, read_pod

NAMES = ("a", "b", "c", DEFAULT_QUOTA)
OPTIONS = QuotaOptions(default_max={"cpu": 9000}, system_max={"cpu": 9000}, multi_tree=True)

pods = st.builds(
    lambda name, namespace, quota, cpu, node, fixed, ended, overdue_at: replace(
        read_pod(
            (finished if ended else dict)(
                pod(
                    name,
                    node,
                    {
                        **({NAME: quota} if quota else {}),
                        **({PREEMPTIBLE: "false"} if fixed else {}),
                    },
                    {"cpu": cpu},
                    namespace=namespace,
                )
            )
        ),
        deleting=overdue_at is not None,
        overdue_at=overdue_at,
    ),
    st.sampled_from("pqr"),
    st.sampled_from(("one", "two")),
    st.sampled_from(("", "a", "b", "x")),
    st.sampled_from(("1", "2", "250m")),
    st.sampled_from(("", "n")),
    st.booleans(),
    st.booleans(),
    st.sampled_from((None, None, 10.0, 20.0, 30.0)),
)
quotas = st.builds(
    lambda name, parent, low, high, lends, namespaces, tree: ElasticQuota(
        namespace="one" if name == "a" else "quotas",
        name=name,
        uid=name,
        parent=parent,
        lends=lends,
        min={"cpu": low},
        max={"cpu": high},
        weight={"cpu": high},
        namespaces=namespaces,
        tree=tree,
        is_root=bool(tree),
        total={"cpu": 2000} if tree else None,
    ),
    st.sampled_from(NAMES),
    st.sampled_from(("koordinator-root-quota", "a", "b", "gone")),
    st.sampled_from((0, 1000, 3000)),
    st.sampled_from((0, 3000, 5000)),
    st.booleans(),
    st.sampled_from(((), ("two",))),
    st.sampled_from(("", "", "t")),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), pods),
        st.tuples(st.just("no pod"), st.sampled_from(("one/p", "two/q", "one/r"))),
        st.tuples(st.just("quota"), quotas),
        st.tuples(st.just("no quota"), st.sampled_from(NAMES)),
        st.tuples(st.just("nodes"), st.sampled_from((0, 4000, 10_000))),
        st.tuples(st.just("seconds"), st.sampled_from((5, 10))),
    ),
    max_size=25,
)


def shown(found: Quotas) -> Any:
    """Everything that is decided by."""
    return {
        name: (
            tree,
            state.limit(name),
            state.used(name),
            state.request(name),
            state.non_preemptible_used(name),
            state.sums.requested.get(name, {}),
        )
        for name, tree in found.index.trees.items()
        if (state := found.state_of(name)) is not None
    }


@settings(max_examples=300, deadline=None)
@given(events, st.sampled_from(LeavingPods))
def test_followed_step_by_step_it_is_as_made_at_once(happened: Any, leaving: LeavingPods):
    options = dataclasses.replace(OPTIONS, leaving=leaving)
    account, objects, total, held, now = Account([options.pods]), {}, 0, {}, 0.0
    found = start(options)
    for what, about in happened:
        if what == "pod":
            account.put(about)
            held[about.key] = about
        elif what == "no pod":
            account.remove(about)
            held.pop(about, None)
        elif what == "quota":
            objects[about.name] = about
            found = found.with_objects(objects.values())
        elif what == "no quota":
            objects.pop(about, None)
            found = found.with_objects(objects.values())
        elif what == "nodes":
            total = about
            found = found.with_nodes({"cpu": total})
        else:
            now += about
        found = found.with_account(account.freeze()).with_time(now)
    fresh = Account([options.pods])
    for one in held.values():
        fresh.put(one)
    if any(
        "its own ancestor" in text
        for one in found.states.values()
        for text in one.tree.problems.values()
    ):
        return  # what then counts as the parent depends on what was before
    made = start(options).with_account(fresh.freeze()).with_nodes({"cpu": total})
    assert shown(made.with_time(now).with_objects(objects.values())) == shown(found)
    if leaving is LeavingPods.UNTIL_OVERDUE:
        at = [one.overdue_at for one in held.values() if one.overdue_at and not one.finished]
        assert found.next_overdue == min((one for one in at if one > now), default=inf)


def test_pods_are_one_pool_if_nothing_of_their_quota_differs():
    one = read_pod(pod("p", "", {NAME: "a", PREEMPTIBLE: "false"}, namespace="x"))
    group = pod_group(pool_name(one))
    assert (group.namespace, group.quota, group.preemptible) == ("x", "a", False)
    group = pod_group(pool_name(read_pod(pod("p", "", {}, namespace="x"))))
    assert (group.namespace, group.quota, group.preemptible) == ("x", "", True)


def test_deprecated_resources_count_for_those_that_quotas_have():
    one = read_pod(pod("p", requests={"koordinator.sh/batch-cpu": "500", "cpu": "1"}))
    assert pod_request(one) == {"kubernetes.io/batch-cpu": 500, "cpu": 1000}


def test_what_the_default_quota_uses_is_taken_from_the_default_tree_alone():
    account = Account([QUOTA_PODS])
    account.put(read_pod(pod("p", "n", requests={"cpu": "3"})))
    other = ElasticQuota(
        namespace="quotas", name="t", uid="t", tree="t", is_root=True, total={"cpu": 8000}
    )
    found = start(OPTIONS).with_objects([other]).with_nodes({"cpu": 20_000})
    found = found.with_account(account.freeze())
    assert found.states[""].available == {"cpu": 9000}  # 20 - 8 of the other tree - 3
    assert found.states["t"].available == {"cpu": 8000}
    assert {other.name, SYSTEM_QUOTA} <= found.index.trees.keys()
