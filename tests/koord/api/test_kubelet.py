"""Rules about CPUs: which are taken, reserved, given by the kubelet, and shared by the rest."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import allocated_cpus, resource_status
from koord.api.kubelet import (
    CpuManagerState,
    KubeletConfig,
    PodCpus,
    kubelet_allocations,
    parse_cpu_manager_state,
    parse_kubelet_config,
    static_reserved_cpus,
)
from koord.api.machine import Cpu, CpuTopology, format_cpulist, parse_cpulist, take_by_topology
from koord.api.node import effective_reservation, system_qos
from koord.api.pod import Pod
from koord.util.errors import InvalidObject
from koordlet.rules.node_topology import cpu_pools, shared_cpus
from tests.support.machines import ONE_SOCKET, PAIRS, TWO_SOCKETS, topology

RESERVATION = "node.koordinator.sh/reservation"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
STATUS = "scheduling.koordinator.sh/resource-status"


def pod(uid: str = "p", qos: str = "", cpuset: str | None = None, **fields) -> Pod:
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    annotations = {} if cpuset is None else {STATUS: f'{{"cpuset":"{cpuset}"}}'}
    return Pod("ns4", "pod4", uid, labels, annotations, **fields)


class TestTaking:
    """CPUs by their number alone."""

    @pytest.mark.parametrize(
        ("cpus", "count", "taken"),
        [
            (ONE_SOCKET, 1, "0"),
            (ONE_SOCKET, 2, "0,4"),
            (ONE_SOCKET, 3, "0-1,4"),
            (ONE_SOCKET, 4, "0-1,4-5"),
            (ONE_SOCKET, 8, "0-7"),
            (TWO_SOCKETS, 2, "0,6"),
            (TWO_SOCKETS, 3, "0,2,6"),
            (TWO_SOCKETS, 6, "0,2,4,6,8,10"),
            (TWO_SOCKETS, 7, "0-2,4,6,8,10"),
            (PAIRS, 2, "0-1"),
            (PAIRS, 5, "0-4"),
            (PAIRS, 0, ""),
            (PAIRS, -1, ""),
        ],
    )
    def test_whole_sockets_then_cores_then_single_cpus(self, cpus, count, taken):
        """The lowest ids first."""
        assert format_cpulist(take_by_topology(cpus, cpus.numbers, count)) == taken

    @pytest.mark.parametrize(
        ("available", "count", "taken"),
        [
            ("0-7", 4, "0-3"),
            ("1-7", 4, "4-7"),  # the whole socket, though it is not the first
            ("1-3,5-7", 2, "2-3"),
            ("1-7", 1, "1"),  # what is begun is used up
            ("0-3,5", 1, "5"),
            ("0-3,5", 4, "0-3"),
        ],
    )
    def test_what_is_left_of_a_machine(self, available, count, taken):
        """Whole groups first; among equals, the one with the fewest CPUs left."""
        assert format_cpulist(take_by_topology(PAIRS, parse_cpulist(available), count)) == taken

    def test_numa_nodes_come_before_cores(self):
        """On a socket with two NUMA nodes."""
        cpus = CpuTopology(tuple(Cpu(n // 2, 0, n, n) for n in range(6)))

        assert take_by_topology(cpus, {1, 2, 3, 4, 5}, 2) == {2, 3}

    def test_more_than_there_are(self):
        """Is an error that says how many there are."""
        with pytest.raises(ValueError, match="wanted 9 CPUs, found 8"):
            take_by_topology(PAIRS, PAIRS.numbers, 9)

    @given(st.sets(st.integers(0, 11)), st.integers(0, 12))
    def test_as_many_as_asked_for_of_those_available(self, available, count):
        """Always the same ones, from any remainder of a machine."""
        with suppress(ValueError):
            taken = take_by_topology(TWO_SOCKETS, available, count)
            assert len(taken) == count <= len(available)
            assert taken <= available
            assert taken == take_by_topology(TWO_SOCKETS, available, count)


class TestKubeletConfig:
    """What /configz says."""

    def test_real_one(self):
        """Of the many fields those that matter, with Kubernetes' defaults."""
        found = parse_kubelet_config(
            {
                "kind": "KubeletConfiguration",
                "cpuManagerPolicy": "static",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                "kubeReserved": {"cpu": "1800m", "memory": "1Gi"},
                "systemReserved": None,
                "reservedSystemCPUs": "0-1",
                "evictionHard": {"memory.available": "100Mi"},
                "topologyManagerPolicy": "restricted",
                "logging": {"format": "text"},
            }
        )
        assert found == KubeletConfig(
            cpu_manager_policy="static",
            cpu_manager_options={"full-pcpus-only": "true"},
            kube_reserved={"cpu": "1800m", "memory": "1Gi"},
            reserved_system_cpus="0-1",
            topology_manager_policy="restricted",
        )
        assert parse_kubelet_config({}).cpu_manager_policy == "none"

    @pytest.mark.parametrize(
        ("field", "value"),
        [("cpuManagerPolicy", 1), ("kubeReserved", {"cpu": 2}), ("reservedSystemCPUs", ["0"])],
    )
    def test_wrong_types(self, field, value):
        """The message names the field."""
        with pytest.raises(InvalidObject, match=rf"kubeletconfig\.{field}"):
            parse_kubelet_config({field: value})

    @pytest.mark.parametrize(
        ("policy", "scope", "said"),
        [
            ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
            ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
            ("restricted", "container", "RestrictedContainerLevel"),
            ("restricted", "pod", "RestrictedPodLevel"),
            ("best-effort", "container", "BestEffortContainerLevel"),
            ("best-effort", "pod", "BestEffortPodLevel"),
            ("none", "container", "None"),
            ("", "pod", "None"),
            ("newest", "pod", "None"),
            ("restricted", "node", "None"),
        ],
    )
    def test_topology_policy(self, policy, scope, said):
        """As NodeResourceTopology spells it."""
        config = KubeletConfig(topology_manager_policy=policy, topology_manager_scope=scope)
        assert config.topology_policy == said

    @pytest.mark.parametrize(
        ("fields", "reserved"),
        [
            ({"kube_reserved": {"cpu": "1800m"}, "system_reserved": {"cpu": "200m"}}, "0,6"),
            ({"kube_reserved": {"cpu": "2100m", "memory": "1Gi"}}, "0,2,6"),
            ({"kube_reserved": {"cpu": "2"}, "reserved_system_cpus": "1-4"}, "1-4"),
        ],
    )
    def test_reserved_cpus(self, fields, reserved):
        """Explicit ones, or as many as are reserved in sum."""
        config = KubeletConfig("static", **fields)
        assert format_cpulist(static_reserved_cpus(config, TWO_SOCKETS)) == reserved
        assert static_reserved_cpus(KubeletConfig("none", **fields), TWO_SOCKETS) == frozenset()

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({}, "kubeReserved: wanted 1 to 12 reserved CPUs"),
            ({"kube_reserved": {"cpu": "0"}}, "wanted 1 to 12"),
            ({"kube_reserved": {"cpu": "13"}}, "wanted 1 to 12 reserved CPUs, found 13"),
            ({"kube_reserved": {"cpu": "-1"}}, "kubeReserved.cpu: wanted a quantity of 0 or more"),
            ({"kube_reserved": {"memory": "1Q"}}, "kubeReserved.memory"),
            ({"system_reserved": {"gpu": "1"}}, "systemReserved.gpu: wanted cpu or memory"),
            ({"reserved_system_cpus": "11-12"}, "reservedSystemCPUs: wanted a list of CPUs of"),
            ({"reserved_system_cpus": "x"}, "reservedSystemCPUs"),
        ],
    )
    def test_reservations_that_cannot_be(self, fields, message):
        """A kubelet would not run with them."""
        with pytest.raises(InvalidObject, match=message):
            static_reserved_cpus(KubeletConfig("static", **fields), TWO_SOCKETS)


class TestKubeletAllocations:
    """CPUs that the kubelet alone manages."""

    @pytest.mark.parametrize(
        ("entries", "pods", "found"),
        [
            ({}, [], ()),
            ({"pod": {"c1": "1-2", "c2": "2-3"}}, [], (PodCpus("pod", frozenset({1, 2, 3})),)),
            (
                {"xxx-y4": {"demo": "1"}},
                [pod("xxx-y4")],
                (PodCpus("xxx-y4", frozenset({1}), "ns4", "pod4"),),
            ),
            ({"p": {"c": "3-4"}}, [pod(qos="LS")], ()),
            ({"p": {"c": "3-4"}}, [pod(qos="BE")], ()),
            ({"p": {"c": "5-6"}}, [pod(qos="LSR", cpuset="4-5")], ()),
            ({"p": {"c": "5"}}, [pod(qos="LSR", cpuset="x")],
             (PodCpus("p", frozenset({5}), "ns4", "pod4"),)),
            ({"p": {"c": ""}}, [], ()),
            ({"b": {"c": "2"}, "a": {"c": "1"}}, [],
             (PodCpus("a", frozenset({1})), PodCpus("b", frozenset({2})))),
        ],
    )  # fmt: skip
    def test_pods_of_the_checkpoint(self, entries, pods, found):
        """But for those that are Koordinator's, by ascending UID."""
        state = parse_cpu_manager_state({"policyName": "static", "entries": entries})
        assert kubelet_allocations(state, pods) == found

    def test_an_empty_checkpoint(self):
        """Has given nothing away."""
        assert kubelet_allocations(CpuManagerState(), [pod()]) == ()


class TestResourceStatus:
    """What the scheduler has allocated."""

    @pytest.mark.parametrize(
        ("text", "cpus"),
        [("{}", ""), ("null", ""), ('{"cpuset":"0-3,8","numaNodeResources":[]}', "0-3,8")],
    )
    def test_cpus(self, text, cpus):
        """As a list."""
        assert format_cpulist(allocated_cpus(Pod("n", "a", "u", {}, {STATUS: text}))) == cpus

    @pytest.mark.parametrize(
        ("resources", "has_cpu"),
        [
            ('{"cpu":"2"}', True),
            ('{"kubernetes.io/batch-cpu":2000}', True),
            ('{"cpu":"0","kubernetes.io/batch-cpu":"0"}', False),
            ('{"hugepages-2Mi":"1Gi"}', False),
            ("null", False),
        ],
    )
    def test_numa_nodes(self, resources, has_cpu):
        """Which NUMA nodes were chosen, and whether for CPU; keys in any case, as with Go."""
        text = f'{{"numanoderesources":[{{"node":1,"resources":{resources}}}]}}'
        [found] = resource_status(Pod("n", "a", "u", {}, {STATUS: text})).numa
        assert (found.node, found.has_cpu) == (1, has_cpu)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "7",
            '{"cpuset":1}',
            '{"cpuset":"0-"}',
            '{"numaNodeResources":[{"node":"1"}]}',
            '{"numaNodeResources":[{"resources":{"cpu":"many"}}]}',
            "[" * 9999,
        ],
    )
    def test_malformed(self, text):
        """The message names the pod."""
        with pytest.raises(InvalidObject, match="pod n/a"):
            allocated_cpus(Pod("n", "a", "u", {}, {STATUS: text}))


class TestReservation:
    """What is reserved on a node."""

    @pytest.mark.parametrize(
        ("text", "cpus", "said"),
        [
            (None, "", {}),
            ("{}", "", {}),
            ('{"resources":{"cpu":"2"}}', "0,6",
             {"resources": {"cpu": "2"}, "reservedCPUs": "0,6"}),
            (
                '{"resources":{"cpu":"2500m","memory":"2048Mi"},"applyPolicy":"Default"}',
                "0,2,6",
                {
                    "resources": {"cpu": "2500m", "memory": "2Gi"},
                    "reservedCPUs": "0,2,6",
                    "applyPolicy": "Default",
                },
            ),
            ('{"resources":{"cpu":"-2"}}', "", {"resources": {"cpu": "-2"}}),
            (
                '{"Resources":{"cpu":" 2 ","CPU":"1"},"applypolicy":"Default"}',
                "0,6",
                {
                    "resources": {"CPU": "1", "cpu": "2"},
                    "reservedCPUs": "0,6",
                    "applyPolicy": "Default",
                },
            ),
            (
                '{"reservedCPUs":"0","re\u017fervedcpus":"1"}',
                "1",
                {"reservedCPUs": "1"},
            ),
            (
                '{"resources":{"cpu":10},"reservedCPUs":"0-1"}',
                "0-1",
                {"resources": {"cpu": "10"}, "reservedCPUs": "0-1"},
            ),
        ],
    )  # fmt: skip
    def test_effective_cpus(self, text, cpus, said):
        """Those that are named, else as many as the resources say; keys in any case, as with Go."""
        found, problem = effective_reservation({RESERVATION: text} if text else {}, TWO_SOCKETS)
        assert format_cpulist(found.cpus) == cpus
        assert found.to_json() == said
        assert problem is None

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"reservedCPUs":"-1"}', {}),
            ('{"resources":{"cpu":"13"}}', {"resources": {"cpu": "13"}}),
            ("{", {}),
            ('{"resources":{"cpu":"two"}}', {}),
            ('{"reservedCPUs":[1]}', {}),
            ('{"resources":{"\\ud800":"1"}}', {}),
        ],
    )
    def test_malformed(self, text, said):
        """Nothing is reserved, and the problem is named."""
        found, problem = effective_reservation({RESERVATION: text}, TWO_SOCKETS)
        assert found.cpus == frozenset()
        assert found.to_json() == said
        assert RESERVATION in str(problem)

    @pytest.mark.parametrize(
        ("text", "exclusive", "said"),
        [
            (None, "", {}),
            ('{"cpuset":"7"}', "7", {"cpuset": "7"}),
            ('{"cpuset":"7","cpusetExclusive":true}', "7",
             {"cpuset": "7", "cpusetExclusive": True}),
            ('{"cpuset":"7","cpusetExclusive":false}', "",
             {"cpuset": "7", "cpusetExclusive": False}),
            ('{"cpuset":"x"}', "", {"cpuset": "x"}),
            ('{"CPUSet":"7","CPUSETEXCLUSIVE":false}', "",
             {"cpuset": "7", "cpusetExclusive": False}),
        ],
    )  # fmt: skip
    def test_system_qos(self, text, exclusive, said):
        """Exclusive unless said otherwise."""
        found = system_qos({SYSTEM_QOS: text} if text else {"other": "annotation"})
        assert format_cpulist(found.exclusive_cpus) == exclusive
        assert found.to_json() == said

    @pytest.mark.parametrize("text", ["{", "[]", '{"cpuset":7}', '{"cpusetExclusive":"yes"}'])
    def test_system_qos_malformed(self, text):
        """Which CPUs are set aside is not known."""
        with pytest.raises(InvalidObject, match=SYSTEM_QOS):
            system_qos({SYSTEM_QOS: text})


class TestPools:
    """CPUs 0-3 on socket 0, node 0; 4-7 on socket 1, node 1."""

    PODS = (pod("a", "LSR", "4"), pod("b", "LSR", "3"), pod("c", "LSE", "5"))

    @pytest.mark.parametrize(
        ("pods", "kubelet", "set_aside", "ls", "be"),
        [
            ((), "", "", "0-3 | 4-7", "0-3 | 4-7"),
            (PODS, "", "", "0-2 | 6-7", "0-3 | 4,6-7"),
            (PODS, "1", "", "0,2 | 6-7", "0,2-3 | 4,6-7"),
            (PODS, "", "1-2,7", "0 | 6", "0,3 | 4,6"),
            ((pod("a", "LSR", "4-7"),), "", "", "0-3", "0-3 | 4-7"),
            ((), "", "4-7", "0-3 | ", "0-3 | "),
            ((), "0-7", "", "", ""),
            ((pod("a", "LSR", "4-7", phase="Succeeded"),), "", "", "0-3 | 4-7", "0-3 | 4-7"),
            ((pod("a", "LSR", "x"),), "", "", "0-3 | 4-7", "0-3 | 4-7"),
        ],
    )
    def test_what_is_shared(self, pods, kubelet, set_aside, ls, be):
        """A node that shares nothing is absent, one that is set aside is there, and empty."""
        shared = shared_cpus(PAIRS.numbers - parse_cpulist(kubelet), pods)

        for cpus, expected in ((shared.ls, ls), (shared.be, be)):
            pools = cpu_pools(PAIRS, cpus, parse_cpulist(set_aside))
            assert " | ".join(format_cpulist(pool.cpus) for pool in pools) == expected
            assert all(pool.socket == pool.node for pool in pools)

    def test_a_malformed_annotation_costs_only_itself(self):
        """And is named."""
        shared = shared_cpus(PAIRS.numbers, [pod("a", "LSR", "x"), pod("b", "LSR", "0")])
        assert shared.ls == PAIRS.numbers - {0}
        [problem] = shared.problems
        assert "pod ns4/pod4" in str(problem)

    def test_order(self):
        """By socket, then node, whatever the nodes' ids."""
        cpus = topology([(0,)], [(1,)], first_node=2)
        pools = cpu_pools(cpus, cpus.numbers, set())
        assert [(pool.socket, pool.node) for pool in pools] == [(0, 2), (1, 3)]

    @pytest.mark.parametrize("sockets", [(0, 1), (1, 0)])
    def test_a_numa_node_of_two_sockets_names_the_lower_one(self, sockets: tuple[int, int]):
        """Whichever has the first CPUs, or the only ones that are shared; it is one pool."""
        cpus = CpuTopology(
            tuple(
                Cpu(cpu=number, core=number, socket=sockets[number // 8], node=0)
                for number in sorted(range(16), key=lambda number: sockets[number // 8])
            )
        )
        [pool] = cpu_pools(cpus, cpus.numbers, set())
        assert (pool.socket, pool.node, format_cpulist(pool.cpus)) == (0, 0, "0-15")
