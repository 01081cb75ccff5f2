"""TCNetworkQoS in the kernel: a node and a pod, each in a network namespace of its own."""

import json
import os
import subprocess
import sys
import uuid
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import QOS_LABEL
from koord.api.qosstrategy import ANNOTATION
from koord.util.clock import SystemClock
from koordlet.host.errors import KernelFileError
from koordlet.host.net.guard.client import HelperTraffic, start
from koordlet.host.net.tc.kernel import KernelTraffic
from koordlet.host.net.tc.objects import (
    SocketCgroupReader,
    TrafficReader,
    TrafficWriter,
    VethPeerReader,
)
from koordlet.host.objects import SOCKET_CGROUPS, TRAFFIC_TREES, VETH_PEERS
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet_plugins.net_qos import TCNetworkQoS
from tests.support.node.network_namespace import ip, needs_namespaces, own_network, tc

pytestmark = needs_namespaces

_MOUNTS = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
V2 = next((Path(mount[1]) for mount in _MOUNTS if mount[2] == "cgroup2"), None)

ROUTES = (
    "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    "va 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n"
)
SLO = {
    "systemStrategy": {"totalNetworkBandwidth": "20M"},
    "resourceQOSStrategy": {
        "lsClass": {"networkQOS": {"enable": True, "egressRequest": 50}},
        "beClass": {"networkQOS": {"enable": True, "egressRequest": 10, "egressLimit": 30}},
    },
}
LIMITED = pytest.approx(0.8, abs=0.45)  # never above; below where the machine is busy
SEND = """
import os, socket, sys, time
if len(sys.argv) > 4:
    open(sys.argv[4] + "/cgroup.procs", "w").write(str(os.getpid()))
to = socket.create_connection((sys.argv[2], 9), source_address=(sys.argv[1], 0), timeout=60)
began = time.monotonic()
to.sendall(bytes(int(sys.argv[3])))
to.shutdown(socket.SHUT_WR)
to.recv(1)  # everything has arrived
print(int(sys.argv[3]) / (time.monotonic() - began))
"""
FLOOD = """
import socket, sys
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to.bind((sys.argv[1], 0))
to.connect((sys.argv[2], 99))
print("up", flush=True)
while True:
    try:
        to.send(bytes(1400))
    except OSError:  # the queue is full, or nothing listens there
        pass
"""
RECEIVE = """
import socket
server = socket.create_server(("", 9))
print("up", flush=True)
while True:
    to, _ = server.accept()
    while to.recv(1 << 16):
        pass
    to.close()
"""


class RealGroup(SocketCgroupReader):
    """Every pod of the fake host has one real cgroup."""

    group = Path()

    def path(self, name):
        return str(self.group)

    def read(self, name):
        level = len(self.group.relative_to(V2).parts)
        return super().read("/".join("g" * level))


class Node:
    """The node's interface va has the addresses of two pods; its peer is another machine's.

    A third pod has a namespace of its own, to which the interface end leads.
    """

    def __init__(self, stack, root):
        self._stack = stack
        self.peer, self.pod = self._namespace(), self._namespace()
        ip(f"link set vb netns {self.peer}")
        ip(f"link add end type veth peer name eth0 netns {self.pod}")
        for address in ("10.0.0.1", "10.0.0.7", "10.0.0.8", "10.0.0.9"):
            ip(f"addr add {address}/24 dev va")
        ip("addr add 10.1.0.1/24 dev end")
        ip("link set end up")
        self._on(self.peer, "ip addr add 10.0.0.2/24 dev vb")
        self._on(self.peer, "ip link set vb up")
        self._on(self.pod, "ip addr add 10.1.0.2/24 dev eth0")
        self._on(self.pod, "ip link set eth0 up")
        self._server(self.peer)
        self._server(self.pod)
        self.host = FakeHost(root, 2)
        self.host.write("proc/1/net/route", ROUTES)
        namespaces = {"network": "", "cgroup": ""}  # this thread's own
        config = namespaces | {"state": str(root / "state"), "api": None, "cgroups": []}
        with suppress(KernelFileError):
            KernelTraffic().supports_cgroup_map()  # loads modules: slow when emulated
        traffic = HelperTraffic(lambda: start(config), SystemClock())
        stack.callback(traffic.close)
        self.host.objects[TRAFFIC_TREES] = TrafficReader(self.host.paths, traffic)
        self.host.objects[VETH_PEERS] = VethPeerReader(self.host.paths, traffic)
        self.host.objects[SOCKET_CGROUPS] = RealGroup(self.host.paths, traffic)
        self.host.object_writers[TRAFFIC_TREES] = lambda paths: TrafficWriter(paths, traffic)

    def _namespace(self):
        holder = self._begin(["unshare", "-n", "sh", "-c", "echo here; exec sleep 100"])
        if holder.stdout.readline() != b"here\n":
            pytest.skip("no network namespace can be made here")
        return holder.pid

    def _begin(self, command):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._stack.callback(process.stdout.close)
        return process

    def _on(self, namespace, command):
        full = ["nsenter", "-t", str(namespace), "-n", *command.split()]
        subprocess.run(full, check=True, timeout=20)

    def _server(self, namespace):
        enter = ["nsenter", "-t", str(namespace), "-n"]
        server = self._begin([*enter, sys.executable, "-c", RECEIVE])
        assert server.stdout.readline() == b"up\n"

    def part(self, source, to, limit, *group):
        """The part of a limit in bytes/s at which packets arrive, over a second; of a cgroup."""
        command = [sys.executable, "-c", SEND, source, to, str(limit), *map(str, group)]
        done = subprocess.run(command, check=True, timeout=90, capture_output=True)
        return float(done.stdout) / limit

    def flood(self, source, to):
        """Send as much as goes, until the test ends."""
        flood = self._begin([sys.executable, "-c", FLOOD, source, to])
        assert flood.stdout.readline() == b"up\n"

    def packets(self, minor):
        found = tc(f"-s class show dev va classid 6b6c:{minor:x}")
        return int(found.partition(" bytes ")[2].split()[0])

    def make_pod(self, name, qos, *ips, pid=0, **limits):
        group = self.host.add_pod(name)
        if pid:
            stat = f"{pid} (it) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid} 0 0\n"
            self.host.write(f"proc/{pid}/stat", stat)
            group.sandbox.set_processes(pid)
        annotations = {ANNOTATION: json.dumps(limits)} if limits else {}
        meta = make_pod(name, labels={QOS_LABEL: qos}, annotations=annotations, sandbox=True)
        return replace(meta, pod=replace(meta.pod, ips=ips))


@pytest.fixture
def node(tmp_path):
    with own_network(), ExitStack() as stack:
        yield Node(stack, tmp_path)


async def test_traffic_of_classes_and_pods(node):
    """Best-effort pods get what the NodeSLO says, a pod its limits; in the end nothing is left."""
    before = tc("qdisc show")
    harness = PluginHarness(TCNetworkQoS(), host=node.host)
    harness.set_node_slo(merge_nodeslo({"spec": SLO})[0])
    harness.set_pods(
        node.make_pod("batch", "BE", "10.0.0.7"),
        node.make_pod("web", "LS", "10.0.0.8", egressLimit="8M"),
        node.make_pod("far", "LS", "10.1.0.2", pid=node.pod, ingressLimit="4M"),
    )
    async with harness:
        await harness.rounds(2)
        assert {each["state"] for each in harness.claims()} == {"in force"}

        assert node.part("10.0.0.7", "10.0.0.2", 750_000) == LIMITED
        assert node.packets(7) > 400
        assert node.part("10.0.0.8", "10.0.0.2", 1_000_000) == LIMITED
        assert node.part("10.1.0.1", "10.1.0.2", 500_000) == LIMITED

    assert tc("qdisc show") == before


@pytest.fixture
def group():
    """A cgroup of v2, which is a pod's."""
    if V2 is None or not os.access(V2, os.W_OK):
        pytest.skip("no hierarchy of cgroup v2 is mounted here for this user")
    group = V2 / f"koordlet-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    yield group
    group.rmdir()


async def test_a_pod_in_the_nodes_network_gets_its_class_by_its_cgroup(node, group):
    """It has the node's address; others with that address are not limited."""
    RealGroup.group = group
    meta = node.make_pod("batch", "BE", "10.0.0.1")
    harness = PluginHarness(TCNetworkQoS(), host=node.host)
    harness.set_node_slo(merge_nodeslo({"spec": SLO})[0])
    harness.set_pods(replace(meta, pod=replace(meta.pod, host_network=True)))
    async with harness:
        await harness.rounds(2)
        if harness.metric("unclassified_pods"):
            pytest.skip("this kernel has no match of nf_tables on cgroups")

        assert node.part("10.0.0.1", "10.0.0.2", 750_000, group) == LIMITED
        before = node.packets(7)
        assert before > 400
        assert node.part("10.0.0.1", "10.0.0.2", 750_000) > 1.25
        assert node.packets(7) < before + 10  # what the first connection had still to say


async def test_a_flood_of_a_best_effort_pod_leaves_the_others_their_part(node):
    """Each class gets its request; what is left goes to LS first."""
    classes = {
        "lsClass": {"networkQOS": {"enable": True, "egressRequest": 70}},
        "beClass": {"networkQOS": {"enable": True, "egressRequest": 10}},
    }
    harness = PluginHarness(TCNetworkQoS(), host=node.host)
    harness.set_node_slo(merge_nodeslo({"spec": SLO | {"resourceQOSStrategy": classes}})[0])
    harness.set_pods(
        node.make_pod("batch", "BE", "10.0.0.7"), node.make_pod("web", "LS", "10.0.0.8")
    )
    async with harness:
        await harness.rounds(2)
        node.flood("10.0.0.7", "10.0.0.2")

        part = node.part("10.0.0.8", "10.0.0.2", 2_250_000)  # all but BE's tenth
        assert part == LIMITED
        assert node.packets(7) > 100
