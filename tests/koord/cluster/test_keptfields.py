"""Fields that plugins declare to read: they are kept whole or left out by name, and no others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.decoder import Decoder
from koord.cluster.dump import read_dump
from koord.cluster.facts import ClusterNode, ClusterPod, ContainerKind
from koord.cluster.keptfields import (
    MAX_KEYS,
    MAX_VALUE_BYTES,
    NO_FIELDS,
    DeclarationError,
    KeptFields,
    kept_annotations,
    reads,
    reads_of,
    union,
)
from koord.cluster.kinds import NODE, POD
from koord.cluster.lenient_decoding import KEPT_BYTES, DecodingFaults
from tests.support.clusters import node, pod

SEAT = "example.com/seat"
KEYS = st.sampled_from(["a", "b", "example.com/c", "d"])
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def decoded(kept: KeptFields, obj: Mapping[str, Any]) -> tuple[ClusterPod, list[str]]:
    faults = DecodingFaults()
    return Decoder(kept).object(POD, json.dumps(obj).encode(), faults), faults


def annotated(obj: dict[str, Any], **annotations: str) -> dict[str, Any]:
    obj["metadata"]["annotations"] = {SEAT: "1", **annotations}
    return obj


@given(found=st.dictionaries(KEYS, TEXTS), bounds=st.dictionaries(KEYS, st.integers(1, 60)))
def test_what_is_declared_is_kept_whole_or_left_out_by_name(
    found: dict[str, str], bounds: dict[str, int]
) -> None:
    faults = DecodingFaults()
    kept = kept_annotations(found, bounds, faults)
    fits = {key: text for key, text in found.items() if len(text.encode()) <= bounds.get(key, -1)}
    assert kept == tuple(sorted(fits.items()))
    long = (found.keys() & bounds.keys()) - fits.keys()
    assert len(faults) == len(long)
    assert all(any(f"annotation {key}: " in fault for fault in faults) for key in long)


def test_nothing_is_kept_that_nobody_declares() -> None:
    kept, faults = decoded(NO_FIELDS, annotated(pod("p")))
    assert (kept.annotations, kept.spec.containers, faults) == ((), None, [])


def test_a_value_of_the_largest_bound_is_kept_whole() -> None:
    largest = "ä" * (MAX_VALUE_BYTES // 2)
    fields = KeptFields(pod_annotations={SEAT: MAX_VALUE_BYTES})
    kept, faults = decoded(fields, annotated(pod("p"), **{SEAT: largest}))
    assert kept.annotations == ((SEAT, largest),)
    assert not faults


def test_a_pod_with_a_value_beyond_its_bound_fits_no_node() -> None:
    """Placed without what it says, it would be elsewhere than it asks to be."""
    fields = KeptFields(pod_annotations={SEAT: 3})
    kept, faults = decoded(fields, annotated(pod("p"), **{SEAT: "ää"}))
    assert kept.annotations == ()
    assert faults == [f"annotation {SEAT}: 4 bytes of at most 3"]
    assert kept.spec.unread == tuple(faults)


def test_a_node_with_a_value_beyond_its_bound_is_a_node_without_it() -> None:
    decoder, faults = Decoder(KeptFields(node_annotations={SEAT: 3})), DecodingFaults()
    data = json.dumps(annotated(node("n"), **{SEAT: "1234"})).encode()
    kept: ClusterNode = decoder.object(NODE, data, faults)
    assert (kept.annotations, kept.unschedulable) == ((), False)
    assert faults == [f"annotation {SEAT}: 4 bytes of at most 3"]


def test_declared_labels_are_kept_before_others_where_there_are_too_many() -> None:
    many = {f"kubernetes.io/{number:03}": "x" * 4000 for number in range(80)}
    assert sum(map(len, many.values())) > KEPT_BYTES
    obj = pod("p", labels={**many, "seat": "1"})
    for fields, expected in ((NO_FIELDS, None), (KeptFields(pod_labels=frozenset({"seat"})), "1")):
        kept, faults = decoded(fields, obj)
        assert kept.labels.get("seat") == expected
        assert "labels" in faults[0]


def test_requests_of_each_container_are_kept_for_who_declares_it() -> None:
    obj = pod("p")
    obj["spec"]["containers"] = [
        {"name": "main", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}},
        {"name": "idle"},
    ]
    obj["spec"]["initContainers"] = [
        {"name": "first", "resources": {"requests": {"example.com/card": "1"}}},
        {"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
    ]
    kept, _ = decoded(KeptFields(containers=True), obj)
    found = kept.spec.containers or ()
    assert [(one.name, one.kind, one.sidecar) for one in found] == [
        ("first", ContainerKind.INIT, False),
        ("mesh", ContainerKind.INIT, True),
        ("main", ContainerKind.REGULAR, False),
        ("idle", ContainerKind.REGULAR, False),
    ]
    assert [one.requests for one in found] == [
        (("example.com/card", 1),),
        (("cpu", 1000),),
        (("cpu", 2000),),
        (),
    ]
    assert found[2].limits == (("cpu", 3000),)


def test_the_requests_of_a_container_that_is_resized_are_those_that_count() -> None:
    obj = pod("p", requests={"cpu": "1"})
    name = obj["spec"]["containers"][0]["name"]
    obj["status"]["containerStatuses"] = [{"name": name, "resources": {"requests": {"cpu": "3"}}}]
    kept, _ = decoded(KeptFields(containers=True), obj)
    assert [one.requests for one in kept.spec.containers or ()] == [(("cpu", 3000),)]


def test_pods_whose_containers_have_other_names_do_not_share_a_spec() -> None:
    """Without the declaration they do: names are not kept then."""
    for fields, shared in ((KeptFields(containers=True), False), (NO_FIELDS, True)):
        decoder = Decoder(fields)
        first, second = pod("a"), pod("b")
        second["spec"]["containers"][0]["name"] = "other"
        one, other = (decoder.object(POD, json.dumps(obj).encode()) for obj in (first, second))
        assert (one.spec is other.spec) is shared


def test_a_decoder_can_be_told_later() -> None:
    decoder, data = Decoder(), json.dumps(annotated(pod("p"))).encode()
    assert decoder.object(POD, data).spec.containers is None
    decoder.kept = KeptFields(pod_annotations={SEAT: 9}, containers=True)
    found = decoder.object(POD, data)
    assert found.annotations == ((SEAT, "1"),)
    assert found.spec.containers is not None


def test_a_dump_is_read_with_what_plugins_declare(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Pod", **annotated(pod("p"), **{SEAT: "12345"})})
    )
    dump = read_dump(path, KeptFields(pod_annotations={SEAT: 5}))
    found = dump.cluster.pod("default/p")
    assert found is not None
    assert found.annotations == ((SEAT, "12345"),)
    dump = read_dump(path, KeptFields(pod_annotations={SEAT: 4}))
    assert dump.cut == [f"pod default/p: annotation {SEAT}: 5 bytes of at most 4"]


@reads(pod_annotations={SEAT: 10}, pod_labels=["seat"])
class Base:
    pass


@reads(KeptFields(containers=True), pod_annotations={SEAT: 20}, node_annotations={"n": 1})
class Derived(Base):
    pass


def made_by_function() -> Base:
    return Base()


def test_declarations_are_those_of_a_class_its_bases_and_shared_rules() -> None:
    assert reads_of(Derived) == KeptFields(
        pod_annotations={SEAT: 20},
        node_annotations={"n": 1},
        pod_labels=frozenset({"seat"}),
        containers=True,
    )
    assert reads_of(made_by_function) == reads_of(Base)
    assert reads_of(object) == reads_of(lambda: None) == NO_FIELDS
    assert reads_of(reads(pod_labels=["a"])(lambda: None)) == KeptFields(pod_labels=frozenset("a"))


def test_the_larger_bound_of_two_plugins_counts() -> None:
    both = union((reads_of(Base), reads_of(Derived), NO_FIELDS))
    assert both == reads_of(Derived)
    assert both.covers(reads_of(Base))
    assert not reads_of(Base).covers(both)


@pytest.mark.parametrize(
    "declared",
    [
        {"pod_annotations": {SEAT: 0}},
        {"pod_annotations": {SEAT: MAX_VALUE_BYTES + 1}},
        {"node_annotations": {SEAT: True}},
        {"pod_annotations": {"": 1}},
        {"pod_annotations": {"k" * 318: 1}},
        {"pod_labels": "seat"},
        {"node_labels": [1]},
        {"pod_labels": map(str, range(MAX_KEYS + 1))},
    ],
)
def test_what_cannot_be_kept_cannot_be_declared(declared: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=r"^reads: .*wanted"):
        reads(**declared)
