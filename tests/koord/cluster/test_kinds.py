"""Pages and events: what is kept, and that a malformed object costs only itself."""

import gc
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement
from koord.cluster.decoder import MAX_OBJECT_BYTES, Decoder
from koord.cluster.facts import (
    AffinityTerm,
    ClusterPod,
    Condition,
    ContainerKind,
    ContainerState,
    NodeTerm,
    Owner,
    PreferredAffinityTerm,
    PreferredTerm,
    ReportedUsage,
)
from koord.cluster.kinds import BUDGET, NODE, NODE_METRIC, POD
from koord.cluster.lenient_decoding import DecodingFaults
from koord.util.errors import InvalidObject
from tests.support.clusters import (
    Json,
    expression,
    near,
    node,
    pod,
    read,
    read_node,
    read_pod,
    term,
)


def page(*items: Any, **meta: str) -> bytes:
    return json.dumps({"kind": "PodList", "metadata": meta, "items": items}).encode()


def test_the_facts_of_a_pod():
    obj = pod("p", "n", {"app": "web"}, {"cpu": "1"}, namespace="shop", priority=9)
    obj["metadata"] |= {
        "creationTimestamp": "1970-01-01T00:01:00Z",
        "deletionTimestamp": None,
        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}],
        "annotations": {"kubernetes.io/config.mirror": "x", "other": "y"},
    }
    obj["spec"]["volumes"] = [{"name": "t", "emptyDir": {}}]
    obj["status"] = {"phase": "Running", "qosClass": "Burstable"}
    found = read_pod(obj)

    assert (found.key, found.uid, found.node) == ("shop/p", "uid-shop-p", "n")
    assert (found.phase, found.qos, found.priority) == ("Running", "Burstable", 9)
    assert (found.created, found.deleting, found.local_storage) == (60.0, False, True)
    assert found.labels == {"app": "web"}
    assert found.owners == (Owner("ReplicaSet", "r", "u", True),)
    assert found.annotations == (("kubernetes.io/config.mirror", "x"),)
    assert found.spec.requests == (("cpu", 1000),)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, None),
        ({"deletionTimestamp": "1970-01-01T00:01:00Z"}, 60.0),
        ({"deletionTimestamp": "1970-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30}, 90.0),
        ({"deletionTimestamp": "soon", "deletionGracePeriodSeconds": 30}, None),
        ({"deletionTimestamp": "1970-01-01T00:01:00Z", "deletionGracePeriodSeconds": "x"}, 60.0),
        ({"deletionGracePeriodSeconds": 30}, None),
    ],
)
def test_when_a_pod_should_have_gone(more: Json, wanted: float | None):
    """What cannot be read of it makes the pod no other: it is being deleted all the same."""
    obj = pod("p", "n")
    obj["metadata"] |= more
    found = Decoder().object(POD, json.dumps(obj).encode(), DecodingFaults())
    assert (found.overdue_at, found.deleting) == (wanted, "deletionTimestamp" in more)


def test_the_status_of_a_pod():
    """Of containers, those that run and never restarted are not kept."""
    obj = pod("p", "n")
    waits = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 7}
    ended = {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    runs = {"state": {"running": {"startedAt": "2026-07-24T06:52:45Z"}}, "restartCount": 0}
    obj["status"] = {
        "phase": "Running",
        "reason": "Evicted",
        "startTime": "1970-01-01T00:02:00Z",
        "conditions": [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady",
             "lastTransitionTime": "1970-01-01T00:03:00Z"},
        ],
        "containerStatuses": [runs, waits, {**runs, "restartCount": 2}, {"state": None}],
        "initContainerStatuses": [ended],
        "ephemeralContainerStatuses": [{"state": {"waiting": {}}}],
    }  # fmt: skip
    found = read_pod(obj)

    assert (found.started, found.status_reason, found.ready) == (120.0, "Evicted", False)
    assert found.conditions == (
        Condition("Initialized", "True"),
        Condition("Ready", "False", "ContainersNotReady"),
    )
    assert found.condition_times == (None, 180.0)
    assert found.containers == (
        ContainerState(ContainerKind.REGULAR, restarts=7, waiting="CrashLoopBackOff"),
        ContainerState(ContainerKind.REGULAR, restarts=2),
        ContainerState(ContainerKind.INIT, ended="OOMKilled", exit_code=137),
        ContainerState(ContainerKind.EPHEMERAL, waiting=""),
    )


def test_pods_that_run_share_conditions_and_have_no_containers():
    obj = pod("p", "n")
    obj["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"state": {"running": {}}, "restartCount": 0}],
    }
    one, other = read_pod(obj), read_pod({**obj, "metadata": {"name": "q"}})

    assert one.ready
    assert one.containers == ()
    assert one.conditions is other.conditions


@pytest.mark.parametrize(
    ("labels", "name", "wanted"),
    [
        ({}, "default-scheduler", "default-scheduler"),
        ({"scheduling.koordinator.sh/scheduler-name": "koord-scheduler"}, "default-scheduler",
         "koord-scheduler"),
        ({"scheduling.koordinator.sh/scheduler-name": ""}, "default-scheduler",
         "default-scheduler"),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_the_scheduler_of_a_pod(labels: dict[str, str], name: str | None, wanted: str):
    """A label replaces what the spec says. Source: Koordinator, TransformSchedulerName."""
    assert read_pod(pod("p", labels=labels, schedulerName=name)).scheduler_name == wanted


def test_what_a_spec_prefers():
    """Preferences are kept apart from the rules, which alone forbid nodes."""
    match = {"matchExpressions": [expression("disk", "In", "ssd")]}
    terms = [
        {"weight": 5, "preference": match},
        {"weight": 1, "preference": {}},  # matches no node
        {"weight": 0, "preference": match},  # counts nothing
    ]
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    spread = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": {}}
    found = read_pod(
        pod(
            "p",
            affinity={"nodeAffinity": preferred},
            topologySpreadConstraints=[
                {**spread, "whenUnsatisfiable": "ScheduleAnyway"},
                {**spread, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 2},
            ],
            containers=[{"image": "b:1"}, {"image": "a:1"}, {}],
            resourceClaims=[{"name": "gpu"}],
        )
    ).spec

    term = NodeTerm((Requirement("disk", "In", ("ssd",)),))
    assert found.preferred_nodes == (PreferredTerm(5, term),)
    assert found.node_terms is None
    assert [one.max_skew for one in found.spread] == [2]
    assert [one.max_skew for one in found.soft_spread] == [1]
    assert found.images == ("", "a:1", "b:1")
    assert found.resource_claims


def test_preferred_pod_affinity() -> None:
    """With weights of 1 to 100; a term without namespaces means the pod's own."""
    wanted = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
    kinds = {"podAffinity": 7, "podAntiAffinity": 100}
    affinity = {
        kind: {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": weight, "podAffinityTerm": wanted}
            ]
        }
        for kind, weight in kinds.items()
    }
    spec = read_pod(pod("a", namespace="shop", affinity=affinity)).spec
    term = AffinityTerm("zone", (Requirement("app", "In", ("db",)),), ("shop",))
    assert spec.preferred_affinity == (PreferredAffinityTerm(7, term),)
    assert spec.preferred_anti_affinity == (PreferredAffinityTerm(100, term),)
    assert spec.affinity == spec.anti_affinity == ()


@pytest.mark.parametrize("weight", [0, -1, 101, 2**40])
def test_a_weight_that_kubernetes_refuses(weight: int) -> None:
    term = {"weight": weight, "podAffinityTerm": {"topologyKey": "zone"}}
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    with pytest.raises(InvalidObject, match="1 to 100"):
        read_pod(pod("a", affinity=affinity))


def test_other_images_are_another_spec():
    one, other = (read_pod(pod("p", containers=[{"image": name}])) for name in ("a:1", "a:2"))

    assert one.spec is not other.spec


def test_equal_pods_share_labels_and_spec():
    """Of whichever page or event; another namespace shares the spec unless a rule means it."""
    decoder = Decoder()

    def take(obj: Json) -> ClusterPod:
        return decoder.object(POD, json.dumps(obj).encode())

    one, other = take(pod("a", labels={"x": "y"})), take(pod("b", labels={"x": "y"}))
    elsewhere = take(pod("a", labels={"x": "y"}, namespace="shop"))
    assert one.spec is other.spec is elsewhere.spec
    assert one.label_set is other.label_set is not elsewhere.label_set

    rule = near("podAffinity", term("zone", {"x": "y"}))
    one, elsewhere = take(pod("a", affinity=rule)), take(pod("a", affinity=rule, namespace="shop"))
    assert one.spec.affinity[0].namespaces == ("default",)
    assert elsewhere.spec.affinity[0].namespaces == ("shop",)


def test_what_is_shared_ends_with_its_last_pod():
    decoder = Decoder()
    found = decoder.object(POD, json.dumps(pod("a", labels={"x": "y"})).encode())
    del found
    gc.collect()

    assert len(decoder._sharing._labels) == len(decoder._sharing._specs) == 0


def test_a_page_says_how_to_go_on():
    found = Decoder().page(POD, page(pod("a"), **{"resourceVersion": "7", "continue": "next"}))

    assert [one.name for one in found.objects] == ["a"]
    assert (found.resource_version, found.continue_) == ("7", "next")
    assert Decoder().page(POD, b'{"items": null}').objects == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": 5}, "pod default/bad: wanted .*spec"),
        ({"metadata": {"namespace": "default"}}, "pod default/: wanted .*name"),
        ({"metadata": 3}, "pod without a name: "),
        ({"status": []}, "pod default/bad: wanted .*status"),
        ({"spec": {"nodeName": 7}}, "pod default/bad: wanted .*spec"),
        ({"spec": {"priority": "high"}}, "pod default/bad: wanted .*spec"),
        ({"status": {"phase": {}}}, "pod default/bad: wanted .*status"),
        ({"metadata": {"name": "bad", "namespace": "default", "deletionTimestamp": 5}},
         "pod default/bad: wanted .*metadata"),
    ],
)  # fmt: skip
def test_what_the_server_cannot_have_taken_costs_only_itself(change: Json, message: str):
    """It is reported by its name; what was known of it stays."""
    found = Decoder().page(POD, page(pod("a"), {**pod("bad"), **change}, 17, pod("b")))

    assert [one.name for one in found.objects] == ["a", "b"]
    assert len(found.rejected) == 2
    with pytest.raises(InvalidObject, match=message):
        raise found.rejected[0].error


def test_an_oversized_object_is_refused():
    huge = pod("huge")
    huge["metadata"]["annotations"] = {"a": "x" * MAX_OBJECT_BYTES}
    found = Decoder().page(POD, page(huge, pod("b")))

    assert [one.name for one in found.objects] == ["b"]
    assert "pod default/huge: wanted at most" in str(found.rejected[0].error)


def test_deeply_nested_json_is_refused():
    """In a field that is not read it cannot even be skipped: the page is malformed."""
    deep = b'{"items": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}"

    with pytest.raises(InvalidObject, match="list of pods: wanted a list of objects"):
        Decoder().page(POD, deep)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"items": 3}', b'"\xff"', b"null"])
def test_what_is_no_list_is_refused(data: bytes):
    with pytest.raises(InvalidObject, match="list of pods"):
        Decoder().page(POD, data)


def test_events():
    decoder = Decoder()
    obj = node("n")
    obj["metadata"]["resourceVersion"] = "12"

    def take(kind: str, of: Json) -> Any:
        return decoder.event(NODE, json.dumps({"type": kind, "object": of}).encode())

    added = take("ADDED", obj)
    assert (added.type, added.key, added.uid, added.resource_version) == (
        "ADDED", "n", "uid-n", "12",
    )  # fmt: skip
    assert added.object == read_node(obj)
    mark = take("BOOKMARK", {"metadata": {"resourceVersion": "13"}})
    assert (mark.object, mark.resource_version) == (None, "13")
    assert take("ERROR", {"metadata": {}, "code": 410}).code == 410
    gone = take("DELETED", {**obj, "spec": 4})
    assert (gone.key, gone.uid, gone.resource_version) == ("n", "uid-n", "12")
    assert (gone.object, gone.faults) == (None, ())  # it is not read
    nameless = take("DELETED", {**obj, "metadata": {"uid": 7}})
    assert (nameless.key, nameless.uid, nameless.resource_version) == ("", "", "")
    for bad in (b"{}", b'{"type": "ADDED"}', b"\xff", b'{"type": "NEW", "object": {}}'):
        with pytest.raises(InvalidObject, match="event of a node"):
            decoder.event(NODE, bad)


@pytest.mark.parametrize(
    ("annotation", "cpu"),
    [
        (None, 4000),
        ('{"resources": {"cpu": "500m"}}', 3500),
        ('{"resources": {"cpu": "500m"}, "reservedCPUs": "0-1"}', 2000),
        ('{"resources": {"cpu": "9"}}', 0),
        ('{"resources": {"cpu": "1"}, "applyPolicy": "Default"}', 3000),
        ('{"resources": {"cpu": "1"}, "applyPolicy": "ReservedCPUsOnly"}', 4000),
        ("nonsense", 4000),
    ],
)
def test_a_reservation_takes_from_allocatable(annotation: str | None, cpu: int):
    """As Koordinator's node transformer does (spec of the descheduler, 1.5)."""
    obj = node("n")
    if annotation is not None:
        obj["metadata"]["annotations"] = {"node.koordinator.sh/reservation": annotation}

    assert dict(read_node(obj).allocatable)["cpu"] == cpu


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (None, ""),
        ([], ""),
        ([{"type": "Hostname", "address": "n"}, {"type": "InternalIP"}], ""),
        ([{"type": "InternalIP", "address": ip} for ip in ("10.0.0.7", "fd00::7")], "10.0.0.7"),
    ],
)
def test_the_first_internal_address_of_a_node_is_kept(addresses, found):
    """The others are not needed."""
    obj = node("n")
    obj["status"]["addresses"] = addresses
    assert read_node(obj).internal_ip == found


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([], True),
        ([{"type": "MemoryPressure", "status": "True"}], True),
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
    ],
)
def test_a_node_is_ready_unless_it_says_otherwise(conditions, ready):
    """Without a Ready condition, too, as Kubernetes' descheduler has it."""
    obj = node("n")
    obj["status"]["conditions"] = conditions
    assert read_node(obj).ready is ready


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ('{"cpu": "10", "memory": "1Ki"}', (("cpu", 10_000), ("memory", 1024))),
        ("{}", ()),
        ("null", None),
        ("[]", None),
        ('{"cpu": "many"}', None),
        ('{"cpu": "-1"}', None),
        ("{" * 10_000, None),
        ("", None),
    ],
)
def test_the_allocatable_before_it_was_amplified(text, amounts):
    """A malformed annotation counts as none."""
    obj = node("n")
    obj["metadata"]["annotations"] = {"node.koordinator.sh/raw-allocatable": text}
    assert read_node(obj).raw_allocatable == amounts


def test_a_node_metric():
    """A cold window, and a pod without figures, are absent, not 0."""
    usage = {"resources": {"cpu": "1500m", "memory": "1Gi"}}
    obj = {
        "metadata": {"name": "n"},
        "status": {
            "updateTime": "1970-01-01T00:02:00Z",
            "nodeMetric": {
                "nodeUsage": usage,
                "systemUsage": {},
                "aggregatedNodeUsages": [{"duration": "5m0s", "usage": {"p95": usage, "avg": {}}}],
            },
            "podsMetric": [
                {"name": "p", "namespace": "shop", "podUsage": usage, "qos": "BE"},
                {"name": "q", "namespace": "shop", "podUsage": {}},
            ],
            "hostApplicationMetric": [{"name": "a", "usage": usage}, {"usage": usage}, {}],
        },
    }
    found = read(NODE_METRIC, obj)

    assert (found.node, found.update_time) == ("n", 120.0)
    assert found.usage == ReportedUsage(1.5, float(1 << 30))
    assert found.system_usage is None
    assert found.host_usage == ReportedUsage(3.0, float(2 << 30))
    assert (found.aggregated[0].duration, found.aggregated[0].avg) == (300.0, None)
    assert found.aggregated[0].p95 == found.usage
    assert [(one.name, one.qos, one.usage) for one in found.pods] == [("p", "BE", found.usage)]
    assert found.interval is None
    assert read(NODE_METRIC, {"metadata": {"name": "new"}}).update_time is None


def test_a_node_metric_has_its_interval_and_what_is_counted_beside_cpu_and_memory():
    """Whatever resources there are, of the node and of pods."""
    resources = {"cpu": "250m", "memory": "1Gi", "example.com/fpga": "2"}
    pods = [{"name": "p", "namespace": "default", "podUsage": {"resources": resources}}]
    obj = {
        "metadata": {"name": "n"},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 30}},
        "status": {"nodeMetric": {"nodeUsage": {"resources": resources}}, "podsMetric": pods},
    }
    found = read(NODE_METRIC, obj)

    assert found.interval == 30.0
    assert found.usage == ReportedUsage(0.25, float(1 << 30), (("example.com/fpga", 2),))
    assert found.pods[0].usage == found.usage


@pytest.mark.parametrize("cpu", ["-1", "many", str(2**63)])
def test_a_pod_whose_usage_cannot_be_read_is_not_idle(cpu: str):
    """What is missing is 0, as in Koordinator; what is wrong is not known."""
    resources = [{"cpu": cpu, "memory": "1Gi"}, {"memory": "1Gi"}]
    pods = [
        {"name": f"p{at}", "namespace": "default", "podUsage": {"resources": each}}
        for at, each in enumerate(resources)
    ]
    data = json.dumps({"metadata": {"name": "n"}, "status": {"podsMetric": pods}}).encode()
    faults = DecodingFaults()
    found = Decoder().object(NODE_METRIC, data, faults)

    assert faults
    assert [(one.name, one.usage.cores) for one in found.pods] == [("p1", 0.0)]


@pytest.mark.parametrize(
    ("selector", "covered"),
    [({"selector": {}}, True), ({}, False), ({"selector": {"matchLabels": {"app": "db"}}}, False)],
)
def test_a_disruption_budget_covers_pods_of_its_namespace(selector: Json, covered: bool):
    """An empty selector matches all of them, none at all no pod."""
    meta = {"name": "b", "namespace": "default"}
    status = {"disruptionsAllowed": 1, "disruptedPods": {"p": "2026-07-24T06:52:45Z"}}
    budget = read(BUDGET, {"metadata": meta, "spec": selector, "status": status})

    assert (budget.allowed, budget.disrupted) == (1, {"p"})
    assert budget.covers(read_pod(pod("p", labels={"app": "web"}))) is covered
    assert not budget.covers(read_pod(pod("p", namespace="shop")))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(("metadata", "name", "labels", "spec", "containers", "resources",
                         "requests", "cpu", "affinity", "status", "phase", "volumes")),
        inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def outcome(take: Callable[[], object]) -> str:
    """The message of an InvalidObject; "": none was raised."""
    try:
        take()
    except InvalidObject as err:
        return str(err)
    return ""


@given(json_values)
def test_no_json_crashes_the_decoder(value: object):
    """Whatever comes is an object that is kept, or an InvalidObject that names the kind."""
    data = json.dumps(value).encode()
    for kind in (POD, NODE, NODE_METRIC, BUDGET):
        message = outcome(partial(Decoder().object, kind, data))
        assert not message or kind.name in message


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_decoder(data: bytes):
    for take in (Decoder().page, Decoder().event):
        for whole in (data, b'{"items": [' + data + b"]}"):
            message = outcome(partial(take, POD, whole))
            assert not message or "pod" in message
