"""Pods of manifests."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod, PriorityClass
from koord.util.errors import KoordError
from koord_scheduler.cli.inputs import read_pods

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  nodeName: n1
  schedulerName: koord-scheduler
  containers: [{name: main, resources: {requests: {cpu: 500m}}}]
status: {phase: Running}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: shop}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: api}}
    spec: {containers: [{name: main, resources: {requests: {memory: 1Gi}}}]}
"""


def pods_of(path: Path, text: str, **classes: int) -> list[ClusterPod]:
    file = path / "pods.yaml"
    file.write_text(text)
    return read_pods(file, {name: PriorityClass(name, value) for name, value in classes.items()})


def test_a_pod_is_taken_as_if_it_were_new(tmp_path: Path) -> None:
    (pod,) = pods_of(tmp_path, POD)
    assert (pod.key, pod.node, pod.phase) == ("shop/web", "", "Pending")
    assert pod.spec.requests == (("cpu", 500),)
    assert pod.uid
    assert pod.priority == 0


def test_a_workload_has_its_pods_and_owns_them(tmp_path: Path) -> None:
    pods = pods_of(tmp_path, DEPLOYMENT)
    assert [pod.key for pod in pods] == ["shop/api-0", "shop/api-1", "shop/api-2"]
    assert {pod.owners[0].kind for pod in pods} == {"Deployment"}
    assert pods[0].labels == {"app": "api"}
    assert pods[0].spec is pods[2].spec


def test_documents_lists_and_comments_in_their_order(tmp_path: Path) -> None:
    items = '{"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "last"}}]}'
    service = "kind: Service\nmetadata: {name: web}\n"
    text = f"# first\n---\n{POD}---\n# nothing here\n--- # services\n{service}---\n{items}\n"
    assert [pod.name for pod in pods_of(tmp_path, text)] == ["web", "last"]


@pytest.mark.parametrize(
    ("name", "priority"),
    [("high", 100), ("system-node-critical", 2_000_001_000)],
)
def test_a_class_gives_its_priority(tmp_path: Path, name: str, priority: int) -> None:
    text = f"kind: Pod\nmetadata: {{name: web}}\nspec: {{priorityClassName: {name}}}\n"
    (pod,) = pods_of(tmp_path, text, high=100)
    assert pod.priority == priority


def test_without_a_class_the_default_one_counts(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(POD)
    classes = {"default": PriorityClass("default", 7, True)}
    assert [pod.priority for pod in read_pods(file, classes)] == [7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Service\nmetadata: {name: web}\n", "wanted manifests of Pod, Deployment"),
        ("", "wanted manifests of Pod"),
        ("[1, 2]\n", "wanted an object with a kind"),
        ("kind: Pod\nmetadata: {}\n", "metadata"),
        (DEPLOYMENT.replace("3", "-1"), "a number of pods"),
        (DEPLOYMENT.replace("3", "yes"), "a number of pods"),
        (DEPLOYMENT.replace("3", "300000"), "a number of pods"),
        (POD.replace("500m", "lots"), "a quantity"),
        (
            "kind: Pod\nmetadata: {name: web}\nspec: {priorityClassName: hgih}\n",
            "wanted a class of the cluster: high, found hgih",
        ),
    ],
)
def test_what_is_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(KoordError, match=message):
        pods_of(tmp_path, text, high=100)


@given(st.binary(max_size=300))
def test_any_bytes_are_pods_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.mktemp("pods") / "pods.yaml"
    file.write_bytes(data)
    try:
        assert read_pods(file, {})
    except KoordError as err:
        assert "pods.yaml" in str(err)  # noqa: PT017 - either way is right
