"""What schedulers and extenders say: the wire, letter by letter, and hostile answers."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import InvalidObject
from koord_scheduler import extendermessages as messages
from koord_scheduler.extendermessages import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
    MetaVictims,
)

POD = {"metadata": {"name": "web", "uid": "u"}, "spec": {"nodeName": ""}}
NODES = [{"metadata": {"name": name}} for name in ("n1", "n2")]


def raw(found: object) -> bytes:
    return json.dumps(found).encode()


def test_questions_are_what_kube_scheduler_asks() -> None:
    """Capital names, null for what is absent, objects as they are."""
    names = ExtenderArgs(raw(POD), ("n1", "n2"), None)
    assert json.loads(messages.write_extender_args(names)) == {
        "Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"],
    }  # fmt: skip
    whole = ExtenderArgs(raw(POD), ("n1", "n2"), tuple(map(raw, NODES)))
    assert json.loads(messages.write_extender_args(whole)) == {
        "Pod": POD, "Nodes": {"metadata": {}, "items": NODES}, "NodeNames": None,
    }  # fmt: skip
    bind = ExtenderBindingArgs("default", "web", "u", "n1")
    assert json.loads(messages.write_bind(bind)) == {
        "PodName": "web", "PodNamespace": "default", "PodUID": "u", "Node": "n1",
    }  # fmt: skip
    victims = {"n1": MetaVictims(("a", "b"), 1)}
    assert json.loads(messages.write_preempt(raw(POD), victims, None)) == {
        "Pod": POD,
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 1}
        },
    }
    bodies = {uid: raw({"metadata": {"uid": uid}}) for uid in "ab"}
    found = json.loads(messages.write_preempt(raw(POD), victims, bodies))
    assert found["NodeNameToMetaVictims"] is None
    assert found["NodeNameToVictims"]["n1"]["Pods"][1] == {"metadata": {"uid": "b"}}


def test_both_sides_understand_each_other() -> None:
    """What one writes the other reads, in either case of the names."""
    for asked in (
        ExtenderArgs(raw(POD), ("n1", "n2"), None),
        ExtenderArgs(raw(POD), ("n1", "n2"), tuple(map(raw, NODES))),
    ):
        for change in (bytes, lambda data: data.replace(b"NodeNames", b"nodenames")):
            found = messages.read_extender_args(change(messages.write_extender_args(asked)))
            assert (found.names, json.loads(found.pod)) == (asked.names, POD)
            assert (found.nodes is None) == (asked.nodes is None)
    answer = ExtenderFilterResult(("n1",), {"n2": "busy"}, {"n3": "gone"}, "")
    assert messages.read_filter_result(b"".join(messages.write_filter_result(answer))) == answer
    for nodes in ([], NODES[:1], NODES):
        whole = b"".join(messages.write_filter_result(answer, list(map(raw, nodes))))
        names = tuple(one["metadata"]["name"] for one in nodes)
        assert messages.read_filter_result(whole) == replace(answer, names=names)
    assert messages.read_priorities(messages.write_priorities({"n1": 7})) == {"n1": 7}
    bind = ExtenderBindingArgs("default", "web", "u", "n1")
    assert messages.read_bind(messages.write_bind(bind)) == bind
    assert messages.read_error(messages.write_error("no")) == "no"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ({"NodeNames": ["n1"]}, ExtenderFilterResult(("n1",))),
        ({"nodenames": []}, ExtenderFilterResult(())),
        ({"nodes": {"Items": NODES}}, ExtenderFilterResult(("n1", "n2"))),
        ({"NodeNames": ["n1"], "Nodes": {"items": NODES}}, ExtenderFilterResult(("n1",))),
        ({"error": "broken"}, ExtenderFilterResult(None, error="broken")),
        (
            {"NodeNames": ["n1"], "FailedNodes": {"n2": "x"}},
            ExtenderFilterResult(("n1",), {"n2": "x"}),
        ),
        ({}, None),  # Kubernetes takes it for a response without any node
        ({"NodeNames": None, "Nodes": None}, None),
        ({"NodeNames": "n1"}, None),
        ({"NodeNames": [1]}, None),
        ({"NodeNames": [], "FailedNodes": ["n1"]}, None),
        ({"Nodes": {"items": [{"metadata": {}}]}}, None),
        ([], None),
        (None, None),
    ],
)
def test_an_answer_to_filter_says_which_nodes_pass(
    answer: Any, wanted: ExtenderFilterResult | None
) -> None:
    """Or that it failed; an empty one is an error."""
    if wanted is not None:
        assert messages.read_filter_result(raw(answer)) == wanted
        return
    with pytest.raises(InvalidObject):
        messages.read_filter_result(raw(answer))


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ([{"Host": "n1", "Score": 7}, {"host": "n2", "score": 0}], {"n1": 7, "n2": 0}),
        ([{"Host": "n1", "Score": 7.0}], {"n1": 7}),
        ([{"Host": "n1", "Score": 3}, {"Host": "n1", "Score": 4}], {"n1": 7}),
        ([{"Host": "n1"}], {"n1": 0}),
        ([], {}),
        (None, {}),
        ([{"Host": "n1", "Score": 7.5}], None),
        ([{"Host": "n1", "Score": "7"}], None),
        ([{"Host": "n1", "Score": True}], None),
        ([{"Host": "n1", "Score": 85}], None),
        ([{"Host": "n1", "Score": -1}], None),
        ([{"Score": 1}], None),
        (["n1"], None),
        ({"n1": 7}, None),
    ],
)
def test_scores_are_whole_numbers_from_0_to_10(answer: Any, wanted: dict[str, int] | None) -> None:
    """85 would drown all plugins."""
    if wanted is not None:
        assert messages.read_priorities(raw(answer)) == wanted
        return
    with pytest.raises(InvalidObject):
        messages.read_priorities(raw(answer))


@pytest.mark.parametrize(
    ("start", "unit", "end"),
    [
        (b'"X":[', b"[],", b"0]"),
        (b"", b'"a":0,', b'"b":0'),
        (b'"Nodes":{"items":[', b"0,", b"0]}"),
        (b'"Nodes":{"items":[', b'{"metadata":{"name":"a"}},', b"0]}"),
        (b'"NodeNames":[', b'"a",', b"0]"),
        (b'"NodeNames":[', b"[],", b"0]"),
        (b'"Pod":{"a":[', b"[],", b"0]}"),
    ],
)
def test_a_hostile_question_costs_little_beside_its_bytes(
    start: bytes, unit: bytes, end: bytes
) -> None:
    """Whatever is in it: JSON as objects of Python takes twenty times as much."""
    body = bytearray(b'{"Pod":{},' + start + unit * ((16 << 20) // len(unit)) + end + b"}")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidObject):
            messages.read_extender_args(body)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "read",
    [
        messages.read_extender_args,
        messages.read_filter_result,
        messages.read_priorities,
        messages.read_preempt_result,
        messages.read_bind,
        messages.read_error,
    ],
)
@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=4)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(
                    st.sampled_from(
                        ["Pod", "Nodes", "items", "NodeNames", "FailedNodes", "Error", "Host",
                         "Score", "NodeNameToMetaVictims", "Pods", "UID", "metadata", "name"]
                    ),
                    inner,
                ),
            ),
        ).map(lambda found: json.dumps(found).encode()),
    )
)  # fmt: skip
def test_any_bytes_are_a_message_or_refused(read: Callable[[bytes], object], data: bytes) -> None:
    """Nothing else."""
    try:
        read(data)
    except InvalidObject:
        return
