"""A node's topology and its NodeResourceTopology object: as Koordinator's parts read it."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubelet import CpuManagerState, KubeletConfig
from koord.api.machine import NumaMemory
from koord.api.node import Node
from koord.api.pod import Pod
from koord.util.errors import InvalidObject
from koordlet.rules.node_resource_topology import (
    new_topology_object,
    parse_published_topology,
    topology_annotations,
    topology_patch,
)
from koordlet.rules.node_topology import (
    KubeletFacts,
    TopologyInputs,
    node_topology,
    node_zones,
    reserved_per_zone,
)
from tests.support.kube.object_store import json_patch
from tests.support.machines import PAIRS, TWO_SOCKETS, machine, topology

NUMA_RESERVATION = "node.koordinator.sh/enable-numa-reservation"
GIB = 1 << 30
STATIC = KubeletConfig(
    "static",
    {"strict-cpu-reservation": "true", "full-pcpus-only": "true"},
    {"cpu": "2"},
    topology_manager_policy="best-effort",
)
INPUTS = TopologyInputs(machine(), Node("n1", uid="node-uid"), (), KubeletFacts(KubeletConfig()))


def derive(**changes: Any) -> Any:
    found, _ = node_topology(replace(INPUTS, **changes))
    return found


def stored(**changes: Any) -> dict[str, Any]:
    """The object as the server has it after it was created."""
    body = new_topology_object("n1", replace(INPUTS, **changes).node, derive(**changes))
    body["metadata"] |= {"uid": "u1", "resourceVersion": "7"}
    return json.loads(json.dumps(body))


def corrected(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a patch makes of an object on the server."""
    return json_patch(found, topology_patch(parse_published_topology(found), derive(**changes)))


def amounts(zones: list[dict[str, Any]], name: str) -> list[str]:
    return [
        resource["allocatable"]
        for zone in zones
        for resource in zone["resources"]
        if resource["name"] == name
    ]


class TestZones:
    """What each NUMA node has for pods."""

    def test_two_nodes(self):
        """All three amounts are the same, resources are in the order of their names."""
        zones = stored()["zones"]

        assert [(zone["name"], zone["type"]) for zone in zones] == [
            ("node-0", "Node"),
            ("node-1", "Node"),
        ]
        zero = dict.fromkeys(("capacity", "allocatable", "available"), "0")
        assert zones[0]["resources"] == [
            {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"},
            {"name": "hugepages-1Gi", **zero},
            {"name": "hugepages-2Mi", **zero},
            {"name": "memory"}
            | dict.fromkeys(("capacity", "allocatable", "available"), "263432804Ki"),
        ]
        assert amounts(zones, "memory") == ["263432804Ki", "263432000Ki"]

    def test_numa_reservation(self):
        """What the node reserves is spread over its NUMA nodes, and taken off all three amounts."""
        node = Node(
            "n1",
            labels={NUMA_RESERVATION: "true"},
            capacity={"cpu": "8", "memory": "269755191296"},
            allocatable={"cpu": "7", "memory": "268706611200"},
        )
        zones = stored(node=node)["zones"]

        assert amounts(zones, "cpu") == ["3500m", "3500m"]
        assert amounts(zones, "memory") == ["262920802Ki", "262919998Ki"]
        assert all(
            resource["capacity"] == resource["allocatable"] == resource["available"]
            for zone in zones
            for resource in zone["resources"]
        )
        assert amounts(stored(node=replace(node, labels={}))["zones"], "cpu") == ["4", "4"]

    @pytest.mark.parametrize(
        ("capacity", "allocatable", "zones", "each"),
        [
            ({"cpu": "8"}, {"cpu": "4"}, 3, {"cpu": "1334m"}),
            ({"cpu": "96"}, {"cpu": "95"}, 2, {"cpu": "500m"}),
            ({"cpu": "96"}, {"cpu": "95"}, 3, {"cpu": "334m"}),
            ({"cpu": "64"}, {"cpu": "64"}, 2, {}),
            ({"memory": "256Gi"}, {"memory": "250Gi"}, 2, {"memory": "3Gi"}),
            ({"cpu": "1"}, {"cpu": "2"}, 2, {}),
            ({"cpu": "1"}, {}, 2, {}),
        ],
    )
    def test_what_each_zone_holds_back(self, capacity, allocatable, zones, each):
        """Rounded up to thousandths."""
        found = reserved_per_zone(capacity, allocatable, zones)
        assert {name: str(amount) for name, amount in found.items()} == each

    def test_never_below_nothing(self):
        """A reservation larger than a zone, or huge pages larger than its memory."""
        one = machine(topology([(0,)]), 1024)
        reserved = reserved_per_zone({"cpu": "8"}, {"cpu": "4"}, 1)
        [zone] = node_zones(one, huge_pages=False, reserved=reserved)
        assert str(zone.resources["cpu"]) == "0"

        full = replace(one, memory={0: NumaMemory(GIB, {GIB: 2 * GIB})})
        [zone] = node_zones(full, huge_pages=True, reserved={})
        assert str(zone.resources["memory"]) == "0"

    def test_huge_pages(self):
        """Told apart from memory, when that is wanted."""
        memory = {0: NumaMemory(64 * GIB, {GIB: 10 * GIB, 2 << 20: GIB}), 1: NumaMemory(64 * GIB)}
        big = replace(machine(), memory=memory)

        [zone, _] = node_zones(big, huge_pages=True, reserved={})
        assert {name: str(amount) for name, amount in zone.resources.items()} == {
            "cpu": "4",
            "hugepages-1Gi": "10Gi",
            "hugepages-2Mi": "1Gi",
            "memory": "53Gi",
        }
        [zone, _] = node_zones(big, huge_pages=False, reserved={})
        assert str(zone.resources["hugepages-1Gi"]) == "0"
        assert str(zone.resources["memory"]) == "64Gi"

    def test_cpus_and_memory_on_different_nodes(self):
        """Nothing right can be said of such a machine."""
        with pytest.raises(InvalidObject, match='CPUs on "0-1", memory on "0"'):
            derive(machine=machine(PAIRS, 1024))
        with pytest.raises(InvalidObject, match='memory on ""'):
            derive(machine=replace(machine(), memory={}))

    def test_many_nodes_are_in_the_order_of_their_numbers(self):
        """Not of their names, so that a zone's place is its node's number."""
        many = machine(topology(*[[(n,)] for n in range(12)]), *[1024] * 12)
        names = [zone["name"] for zone in stored(machine=many)["zones"]]
        assert names == [f"node-{n}" for n in range(12)]


class TestAnnotations:
    """The texts that others parse."""

    def test_a_plain_node(self):
        """Without static CPU manager, reservations or annotations."""
        assert topology_annotations(derive()) == {
            "node.koordinator.sh/cpu-basic-info": '{"cpuModel":"Xeon","hyperThreadEnabled":true,'
            '"catL3CbmMask":"fff","vendorID":"GenuineIntel"}',
            "node.koordinator.sh/cpu-topology": '{"detail":['
            + ",".join(
                f'{{"id":{n},"core":{n // 2},"socket":{n // 4},"node":{n // 4}}}' for n in range(8)
            )
            + "]}",
            "node.koordinator.sh/cpu-shared-pools": '[{"socket":0,"node":0,"cpuset":"0-3"},'
            '{"socket":1,"node":1,"cpuset":"4-7"}]',
            "node.koordinator.sh/be-cpu-shared-pools": '[{"socket":0,"node":0,"cpuset":"0-3"},'
            '{"socket":1,"node":1,"cpuset":"4-7"}]',
            "kubelet.koordinator.sh/cpu-manager-policy": '{"policy":"none"}',
            "node.koordinator.sh/pod-cpu-allocs": "null",
            "node.koordinator.sh/reservation": "{}",
            "node.koordinator.sh/system-qos-resource": "null",
        }

    def test_everything_at_once(self):
        """Static CPU manager with a pod, an LSE pod, a reservation, and system CPUs."""
        node = Node(
            "n1",
            annotations={
                "node.koordinator.sh/reservation": '{"reservedCPUs":"1-2"}',
                "node.koordinator.sh/system-qos-resource": '{"cpuset":"7"}',
            },
        )
        state = CpuManagerState("static", {"k": frozenset({6}), "b": frozenset({0})})
        lse = Pod(
            "shop",
            "db",
            "lse",
            {"koordinator.sh/qosClass": "LSE"},
            {"scheduling.koordinator.sh/resource-status": '{"cpuset":"5"}'},
        )
        found = topology_annotations(
            derive(
                node=node, pods=(lse, Pod("shop", "web", "k")), kubelet=KubeletFacts(STATIC, state)
            )
        )
        pools = '[{"socket":0,"node":0,"cpuset":"3"},{"socket":1,"node":1,"cpuset":"4"}]'
        assert found["node.koordinator.sh/cpu-shared-pools"] == pools
        assert found["node.koordinator.sh/be-cpu-shared-pools"] == pools
        assert found["kubelet.koordinator.sh/cpu-manager-policy"] == (
            '{"policy":"static","options":{"full-pcpus-only":"true",'
            '"strict-cpu-reservation":"true"},"reservedCPUs":"0-1"}'
        )
        assert found["node.koordinator.sh/pod-cpu-allocs"] == (
            '[{"uid":"b","cpuset":"0","managedByKubelet":true},{"namespace":"shop","name":"web",'
            '"uid":"k","cpuset":"6","managedByKubelet":true}]'
        )
        assert found["node.koordinator.sh/reservation"] == '{"reservedCPUs":"1-2"}'
        assert found["node.koordinator.sh/system-qos-resource"] == '{"cpuset":"7"}'

    def test_pools_that_are_set_aside_or_taken(self):
        """Set aside: an entry without CPUs. Taken: no entry, and null when there is none at all."""
        node = Node("n1", annotations={"node.koordinator.sh/reservation": '{"reservedCPUs":"4-7"}'})
        found = topology_annotations(derive(node=node))
        assert found["node.koordinator.sh/cpu-shared-pools"] == (
            '[{"socket":0,"node":0,"cpuset":"0-3"},{"socket":1,"node":1}]'
        )
        assert found["node.koordinator.sh/system-qos-resource"] == "{}"

        taken = KubeletFacts(STATIC, CpuManagerState("static", {"p": PAIRS.numbers}))
        found = topology_annotations(derive(kubelet=taken))
        assert found["node.koordinator.sh/cpu-shared-pools"] == "null"

    def test_letters_that_go_escapes(self):
        """So that a browser never takes JSON for HTML."""
        node = Node(
            "n1", annotations={"node.koordinator.sh/system-qos-resource": '{"cpuset":"<&é>"}'}
        )
        text = topology_annotations(derive(node=node))["node.koordinator.sh/system-qos-resource"]
        assert text == r'{"cpuset":"\u003c\u0026é\u003e"}'

    def test_a_policy_without_reserved_cpus(self):
        """What is not known is left out, and the reason is named."""
        config = replace(STATIC, kube_reserved={})
        found, problems = node_topology(replace(INPUTS, kubelet=KubeletFacts(config)))
        assert (
            "reservedCPUs"
            not in topology_annotations(found)["kubelet.koordinator.sh/cpu-manager-policy"]
        )
        assert "kubeReserved" in str(problems[0])


class TestObject:
    """The object as a whole, among what others have written to it."""

    def test_a_new_one(self):
        """It belongs to its Node, and says who manages it."""
        found = stored(kubelet=KubeletFacts(STATIC))
        assert (found["apiVersion"], found["kind"]) == (
            "topology.node.k8s.io/v1alpha1",
            "NodeResourceTopology",
        )
        meta = found["metadata"]
        assert meta["name"] == "n1"
        assert meta["labels"] == {"app.kubernetes.io/managed-by": "Koordinator"}
        assert meta["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "n1",
                "uid": "node-uid",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        assert found["topologyPolicies"] == ["BestEffortContainerLevel"]

    def test_a_node_that_the_cluster_does_not_know(self):
        """As one from a file: there is nothing that the object could end with."""
        found = stored(node=Node("from-a-file"))
        assert found["metadata"]["name"] == "n1"
        assert "ownerReferences" not in found["metadata"]

    def test_one_that_is_right(self):
        """Is left alone, however its JSON is written and its zones are ordered."""
        found = stored()
        key = "node.koordinator.sh/cpu-shared-pools"
        text = found["metadata"]["annotations"][key]
        found["metadata"]["annotations"][key] = json.dumps(json.loads(text), indent=1)
        found["zones"].reverse()
        found["zones"][0]["resources"][0]["allocatable"] = 4
        assert topology_patch(parse_published_topology(found), derive()) == []

    def test_a_patch_is_for_one_version_of_one_object(self):
        """Zones are replaced as a whole, and another client may just be writing to them."""
        found = stored()
        found["topologyPolicies"] = ["RestrictedPodLevel"]
        assert topology_patch(parse_published_topology(found), derive()) == [
            {"op": "test", "path": "/metadata/uid", "value": "u1"},
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/topologyPolicies", "value": ["None"]},
        ]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda it: it["metadata"].pop("annotations"),
            lambda it: it["metadata"]["annotations"].pop("node.koordinator.sh/cpu-topology"),
            lambda it: it["metadata"]["annotations"].update(
                {"node.koordinator.sh/cpu-shared-pools": "{"}
            ),
            lambda it: it["metadata"].update({"labels": {NUMA_RESERVATION: "true"}}),
            lambda it: it.update({"topologyPolicies": []}),
            lambda it: it.pop("zones"),
            lambda it: it.update({"zones": "none"}),
            lambda it: it["zones"].append({"name": "fake-name", "type": "Node"}),
            lambda it: it["zones"].append(copy.deepcopy(it["zones"][0])),
            lambda it: it["zones"].append(7),
            lambda it: it["zones"].pop(),
            lambda it: it["zones"][0].update({"type": "Socket"}),
            lambda it: it["zones"][0].pop("resources"),
            lambda it: it["zones"][1]["resources"].pop(0),
            lambda it: it["zones"][1]["resources"][3].update({"available": "1Gi"}),
            lambda it: it["zones"][1]["resources"][3].update({"capacity": "much"}),
        ],
    )
    def test_damage_is_put_right(self, damage):
        """Whatever it is, and then the object is right."""
        found = stored()
        damage(found)
        right = corrected(found)

        assert topology_patch(parse_published_topology(right), derive()) == []
        assert right["zones"] == stored()["zones"]

    def test_what_others_wrote_stays(self):
        """Annotations, labels, resources of zones, and attributes of a zone as a whole."""
        found = stored()
        found["metadata"]["annotations"]["theirs"] = "kept"
        found["metadata"]["labels"]["theirs"] = "kept"
        batch = {"name": "kubernetes.io/batch-cpu", "capacity": "1k", "allocatable": "1k"}
        found["zones"][0]["resources"].insert(0, batch)
        found["zones"][0] |= {"parent": "socket-0", "costs": [{"name": "node-1", "value": 21}]}
        four = topology([(0, 1)], [(4, 5)])
        right = corrected(found, machine=machine(four))

        assert right["metadata"]["annotations"]["theirs"] == "kept"
        assert right["metadata"]["labels"]["theirs"] == "kept"
        assert batch in right["zones"][0]["resources"]
        assert amounts(right["zones"], "cpu") == ["2", "2"]
        assert right["zones"][0]["parent"] == "socket-0"
        assert right["zones"][0]["costs"] == [{"name": "node-1", "value": 21}]
        assert right["metadata"]["uid"] == "u1"

    def test_foreign_resources_alone_are_no_reason_to_write(self):
        """As a GPU of a zone, which is not ours."""
        found = stored()
        found["zones"][0]["resources"].append({"name": "koordinator.sh/gpu", "allocatable": "1"})
        assert topology_patch(parse_published_topology(found), derive()) == []

    def test_the_label_follows_the_node(self):
        """Also when it is taken off again."""
        labelled = Node("n1", labels={NUMA_RESERVATION: "true"})
        right = corrected(stored(), node=labelled)
        assert right["metadata"]["labels"][NUMA_RESERVATION] == "true"
        assert corrected(right)["metadata"]["labels"] == stored()["metadata"]["labels"]

        bare = stored()
        del bare["metadata"]["labels"]
        assert corrected(bare, node=labelled)["metadata"]["labels"] == {NUMA_RESERVATION: "true"}

    def test_a_kubelet_that_is_ignored(self):
        """By a flag of the user: then none of its CPUs count as given away."""
        state = CpuManagerState("static", {"p": frozenset({1})})
        found = stored(kubelet=KubeletFacts(None, state, ignored=True))
        meta = found["metadata"]["annotations"]
        assert meta["kubelet.koordinator.sh/cpu-manager-policy"] == "{}"
        assert meta["node.koordinator.sh/pod-cpu-allocs"] == "null"
        assert found["topologyPolicies"] == ["None"]

    def test_a_kubelet_without_a_configuration_yet(self):
        """Its checkpoint has its allocations; its last response stays."""
        state = CpuManagerState("static", {"p": frozenset({1})})
        unknown = KubeletFacts(None, state)
        key = "kubelet.koordinator.sh/cpu-manager-policy"
        fresh = stored(kubelet=unknown)
        assert fresh["metadata"]["annotations"][key] == '{"policy":"static"}'
        assert fresh["topologyPolicies"] == ["None"]
        pools = fresh["metadata"]["annotations"]["node.koordinator.sh/cpu-shared-pools"]
        assert '"cpuset":"0,2-3"' in pools

        reported = stored(kubelet=KubeletFacts(STATIC, state))
        assert topology_patch(parse_published_topology(reported), derive(kubelet=unknown)) == []
        other = KubeletFacts(None, CpuManagerState("none"))
        right = corrected(reported, kubelet=other)
        assert right["metadata"]["annotations"][key] == '{"policy":"none"}'
        assert right["topologyPolicies"] == ["BestEffortContainerLevel"]

    @pytest.mark.parametrize(
        "metadata", [{}, {"uid": "u"}, {"uid": "u", "resourceVersion": 7}, [], None]
    )
    def test_an_object_that_is_none(self, metadata):
        """It has to say which it is."""
        with pytest.raises(InvalidObject, match="nodeResourceTopology"):
            parse_published_topology({"metadata": metadata})

    @given(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["name", "type", "resources", "cpu", "node-0"]), inner
                )
            ),
            max_leaves=12,
        )
    )
    def test_any_zones_can_be_put_right(self, zones):
        """Whatever another client has made of them."""
        right = corrected(stored() | {"zones": zones})
        assert topology_patch(parse_published_topology(right), derive()) == []


def test_problems_of_pods_are_named():
    """And nothing else of the node suffers."""
    bad = Pod("shop", "db", "u", {}, {"scheduling.koordinator.sh/resource-status": "{"})
    inputs = replace(INPUTS, machine=machine(TWO_SOCKETS), pods=(bad,))
    found, [problem] = node_topology(inputs)
    assert "pod shop/db" in str(problem)
    assert len(found.zones) == 2
