"""States go into a record and come out as they were."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.node import Node, NodeAddress
from koord.api.pod import Container
from koord.api.qos import KubeQoS
from koord.util.errors import InvalidObject
from koordlet.plugin.testing import make_pod
from koordlet.replay.record_format import decode, encode
from koordlet.statesinformer.podmeta import PodMeta

TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


def again(wanted, value):
    """What a reader of the file gets."""
    return decode(wanted, json.loads(json.dumps(encode(value))), "test")


@given(
    labels=TEXTS,
    names=st.lists(st.sampled_from(["a", "b", "c"]), unique=True),
    qos=st.sampled_from(list(KubeQoS)),
    limits=TEXTS,
)
def test_pods(labels, names, qos, limits):
    """With all that is known of them."""
    containers = tuple(Container(name, limits=limits) for name in names)
    pods = (make_pod("p1", labels=labels, qos=qos, containers=containers), make_pod("p2"))

    assert again(tuple[PodMeta, ...], pods) == pods


def test_nodes():
    """An absent value stays absent."""
    node = Node("n1", {"a": "b"}, capacity={"cpu": "2"}, addresses=(NodeAddress("x", "1.2.3.4"),))

    assert again(Node, node) == node


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (dict[str, int], {"a": 1}),
        (frozenset[int], frozenset({3, 1})),
        (tuple[int, ...], (3, 1)),
        (float, 2.0),
        (int | None, None),
        (int | None, 4),
    ],
)
def test_plain_values(wanted, value):
    """Of the same type, not only equal."""
    found = again(wanted, value)

    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Node, "[]"),
        (Node, '{"name": 1}'),
        (Node, '{"annotations": {}}'),
        (tuple[PodMeta, ...], '[{"pod": null}]'),
        (KubeQoS, '"Best"'),
        (frozenset[int], '["a"]'),
        (int, "null"),
        (dict[int, int], '{"a": 1}'),
    ],
)
def test_other_shapes_are_refused(wanted, text):
    """The message says where and what."""
    with pytest.raises(InvalidObject, match="the record: wanted"):
        decode(wanted, json.loads(text), "the record")


def test_fields_of_a_newer_version_have_their_defaults():
    """A record of an older daemon can be played."""
    assert decode(Node, {"name": "n1"}, "the record") == Node("n1")
