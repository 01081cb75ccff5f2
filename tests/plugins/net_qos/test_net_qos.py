"""TCNetworkQoS on a fake host: what is claimed for the NodeSLO, pods, and their interfaces."""

import errno
import json
import os
from dataclasses import replace

import pytest

from koord.api.node import Node, NodeAddress
from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import QOS_LABEL
from koord.api.qosstrategy import ANNOTATION
from koordlet.host.net.tc.objects import (
    SocketCgroupReader,
    TrafficReader,
    TrafficWriter,
    VethPeerReader,
)
from koordlet.host.net.tc.tree import ForeignQdisc, no_such_interface
from koordlet.host.objects import SOCKET_CGROUPS, TRAFFIC_TREES, VETH_PEERS
from koordlet.host.resource import ABSENT
from koordlet.plugin.network import parse_tree
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet_plugins.net_qos import TCNetworkQoS, numbered

G = 125_000_000  # bytes/s of 1G
HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
ROUTE = "{} 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n"
EXAMPLE = {
    "systemStrategy": {"totalNetworkBandwidth": "1G"},
    "resourceQOSStrategy": {
        "lsClass": {"networkQOS": {"enable": True, "egressRequest": 50, "egressLimit": 100}},
        "beClass": {"networkQOS": {"enable": True, "egressRequest": "100M", "egressLimit": "500M"}},
    },
}
CLASSES = (
    "default 5; class 1 below 0 rate 125000000 ceil 125000000 prio 0; "
    "class 2 below 1 rate 50000000 ceil 125000000 prio 1; "
    "class 3 below 1 rate 62500000 ceil 125000000 prio 2; "
    "class 4 below 1 rate 12500000 ceil 62500000 prio 3; "
    "class 5 below 2 rate 50000000 ceil 125000000 prio 1; "
    "class 6 below 3 rate 62500000 ceil 125000000 prio 2; "
    "class 7 below 4 rate 12500000 ceil 62500000 prio 3"
)
STAT = "{pid} (pause) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n"
IFPRIOMAP = "net_prio.ifpriomap"
OFF = {"systemStrategy": {"totalNetworkBandwidth": "1G"}}


class FakeTraffic:
    """The roots of interfaces, and the ends of processes' interfaces."""

    def __init__(self):
        self.roots = {"eth0": ABSENT}
        self.ends = {}
        self.asked = 0
        self.sockets = False

    def read(self, interface):
        found = self.roots.get(interface)
        return None if found is None else f"{found}\n".encode()

    def identity(self, interface):
        if interface not in self.roots:
            raise no_such_interface(interface)
        return 1 + list(self.roots).index(interface)

    def veth_peer(self, pid):
        self.asked += 1
        if pid not in self.ends:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        return self.ends[pid]

    def supports_cgroup_map(self):
        return self.sockets

    def write(self, interface, identity, content):
        if self.roots[interface].startswith("foreign"):
            raise ForeignQdisc(interface, wanted="nothing", found="it", hint="another agent's")
        text = content.decode().strip()
        if text != ABSENT:
            parse_tree(text)
        self.roots[interface] = text


class Bench:
    def __init__(self, root, version=2, **options):
        self.host = FakeHost(root, version)
        self.traffic = FakeTraffic()
        self.host.objects[TRAFFIC_TREES] = TrafficReader(self.host.paths, self.traffic)
        self.host.objects[VETH_PEERS] = VethPeerReader(self.host.paths, self.traffic)
        sockets = SocketCgroupReader(self.host.paths, self.traffic)
        self.host.objects[SOCKET_CGROUPS] = sockets
        self.host.object_writers[TRAFFIC_TREES] = lambda paths: TrafficWriter(paths, self.traffic)
        self.route("eth0")
        self.host.write("sys/class/net/eth0/speed", "10000\n")
        self.plugin = TCNetworkQoS()
        self.harness = PluginHarness(self.plugin, host=self.host, **options)
        self.groups = {}

    def route(self, *interfaces):
        routes = HEAD + "".join(map(ROUTE.format, interfaces))
        self.host.write("proc/1/net/route", routes)

    def slo(self, spec):
        self.harness.set_node_slo(merge_nodeslo({"spec": spec})[0])

    def pod(self, name, qos, *ips, egress=None, ingress=None, host_network=False, pid=0, end=""):
        limits = {"egressLimit": egress, "ingressLimit": ingress}
        limits = {key: value for key, value in limits.items() if value is not None}
        meta = make_pod(
            name,
            labels={QOS_LABEL: qos} if qos else {},
            annotations={ANNOTATION: json.dumps(limits)} if limits else {},
            sandbox=True,
        )
        if pid:
            if name not in self.groups:
                self.groups[name] = self.host.add_pod(name)
            self.host.write(f"proc/{pid}/stat", STAT.format(pid=pid, start=pid * 10))
            self.groups[name].sandbox.set_processes(pid)
            self.traffic.ends[pid] = end
            if end:
                self.traffic.roots.setdefault(end, ABSENT)
        return replace(meta, pod=replace(meta.pod, ips=ips, host_network=host_network))

    @property
    def there(self):
        return self.traffic.roots["eth0"]

    @property
    def matches(self):
        return [part for part in self.there.split("; ") if part.startswith("from")]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


async def test_the_worked_example(bench):
    """Classes of the NodeSLO, pods by their addresses; all of it is gone at the end."""
    bench.slo(EXAMPLE)
    bench.harness.set_pods(
        bench.pod("web", "LS", "10.0.0.7", "fd00::7"),
        bench.pod("exclusive", "LSE", "10.0.0.5"),
        bench.pod("batch", "BE", "10.0.0.8"),
        bench.pod("agent", "SYSTEM", "10.0.0.9"),
        bench.pod("plain", "", "10.0.0.10"),
    )
    async with bench.harness as harness:
        await harness.rounds(2)

        assert bench.there == (
            f"{CLASSES}; from 10.0.0.5 class 6; from 10.0.0.7 class 6; from 10.0.0.8 class 7; "
            "from fd00::7 class 6"
        )
        [claim] = harness.claims("eth0")
        [owner] = claim["claims"]
        assert owner["reason"] == "classes of the NodeSLO: ls and be; 0 limits of pods"
        assert (
            harness.metric("class_bytes_per_second", **{"class": "be", "bound": "rate"}) == G / 10
        )
        assert harness.metric("unclassified_pods") == 0
        assert not harness.degraded

        await harness.stop()
        assert bench.there == ABSENT
        await harness.start()
        await harness.rounds(2)
        assert bench.matches


async def test_limits_of_pods_have_classes_of_their_own(bench):
    """Below their class; the same numbers while others come and go, and after a restart."""
    bench.slo(EXAMPLE)
    web = bench.pod("web", "LS", "10.0.0.7", egress="20M")
    bench.harness.set_pods(web)
    async with bench.harness as harness:
        await harness.rounds(2)
        [match] = bench.matches
        number = match.rpartition(" ")[2]
        assert f"class {number} below 3 rate 2500000 ceil 2500000 prio 2" in bench.there
        assert harness.metric("limited_pods", direction="egress") == 1

        others = [bench.pod(f"a{at}", "BE", f"10.0.1.{at}", egress="30M") for at in range(9)]
        harness.set_pods(*others, web)
        await harness.rounds(2)
        assert f"from 10.0.0.7 class {number}" in bench.matches
        assert len(bench.matches) == 10

        harness.set_pods(web)
        await harness.rounds(2)
        assert bench.matches == [match]


async def test_numbers_that_the_kernel_has_stay_after_a_kill(tmp_path):
    """Also those that do not follow from the UID."""
    bench = Bench(tmp_path)
    left = f"{CLASSES}; class 4711 below 3 rate 2500000 ceil 2500000 prio 2".replace(
        "below 3 rate 62500000", "below 3 rate 60000000"
    )
    parts = left.split("; ")
    parts.sort(key=lambda part: int(part.split()[1]) if part.startswith("class") else 0)
    bench.traffic.roots["eth0"] = "; ".join((*parts, "from 10.0.0.7 class 4711"))
    parse_tree(bench.there)
    bench.slo(EXAMPLE)
    bench.harness.set_pods(
        bench.pod("web", "LS", "10.0.0.7", egress="20M"), bench.pod("new", "LS", "10.0.0.8")
    )
    async with bench.harness as harness:
        await harness.rounds(2)

        assert bench.matches == ["from 10.0.0.7 class 4711", "from 10.0.0.8 class 6"]


async def test_a_limit_without_classes(bench):
    """The NodeSLO enables none: a limit holds all the same, below SYSTEM, for any pod."""
    bench.slo(OFF)
    bench.harness.set_pods(bench.pod("plain", "", "10.0.0.7"))
    async with bench.harness as harness:
        await harness.rounds(2)
        assert bench.there == ABSENT

        harness.set_pods(bench.pod("plain", "", "10.0.0.7", egress="20M"))
        await harness.rounds(2)
        assert " below 2 rate 2500000 ceil 2500000 prio 1" in bench.there
        assert "below 1 rate 125000000 ceil 125000000 prio 1" in bench.there

        harness.set_pods(bench.pod("plain", "", "10.0.0.7"))
        await harness.rounds(2)
        assert bench.there == ABSENT


async def test_what_a_pod_receives_is_limited_at_its_end(bench):
    """A tree of its own at the node's end of its interface, gone with the pod."""
    bench.slo(OFF)
    pod = bench.pod("web", "LS", "10.0.0.7", ingress="10M", pid=41, end="veth1")
    bench.harness.set_pods(pod)
    async with bench.harness as harness:
        await harness.rounds(3)
        assert bench.traffic.roots["veth1"] == (
            "default 1; class 1 below 0 rate 1250000 ceil 1250000 prio 0"
        )
        assert bench.there == ABSENT
        assert harness.metric("limited_pods", direction="ingress") == 1
        assert bench.traffic.asked == 1  # a process once
        [claim] = harness.claims("default/web")
        assert (claim["target"], claim["uid"]) == ("interface veth1", "web")

        harness.set_pods()
        await harness.rounds(2)
        assert bench.traffic.roots["veth1"] == ABSENT


async def test_a_pod_whose_end_is_not_known(bench):
    """It is looked for again; the node's interface is never taken for one, nor another pod's."""
    bench.slo(OFF)
    pods = [
        bench.pod("none", "LS", ingress="10M", pid=41, end=""),
        bench.pod("node", "LS", ingress="10M", pid=42, end="eth0"),
        bench.pod("one", "LS", ingress="10M", pid=43, end="veth3"),
        bench.pod("same", "LS", ingress="20M", pid=44, end="veth3"),
        bench.pod("host", "LS", ingress="10M", host_network=True, pid=45, end="veth5"),
    ]
    bench.traffic.roots["veth5"] = ABSENT
    bench.harness.set_pods(*pods)
    async with bench.harness as harness:
        await harness.rounds(2)
        assert "3 pods with an ingressLimit have no virtual interface" in harness.degraded
        assert bench.there == ABSENT
        assert bench.traffic.roots["veth5"] == ABSENT
        assert "rate 1250000" in bench.traffic.roots["veth3"]

        bench.traffic.ends[41] = "veth4"
        bench.traffic.roots["veth4"] = ABSENT
        await harness.rounds(2)
        assert "rate 1250000" in bench.traffic.roots["veth4"]
        assert "2 pods" in harness.degraded


async def test_a_pid_that_became_another_process_is_none_of_the_pod(bench):
    """Its start time has changed while its interface was looked for."""
    bench.slo(OFF)
    pod = bench.pod("web", "LS", ingress="10M", pid=41, end="veth1")
    veth_peer = bench.traffic.veth_peer

    def reused(pid):
        found = veth_peer(pid)
        bench.host.write(f"proc/{pid}/stat", STAT.format(pid=pid, start=bench.traffic.asked))
        return found

    bench.traffic.veth_peer = reused
    bench.harness.set_pods(pod)
    async with bench.harness as harness:
        await harness.rounds(3)
        assert bench.traffic.asked >= 3
        assert bench.traffic.roots["veth1"] == ABSENT


async def test_pods_that_cannot_be_told_apart(bench):
    """In the node's network, without an address, with the node's or another pod's address."""
    bench.slo(EXAMPLE)
    bench.harness.states.set_node(
        Node(
            "test-node",
            addresses=(NodeAddress("InternalIP", "192.0.2.1"), NodeAddress("Hostname", "n")),
        )
    )
    new = bench.pod("new", "BE", "10.0.0.8")
    bench.harness.set_pods(
        bench.pod("host", "BE", "192.0.2.1", host_network=True),
        bench.pod("early", "BE"),
        bench.pod("sly", "BE", "192.0.2.1"),
        bench.pod("strange", "BE", "localhost"),
        bench.pod("old", "LS", "10.0.0.8"),
        replace(new, pod=replace(new.pod, start_time=5.0)),
        replace(
            bench.pod("z", "LS", "10.0.0.8"),
            pod=replace(bench.pod("z", "LS").pod, ips=("10.0.0.8",), start_time=4.0),
        ),
    )
    async with bench.harness as harness:
        await harness.rounds(2)

        assert bench.matches == ["from 10.0.0.8 class 6"]  # of old: when it started is not known
        assert harness.metric("unclassified_pods") == 6
        assert "6 pods have the node's addresses" in harness.degraded
        assert harness.metric("rejected_total", object="pod") == 1


async def test_an_annotation_that_cannot_be_used(bench):
    """A pod is in its class all the same; the last good limit stays."""
    bench.slo(EXAMPLE)
    bench.harness.set_pods(bench.pod("web", "BE", "10.0.0.7", egress="much"))
    async with bench.harness as harness:
        await harness.rounds(2)
        assert bench.matches == ["from 10.0.0.7 class 7"]
        assert harness.metric("rejected_total", object="pod") == 1

        harness.set_pods(bench.pod("web", "BE", "10.0.0.7", egress="8M"))
        await harness.rounds(2)
        assert "rate 1000000 ceil 1000000 prio 3" in bench.there
        harness.set_pods(bench.pod("web", "BE", "10.0.0.7", egress="-8M"))
        await harness.rounds(2)
        assert "rate 1000000 ceil 1000000 prio 3" in bench.there


@pytest.mark.parametrize("policy", ["terway-qos", "another"])
async def test_another_agent_does_it(bench, policy):
    """Nothing is claimed, of limits neither."""
    strategy = EXAMPLE["resourceQOSStrategy"] | {"policies": {"netQOSPolicy": policy}}
    bench.slo(EXAMPLE)
    bench.harness.set_pods(
        bench.pod("web", "LS", "10.0.0.7", egress="8M", ingress="8M", pid=41, end="veth1")
    )
    async with bench.harness as harness:
        await harness.rounds(2)
        assert bench.traffic.roots["veth1"] != ABSENT

        bench.slo(EXAMPLE | {"resourceQOSStrategy": strategy})
        await harness.rounds(2)
        assert bench.traffic.roots == {"eth0": ABSENT, "veth1": ABSENT}


async def test_the_bandwidth_is_that_of_the_link_where_the_nodeslo_has_none(bench):
    """And known on while the link is down; without it nothing is shaped."""
    bench.slo({"resourceQOSStrategy": EXAMPLE["resourceQOSStrategy"]})
    bench.host.write("sys/class/net/eth0/speed", "-1\n")
    bench.harness.set_pods(bench.pod("web", "LS", "10.0.0.7"))
    async with bench.harness as harness:
        await harness.rounds(2)
        assert bench.there == ABSENT
        assert "bandwidth is not known" in harness.degraded

        bench.host.write("sys/class/net/eth0/speed", "1000\n")
        await harness.rounds(2)
        assert bench.there.startswith("default 5; class 1 below 0 rate 125000000 ceil 125000000")
        assert not harness.degraded

        bench.host.write("sys/class/net/eth0/speed", "-1\n")
        await harness.rounds(2)
        assert bench.there.startswith("default 5; class 1 below 0 rate 125000000 ceil 125000000")


async def test_settings_that_cannot_be_used_are_reported_until_they_are_mended(bench):
    """What can be used of them is."""
    strange = {"beClass": {"networkQOS": {"enable": True, "egressRequest": "2G"}}}
    bench.slo(OFF | {"resourceQOSStrategy": strange})
    async with bench.harness as harness:
        await harness.rounds(2)
        assert "class 4 below 1" in bench.there
        assert harness.metric("rejected_total", object="node") == 2

        bench.slo(EXAMPLE)
        await harness.rounds(2)
        assert bench.there == CLASSES
        assert "setting.accepted" in [each.event for each in harness.log.events]


async def test_the_default_route_moves(bench):
    """The old interface gets back what it had; one that is gone for a while keeps it."""
    bench.traffic.roots["eth1"] = ABSENT
    bench.slo(EXAMPLE)
    async with bench.harness as harness:
        await harness.rounds(2)
        bench.route()
        await harness.rounds(2)
        assert bench.there == CLASSES

        bench.route("eth1", "eth0")
        await harness.rounds(2)
        assert bench.traffic.roots == {"eth0": ABSENT, "eth1": CLASSES}


async def test_a_node_with_ipv6_alone(bench):
    zero = "0" * 32
    bench.route()
    bench.traffic.roots["ens3"] = ABSENT
    bench.host.write(
        "proc/1/net/ipv6_route",
        f"{zero} 00 {zero} 00 fd{'0' * 30} 00000400 00000003 00000000 00000003     ens3\n",
    )
    bench.slo(EXAMPLE)
    async with bench.harness as harness:
        await harness.rounds(2)
        assert bench.traffic.roots == {"eth0": ABSENT, "ens3": CLASSES}


async def test_a_foreign_root_stays(bench):
    """With the reason."""
    bench.traffic.roots["eth0"] = "foreign tbf"
    bench.slo(EXAMPLE)
    async with bench.harness as harness:
        await harness.rounds(2)
        [claim] = harness.claims("eth0")
        assert bench.there == "foreign tbf"
        assert claim["state"] == "failed"
        assert "another agent's" in claim["message"]


async def test_dry_run_changes_nothing_and_explains(tmp_path):
    bench = Bench(tmp_path, dry_run=True)
    bench.slo(EXAMPLE)
    bench.harness.set_pods(
        bench.pod("web", "LS", "10.0.0.7", egress="8M", ingress="8M", pid=41, end="veth1")
    )
    async with bench.harness as harness:
        await harness.rounds(2)

        assert bench.traffic.roots == {"eth0": ABSENT, "veth1": ABSENT}
        found = {each["target"]: each for each in harness.claims()}
        assert found["interface eth0"]["wanted"].startswith("default 5; class 1 below 0")
        assert found["interface veth1"]["wanted"].startswith("default 1; class 1 below 0")
        assert {each["state"] for each in found.values()} == {"would"}


async def test_nothing_before_the_nodeslo_is_known(bench):
    bench.harness.set_pods(bench.pod("web", "LS", "10.0.0.7", egress="8M"))
    async with bench.harness as harness:
        await harness.rounds(2)
        assert bench.there == ABSENT
        assert harness.claims() == []


class HostPods:
    """Pods in the node's network on cgroup v1, whose kernel has net_prio."""

    def __init__(self, root):
        self.bench = Bench(root, version=1)
        self._write(self.bench.host.layout.root)

    def _write(self, group):
        self.bench.host.write(f"cgroup/net_prio/{group}/{IFPRIOMAP}", "lo 0\neth0 0\n")

    def pod(self, name, qos, **limits):
        meta = self.bench.pod(name, qos, host_network=True, **limits)
        for group in (meta.cgroup, meta.containers[0].cgroup):
            if not (self.bench.host.paths.cgroup / "net_prio" / group).exists():
                self._write(group)
        return meta

    def shown(self, meta):
        """What the pod and its container have, without interfaces that have none."""
        groups = (meta.cgroup, meta.containers[0].cgroup)
        texts = [self.bench.host.read(f"cgroup/net_prio/{each}/{IFPRIOMAP}") for each in groups]
        found = {line for text in texts for line in text.splitlines() if not line.endswith(" 0")}
        assert texts[0] == texts[1]
        return sorted(found)


async def test_pods_in_the_nodes_network_by_their_cgroups(tmp_path):
    """Where the kernel has net_prio: in the leaf of their class, or a class of their own."""
    host = HostPods(tmp_path)
    bench = host.bench
    batch, web = host.pod("batch", "BE"), host.pod("web", "LS", egress="8M")
    agent = host.pod("agent", "SYSTEM")
    bench.slo(EXAMPLE)
    bench.harness.set_pods(batch, web, agent)
    async with bench.harness as harness:
        await harness.rounds(2)

        number = numbered(["web"], {})["web"]
        assert host.shown(batch) == [f"eth0 {0x6B6C0007}"]
        assert host.shown(web) == [f"eth0 {0x6B6C0000 + number}"]
        assert host.shown(agent) == []
        assert f"class {number} below 3 rate 1000000 ceil 1000000 prio 2" in bench.there
        assert not harness.degraded
        assert harness.metric("unclassified_pods") == 0

        bench.traffic.roots["eth1"] = ABSENT
        bench.route("eth1")
        await harness.rounds(2)
        assert host.shown(batch) == [f"eth1 {0x6B6C0007}"]

        harness.set_pods(host.pod("batch", ""), web)
        await harness.rounds(2)
        assert host.shown(batch) == []
        bench.slo({})
        await harness.rounds(2)
        assert host.shown(web) == []  # the bandwidth is not known any more: no classes
        assert bench.traffic.roots == {"eth0": ABSENT, "eth1": ABSENT}


async def test_pods_in_the_nodes_network_by_their_sockets(bench):
    """On cgroup v2, where nf_tables has them; a pod that is gone has no cgroup."""
    bench.traffic.sockets = True
    bench.slo(EXAMPLE)
    batch = bench.pod("batch", "BE", "192.0.2.1", host_network=True)
    web = bench.pod("web", "LS", host_network=True, egress="8M")
    gone, agent = (
        bench.pod("gone", "BE", host_network=True),
        bench.pod("agent", "SYSTEM", host_network=True),
    )
    groups = {each: bench.host.add_pod(each).group.path for each in ("batch", "web", "agent")}
    bench.harness.set_pods(batch, web, gone, agent)
    async with bench.harness as harness:
        await harness.rounds(2)

        found = {part for part in bench.there.split("; ") if part.startswith("socket")}
        assert found == {
            f"socket {path.count('/') + 1}/{os.stat(bench.host.paths.cgroup / path).st_ino} "
            f"class {minor}"
            for path, minor in (
                (groups["batch"], 7),
                (groups["web"], numbered(["web"], {})["web"]),
            )
        }
        assert bench.matches == []
        assert harness.metric("unclassified_pods") == 1

        harness.set_pods(web)
        await harness.rounds(2)
        assert bench.there.count("socket") == 1
        harness.set_pods()
        bench.slo({})
        await harness.rounds(2)
        assert bench.there == ABSENT


async def test_an_address_in_the_status_of_a_pod_in_the_nodes_network_is_not_used(tmp_path):
    host = HostPods(tmp_path)
    bench = host.bench
    pod = host.pod("batch", "BE")
    bench.slo(EXAMPLE)
    bench.harness.set_pods(replace(pod, pod=replace(pod.pod, ips=("10.0.0.7",))))
    async with bench.harness as harness:
        await harness.rounds(2)
        assert bench.matches == []
        assert host.shown(pod)
