"""Node, QoS class, pod, container and host application usage on a fake host, tick by tick."""

import pytest

from koord.api.machine import NODE_CPU_INFO
from koord.api.nodeslo import CgroupBase, HostApplication, NodeSLO
from koord.api.qos import KubeQoS
from koordlet.collectors.engine.usage import Usage
from koordlet.collectors.node_info import NODE_LOCAL_STORAGE, NODE_NUMA_INFO
from koordlet.collectors.node_usage import numa_cores
from koordlet.collectors.pod_usage import UNLIMITED_TURNS
from koordlet.collectors.qos_usage import divide
from koordlet.metriccache import kinds

GIB = 2**30


def test_order_of_events_after_a_clean_start(machine):
    """First a baseline, then samples; a container does not wait for its pod."""
    machine.run_pod("u1")
    machine.tick()
    assert {kind for kind, *_ in machine.samples} <= {"node_be", "node_numa_memory_usage"} | {
        kind for kind in kinds.KINDS if "psi" in kind
    }

    machine.tick()
    for kind in (kinds.NODE_CPU_USAGE, kinds.NODE_MEMORY_USAGE, kinds.SYS_CPU_USAGE):
        assert machine.value(kind) is not None
    assert machine.value(kinds.POD_CPU_USAGE, "u1") == 0
    assert machine.value(kinds.CONTAINER_CPU_USAGE, "containerd://c-u1") == 0


def test_node_usage(machine):
    """Busy ticks over elapsed time, and memory that is not available."""
    machine.tick()
    machine.host.use_cpu(3.2, idle=0.8)
    machine.host.use_memory(3 * GIB, page_cache=2 * GIB)
    machine.tick()

    assert machine.value(kinds.NODE_CPU_USAGE) == pytest.approx(3.2, abs=0.02)
    assert machine.value(kinds.NODE_MEMORY_USAGE) == 3 * GIB
    assert machine.metric("koordlet_node_used_cpu_cores", node="n1") == machine.value(
        kinds.NODE_CPU_USAGE
    )
    assert machine.metric("koordlet_node_used_memory_bytes", node="n1") == 3 * GIB


def test_pod_and_container_usage(machine):
    """Each from its own group; what the pod itself uses is in no container."""
    pod = machine.run_pod("u1")
    machine.tick()
    pod.group.use_cpu(0.75)
    pod.group.use_memory(5000 * 4096, page_cache=7 * 4096)
    pod.containers["c-u1"].use_cpu(0.5)
    machine.tick(0.5)

    assert machine.value(kinds.POD_CPU_USAGE, "u1") == pytest.approx(1.5)
    assert machine.value(kinds.POD_MEMORY_USAGE, "u1") == 5000 * 4096
    assert machine.value(kinds.CONTAINER_CPU_USAGE, "containerd://c-u1") == pytest.approx(1.0)
    labels = {"node": "n1", "pod_uid": "u1", "pod_namespace": "default", "pod_name": "u1"}
    assert machine.metric("koordlet_pod_cpu_usage_cores", **labels, qos="LS") == pytest.approx(1.5)
    assert machine.metric("koordlet_pod_memory_usage_bytes", **labels, qos="LS") == 5000 * 4096


def test_fresh_pod_is_sampled_from_its_first_reading(machine):
    """The scan before did not see it, so its counters were zero then."""
    machine.run_pod("u1", absent_at=machine.clock.monotonic())
    machine.tick()

    assert machine.value(kinds.POD_CPU_USAGE, "u1") == pytest.approx(1.0)
    assert machine.value(kinds.CONTAINER_CPU_USAGE, "containerd://c-u1") == pytest.approx(1.0)


def test_pod_that_cannot_be_read_costs_only_itself(machine):
    """Its neighbours go on; its usage is not taken for the system's."""
    broken, fine = machine.run_pod("u1"), machine.run_pod("u2")
    machine.tick()
    broken.group.write(
        "memory/memory.stat" if machine.host.version == 1 else "memory.stat", b"\xff\x00"
    )
    fine.group.use_cpu(0.25)
    machine.tick()

    assert machine.value(kinds.POD_CPU_USAGE, "u1") is None
    assert machine.value(kinds.POD_CPU_USAGE, "u2") == 0.25
    assert machine.own_metric("koordlet_kernel_reads_total", outcome="failed") == 1


def test_finished_pods_are_not_sampled(machine):
    """Their cgroups are gone or idle; reading them would be waste."""
    machine.run_pod("u1")
    pod = machine.pods[0]
    object.__setattr__(pod.pod, "phase", "Succeeded")
    machine.tick()
    machine.tick()

    assert machine.value(kinds.POD_CPU_USAGE, "u1") is None


def test_throttling(machine):
    """The share of the periods since the last tick."""
    pod = machine.run_pod("u1")
    pod.group.throttle(1, 0)
    machine.tick()
    pod.group.throttle(11, 8)
    machine.tick()

    assert machine.value(kinds.POD_CPU_THROTTLED, "u1") == pytest.approx(8 / 11)
    assert machine.value(kinds.CONTAINER_CPU_THROTTLED, "containerd://c-u1") == 0
    assert machine.metric("koordlet_pod_cpu_throttled_ratio", pod_uid="u1") == pytest.approx(8 / 11)


def test_first_periods_of_a_new_cpu_limit_count_whole(machine):
    """Groups without a limit are read in turns; none of their ticks lacks a sample."""
    pods = [machine.run_pod(f"u{number}") for number in range(4)]
    for _ in range(3):
        machine.tick()
    pods[2].group.throttle(11, 8)
    ratios = []
    for _ in range(UNLIMITED_TURNS):
        machine.tick()
        ratios.append(machine.value(kinds.POD_CPU_THROTTLED, "u2"))

    assert sorted(ratios) == [0] * (UNLIMITED_TURNS - 1) + [pytest.approx(8 / 11)]
    pods[2].group.throttle(4, 1)
    machine.tick()
    assert machine.value(kinds.POD_CPU_THROTTLED, "u2") == pytest.approx(1 / 4)


def test_groups_without_a_cpu_limit_are_read_in_turns(machine):
    """Each once in UNLIMITED_TURNS ticks, those with a limit in each."""
    if machine.host.version == 2:
        pytest.skip("usage and throttling are in one file there")
    pods = [machine.run_pod(f"u{number}") for number in range(5)]

    def reads_of_turns() -> float:
        before = machine.own_metric("koordlet_kernel_reads_total", outcome="ok")
        for _ in range(UNLIMITED_TURNS):
            machine.tick()
        return machine.own_metric("koordlet_kernel_reads_total", outcome="ok") - before

    machine.tick()
    unlimited = reads_of_turns()
    for pod in pods:
        pod.group.throttle(1, 0)
    reads_of_turns()

    assert reads_of_turns() - unlimited == len(pods) * (UNLIMITED_TURNS - 1)


def test_qos_classes(machine):
    """Guaranteed is what the groups of the other classes leave of kubepods."""
    layout = machine.host.layout
    groups = {qos: machine.host.group(layout.qos_dir(qos)) for qos in KubeQoS}
    machine.tick()
    for qos, seconds in zip(KubeQoS, (3.0, 1.0, 0.5), strict=True):
        groups[qos].use_cpu(seconds)
    machine.tick()

    assert machine.value(kinds.QOS_CPU_USAGE, "burstable") == 1.0
    assert machine.value(kinds.QOS_CPU_USAGE, "besteffort") == 0.5
    assert machine.value(kinds.QOS_CPU_USAGE, "guaranteed") == 1.5
    assert machine.metric("koordlet_qos_cpu_usage_cores", qos_class="guaranteed") == 1.5


def test_guaranteed_is_unknown_when_a_class_is():
    """Its share would be taken for that of guaranteed pods."""
    assert divide(Usage(3, 300), Usage(1, 100), None) == {"burstable": Usage(1, 100)}


def test_host_applications(machine):
    """Read from where the NodeSLO says; without one there are none."""
    app = HostApplication("app", "koord-prod", "LS", CgroupBase.CGROUP_ROOT, "host-ls", "app")
    machine.slo = NodeSLO(host_applications=(app, HostApplication("gone", qos="LS")))
    group = machine.host.group("host-ls/app")
    machine.tick()
    group.use_cpu(0.5)
    group.use_memory(100 * 4096, page_cache=50 * 4096)
    machine.host.use_cpu(2.0, idle=2.0)
    machine.tick()

    assert machine.value(kinds.HOST_APP_CPU_USAGE, "app") == 0.5
    assert machine.value(kinds.HOST_APP_MEMORY_USAGE, "app") == 100 * 4096
    assert machine.value(kinds.HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE, "app") == 150 * 4096
    assert machine.value(kinds.HOST_APP_CPU_USAGE, "gone") is None
    assert machine.value(kinds.SYS_CPU_USAGE) == pytest.approx(1.5, abs=0.02)
    labels = {"host_application_name": "app", "priority_class": "koord-prod", "qos": "LS"}
    usage = "koordlet_host_application_resource_usage"
    assert machine.metric(usage, resource="cpu", **labels) == 0.5
    assert machine.metric(usage, resource="memory", **labels) == 100 * 4096


def test_page_cache_only_while_it_is_wanted(machine):
    """The policy of the NodeMetric spec may switch it on and off at any time."""
    pod = machine.run_pod("u1")
    pod.group.use_memory(10 * 4096, page_cache=5 * 4096)
    machine.host.use_memory(GIB, page_cache=GIB)
    machine.tick()
    assert machine.value(kinds.POD_MEMORY_USAGE_WITH_PAGE_CACHE, "u1") is None

    machine.page_cache = True
    machine.tick()
    assert machine.value(kinds.POD_MEMORY_USAGE_WITH_PAGE_CACHE, "u1") == 15 * 4096
    assert machine.value(kinds.NODE_MEMORY_USAGE_WITH_PAGE_CACHE) == 2 * GIB
    container = "containerd://c-u1"
    assert machine.value(kinds.CONTAINER_MEMORY_USAGE_WITH_PAGE_CACHE, container) == 0


@pytest.mark.parametrize(
    ("before", "now", "cores"),
    [
        ({0: 0, 1: 0}, {0: 100, 1: 200}, {0: 1.0, 1: 2.0}),
        ({0: 0, 1: 300}, {0: 100, 1: 200}, {0: 1.0}),  # cpu1 went back and is alone on its node
        ({0: 0}, {0: 100, 1: 200}, {0: 1.0}),  # cpu1 was offline
        ({0: 0, 9: 0}, {0: 100, 9: 200}, {0: 1.0}),  # the NUMA node of cpu9 is not known
    ],
)
def test_cores_of_a_numa_node_are_the_sum_of_its_cpus(before, now, cores):
    """Koordinator's worked examples, at 100 ticks per second."""
    assert numa_cores(before, now, 1.0, {0: 0, 1: 1}) == cores


def test_no_time_between_readings_gives_no_numa_usage():
    """Rather than dividing by zero."""
    assert numa_cores({0: 0}, {0: 5}, 0.0, {0: 0}) == {}


def test_numa_nodes(machine):
    """CPU and memory of the node and of the system, per NUMA node."""
    pod = machine.run_pod("u1")
    pod.group.use_memory(1000 * 4096)
    machine.host.use_memory(GIB)
    machine.tick()
    machine.host.use_cpu(2.0, idle=2.0)
    machine.tick()

    assert machine.value(kinds.NODE_NUMA_CPU_USAGE, "0") == pytest.approx(2.0, abs=0.05)
    memory = machine.value(kinds.NODE_NUMA_MEMORY_USAGE, "0")
    assert memory is not None
    assert machine.value(kinds.SYS_NUMA_MEMORY_USAGE, "0") == memory - 1000 * 4096
    assert machine.value(kinds.SYS_NUMA_CPU_USAGE, "0") == machine.value(kinds.SYS_CPU_USAGE)
    assert machine.metric("koordlet_node_numa_memory_usage_bytes", numa_node_id="0") == memory


def test_numa_memory_of_a_pod_is_read_every_fifth_tick(machine):
    """The kernel works hard for memory.numa_stat; a reading stands for up to ten seconds."""
    pods = [machine.run_pod(f"u{n}") for n in range(10)]
    machine.tick()
    for pod in pods:
        pod.group.use_memory(100 * 4096)
    machine.host.use_memory(GIB)
    sums = []
    for _ in range(5):
        machine.tick()
        node = machine.value(kinds.NODE_NUMA_MEMORY_USAGE, "0")
        system = machine.value(kinds.SYS_NUMA_MEMORY_USAGE, "0")
        assert node is not None
        assert system is not None
        sums.append((node - system) / 4096)

    assert sums == [200, 400, 600, 800, 1000]


def test_late_tick_reads_numa_memory_of_a_pod_again(machine):
    """A reading that is too old for its pod is replaced, whoever's turn it is."""
    machine.run_pod("u1").group.use_memory(100 * 4096)
    machine.host.use_memory(GIB)
    for seconds in (1, 1, 11):
        machine.tick(seconds)

    node = machine.value(kinds.NODE_NUMA_MEMORY_USAGE, "0")
    assert machine.value(kinds.SYS_NUMA_MEMORY_USAGE, "0") == node - 100 * 4096


def test_node_facts_are_published(machine):
    """Topology and NUMA nodes, and how often they could be read."""
    machine.tick()
    info = machine.published[NODE_CPU_INFO]
    status = "koordlet_collect_node_cpu_info_status"

    assert len(info.topology.cpus) == 4
    assert [node.id for node in machine.published[NODE_NUMA_INFO]] == [0]
    assert machine.metric(status, node="n1", status="succeeded") == 1
    machine.host.write("sys/devices/system/cpu/online", "nonsense")
    machine.tick(60)
    assert machine.metric(status, status="failed") == 1
    assert machine.own_metric(
        "koordlet_collector_rounds_total", collector="node_info", outcome="failed"
    )


def test_local_storage_is_read_for_its_gate_alone(machine):
    """Only block device throttling needs it."""
    machine.tick()
    assert NODE_LOCAL_STORAGE not in machine.published
    machine.gates.add("BlkIOReconcile")
    machine.tick()
    assert NODE_LOCAL_STORAGE in machine.published
