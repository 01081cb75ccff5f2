"""Pods from JSON: what is read, what is refused, and that a bad one costs only itself."""

import copy
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import MAX_LABEL_CHARS, Container, ContainerStatus, parse_pod, parse_pod_list
from koord.api.qos import QOS_LABEL, KubeQoS, QoSClass
from koord.util.errors import InvalidObject

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "namespace": "shop",
        "uid": "7712555c-ce62-454a-9e18-9ff0217b8941",
        "labels": {"koordinator.sh/qosClass": "LS"},
        "annotations": {"a": "b"},
        "creationTimestamp": None,
    },
    "spec": {
        "nodeName": "worker-07",
        "hostNetwork": True,
        "priority": 9100,
        "containers": [
            {
                "name": "main",
                "image": "x",
                "resources": {"requests": {"cpu": "500m", "memory": 1024}, "limits": {"cpu": 1.5}},
            },
            {"name": "side"},
        ],
        "initContainers": [{"name": "init", "restartPolicy": "Always"}],
    },
    "status": {
        "phase": "Running",
        "qosClass": "Burstable",
        "startTime": "2026-07-24T06:52:45Z",
        "containerStatuses": [
            {"name": "main", "containerID": "containerd://ab", "state": {"running": {}}},
            {"name": "side", "state": {"waiting": {"reason": "x"}}},
        ],
        "initContainerStatuses": [
            {"name": "init", "containerID": "containerd://cd", "state": {"terminated": {}}}
        ],
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """The pod with one field replaced."""
    pod = copy.deepcopy(POD)
    *parents, last = path.split("/")
    place: Any = pod
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    place[last] = value
    return pod


def test_reads_what_the_node_needs():
    pod = parse_pod(POD)
    assert (pod.namespace, pod.name, pod.node_name) == ("shop", "web-0", "worker-07")
    assert pod.uid == "7712555c-ce62-454a-9e18-9ff0217b8941"
    assert pod.labels == {"koordinator.sh/qosClass": "LS"}
    assert pod.annotations == {"a": "b"}
    assert pod.qos is KubeQoS.BURSTABLE
    assert pod.host_network
    assert pod.priority == 9100
    assert pod.start_time == 1784875965
    assert pod.containers == (
        Container("main", {"cpu": "500m", "memory": "1024"}, {"cpu": "1.5"}, image="x"),
        Container("side"),
    )
    assert pod.init_containers == (Container("init", restart_policy="Always"),)
    assert pod.statuses == (
        ContainerStatus("main", "containerd://ab", running=True),
        ContainerStatus("side"),
    )
    assert pod.init_statuses == (ContainerStatus("init", "containerd://cd"),)
    assert not pod.finished


def test_what_a_pod_has_beside_its_containers():
    """Limits and overhead of its own, and a runtime that is not the default one."""
    pod = parse_pod(
        {
            "metadata": {"name": "p", "uid": "u"},
            "spec": {
                "resources": {"limits": {"cpu": "2"}},
                "overhead": {"cpu": "250m"},
                "runtimeClassName": "kata",
            },
        }
    )
    assert (pod.limits, pod.overhead, pod.runtime_class) == (
        {"cpu": "2"},
        {"cpu": "250m"},
        "kata",
    )


def test_little_is_enough():
    """A hand-written pod needs a name and a uid; its class follows from its requests."""
    pod = parse_pod({"metadata": {"name": "p", "uid": "u"}, "spec": None})
    assert pod.namespace == "default"
    assert pod.qos is KubeQoS.BEST_EFFORT
    assert pod.start_time is None


@pytest.mark.parametrize(
    ("phase", "finished"), [("Succeeded", True), ("Failed", True), ("", False)]
)
def test_finished_pods(phase, finished):
    assert parse_pod(changed("status/phase", phase)).finished is finished


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("metadata", [], "pod.metadata: wanted an object"),
        ("metadata/uid", None, "pod.metadata.uid: wanted a text, found nothing"),
        ("metadata/name", "", "pod.metadata.name: wanted a text, found nothing"),
        ("metadata/name", 7, "pod.metadata.name: wanted a text, found 7"),
        ("metadata/labels/x", True, "pod.metadata.labels.x: wanted a text, found True"),
        ("spec/priority", "9100", "pod.spec.priority: wanted a whole number"),
        ("spec/priority", 9100.0, "pod.spec.priority: wanted a whole number"),
        ("spec/hostNetwork", "true", "pod.spec.hostNetwork: wanted true or false"),
        ("spec/containers", {}, "pod.spec.containers: wanted a list"),
        ("spec/containers/0/name", None, "pod.spec.containers[0].name: wanted a text"),
        (
            "spec/containers/0/resources/limits/cpu",
            "one",
            "pod.spec.containers[0].resources.limits.cpu: wanted a quantity, found one",
        ),
        ("spec/containers/0/resources/limits", ["cpu"], "resources.limits: wanted an object"),
        ("status/startTime", "yesterday", "pod.status.startTime: wanted a time"),
        ("status/startTime", "2026-07-24T06:52:45", "pod.status.startTime: wanted a time"),
        ("status/containerStatuses", ["x"], "containerStatuses[0]: wanted an object"),
    ],
)
def test_a_bad_field_is_named_by_its_path(path, value, message):
    with pytest.raises(InvalidObject) as caught:
        parse_pod(changed(path, value))
    assert message in str(caught.value)


@pytest.mark.parametrize("found", ["Silver", 7, ["Burstable"]])
def test_a_class_that_is_not_known_is_computed(found: object) -> None:
    """By requests and limits, as Kubernetes does; the pod counts, and what was found is said."""
    pod = parse_pod(changed("status/qosClass", found))
    assert pod.qos is KubeQoS.BURSTABLE
    [error] = pod.left_out
    assert "pod.status.qosClass: wanted Guaranteed or Burstable or BestEffort, found" in error


def test_too_many_labels_are_left_out_but_not_those_that_decide() -> None:
    labels = {f"a{number}": "x" * 60 for number in range(5000)} | {QOS_LABEL: "BE"}
    pod = parse_pod(changed("metadata/labels", labels))
    assert pod.labels[QOS_LABEL] == "BE"
    assert pod.qos_class is QoSClass.BE
    assert sum(len(key) + len(text) for key, text in pod.labels.items()) <= MAX_LABEL_CHARS
    [error] = pod.left_out
    assert "pod.metadata.labels: wanted at most 65536 characters" in error


def test_half_a_surrogate_pair_is_no_text():
    """JSON can say it, UTF-8 cannot: it would break every scrape and report later on."""
    with pytest.raises(InvalidObject, match="wanted Unicode text"):
        parse_pod({"metadata": {"name": "a\ud800b", "uid": "u"}})


def places(value, path=()):
    """Every text of a JSON value, key or item, as a path; a key's ends with None."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key, None)
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))
    elif isinstance(value, str):
        yield path


def spoilt(value, path):
    """A copy with half a character at the end of that text."""
    first, *rest = path
    if rest == [None]:
        return {f"{key}\ud800" if key == first else key: item for key, item in value.items()}
    changed_one = value.copy()
    changed_one[first] = spoilt(value[first], rest) if rest else f"{value[first]}\ud800"
    return changed_one


@pytest.mark.parametrize("path", list(places(POD)), ids=str)
def test_half_a_character_in_one_pod_costs_at_most_that_one(path):
    """Wherever it stands: what is read has none, and the error can be written."""
    pods, errors = parse_pod_list({"items": [spoilt(POD, path), changed("metadata/uid", "other")]})

    assert pods[-1].uid == "other"
    assert len(pods) + len(errors) == 2
    for text in every_text([asdict(pod) for pod in pods]):
        text.encode()
    for err in errors:
        f"{err} {err.where}".encode()


def every_text(value):
    if isinstance(value, dict):
        yield from (text for pair in value.items() for item in pair for text in every_text(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in every_text(item))
    elif isinstance(value, str):
        yield value


def test_a_bad_pod_costs_only_itself():
    """The others are kept, and each error says which item it was."""
    pods, errors = parse_pod_list(
        {"items": [POD, {"metadata": {}}, "pod", changed("metadata/uid", "other")]}
    )
    assert [pod.uid for pod in pods] == [POD["metadata"]["uid"], "other"]
    assert [err.where for err in errors] == ["items[1].metadata.name", "items[2]"]


def test_a_bad_pod_goes_by_its_name():
    """Its place in the list says nothing: the kubelet shuffles its pods each time."""
    _, errors = parse_pod_list({"items": [changed("spec/containers", "app")]})
    assert [err.where for err in errors] == ["pod shop/web-0.spec.containers"]


@pytest.mark.parametrize("step", [1, -1])
def test_of_two_pods_with_one_uid_the_first_by_name_is_kept(step):
    """Two pods of one uid would share cgroups and series; a kubelet lists them in any order."""
    pods, errors = parse_pod_list({"items": [POD, changed("metadata/name", "web-1")][::step]})
    assert [pod.name for pod in pods] == ["web-0"]
    assert errors[0].where == "pod shop/web-1.metadata.uid"
    assert "also used by shop/web-0" in str(errors[0])


@pytest.mark.parametrize("obj", [None, [], "x", {}, {"kind": "Pod"}, {"items": {}}, {"items": "x"},
                                 {"kind": "PodList", "items": {}}])  # fmt: skip
def test_what_is_no_list_of_pods_is_refused_whole(obj):
    with pytest.raises(InvalidObject):
        parse_pod_list(obj)


@pytest.mark.parametrize("items", [None, []])
def test_an_empty_list_of_pods_is_one(items):
    """kubectl writes an empty list as [], Go writes it as null."""
    assert parse_pod_list({"kind": "PodList", "items": items}) == ((), ())


def test_every_cut_and_every_wrong_type_is_an_invalid_object():
    """Each field of the sample, removed or replaced by each JSON type, is read or refused."""
    for path in _paths(POD):
        for value in (None, True, -1, 1.5, "x", [], [None], {}, {"x": None}):
            try:
                parse_pod(changed(path, value))
            except InvalidObject:
                continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(JSON, st.sampled_from(["metadata", "spec", "status", "spec/containers", "items"]))
def test_any_json_is_read_or_refused(value, path):
    """Nothing but InvalidObject comes out."""
    try:
        parse_pod_list({"items": [changed(path, value) if path != "items" else value]})
        parse_pod_list(value)
    except InvalidObject:
        return


def _paths(value: Any, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return []
    found = []
    for key, inner in value.items():
        found.append(prefix + key)
        found += _paths(inner, f"{prefix}{key}/")
        if isinstance(inner, list):
            for index, item in enumerate(inner):
                found += _paths(item, f"{prefix}{key}/{index}/")
    return [path for path in found if "." not in path]


@pytest.mark.parametrize(
    ("spec", "meta", "found"),
    [
        ({}, {}, (None, 30)),
        ({"terminationGracePeriodSeconds": 5}, {}, (None, 5)),
        ({"terminationGracePeriodSeconds": -1}, {}, (None, 0)),
        ({}, {"deletionTimestamp": "2026-11-21T20:00:30Z"}, (1795291230.0, 30)),
    ],
)
def test_how_a_pod_ends(spec, meta, found):
    """With the grace period that Kubernetes gives by default; a deleted one is gone by a time."""
    changed = copy.deepcopy(POD)
    changed["spec"] |= spec
    changed["metadata"] |= meta
    pod = parse_pod(changed)
    assert (pod.gone_by, pod.grace_seconds) == found


def test_resources_of_the_pod_as_a_whole():
    """Beside those of its containers."""
    changed = copy.deepcopy(POD)
    changed["spec"] |= {
        "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}},
        "overhead": {"cpu": "250m"},
    }
    pod = parse_pod(changed)
    assert (pod.requests, pod.limits) == ({"cpu": "2"}, {"memory": "1Gi"})
    assert pod.overhead == {"cpu": "250m"}


def test_volumes_of_claims():
    """And inline ones of CSI drivers; the claim of an ephemeral volume is named by Kubernetes."""
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "inline", "csi": {"driver": "example.com"}},
        {"name": "config", "configMap": {"name": "config"}},
    ]
    found = parse_pod({"metadata": {"name": "web-0", "uid": "1"}, "spec": {"volumes": volumes}})

    assert found.claims == {"data": "data-0", "scratch": "web-0-scratch", "inline": ""}


@pytest.mark.parametrize(
    ("status", "ips"),
    [
        ({}, ()),
        ({"podIP": "10.0.0.7"}, ("10.0.0.7",)),
        ({"podIP": "10.0.0.7", "podIPs": []}, ("10.0.0.7",)),
        (
            {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}, {}]},
            ("10.0.0.7", "fd00::7"),
        ),
        ({"podIPs": [{"ip": str(number)} for number in range(9)]}, ("0", "1", "2", "3")),
    ],
)
def test_addresses_of_a_pod(status, ips):
    """Of both IP versions; four at most, in the given order."""
    pod = {"metadata": {"name": "p", "uid": "u"}, "status": status}

    assert parse_pod(pod).ips == ips
