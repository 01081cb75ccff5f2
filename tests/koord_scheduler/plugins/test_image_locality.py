"""Images that nodes have already."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.image_locality import ImageLocality
from tests.support.clusters import Cluster, Json, node
from tests.support.scheduler.framework import make_pod

MIB = 1 << 20


def view(*nodes: dict[str, int]) -> View:
    """The images of each, by name, in MiB."""
    objects = [node(f"n{at}") for at in range(len(nodes))]
    for obj, images in zip(objects, nodes, strict=True):
        obj["status"]["images"] = [
            {"names": [name], "sizeBytes": size * MIB} for name, size in images.items()
        ]
    return Cluster(nodes=objects).snapshot().view()


def running(*images: str, init: tuple[str, ...] = (), volumes: tuple[str, ...] = ()) -> ClusterPod:
    def containers(names: tuple[str, ...]) -> list[Json]:
        return [{"name": f"c{at}", "image": name} for at, name in enumerate(names)]

    mounted = [{"name": "v", "image": {"reference": name}} for name in volumes]
    return make_pod(containers=containers(images), initContainers=containers(init), volumes=mounted)


@pytest.mark.parametrize(
    ("pod", "nodes", "scores"),
    [
        # 40 and 250 MiB, each on one node of two: (20-23)/977 and (125-23)/977.
        (running("a:1"), [{"a:1": 40}, {"b:1": 250}], [0, 0]),
        (running("b:1"), [{"a:1": 40}, {"b:1": 250}], [0, 10]),
        # A name without a tag is the latest.
        (running("b"), [{"b:latest": 250}, {}], [10, 0]),
        (running("host:5000/b"), [{"host:5000/b:latest": 250}, {}], [10, 0]),
        # On both nodes it counts whole: (250-23)/977.
        (running("b:1"), [{"b:1": 250}, {"b:1": 250}], [23, 23]),
        # Two containers: (125+1000-23)/1977.
        (running("a:1", "b:1"), [{"a:1": 250, "b:1": 2000}, {}], [55, 0]),
        # Init containers and volumes count as well.
        (running("a:1", init=("b:1",)), [{"b:1": 2000}, {}], [49, 0]),
        (running("a:1", volumes=("b:1",)), [{"b:1": 2000}, {}], [49, 0]),
        # The same image twice counts twice.
        (running("b:1", "b:1"), [{"b:1": 250}, {}], [11, 0]),
        # Never more than 100.
        (running("b:1"), [{"b:1": 9000}, {}], [100, 0]),
    ],
)
def test_scores(pod: ClusterPod, nodes: list[dict[str, int]], scores: list[int]) -> None:
    found = ImageLocality(None, _no_handle()).score_all(CycleState(), pod, view(*nodes))
    assert found.tolist() == scores


@pytest.mark.parametrize(("name", "skipped"), [("a:1", False), ("a", True), ("", True)])
def test_pods_whose_images_are_nowhere_are_not_scored(name: str, skipped: bool) -> None:
    plugin, nodes = ImageLocality(None, _no_handle()), view({"a:1": 40}, {})
    status = plugin.pre_score(CycleState(), running(name), nodes, np.ones(2, np.bool_))
    assert (status is not None and status.code is Code.SKIP) == skipped


def test_scores_are_kept_while_no_image_comes_or_goes() -> None:
    snapshot = Cluster(nodes=[node("n0")]).snapshot()
    plugin, pod, before = ImageLocality(None, _no_handle()), running("a:1"), snapshot.view()
    key = plugin.score_reuse_key(CycleState(), pod, before)
    snapshot.put_pod(make_pod("other", node="n0"))
    assert snapshot.view() is not before
    assert plugin.score_reuse_key(CycleState(), pod, snapshot.view()) == key
    assert plugin.score_reuse_key(CycleState(), pod, view({"a:1": 9})) != key


IMAGES = st.dictionaries(
    st.sampled_from(("a:1", "a:latest", "b:1")), st.integers(0, 3000), max_size=3
)
NAMES = st.lists(st.sampled_from(("a:1", "a", "b:1", "c")), max_size=3)


@given(st.lists(IMAGES, max_size=5), NAMES, NAMES)
def test_both_forms_agree(nodes: list[dict[str, int]], images: list[str], init: list[str]) -> None:
    pod = running(*images, init=tuple(init))
    assert_forms_agree(ImageLocality(None, _no_handle()), pod, view(*nodes))


def _no_handle() -> Any:
    return None
