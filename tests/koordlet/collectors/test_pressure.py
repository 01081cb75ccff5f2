"""Pressure of the node, QoS classes, pods and containers."""

import pytest

from koord.api.qos import KubeQoS
from koordlet.metriccache import kinds

TEN = ("10",)


@pytest.fixture
def pressed(make_machine):
    """A v2 machine with the gate on and one pod."""
    machine = make_machine(version=2)
    machine.gates.add("PSICollector")
    return machine, machine.run_pod("u1")


def test_node_and_qos_classes_need_no_gate(make_machine):
    """It is a dozen files."""
    machine = make_machine(version=2)
    machine.host.set_pressure("cpu", 12.5, 1.5)
    machine.host.group(machine.host.layout.qos_dir(KubeQoS.BEST_EFFORT)).set_pressure("io", 7.0)
    machine.host.group(machine.host.layout.root).set_pressure("memory", 3.0, 2.0)
    machine.tick()

    assert machine.value(kinds.NODE_PSI, "cpu", "10", "some") == 12.5
    assert machine.value(kinds.NODE_PSI, "cpu", "10", "full") == 1.5
    assert machine.value(kinds.QOS_PSI, "besteffort", "io", "10", "some") == 7.0
    assert machine.value(kinds.QOS_PSI, "kubepods", "mem", "10", "full") == 2.0
    labels = {"node": "n1", "psi_resource_type": "cpu", "psi_precision": "avg10"}
    assert machine.metric("koordlet_node_psi", **labels, psi_degree="some") == 12.5
    assert machine.metric("koordlet_qos_psi", qos_class="kubepods", psi_degree="full") is not None


def test_pods_and_containers(pressed):
    """Six samples each, and whether the kernel knows full CPU pressure."""
    machine, pod = pressed
    pod.group.set_pressure("cpu", 40.0, 10.0)
    pod.containers["c-u1"].set_pressure("memory", 5.0, 4.0)
    machine.tick()

    assert machine.value(kinds.POD_PSI, "u1", "cpu", "10", "some") == 40.0
    assert machine.value(kinds.POD_PSI_CPU_FULL_SUPPORTED, "u1") == 1
    container = ("u1", "containerd://c-u1")
    assert machine.value(kinds.CONTAINER_PSI, *container, "mem", "10", "full") == 4.0
    assert machine.value(kinds.CONTAINER_PSI_CPU_FULL_SUPPORTED, *container) == 1
    assert sum(kind == "pod_psi" for kind, *_ in machine.samples) == 6
    labels = {"pod_uid": "u1", "psi_resource_type": "cpu", "psi_precision": "avg300"}
    found = machine.metric("koordlet_pod_psi", **labels, cpu_full_supported="true")
    assert found is not None
    assert machine.metric("koordlet_container_psi", container_name="c-u1", pod_uid="u1") is not None


def test_a_kernel_without_the_full_line(pressed):
    """Pods keep Koordinator's 0 in the cache; families and our own kinds leave it out."""
    machine, pod = pressed
    pod.group.set_pressure("cpu", 40.0, None)
    machine.host.group(machine.host.layout.root).set_pressure("cpu", 40.0, None)
    machine.tick()

    assert machine.value(kinds.POD_PSI, "u1", "cpu", "10", "full") == 0
    assert machine.value(kinds.POD_PSI_CPU_FULL_SUPPORTED, "u1") == 0
    assert machine.value(kinds.QOS_PSI, "kubepods", "cpu", "10", "full") is None
    labels = {"pod_uid": "u1", "psi_resource_type": "cpu"}
    assert machine.metric("koordlet_pod_psi", **labels, psi_degree="full") is None
    assert machine.metric("koordlet_pod_psi", **labels, cpu_full_supported="false") is not None


def test_a_pod_with_one_unreadable_file_has_no_pressure(pressed):
    """Its three figures are exported together or not at all."""
    machine, pod = pressed
    pod.group.write("io.pressure", "half avg10=1\n")
    machine.tick()

    assert machine.value(kinds.POD_PSI, "u1", "cpu", "10", "some") is None
    container = ("u1", "containerd://c-u1")
    assert machine.value(kinds.CONTAINER_PSI, *container, "cpu", "10", "some") == 0


def test_pods_need_the_gate(make_machine):
    """Three files for each pod and container are not free."""
    machine = make_machine(version=2)
    machine.run_pod("u1")
    machine.tick()

    assert machine.value(kinds.POD_PSI, "u1", "cpu", "10", "some") is None
