"""What the API server takes is never refused whole, whatever it holds beside what decides."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.decoder import DecodedEvent, Decoder
from koord.cluster.facts import ClusterNode, ClusterPod, Condition, Owner, PodSpec
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import BUDGET, NODE, POD
from koord.cluster.lenient_decoding import MAX_NOTED_FAULTS, OTHERS
from koord.cluster.pod_specs import MAX_ALLOCATABLE, MAX_AMOUNT
from koord.cluster.predicates import fits
from koord.cluster.state import Snapshot
from tests.support.clusters import Json, expression, near, node, node_affinity, pod, term

CONTROLLER = {"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
OWNER = {"kind": "Other", "name": "x", "uid": "v"}


def event(obj: Json, kind: Any = POD) -> DecodedEvent[Any]:
    return Decoder().event(kind, json.dumps({"type": "MODIFIED", "object": obj}).encode())


def ordinary() -> Json:
    """A running pod of which all that decides is there."""
    obj = pod("p", "n1", {"app": "web"}, {"cpu": "3"}, priority=7)
    obj["metadata"] |= {
        "deletionTimestamp": "2026-07-24T06:52:45Z",
        "ownerReferences": [CONTROLLER],
    }
    return obj


def check(found: ClusterPod) -> None:
    """See that what decides is there."""
    assert (found.key, found.uid, found.node) == ("default/p", "uid-default-p", "n1")
    assert (found.phase, found.deleting, found.priority) == ("Running", True, 7)
    assert Owner("ReplicaSet", "r", "u", True) in found.owners
    assert dict(found.spec.requests)["cpu"] == 3000


def in_meta(**fields: Any) -> Callable[[Json], None]:
    return lambda obj: obj["metadata"].update(fields)


def in_spec(**fields: Any) -> Callable[[Json], None]:
    return lambda obj: obj["spec"].update(fields)


def in_status(**fields: Any) -> Callable[[Json], None]:
    return lambda obj: obj["status"].update(fields)


def in_container(**fields: Any) -> Callable[[Json], None]:
    return lambda obj: obj["spec"]["containers"][0].update(fields)


def many(number: int, text: str = "k{}") -> dict[str, str]:
    return {text.format(at): "v" for at in range(number)}


def resources(number: int) -> Json:
    return {"requests": {"cpu": "3", **many_of("1", number)}}


def many_of(value: str, number: int) -> dict[str, str]:
    return {f"example.com/r{at:05}": value for at in range(number)}


VALUES = node_affinity({"matchExpressions": [expression("a", "In", *map(str, range(8193)))]})
TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
LONG_TERMS = [term("zone", {"app": f"{at:060}"}) for at in range(4000)]

READ = {  # beyond the former bounds, and read in full
    "labels": in_meta(labels=many(1025)),
    "annotations": in_meta(annotations=many(1025)),
    "owner references": in_meta(ownerReferences=[*[OWNER] * 1025, CONTROLLER]),
    "tolerations": in_spec(tolerations=[{"key": f"k{at}"} for at in range(1025)]),
    "ports": in_container(ports=[{"containerPort": at} for at in range(1025)]),
    "image name": in_container(image="i" * 4097),
    "resources": in_container(resources=resources(257)),
    "selector values": in_spec(affinity=VALUES),
    "node selector": in_spec(nodeSelector=many(1025)),
    "volumes": in_spec(volumes=[{"name": f"v{at}", "emptyDir": {}} for at in range(1025)]),
    "conditions": in_status(conditions=[{"type": f"t{at}", "status": "True"} for at in range(600)]),
    "init containers": in_spec(initContainers=[{"name": f"i{at}"} for at in range(1025)]),
    "affinity terms": in_spec(affinity=near("podAffinity", *[TERM] * 1025)),
    "text": in_container(args=["<" * 1_400_000]),
    "label values": in_meta(labels={"a": "x" * 5000}),
}
CUT = {  # cut, or left out, which does not matter to where the pod may run
    "labels": in_meta(labels=many(5000)),
    "owner references": in_meta(ownerReferences=[*[OWNER] * 9000, CONTROLLER]),
    "conditions": in_status(conditions=[{"type": f"t{at}", "status": "x"} for at in range(9000)]),
    "images": in_container(image="i" * 300_000),
    "preferences": in_spec(affinity={"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": one} for one in LONG_TERMS]}}),
    "a preference": in_spec(affinity={"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 101, "podAffinityTerm": TERM}]}}),
    "a time": in_meta(creationTimestamp="soon"),
}  # fmt: skip
UNREAD = {  # left out, so that the pod counts as fitting no node
    "affinity": in_spec(affinity=near("podAffinity", *LONG_TERMS)),
    "anti-affinity": in_spec(affinity=near("podAntiAffinity", *LONG_TERMS)),
    "node affinity": in_spec(affinity=node_affinity(
        {"matchExpressions": [expression("a", "In", *[f"{at:063}" for at in range(5000)])]})),
    "node selector": in_spec(nodeSelector=many(9000, "{:060}")),
    "tolerations": in_spec(tolerations=[{"key": f"{at:060}"} for at in range(5000)]),
    "spread": in_spec(topologySpreadConstraints=[
        {"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": many(9000, "{:060}")}}]),
    "ports": in_container(ports=[{"containerPort": 1, "hostPort": at} for at in range(1, 9000)]),
    "resources": in_container(resources=resources(9000)),
    "an unknown operator": in_spec(affinity=near("podAffinity", TERM, {
        "topologyKey": "z", "labelSelector": {
            "matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}})),
    "a term": in_spec(affinity=near("podAntiAffinity", TERM, {"labelSelector": 5})),
    "a toleration": in_spec(tolerations=[{"key": 7}, {"key": "a"}]),
    "no quantity": in_container(resources={"requests": {"cpu": "3", "memory": "much"}}),
    "a negative amount": in_container(resources={"requests": {"cpu": "3", "memory": "-1"}}),
    "a large amount": in_container(resources={"requests": {"cpu": "3", "memory": "1Ei"}}),
    "a restart policy": in_container(restartPolicy=5),
    "an annotation": in_meta(annotations={"a": 5}),
    "a restart count": in_status(containerStatuses=[{"restartCount": "many"}]),
}  # fmt: skip


@pytest.mark.parametrize("change", READ.values(), ids=READ)
def test_what_is_read_in_full(change: Callable[[Json], None]) -> None:
    """Beyond what anybody needs, and yet nothing is missing."""
    obj = ordinary()
    change(obj)
    found = event(obj)
    check(found.object)
    assert (found.faults, found.object.spec.unread) == ((), ())


@pytest.mark.parametrize("change", CUT.values(), ids=CUT)
def test_what_is_cut(change: Callable[[Json], None]) -> None:
    """Which is said; all that decides counts."""
    obj = ordinary()
    change(obj)
    found = event(obj)
    check(found.object)
    assert len(found.faults) == 1
    assert found.object.spec.unread == ()


@pytest.mark.parametrize("change", UNREAD.values(), ids=UNREAD)
def test_a_rule_that_cannot_be_read(change: Callable[[Json], None]) -> None:
    """The pod fits nowhere, where it might seem to fit, and takes its room where it runs."""
    obj = ordinary()
    change(obj)
    found = event(obj)
    check(found.object)
    assert found.faults
    assert found.object.spec.unread
    snapshot = Snapshot()
    for name in ("n1", "n2"):
        snapshot.put_node(event(node(name, allocatable={"cpu": "100", "pods": "9"}), NODE).object)
    snapshot.put_pod(found.object)
    view = snapshot.view()
    assert not fits(found.object, view).mask.any()
    assert view.requested_of(view.traits.rows["n1"], view.resources["cpu"]) == 3000


def test_a_bad_term_costs_only_itself() -> None:
    """The others still keep pods away from a running one."""
    bad = {"topologyKey": "z", "labelSelector": {"matchExpressions": [{"key": "a"}]}}
    found = event(pod("p", "n", affinity=near("podAntiAffinity", TERM, bad, TERM)))
    assert [one.topology_key for one in found.object.spec.anti_affinity] == ["zone"] * 2


def test_labels_that_others_understand_are_kept_first() -> None:
    known = {"scheduling.koordinator.sh/scheduler-name": "k", "app.kubernetes.io/name": "n"}
    found = event(pod("p", labels={**many(5000), **known})).object
    assert known.items() <= found.labels.items()
    assert found.scheduler_name == "k"
    assert 3000 < len(found.labels) < 5000


def test_a_ready_condition_counts_wherever_it_is_among_a_few() -> None:
    obj = pod("p")
    obj["status"]["conditions"] = [
        *[{"type": f"t{at}", "status": "True"} for at in range(500)],
        {"type": "Ready", "status": "True"},
    ]
    found = event(obj).object
    assert found.ready
    assert found.conditions[-1] == Condition("Ready", "True")


NODES: dict[str, Callable[[Json], None]] = {
    "labels": in_meta(labels={"zone": "z", **many(5000)}),
    "annotations": in_meta(annotations=many(2000)),
    "resources": in_status(allocatable={"cpu": "4", "pods": "10", **many_of("1", 9000)}),
    "amounts": in_status(allocatable={"cpu": "4", "pods": "10", "memory": "1Ei"}),
    "a malformed amount": in_status(allocatable={"cpu": "4", "pods": "10", "memory": "lots"}),
    "images": in_status(
        allocatable={"cpu": "4", "pods": "10"},
        images=[{"names": [f"{at:0200}"], "sizeBytes": 1} for at in range(12_000)],
    ),
    "conditions": in_status(
        allocatable={"cpu": "4", "pods": "10"},
        conditions=[{"type": f"t{at}", "status": "True"} for at in range(2000)],
    ),
}


@pytest.mark.parametrize("change", NODES.values(), ids=NODES)
def test_a_node_counts(change: Callable[[Json], None]) -> None:
    """With its room, taints and labels."""
    obj = node("n", {"zone": "z"}, taints=[{"key": "a", "effect": "NoSchedule"}])
    change(obj)
    found: ClusterNode = event(obj, NODE).object
    assert found.name == "n"
    assert dict(found.allocatable)["cpu"] == 4000
    assert found.taints[0].key == "a"
    assert found.labels["zone"] == "z"
    assert dict(found.allocatable).get("memory", 0) in (0, 8 << 30, MAX_ALLOCATABLE)


def test_many_taints_all_count() -> None:
    taints = [{"key": f"k{at}", "effect": "NoSchedule"} for at in range(1025)]
    found: ClusterNode = event(node("n", taints=taints), NODE).object
    assert len(found.taints) == 1025
    assert not found.unschedulable


@pytest.mark.parametrize(
    "taints", [[{"key": "a"}], "none", [{"key": f"{at:063}", "effect": "x"} for at in range(9000)]]
)
def test_of_taints_that_cannot_be_read_the_node_gets_nothing_new(taints: Any) -> None:
    found = event(node("n", taints=taints), NODE)
    assert found.object.unschedulable
    assert found.faults


def test_a_budget_whose_pods_are_not_known_allows_none() -> None:
    obj = {
        "metadata": {"name": "b", "namespace": "shop"},
        "spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
        "status": {"disruptionsAllowed": 3},
    }
    found = event(obj, BUDGET).object
    assert found.allowed == 0
    assert found.covers(event(pod("p", namespace="shop")).object)
    assert not found.covers(event(pod("p", namespace="other")).object)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
OPTIONAL = {
    "metadata": ("labels", "annotations", "creationTimestamp", "resourceVersion"),
    "spec": ("tolerations", "affinity", "nodeSelector", "topologySpreadConstraints", "volumes",
             "resources", "overhead", "resourceClaims", "schedulingGates", "schedulerName",
             "preemptionPolicy"),
    "status": ("conditions", "containerStatuses", "initContainerStatuses", "qosClass", "reason",
               "startTime", "nominatedNodeName", "resize"),
}  # fmt: skip
PLACES = st.sampled_from([(part, name) for part, names in OPTIONAL.items() for name in names])


@given(st.dictionaries(PLACES, JSON, max_size=5), st.dictionaries(st.text(max_size=8), JSON))
def test_whatever_optional_fields_hold_what_decides_is_read(
    fields: dict[tuple[str, str], Any], container: Json
) -> None:
    """Of any type at all, nested as it may be; what is missing of the rules is named."""
    obj = ordinary()
    for (part, name), value in fields.items():
        obj[part][name] = value
    first = obj["spec"]["containers"][0]
    obj["spec"]["containers"][0] = {**container, "image": container, "ports": container, **first}
    found = event(obj).object
    requests = dict(found.spec.requests)
    pod_level = obj["spec"].get("resources")
    assert requests["cpu"] >= 0 if pod_level else requests["cpu"] == 3000
    assert (found.key, found.uid, found.node) == ("default/p", "uid-default-p", "n1")
    assert (found.phase, found.deleting, found.priority) == ("Running", True, 7)
    assert found.owners == (Owner("ReplicaSet", "r", "u", True),)


def size_of(value: Any, seen: set[int]) -> int:
    """Bytes of an object and of all that it refers to."""
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, tuple | list | frozenset):
        inner = list(value)
    elif hasattr(value, "__struct_fields__"):
        inner = [getattr(value, name) for name in value.__struct_fields__]
    elif type(value).__name__ == "mappingproxy":
        inner = [dict(value)]
    elif type(value).__name__ == "Requirement":
        inner = [value.key, value.operator, value.values]
    return sys.getsizeof(value) + sum(size_of(one, seen) for one in inner)


LIMIT = 1_500_000  # bytes that etcd takes
FILLED = {
    "labels": lambda: in_meta(labels=many(LIMIT // 12)),
    "annotations": lambda: in_meta(annotations=many(LIMIT // 12)),
    "owner references": lambda: in_meta(
        ownerReferences=[{"kind": "K", "name": f"{at}", "uid": f"{at}"} for at in range(30_000)]
    ),
    "tolerations": lambda: in_spec(tolerations=[{"key": f"{at}"} for at in range(90_000)]),
    "affinity": lambda: in_spec(
        affinity=near("podAntiAffinity", *[{"topologyKey": f"{at}"} for at in range(50_000)])
    ),
    "preferences": lambda: in_spec(affinity={"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": f"{at}"}} for at in range(20_000)]}}),
    "resources": lambda: in_container(resources={"requests": many_of("1", 50_000)}),
    "ports": lambda: in_container(
        ports=[{"containerPort": 1, "hostPort": at} for at in range(1, 40_000)]
    ),
    "conditions": lambda: in_status(
        conditions=[{"type": f"{at}", "status": "x"} for at in range(40_000)]
    ),
    "container statuses": lambda: in_status(
        containerStatuses=[{"name": f"{at}", "restartCount": at} for at in range(40_000)]
    ),
    "volumes": lambda: in_spec(
        volumes=[{"name": f"{at}", "ephemeral": {}} for at in range(45_000)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("fill", FILLED.values(), ids=FILLED)
def test_an_object_at_the_limit_takes_bounded_memory(
    fill: Callable[[], Callable[[Json], None]],
) -> None:
    """Once decoded, whatever fills it."""
    obj = pod("p")
    fill()(obj)
    found = event(obj).object
    assert isinstance(found, ClusterPod)
    assert size_of(found, set()) < 4 << 20


def test_sums_stay_below_64_bits() -> None:
    """However many pods request however much of whatever; when they go, it is as it was."""
    snapshot = Snapshot()
    snapshot.put_node(event(node("n"), NODE).object)
    huge = event(pod("h", "n", requests={"memory": "8Ei", "cpu": "9E"})).object
    ordinary = event(pod("u", "n", requests={"memory": "1Gi", "cpu": "1"})).object
    copies = [huge.__class__(**{**fields(huge), "name": f"h{at}"}) for at in range(20)]
    for one in (*copies[:10], ordinary, *copies[10:]):
        snapshot.put_pod(one)
    view = snapshot.view()
    column = view.resources["memory"]
    assert view.requested_of(0, column) == MAX_AMOUNT + (1 << 30)
    assert (view.nonzero_requested >= MAX_AMOUNT).all()
    what_if = HypotheticalCluster(view)
    for one in copies:
        what_if.remove(one.key, "n")
        snapshot.remove_pod(one.key, one.uid)
    assert what_if.view().requested_of(0, column) == 1 << 30
    assert snapshot.view().requested_of(0, column) == 1 << 30


def fields(found: ClusterPod) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def test_a_request_beyond_all_amounts_fits_no_node() -> None:
    """Not even one that says it has more."""
    snapshot = Snapshot()
    snapshot.put_node(event(node("n", allocatable={"cpu": "4", "memory": "8Ei"}), NODE).object)
    spec = PodSpec(requests=(("memory", MAX_AMOUNT),))
    found = event(pod("p")).object
    asked = found.__class__(**{**fields(found), "spec": spec})
    assert not fits(asked, snapshot.view()).mask.any()


def test_only_so_many_faults_are_kept() -> None:
    terms = [{"topologyKey": 5}] * 100
    found = event(pod("p", affinity=near("podAffinity", *terms)))
    assert len(found.faults) == MAX_NOTED_FAULTS + 1
    assert found.faults[-1] == OTHERS
