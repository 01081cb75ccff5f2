"""The component quota-admission, as Kubernetes' own plugin decides by its policies."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.elasticquota import (
    ALLOW_FORCE_UPDATE,
    IS_PARENT,
    NAMESPACES,
    PARENT,
    PREEMPTIBLE,
    SHARED_WEIGHT,
    STRICT_KEYS,
    TOTAL_RESOURCE,
    TREE_ID,
)

OURS, TENANT = "system:serviceaccount:koordlet-system:koord-scheduler", "jane"
ROOT, SYSTEM, DEFAULT = (f"koordinator-{name}-quota" for name in ("root", "system", "default"))
QUOTAS, PODS = "koord-scheduler-quotas", "koord-scheduler-preemptible-pods"


def quota(
    low: object = None,
    high: object = None,
    *,
    name: str = "a",
    labels: dict[str, str] | None = None,
    used: object = None,
    **annotations: str,
) -> dict[str, Any]:
    meta: dict[str, Any] = {"namespace": "shop", "name": name}
    meta |= {"labels": labels} if labels else {}
    meta |= {"annotations": annotations} if annotations else {}
    spec = {key: value for key, value in (("min", low), ("max", high)) if value is not None}
    found: dict[str, Any] = {"metadata": meta, "spec": spec}
    return found if used is None else {**found, "status": {"used": used}}


def asks(
    before: dict[str, Any] | None, after: dict[str, Any] | None, user: str = TENANT
) -> dict[str, Any]:
    """A request; before None: the quota is created, after None: it is deleted."""
    named: Any = after or before
    return {
        "user": user,
        "operation": "CREATE" if before is None else "DELETE" if after is None else "UPDATE",
        "group": "scheduling.sigs.k8s.io",
        "kindGroup": "scheduling.sigs.k8s.io",
        "version": "v1alpha1",
        "kind": "ElasticQuota",
        "resource": "elasticquotas",
        "namespace": "shop",
        "name": named["metadata"]["name"],
        "object": after,
        "oldObject": before,
    }


def relabels(before: dict[str, str], after: dict[str, str], **status: str) -> dict[str, Any]:
    """A request that changes a pod's labels, and its status if there is any."""

    def pod(labels: dict[str, str], more: dict[str, str]) -> dict[str, Any]:
        meta = {"namespace": "shop", "name": "web", "labels": labels}
        return {"metadata": meta, "spec": {"containers": []}, "status": more}

    return {
        "user": TENANT,
        "operation": "UPDATE",
        "version": "v1",
        "kind": "Pod",
        "resource": "pods",
        "namespace": "shop",
        "name": "web",
        "object": pod(after, status),
        "oldObject": pod(before, {}),
    }


@pytest.fixture
def decide(deciding: Callable[[str], Callable[..., list[str]]]) -> Callable[..., list[str]]:
    return deciding("quota-admission")


CPU = {"cpu": "4"}
GOOD = quota({"cpu": "1"}, {"cpu": "4", "memory": "8Gi"})
USED = {"cpu": "3", "memory": "1Gi"}
BAD = quota({"cpu": "-1"}, CPU)
ALLOWED = {
    "a quota": asks(None, GOOD),
    "one with nothing in it": asks(None, quota()),
    "numbers": asks(None, quota({"cpu": 1, "gpu": 0}, {"cpu": 2, "gpu": "500m"})),
    "equal amounts": asks(None, quota({"cpu": "1000m"}, {"cpu": "1"})),
    "a weight": asks(
        None, quota(None, CPU, **{SHARED_WEIGHT: '{"cpu":"1.5", "a.b/c": 3 , "memory":"4Gi"}'})
    ),
    "an empty weight": asks(None, quota(None, CPU, **{SHARED_WEIGHT: "{}", TOTAL_RESOURCE: ""})),
    "namespaces": asks(None, quota(None, CPU, **{NAMESPACES: '["a", "b-1"]'})),
    "no namespaces": asks(None, quota(None, CPU, **{NAMESPACES: " [ ] "})),
    "a new max": asks(GOOD, quota({"cpu": "1"}, {"cpu": "9", "memory": "8Gi"})),
    "another parent": asks(quota(labels={PARENT: "x"}), quota(labels={PARENT: "y"})),
    "the status of a bad one": asks(BAD, {**BAD, "status": {"used": CPU}}),
    "its conditions": asks(BAD, quota({"cpu": "-1"}, CPU, **{f"{PREEMPTIBLE}-x": "[]"})),
    "a max that is strict": asks(
        quota(None, CPU, used=USED), quota(None, {"cpu": "3", "gpu": 1}, **{STRICT_KEYS: '["cpu"]'})
    ),
    "deletion": asks(GOOD, None),
    "deletion of an unused one": asks(quota(None, CPU, used={"cpu": "0"}), None),
    "forced deletion": asks(quota(None, CPU, used=USED, labels={ALLOW_FORCE_UPDATE: "true"}), None),
    "the scheduler's fixed quotas": asks(None, quota(None, CPU, name=DEFAULT), user=OURS),
    "a new max of the default quota": asks(
        quota(None, CPU, name=DEFAULT), quota(None, {"cpu": "9"}, name=DEFAULT)
    ),
    "the status of the root": asks(
        quota(name=ROOT), {**quota(name=ROOT), "status": {"used": CPU}}, user=OURS
    ),
}
FORBIDDEN = {
    "a negative min": (asks(None, BAD), "a quota.Spec.Min's value < 0, in dimensions :[cpu]"),
    "a negative max": (
        asks(GOOD, quota(None, {"cpu": -3, "memory": "-1Gi"})),
        "a quota.Spec.Max's value < 0, in dimensions :[cpu memory]",
    ),
    "no quantity": (asks(None, quota(None, {"cpu": "many"})), "no quantities, in dimensions :[cpu"),
    "min above max": (
        asks(None, quota({"cpu": "5"}, CPU)),
        "resourceKey cpu of quota a min 5 > max 4",
    ),
    "min without max": (
        asks(None, quota({"gpu": "1"}, CPU)),
        "resourceKey gpu of quota a is included in min, which is not included in max",
    ),
    "a negative weight": (
        asks(GOOD, quota({"cpu": "1"}, CPU, **{SHARED_WEIGHT: '{"cpu":"-1"}'})),
        f"a quota.Annotation[{SHARED_WEIGHT}]",
    ),
    "a total that is none": (
        asks(None, quota(None, CPU, **{TOTAL_RESOURCE: '{"cpu":"40"'})),
        f"a quota.Annotation[{TOTAL_RESOURCE}]",
    ),
    "namespaces that are none": (
        asks(None, quota(None, CPU, **{NAMESPACES: '["A", "b"]'})),
        f"a quota.Annotation[{NAMESPACES}]",
    ),
    "a namespace without its list": (
        asks(None, quota(None, CPU, **{NAMESPACES: '"a"'})),
        f"a quota.Annotation[{NAMESPACES}]",
    ),
    "another tree": (
        asks(quota(labels={TREE_ID: "1"}), quota(labels={TREE_ID: "2"})),
        "a tree id changed [1] vs [2]",
    ),
    "no tree any more": (
        asks(quota(labels={TREE_ID: "1"}), quota()),
        "a tree id changed [1] vs []",
    ),
    "its own parent": (asks(None, quota(labels={PARENT: "a"})), "a has parentName a, which cannot"),
    "below the default quota": (
        asks(None, quota(labels={PARENT: DEFAULT})),
        f"a has parentName {DEFAULT}",
    ),
    "a strict max below what is used": (
        asks(quota(None, CPU, used=USED), quota(None, {"cpu": "2"}, **{STRICT_KEYS: '["cpu"]'})),
        "resourceKey cpu of quota a",
    ),
    "a long name": (asks(None, quota(name="n" * 64)), "more than 63 characters"),
    "a tenant's default quota": (asks(None, quota(name=DEFAULT)), "only the scheduler may create"),
    "another root": (
        asks(quota(name=ROOT), quota(name=ROOT, labels={IS_PARENT: "true"}), user=OURS),
        f"invalid quota {ROOT}",
    ),
    "another system quota": (
        asks(quota(name=SYSTEM), quota(None, CPU, name=SYSTEM)),
        f"invalid quota {SYSTEM}",
    ),
    "deletion of a fixed quota": (
        asks(quota(name=SYSTEM), None, user=OURS),
        f"can not delete quotaGroup :{SYSTEM}",
    ),
    "deletion of a used one": (  # worked example 61, without the names of its pods
        asks(quota(None, CPU, used=USED), None),
        "delete quota failed, quota a has child pods",
    ),
}


def test_quotas_that_make_sense_are_admitted(decide: Any) -> None:
    """And so is the status of those that do not."""
    answers = decide(QUOTAS, *ALLOWED.values())
    assert dict(zip(ALLOWED, answers, strict=True)) == dict.fromkeys(ALLOWED, "")


def test_quotas_that_make_none_are_refused(decide: Any) -> None:
    answers = decide(QUOTAS, *(request for request, _ in FORBIDDEN.values()))
    for (case, (_, why)), answer in zip(FORBIDDEN.items(), answers, strict=True):
        assert why in _sorted_lists(answer), f"{case}: {answer or 'allowed'}"


def _sorted_lists(answer: str) -> str:
    """Return an answer with the names in brackets sorted: CEL walks a map in any order."""
    return re.sub(r"\[([^][]*)\]", lambda found: f"[{' '.join(sorted(found[1].split()))}]", answer)


def test_many_namespaces_are_within_the_budget_of_a_policy(decide: Any) -> None:
    names = ", ".join(f'"namespace-{number:052}"' for number in range(2000))
    (answer,) = decide(QUOTAS, asks(None, quota(None, CPU, **{NAMESPACES: f"[{names}]"})))
    assert answer == ""


def test_whether_a_pod_is_preemptible_stays_as_it_was_created(decide: Any) -> None:
    fixed = {PREEMPTIBLE: "false"}
    added, removed, other, status = decide(
        PODS,
        relabels({}, fixed),
        relabels(fixed, {}),
        relabels(fixed, {**fixed, "b": "c"}),
        relabels(fixed, fixed, phase="Running"),
    )
    assert added == removed
    assert "Preemptible label is forbidden modify now." in added
    assert other == status == ""
