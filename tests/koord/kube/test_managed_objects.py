"""The patch that brings an object in line: pure rules."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord.api.node import Node
from koord.api.slocontroller import SLOConfig
from koord.kube.managedobjects import (
    NODE_METRIC,
    NODE_SLO,
    ManagedObject,
    changes,
    node_metric_spec_for,
    node_slo_for,
    only_if_unchanged,
    parse_stored,
)
from tests.support.kube.object_store import json_patch

NODE = Node("n1", uid="node-uid")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(
            [
                "metricCollectPolicy", "reportIntervalSeconds", "nodeAggregatePolicy", "durations",
                "systemStrategy", "hostApplications", "extensions", "ofTheFuture",
            ]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


def foreign(managed_object: ManagedObject, spec: Any) -> dict[str, Any]:
    """What of a spec is not ours."""
    if not isinstance(spec, dict):
        return {}
    ours = {field[0] for field in managed_object.managed if len(field) == 1}
    rest = {key: value for key, value in spec.items() if key not in ours}
    policy = rest.pop("metricCollectPolicy", None) if managed_object is NODE_METRIC else None
    inner = {field[-1] for field in managed_object.managed}
    if isinstance(policy, dict):
        rest |= {f"policy {key}": value for key, value in policy.items() if key not in inner}
    return rest


@given(spec=JSON, owners=st.lists(JSON, max_size=2), slo=st.booleans())
def test_one_patch_is_enough_and_leaves_the_rest_alone(
    spec: Any, owners: list[Any], slo: bool
) -> None:
    """Whatever the object looked like before."""
    managed_object, make = (NODE_SLO, node_slo_for) if slo else (NODE_METRIC, node_metric_spec_for)
    item = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "7"}, "spec": spec}
    item["metadata"] |= {"ownerReferences": owners, "labels": {"a": "b"}}
    wanted, _ = make(SLOConfig(), NODE)
    before = parse_stored(item)
    patched = json_patch(
        item, [*only_if_unchanged(before), *changes(managed_object, NODE, before, wanted)]
    )

    assert changes(managed_object, NODE, parse_stored(patched), wanted) == []
    assert foreign(managed_object, patched["spec"]) == foreign(managed_object, spec)
    assert patched["metadata"]["labels"] == {"a": "b"}
    kept = [owner for owner in owners if isinstance(owner, dict) and owner]
    assert [*patched["metadata"]["ownerReferences"][:-1]] == kept


def test_an_object_in_line_needs_nothing() -> None:
    """Also when its Node is not its only owner."""
    wanted, _ = node_metric_spec_for(SLOConfig(), NODE)
    owners = [{"kind": "Node", "apiVersion": "v1", "uid": "node-uid", "controller": True}, {"a": 1}]
    metadata = {"name": "n1", "uid": "u", "resourceVersion": "7", "ownerReferences": owners}

    assert (
        changes(NODE_METRIC, NODE, parse_stored({"metadata": metadata, "spec": wanted}), wanted)
        == []
    )
