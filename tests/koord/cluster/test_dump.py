"""Dumps: whatever kubectl prints becomes the state of a live cluster, whatever else is named."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster import dump as dumpfiles
from koord.cluster.dump import BEYOND, MAX_NAMED, Dump, DumpReader, read_dump
from koord.util.errors import OptionError
from tests.support.clusters import Json, claim, named, node, pod, volume


def of(obj: Json, kind: str, version: str = "v1") -> Json:
    return {"apiVersion": version, "kind": kind, **obj}


def listed(*items: Json, kind: str = "List", version: str = "v1", **metadata: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "items": list(items), "metadata": metadata}


def report(name: str, at: str = "2026-07-24T06:52:45Z") -> Json:
    usage = {"resources": {"cpu": "2", "memory": "1Gi"}}
    status = {"updateTime": at, "nodeMetric": {"nodeUsage": usage}}
    meta = {"metadata": {"name": name}, "status": status}
    return of(meta, "NodeMetric", "slo.koordinator.sh/v1alpha1")


def workload(name: str, kind: str) -> Json:
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": meta, "spec": {"replicas": 3}}


OBJECTS = (
    of(node("n1"), "Node"),
    of(node("n2", {"zone": "b"}), "Node"),
    of(pod("a", "n1", requests={"cpu": "1"}), "Pod"),
    of(pod("b", "n2"), "Pod"),
    of(pod("c", "n3"), "Pod"),  # of a node that is not in the dump
    report("n1"),
    report("n2", "2026-07-24T06:53:45Z"),
    of(claim("data", "v1"), "PersistentVolumeClaim"),
    of(volume("v1"), "PersistentVolume"),
    of(named("default", {"team": "x"}), "Namespace"),
    of({"metadata": {"name": "high"}, "value": 1000}, "PriorityClass", "scheduling.k8s.io/v1"),
    of(workload("web", "ReplicaSet"), "ReplicaSet", "apps/v1"),
    of(workload("shop", "CloneSet"), "CloneSet", "apps.kruise.io/v1alpha1"),
    of(
        {
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": 1},
        },
        "PodDisruptionBudget",
        "policy/v1",
    ),
)


def read(*documents: Json | bytes) -> Dump:
    reader = DumpReader()
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in documents]
    reader.read(b"\n".join(texts), "cluster.json")
    return reader.dump


def known(dump: Dump) -> object:
    """All that a state has, to be compared."""
    state = dump.cluster
    return (
        [(one.name, one.labels, one.allocatable) for one in state.nodes()],
        sorted(state.snapshot.pod_keys()),
        [sorted(one.key for one in state.pods_of_node(n.name)) for n in state.nodes()],
        state.reports,
        {key: (one.selector, one.allowed) for key, one in state.budgets.items()},
        state.priority_classes,
        {kind: sorted(state.workloads.keys(kind)) for kind in ("ReplicaSet", "CloneSet")},
        sorted(state.snapshot.claim_keys()),
        sorted(state.snapshot.volume_names()),
        sorted(state.snapshot.namespace_names()),
        dump.objects,
    )


def test_a_list_of_mixed_kinds_is_a_cluster() -> None:
    dump = read(listed(*OBJECTS))

    assert dump.rejections == 0
    assert dump.objects["node"] == 2
    assert dump.objects["pod"] == 3
    assert [one.name for one in dump.cluster.nodes()] == ["n1", "n2"]
    assert [one.key for one in dump.cluster.pods_of_node("n1")] == ["default/a"]
    assert dump.cluster.budgets["default/web"].allowed == 1
    assert dump.newest_report == 1784876025.0


@given(
    order=st.permutations(OBJECTS),
    cuts=st.lists(st.integers(0, len(OBJECTS)), max_size=4),
    indent=st.sampled_from([None, 4]),
    repeated=st.lists(st.sampled_from(OBJECTS), max_size=3),
)
def test_order_documents_and_repetitions_do_not_matter(
    order: list[Json], cuts: list[int], indent: int | None, repeated: list[Json]
) -> None:
    """One list, several, or single objects: the cluster is the same."""
    bounds = sorted({0, *cuts, len(order)})
    lists = [listed(*order[a:b]) for a, b in pairwise(bounds)]
    documents = [json.dumps(one, indent=indent).encode() for one in (*lists, *repeated)]

    dump = read(*documents)

    assert dump.rejections == 0
    dump.objects = read(listed(*OBJECTS)).objects  # repeated ones are counted again
    assert known(dump) == known(read(listed(*OBJECTS)))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    reader = DumpReader()
    reader.read(data, "x")

    assert not reader.dump.objects
    assert len(reader.dump.rejected) == reader.dump.rejections


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(bad=_VALUES, kind=st.sampled_from(["Node", "Pod", "NodeMetric", "", 5, None]))
def test_a_malformed_object_costs_only_itself(bad: Any, kind: Any) -> None:
    """Whatever is in its place, the objects beside it count."""
    item = {"kind": kind, "metadata": bad, "spec": bad, "status": bad}
    dump = read(listed(OBJECTS[0], item, bad, OBJECTS[1]))

    assert {"n1", "n2"} <= {one.name for one in dump.cluster.nodes()}


def test_what_is_malformed_is_named() -> None:
    broken = of({"metadata": {"name": "n9"}, "status": {"allocatable": {"cpu": "many"}}}, "Node")
    dump = read(listed(broken, OBJECTS[0], {"metadata": {"name": "x"}}, 7), b"\n{ cut")

    assert dump.rejections == 3
    second, third, fourth = map(str, dump.rejected)
    assert (dump.cuts, dump.cut) == (1, ["node n9: allocatable: cpu: not a quantity: 'many'"])
    assert second.startswith("cluster.json, document 1, item 3: wanted an object with a kind")
    assert third.startswith("cluster.json, document 1, item 4: wanted an object, found")
    assert fourth.startswith("cluster.json, document 2: wanted an object or a list, found")
    assert dump.objects == {"node": 2}


def test_only_so_many_are_named_all_are_counted() -> None:
    broken = [of({"metadata": {}}, "Node")] * (MAX_NAMED + 5)
    foreign = [of(named(f"x{at}", {}), f"Kind{at}", "example.com/v1") for at in range(150)]
    dump = read(listed(*broken, *foreign))

    assert dump.rejections == MAX_NAMED + 5
    assert len(dump.rejected) == MAX_NAMED
    assert dump.skipped[BEYOND] == 50
    assert dump.skipped.total() == 150


def test_other_kinds_are_counted_by_name_and_group() -> None:
    """NodeMetrics of metrics.k8s.io is not Koordinator's NodeMetric."""
    dump = read(
        listed(
            of(named("x", {}), "ConfigMap"),
            of(named("y", {}), "ConfigMap"),
            of(named("n1", {}), "NodeMetric", "metrics.k8s.io/v1beta1"),
        )
    )
    assert dump.skipped == {"ConfigMap": 2, "NodeMetric.metrics.k8s.io": 1}


def test_the_server_s_own_list_does_not_repeat_the_kind() -> None:
    """As of `kubectl get --raw /api/v1/nodes`; one page of several is called a part."""
    dump = read(
        listed(node("n1"), kind="NodeList"),
        listed(workload("web", ""), kind="ReplicaSetList", version="apps/v1", **{"continue": "x"}),
    )
    assert dump.objects == {"node": 1, "ReplicaSet": 1}
    assert [str(one) for one in dump.rejected] == [
        "cluster.json, document 2: wanted a whole list, found its first part only"
    ]


def test_yaml_is_read_as_well() -> None:
    text = b"apiVersion: v1\nkind: List\nitems:\n- kind: Node\n  apiVersion: v1\n"
    text += b"  metadata:\n    name: n1\n  status:\n    allocatable:\n      cpu: 4\n"

    assert read(text).cluster.nodes()[0].allocatable == (("cpu", 4000),)


def test_a_byte_order_mark_and_empty_files_are_no_fault() -> None:
    assert read(b"\xef\xbb\xbf" + json.dumps(listed(OBJECTS[0])).encode()).objects == {"node": 1}
    assert read(b" \n").rejections == 0


def test_a_directory_is_the_sum_of_its_files(tmp_path: Path) -> None:
    """Links and pipes in it are refused by name; other files are not looked at."""
    (tmp_path / "a.json").write_text(json.dumps(listed(*OBJECTS[:5])))
    (tmp_path / "b.json").write_text(json.dumps(listed(*OBJECTS[5:])))
    (tmp_path / "README.md").write_text("{")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe.json")

    dump = read_dump(tmp_path)

    assert known(dump) == known(read(listed(*OBJECTS)))
    assert sorted(one.where for one in dump.rejected) == ["link.json", "pipe.json"]


def test_a_file_is_read_through_a_link_that_the_user_names(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(listed(*OBJECTS)))
    (tmp_path / "latest").symlink_to("a.json")

    assert read_dump(tmp_path / "latest").objects["node"] == 2


def test_too_large_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside others it costs itself; alone there is nothing to read."""
    monkeypatch.setattr(dumpfiles, "MAX_FILE_BYTES", 4096)
    (tmp_path / "a.json").write_text(json.dumps(listed(OBJECTS[0])))
    (tmp_path / "b.json").write_text(" " * 5000)

    dump = read_dump(tmp_path)

    assert dump.objects == {"node": 1}
    assert "larger than 4096 bytes" in str(dump.rejected[0])
    with pytest.raises(OptionError, match="larger than 4096 bytes"):
        read_dump(tmp_path / "b.json")


@pytest.mark.parametrize("name", ["absent", "/dev/null", "."])
def test_a_path_without_a_dump_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError):
        read_dump(tmp_path / name)


def test_custom_resources_are_kept_for_plugins() -> None:
    """The last of two of a name; another version of the kind is another kind."""
    groups = "scheduling.sigs.k8s.io"
    dump = read(
        listed(
            of(named("a", {}), "PodGroup", f"{groups}/v1alpha1"),
            of(
                {"metadata": {"name": "a"}, "spec": {"minMember": 2}},
                "PodGroup",
                f"{groups}/v1alpha1",
            ),
            of({"metadata": {"name": "a", "namespace": "b"}}, "PodGroup", f"{groups}/v1alpha1"),
            of(named("x", {}), "ElasticQuota", f"{groups}/v1alpha1"),
            of(named("y", {}), "NodeTopology", "example.com/v1"),
            of({"metadata": {}}, "PodGroup", f"{groups}/v1alpha1"),
            of({"metadata": 5}, "PodGroup", f"{groups}/v1alpha1"),
            of(named("z", {}), "ConfigMap"),
        )
    )
    assert dump.take_custom(f"{groups}/v1beta1", "podgroups") == {}
    found = dump.take_custom(f"{groups}/v1alpha1", "podgroups")
    assert sorted(found) == ["a", "b/a"]
    assert found["a"]["spec"] == {"minMember": 2}
    assert dump.take_custom("example.com/v1", "nodetopologies")["y"]["kind"] == "NodeTopology"
    assert dump.objects == {f"PodGroup.{groups}": 2, "NodeTopology.example.com": 1}
    assert dump.skipped == {"ConfigMap": 1, f"ElasticQuota.{groups}": 1}
    assert dump.rejections == 2


def test_custom_resources_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord.cluster.dump.MAX_CUSTOM_BYTES", 200)
    dump = read(listed(*(of(named(f"x{at}", {}), "Device", "a.b/v1") for at in range(9))))
    assert 1 <= len(dump.take_custom("a.b/v1", "devices")) <= 4
    assert "at most" in str(dump.rejected[0])
