"""DefaultEvictor: what it protects, when it lets go, what it makes of the server's responses."""

from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord.kube.errors import api_error
from koord.kube.transport import Call
from koord.util.errors import KoordError
from koord_descheduler.plugin import EvictOptions
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_workload
from koord_descheduler.rules.evictorfilter import EVICT, PREFER_NO_EVICTION
from koord_descheduler_plugins.default_evictor import PAUSE, DefaultEvictor

RS = make_workload("ReplicaSet", "web")
CRITICAL = 2_000_000_000


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name)
    cluster.priority_class("high", 1000)
    return cluster


def owned(cluster: FakeCluster, name: str = "web", **facts: Any) -> ClusterPod:
    return cluster.pod(name, "n1", **{"owner": RS, **facts})


async def reject_reason(cluster: FakeCluster, pod: ClusterPod, args: object = None) -> str:
    async with PluginHarness(DefaultEvictor, cluster, args=args) as harness:
        subject = harness.subject
        assert isinstance(subject, DefaultEvictor)
        assert subject.filter(pod) == (not subject.reject_reason(pod))
        return subject.reject_reason(pod)


async def may_go_now(cluster: FakeCluster, pod: ClusterPod, args: object = None) -> bool:
    async with PluginHarness(DefaultEvictor, cluster, args=args) as harness:
        subject = harness.subject
        assert isinstance(subject, DefaultEvictor)
        return subject.pre_eviction_filter(pod)


def disabled(*names: str) -> dict[str, Any]:
    return {"podProtections": {"defaultDisabled": list(names)}}


def extra(*names: str) -> dict[str, Any]:
    return {"podProtections": {"extraEnabled": list(names)}}


LOCAL = {"spec": {"volumes": [{"name": "tmp", "emptyDir": {}}]}}
CLAIM = {"spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}}
DAEMON = {"owner": make_workload("DaemonSet", "agent")}


@pytest.mark.parametrize(
    ("facts", "args", "wanted"),
    [
        ({}, {}, ""),
        ({"owner": None}, {}, "it has no owner"),
        ({"owner": None, "phase": "Failed"}, {}, "it has no owner"),
        ({"owner": None, "phase": "Failed"}, {"evictFailedBarePods": True}, ""),
        ({"owner": None}, disabled("FailedBarePods"), "it has no owner and has not failed"),
        (LOCAL, {}, "it has local storage"),
        (LOCAL, {"evictLocalStoragePods": True}, ""),
        (LOCAL, disabled("PodsWithLocalStorage"), ""),
        (DAEMON, {}, "it belongs to a DaemonSet"),
        (DAEMON, {"evictDaemonSetPods": True}, ""),
        (DAEMON, disabled("DaemonSetPods"), ""),
        ({"priority": CRITICAL}, {}, f"its priority {CRITICAL} is system critical"),
        ({"priority": CRITICAL}, {"evictSystemCriticalPods": True}, ""),
        ({"priority": 500}, {"priorityThreshold": {"value": 500}},
         "its priority 500 reaches the threshold 500"),
        ({"priority": 1000}, {"priorityThreshold": {"name": "high"}},
         "its priority 1000 reaches the threshold 1000"),
        ({"priority": 500}, {"priorityThreshold": {"value": 500}, **disabled("SystemCriticalPods")},
         ""),
        (CLAIM, {}, ""),
        (CLAIM, {"ignorePvcPods": True}, "it has a PersistentVolumeClaim"),
        (CLAIM, extra("PodsWithPVC"), "it has a PersistentVolumeClaim"),
        ({}, {"ignorePodsWithoutPDB": True}, "it has no PodDisruptionBudget"),
        ({"labels": {"app": "kept"}}, extra("PodsWithoutPDB"), ""),
        ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, extra("PodsWithResourceClaims"),
         "it has ResourceClaims"),
        ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, {}, ""),
        ({}, {"labelSelector": {"matchLabels": {"app": "db"}}},
         "its labels are not those of labelSelector"),
        ({"annotations": {PREFER_NO_EVICTION: "true"}}, {}, ""),
        ({"annotations": {PREFER_NO_EVICTION: "false"}}, {"noEvictionPolicy": "Mandatory"},
         f"its annotation {PREFER_NO_EVICTION} asks to let it stay"),
        ({"annotations": {PREFER_NO_EVICTION: "", EVICT: ""}}, {"noEvictionPolicy": "Mandatory"},
         ""),
        ({"owner": None, "annotations": {EVICT: "false"}}, {}, ""),
        ({"annotations": {"kubernetes.io/config.mirror": "x", EVICT: ""}}, {},
         "it is a mirror pod"),
        # podProtections wins over the older fields
        (LOCAL, {"evictLocalStoragePods": True, **disabled("DaemonSetPods")},
         "it has local storage"),
    ],
)  # fmt: skip
async def test_what_keeps_a_pod(
    cluster: FakeCluster, facts: dict[str, Any], args: dict[str, Any], wanted: str
):
    """Source: the Kubernetes descheduler's guide, "Evictor Plugin configuration"."""
    cluster.budget("kept", {"app": "kept"})

    assert await reject_reason(cluster, owned(cluster, **facts), args) == wanted


@pytest.mark.parametrize(
    ("storage_class", "wanted"),
    [
        ("local", "its claim data has the protected storage class local"),
        ("remote", ""),
        (None, "the storage class of its claim data is not known"),
    ],
)
async def test_claims_of_some_storage_classes(
    cluster: FakeCluster, storage_class: str | None, wanted: str
):
    meta = {"name": "data", "namespace": "default"}
    spec = {"storageClassName": storage_class}
    cluster.apply({"kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec})
    protections = {
        "extraEnabled": ["PodsWithPVC"],
        "config": {"PodsWithPVC": {"protectedStorageClasses": [{"name": "local"}]}},
    }
    args = {"podProtections": protections}

    assert await reject_reason(cluster, owned(cluster, **CLAIM), args) == wanted


@pytest.mark.parametrize(("pods", "kept"), [(1, True), (2, True), (3, False)])
async def test_pods_of_small_owners_stay(cluster: FakeCluster, pods: int, kept: bool):
    mine = [owned(cluster, f"web-{number}") for number in range(pods)]

    assert bool(await reject_reason(cluster, mine[0], {"minReplicas": 3})) == kept


@pytest.mark.parametrize(("age", "kept"), [(None, True), (59, True), (60, False)])
async def test_young_pods_stay(cluster: FakeCluster, age: float | None, kept: bool):
    """The age counts from the start; without one the pod has not started."""
    begun = cluster.clock.wall() - (age or 0)
    status = {} if age is None else {"startTime": _moment(begun)}
    pod = owned(cluster, status=status)

    assert bool(await reject_reason(cluster, pod, {"minPodAge": "1m"})) == kept


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat()


async def test_with_node_fit_a_pod_goes_only_where_it_has_room(cluster: FakeCluster):
    big, small = owned(cluster, "big", cpu=3), owned(cluster, "small", cpu=1)
    cluster.pod("other", "n2", cpu=2)

    assert not await may_go_now(cluster, big, {"nodeFit": True})
    assert await may_go_now(cluster, small, {"nodeFit": True})
    assert await may_go_now(cluster, big)


async def test_why_a_pod_does_not_go_now_is_said(cluster: FakeCluster):
    cluster.pod("other", "n2", cpu=2)
    args = {"nodeFit": True, "namespaceLabelSelector": {"matchLabels": {"team": "a"}}}
    async with PluginHarness(DefaultEvictor, cluster, args=args) as harness:
        refusals = [
            harness.subject.pre_eviction_reject_reason(owned(cluster, name, cpu=cpu))
            for name, cpu in (("big", 3), ("small", 1))
        ]
    assert refusals == [
        "none of 1 nodes fits: 1 too little room",
        "namespace default is not among those of namespaceLabelSelector",
    ]


async def test_only_nodes_of_the_selector_count_for_node_fit(cluster: FakeCluster):
    pod = owned(cluster)
    args = {"nodeFit": True, "nodeSelector": "pool=spare"}
    assert not await may_go_now(cluster, pod, args)

    cluster.node("n3", labels={"pool": "spare"})
    assert await may_go_now(cluster, pod, args)
    cluster.node("n3", labels={"pool": "spare"}, ready=False)
    assert not await may_go_now(cluster, pod, args)


async def test_namespaces_by_their_labels(cluster: FakeCluster):
    args = {"namespaceLabelSelector": {"matchLabels": {"team": "a"}}}
    cluster.apply({"kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "a"}}})

    assert await may_go_now(cluster, owned(cluster, namespace="shop"), args)
    assert not await may_go_now(cluster, owned(cluster, namespace="bank"), args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"podProtections": {"extraEnabled": ["DaemonSetPods"]}}, "extraEnabled.*DaemonSetPods"),
        ({"podProtections": {"defaultDisabled": ["All"]}}, "defaultDisabled.*All"),
        ({"nodeSelector": "a in"}, "nodeSelector"),
        ({"minPodAge": "-1s"}, "minPodAge"),
        ({"minReplicas": -1}, "minReplicas"),
        ({"noEvictionPolicy": "Sometimes"}, "noEvictionPolicy"),
    ],
)
def test_bad_arguments_are_named(cluster: FakeCluster, args: dict[str, Any], message: str):
    with pytest.raises(KoordError, match=message):
        PluginHarness(DefaultEvictor, cluster, args=args)


async def test_an_eviction(cluster: FakeCluster):
    """The pod of this UID, with the delete options that were given; metric and event say so."""
    pod = owned(cluster)
    options = EvictOptions(
        plugin_name="PodLifeTime", reason="too old", delete_options={"gracePeriodSeconds": 5}
    )
    async with PluginHarness(DefaultEvictor, cluster) as harness:
        assert await harness.evict(pod, options)

    assert harness.server.evicted == [pod]
    [call] = harness.server.calls
    assert call.path == "/api/v1/namespaces/default/pods/web/eviction"
    assert b'"gracePeriodSeconds":5' in call.body.replace(b" ", b"")
    assert b'"uid":"uid-default-web"' in call.body.replace(b" ", b"")
    labels = {"strategy": "PodLifeTime", "namespace": "default", "node": "n1"}
    assert harness.metric("descheduler_pods_evicted", result="success", **labels) == 1
    [event] = harness.services.events.events  # type: ignore[attr-defined]
    assert (event.about.name, event.reason) == ("web", "Descheduled")
    assert "PodLifeTime: too old" in event.message


async def test_a_budget_refuses(cluster: FakeCluster):
    """Other pods have their chance in the same cycle."""
    cluster.budget("web", {"app": "web"}, allowed=0)
    kept, gone = owned(cluster, "kept", labels={"app": "web"}), owned(cluster, "gone")
    async with PluginHarness(DefaultEvictor, cluster) as harness:
        assert not await harness.evict(kept, EvictOptions(plugin_name="A"))
        assert await harness.evict(gone, EvictOptions(plugin_name="A"))

    labels = {"strategy": "A", "namespace": "default", "node": "n1"}
    assert harness.metric("descheduler_pods_evicted", result="error", **labels) == 1
    assert len(harness.services.events.events) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "reason", "busy"),
    [
        (404, "NotFound", False),
        (409, "Conflict", False),
        (403, "Forbidden", False),
        (500, "InternalError", False),
        (429, "TooManyRequests", True),
    ],
)
async def test_what_the_server_refuses_is_no_eviction(
    cluster: FakeCluster, status: int, reason: str, busy: bool
):
    """While the server is too busy for requests no other pod is asked for either."""
    pod, other = owned(cluster), owned(cluster, "other")

    def refuse(call: Call) -> None:
        if call.path.endswith("/web/eviction"):
            raise api_error(status, {"kind": "Status", "reason": reason}, where=call.where)

    async with PluginHarness(DefaultEvictor, cluster) as harness:
        harness.server.answer(refuse)  # type: ignore[arg-type]
        assert not await harness.evict(pod)
        assert await harness.evict(other) is not busy
        await cluster.clock.advance(PAUSE)
        assert await harness.evict(other)


async def test_an_answer_of_a_proxy_is_no_eviction(cluster: FakeCluster):
    pod = owned(cluster)
    async with PluginHarness(DefaultEvictor, cluster) as harness:
        harness.server.answer(lambda call: {"hello": "world"})
        assert not await harness.evict(pod)

    assert harness.server.evicted == []


async def test_in_dry_run_budgets_refuse_what_the_server_would(cluster: FakeCluster):
    """They count the evictions of the same cycle; a pod that does not run needs none."""
    cluster.budget("web", {"app": "web"}, allowed=1)
    cluster.budget("one", {"app": "db"})
    cluster.budget("two", {"app": "db"})
    web = [owned(cluster, f"web-{number}", labels={"app": "web"}) for number in range(2)]
    pending = owned(cluster, "pending", labels={"app": "web"}, phase="Pending")
    async with PluginHarness(DefaultEvictor, cluster, dryRun=True) as harness:
        for _ in range(2):
            await harness.cycle()
            assert [await harness.evict(pod) for pod in web] == [True, False]
            cluster.clock.tick(10)
        assert await harness.evict(pending)
        assert not await harness.evict(owned(cluster, "db", labels={"app": "db"}))
        reasons = [one.reason for one in harness.decisions.pods() if one.pod == "default/web-1"]

    assert reasons == ["PodDisruptionBudget default/web does not allow it"]
    assert harness.server.calls == []
