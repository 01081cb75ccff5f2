"""What a scheduler needs of pods and nodes beyond their rules: totals, gates, images."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.decoder import Decoder
from koord.cluster.facts import NO_IMAGES, PodSpec
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import NODE
from koord.cluster.pod_specs import MAX_AMOUNT
from koord.cluster.state import Snapshot
from koord.util.errors import InvalidObject
from tests.support.clusters import Cluster, Json, finished, node, pod, read_node, read_pod

MI = 1 << 20
DEFAULT_CPU, DEFAULT_MEMORY = 100, 200 * MI


def container(requests: Json | None = None, limits: Json | None = None, **more: Any) -> Json:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def sidecar(*args: Any) -> Json:
    return container(*args, restartPolicy="Always")


def spec_of(*containers: Json, init: tuple[Json, ...] = (), **more: Any) -> PodSpec:
    obj = pod("p", containers=list(containers), initContainers=list(init), **more)
    return read_pod(obj).spec


NONZERO = [
    ("no requests", spec_of(container()), DEFAULT_CPU, DEFAULT_MEMORY),
    ("a zero is a request", spec_of(container({"cpu": "0"})), 0, DEFAULT_MEMORY),
    ("each container", spec_of(container({"cpu": "1"}), container()), 1100, 2 * DEFAULT_MEMORY),
    ("an init container", spec_of(container({"cpu": "10m"}), init=(container(),)), 100,
     DEFAULT_MEMORY),
    ("a sidecar adds", spec_of(container(), init=(sidecar({"cpu": "1"}),)), 1100,
     2 * DEFAULT_MEMORY),
    ("sidecar, then init", spec_of(container({"cpu": "2"}),
                                   init=(sidecar({"cpu": "1"}), container({"cpu": "5"}))),
     6000, 2 * DEFAULT_MEMORY),
    ("init, then sidecar", spec_of(container({"cpu": "2"}),
                                   init=(container({"cpu": "5"}), sidecar({"cpu": "1"}))),
     5000, 2 * DEFAULT_MEMORY),
    ("overhead comes on top", spec_of(container(), overhead={"cpu": "5m"}), 105, DEFAULT_MEMORY),
    ("of the pod as a whole", spec_of(container(), resources={"requests": {"cpu": "3"}}), 3000,
     DEFAULT_MEMORY),
    ("of the pod, and one container's",
     spec_of(container({"memory": "1Mi"}), container(), resources={"requests": {"cpu": "3"}}),
     3000, MI),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "cpu", "memory"), [one[1:] for one in NONZERO], ids=[one[0] for one in NONZERO]
)
def test_nonzero_requests(spec: PodSpec, cpu: int, memory: int):
    assert (spec.nonzero_cpu, spec.nonzero_memory) == (cpu, memory)


LIMITS: list[tuple[str, PodSpec, dict[str, int]]] = [
    ("none", spec_of(container({"cpu": "1"})), {}),
    ("a container without one adds nothing", spec_of(container({}, {"cpu": "1"}), container()),
     {"cpu": 1000}),
    ("the largest init container", spec_of(container({}, {"cpu": "1"}),
                                           init=(container({}, {"cpu": "3"}),)), {"cpu": 3000}),
    ("of the pod as a whole", spec_of(container({}, {"cpu": "1"}),
                                      resources={"limits": {"cpu": "2"}}), {"cpu": 2000}),
    ("overhead only where there is one", spec_of(container({}, {"memory": "1Mi"}),
                                                 overhead={"memory": "1Mi", "cpu": "1"}),
     {"memory": 2 * MI}),
    ("batch resources", spec_of(container({}, {"kubernetes.io/batch-cpu": "4000"})),
     {"kubernetes.io/batch-cpu": 4000}),
    ("absurdly large", spec_of(container({}, {"memory": "100Pi"})), {"memory": MAX_AMOUNT}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "limits"), [one[1:] for one in LIMITS], ids=[one[0] for one in LIMITS]
)
def test_limits(spec: PodSpec, limits: dict[str, int]):
    assert dict(spec.limits) == limits


def test_what_a_pod_waits_for():
    obj = pod("p", schedulingGates=[{"name": "a"}, {"name": "b"}], preemptionPolicy="Never")
    obj["status"]["nominatedNodeName"] = "n"
    found = read_pod(obj)
    assert (found.scheduling_gates, found.preemption_policy) == (("a", "b"), "Never")
    assert found.nominated_node == "n"
    plain = read_pod(pod("q"))
    assert (plain.scheduling_gates, plain.preemption_policy, plain.nominated_node) == ((), "", "")


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        ({"name": "job", "podGroup": "workers"}, "job:workers"),
        ({"name": "job", "podGroup": "workers", "podGroupReplicaKey": "1"}, "job:workers:1"),
        ({"name": "job"}, ""),
        ({"podGroup": "workers"}, ""),
        ({"name": "j" * 9_000, "podGroup": "w"}, "j" * 253 + ":w"),
        (None, ""),
    ],
)
def test_the_group_of_a_workload_that_a_pod_belongs_to(reference, wanted):
    assert read_pod(pod("p", workloadRef=reference)).workload_group == wanted


def test_images_of_a_pod_by_what_has_them():
    found = spec_of(
        container(image="b"),
        container(image="a"),
        init=(container(image="c"),),
        volumes=[{"name": "v", "image": {"reference": "d"}}, {"name": "w"}],
    )
    assert (found.images, found.other_images) == (("a", "b"), ("c", "d"))
    other = spec_of(container(image="b"), container(image="a"), init=(container(image="e"),))
    assert found is not other


def with_images(name: str, *images: Json, **more: Any) -> Json:
    obj = node(name, **more)
    obj["status"]["images"] = list(images)
    return obj


def image(size: int, *names: str) -> Json:
    return {"names": list(names), "sizeBytes": size}


def test_nodes_with_equal_images_share_them():
    first, second = (read_node(with_images(name, image(1, "a"))) for name in "xy")
    assert first.images is second.images
    assert read_node(node("z")).images is NO_IMAGES


def test_an_image_is_found_by_each_of_its_names():
    cluster = Cluster([with_images("x", image(5, "a:1", "a@sha256:0")), with_images("y")])
    view = cluster.snapshot().view()
    at = view.traits.rows["x"]
    for name in ("a:1", "a@sha256:0"):
        sizes = view.images.sizes(name)
        assert sizes is not None
        assert sizes[at] == sizes.sum() == 5
    assert view.images.sizes("a") is None


@pytest.mark.parametrize("images", ['"x"', '[{"names":[1]}]', '[{"sizeBytes":"1"}]', "[[]]"])
def test_malformed_images_cost_the_images(images: str):
    """The node counts, as one without them."""
    status = b'{"images":' + images.encode() + b"}"
    line = b'{"type":"ADDED","object":{"metadata":{"name":"x"},"status":' + status + b"}}"
    found = Decoder().event(NODE, line)
    assert found.object is not None
    assert not isinstance(found.object, InvalidObject)
    assert not any(one.names for one in found.object.images.images)
    assert "images" in found.faults[0]


NAMES = st.sampled_from("abcd")
IMAGES = st.lists(
    st.tuples(st.sampled_from("xyz"), st.integers(1, 3)), max_size=3, unique_by=lambda one: one[0]
)


@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), IMAGES)), max_size=20))
def test_columns_of_images_follow_the_nodes(events: list[tuple[str, list[tuple[str, int]] | None]]):
    """Nodes come, change and go in any order; views of before stay as they were."""
    snapshot = Snapshot()
    known: dict[str, dict[str, int]] = {}
    earlier = []
    for name, images in events:
        if images is None:
            snapshot.remove_node(name)
            known.pop(name, None)
        else:
            snapshot.put_node(read_node(with_images(name, *(image(s, n) for n, s in images))))
            known[name] = dict(images)
        earlier.append((snapshot.view(), {name: dict(had) for name, had in known.items()}))
    for view, had in earlier:
        for wanted in "xyz":
            sizes = view.images.sizes(wanted)
            found = {
                view.node(row).name: 0 if sizes is None else int(sizes[row])
                for row in range(len(view))
            }
            assert found == {name: images.get(wanted, 0) for name, images in had.items()}


def test_conditions_and_annotations_of_a_node():
    obj = node("x")
    obj["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastHeartbeatTime": "2026-07-24T06:52:45Z"},
        {"type": "DiskPressure", "status": "True"},
    ]
    obj["metadata"]["annotations"] = {
        "scheduling.koordinator.sh/usage-thresholds": "{}",
        "other": "x",
    }
    found = read_node(obj)
    assert found.conditions == (("Ready", "False"), ("DiskPressure", "True"))
    assert not found.ready
    assert found.annotations == (("scheduling.koordinator.sh/usage-thresholds", "{}"),)


def test_nonzero_requests_of_a_node_are_sums_over_its_pods():
    cluster = Cluster([node("x"), node("y")])
    cluster.pods = [pod("p", "x", requests={"cpu": "1"}), pod("q", "x"), finished(pod("r", "x"))]
    snapshot = cluster.snapshot()
    view = snapshot.view()
    x, y = (view.traits.rows[name] for name in "xy")
    assert view.nonzero_requested[x].tolist() == [1000 + DEFAULT_CPU, 2 * DEFAULT_MEMORY]
    assert view.nonzero_requested[y].tolist() == [0, 0]
    what_if = HypotheticalCluster(view)
    what_if.add(what_if.remove("default/p", "x"), "y")
    moved = what_if.view().nonzero_requested
    assert moved[x].tolist() == [DEFAULT_CPU, DEFAULT_MEMORY]
    assert moved[y].tolist() == [1000, DEFAULT_MEMORY]
    assert view.nonzero_requested[y].tolist() == [0, 0]


def test_names_of_images_that_have_gone_are_forgotten():
    """However many versions a node has had: those that are there are found, others are not."""
    snapshot = Snapshot()
    views = []
    for version in range(100):
        snapshot.put_node(read_node(with_images("x", image(version + 1, f"app:{version}"))))
        views.append(snapshot.view())
    for version in (0, 50, 99):
        sizes = views[version].images.sizes(f"app:{version}")
        if sizes is not None:  # an old view may have lost its names
            assert sizes.tolist() == [version + 1]
    sizes = views[-1].images.sizes("app:99")
    assert sizes is not None
    assert views[-1].images.spread("app:99") == 1
    assert views[-1].images.sizes("app:98") is None
    assert len(views[-1].images._index) <= 9
