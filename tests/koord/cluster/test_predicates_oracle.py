"""Every rule over all nodes says what its plain form says about each node."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.predicates import RULES, NodeRejectReason, fits, pod_affinity
from tests.support.clusters import Cluster, Json, read_pod
from tests.support.oracles import filters as plainrules
from tests.support.random_clusters import clusters, pods, sometimes


@pytest.fixture(autouse=True, scope="module", params=[0, 8], ids=["many terms", "few terms"])
def few_terms(request: pytest.FixtureRequest) -> Iterator[None]:
    """The terms up to which questions are asked one by one: by either way the same comes out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_affinity, "_FEW_TERMS", request.param)
        yield


@given(clusters(), pods("incoming"))
def test_rules_say_of_each_node_what_their_plain_forms_say(cluster: Cluster, incoming: Json):
    """All rules on random small clusters; a reason is the first rule that forbids the node."""
    view = cluster.snapshot().view()
    asked = read_pod(incoming)
    found = fits(asked, view)
    masks = {misfit: rule(asked, view) for misfit, rule in RULES.items()}

    for obj in cluster.nodes:
        row = view.row(obj["metadata"]["name"])
        expected = {
            misfit: plainrules.RULES[misfit.name](incoming, obj, cluster) for misfit in RULES
        }
        assert {misfit: bool(mask[row]) for misfit, mask in masks.items()} == expected
        first = next(
            (misfit for misfit, fine in expected.items() if not fine), NodeRejectReason.NONE
        )
        assert found.misfits[row] == first
        assert bool(found.mask[row]) == (first is NodeRejectReason.NONE)


@given(clusters(), pods("incoming"), st.data())
def test_a_what_if_is_the_cluster_that_it_speaks_of(
    cluster: Cluster, incoming: Json, data: st.DataObject
):
    """All rules say there what they say of a snapshot that never was another."""
    names = [obj["metadata"]["name"] for obj in cluster.nodes]
    view = cluster.snapshot().view()
    what_if = HypotheticalCluster(view)
    placed = [obj for obj in cluster.pods if obj["spec"]["nodeName"] in names]
    moved = data.draw(st.lists(st.sampled_from(placed), unique_by=id) if placed else st.just([]))
    for obj in moved:
        target = data.draw(sometimes(st.sampled_from(names)))
        meta, source = obj["metadata"], obj["spec"]["nodeName"]
        pod = what_if.remove(f"{meta['namespace']}/{meta['name']}", source)
        obj["spec"]["nodeName"] = target or "unknown"
        if target is not None:
            what_if.add(pod, target)
    asked = read_pod(incoming)

    expected = fits(asked, cluster.snapshot().view())
    assert fits(asked, what_if.view()).misfits.tolist() == expected.misfits.tolist()


@given(clusters(), st.data())
def test_moves_one_after_the_other_are_a_what_if(cluster: Cluster, data: st.DataObject):
    """Each question says what all rules say of a what-if with the moves before it."""
    view = cluster.snapshot().view()
    chosen = st.lists(st.integers(0, len(view) - 1), unique=True) if len(view) else st.just([])
    rows = np.array(sorted(data.draw(chosen)), np.intp)
    moves, what_if = HypotheticalCluster(view), HypotheticalCluster(view)
    placed = [one for row in range(len(view)) for one in view.pods(row)]
    asked = data.draw(st.lists(st.sampled_from(placed), unique_by=id) if placed else st.just([]))
    for requesting in asked:
        what_if.remove(requesting.key, requesting.node)
        expected = fits(requesting, what_if.view()).mask[rows]
        assert moves.fits(requesting)[rows].tolist() == expected.tolist()
        target = data.draw(sometimes(st.sampled_from(rows.tolist()) if len(rows) else st.none()))
        moves.move(requesting, target)
        if target is not None:
            what_if.add(requesting, view.node(target).name)
