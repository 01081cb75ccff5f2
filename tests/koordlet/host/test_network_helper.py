"""The helper in namespaces of its own: what it changes, rolls back and survives."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from koord.util.clock import SystemClock
from koordlet.host.errors import KernelFileError
from koordlet.host.net.guard.client import HelperTraffic, start
from koordlet.host.net.tc.tree import TrafficRefused
from tests.support.node.network_namespace import needs_namespaces
from tests.support.node.two_nodes import BE_FLOOD, FLOOD, LIMITS, NoNamespaces, TwoNodes

pytestmark = needs_namespaces

GOOD = "default 1; class 1 below 0 rate 1000000 ceil 1000000 prio 0"
SLOW = "default 1; class 1 below 0 rate 1000 ceil 1000 prio 0"  # a flood keeps others out
CONNECT = "import socket;socket.create_connection(('10.9.0.2',6443));print('up',flush=True)"
AGENT = """
import json, sys, time
from koord.util.clock import SystemClock
from koordlet.host.net.guard import client
processes = []
def started():
    processes.append(client.start(json.loads(sys.argv[1])))
    return processes[-1]
if sys.argv[3]:
    open(sys.argv[3] + "/cgroup.procs", "w").write("0")
traffic = client.HelperTraffic(started, SystemClock())
number = traffic.identity("va")
print(processes[0][1].pid, flush=True)
traffic.write("va", number, sys.argv[2].encode())
print("written", flush=True)
time.sleep(100)
"""


def agent_that_writes(network, config, text, group="", within=()):
    """An agent in the test's own network, about to make a change; return its helper, too."""
    program = [sys.executable, "-c", AGENT, json.dumps(config), text, group]
    process = network.begin([*within, *program])
    return process, int(process.stdout.readline())


def agent_with(network, config, text, **more):
    """One that has made the change."""
    process, helper = agent_that_writes(network, config, text, **more)
    assert process.stdout.readline() == b"written\n"
    return process, helper


@pytest.fixture
def network():
    with contextlib.ExitStack() as stack:
        try:
            yield TwoNodes(stack)
        except NoNamespaces as err:
            pytest.skip(str(err))


@pytest.fixture
def config(network, tmp_path):
    return network.helper(str(tmp_path / "state"))


@pytest.fixture
def traffic(config):
    client = HelperTraffic(lambda: start(config), SystemClock())
    yield client
    client.close()


def write(traffic, text):
    traffic.write("va", traffic.identity("va"), f"{text}\n".encode())


def until(look, limit=15.0):
    """Wait for something that another process does."""
    end = time.monotonic() + limit
    while not look():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def changes(config):
    return json.loads((Path(config["state"]) / "changes.json").read_text())["changes"]


def ended(pid):
    """A zombie has ended, too: its parent was killed, and the tests are no init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_change_in_the_node_s_network(network, config, traffic):
    """From another namespace; read, confirmed by the server, restored; another name is none."""
    assert traffic.read("va") == b"absent\n"
    assert traffic.read("nothere") is None

    write(traffic, GOOD)
    until(lambda: not changes(config))

    assert traffic.read("va") == f"{GOOD}\n".encode()
    assert "htb 6b6c:" in network.shown
    write(traffic, "absent")
    assert "htb" not in network.shown
    with pytest.raises(OSError, match="No such device"):
        traffic.identity("nothere")
    with pytest.raises(ValueError, match="wanted traffic classes"):
        write(traffic, "altered")


def test_the_helper_may_do_nothing_else(config):
    """One capability, none to gain."""
    channel, process = start(config)
    try:
        assert channel.receive()["ok"] is None
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        channel.close()
        assert process.wait(10) == 0  # nothing is unconfirmed: it ends with its agent
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 1 << 12
    assert int(fields["CapBnd"], 16) == 1 << 12
    assert fields["NoNewPrivs"] == "1"


def test_a_change_that_cuts_off_is_rolled_back(network, config, traffic):
    """A flood fills the slow class, so that the server is out of reach, until it is gone."""
    network.run(network.node, FLOOD)
    write(traffic, SLOW)
    assert "htb" in network.shown

    until(lambda: "htb" not in network.shown)

    with pytest.raises(TrafficRefused, match=r"10.9.0.2 port 6443 could not be reached"):
        write(traffic, SLOW)


def test_the_helper_finishes_for_a_killed_agent(network, config, freezer):
    """kill -9 of all in the agent's cgroup: the helper has left it, rolls back, and ends."""
    network.run(network.node, FLOOD)
    config["cgroups"] = [str(freezer)]
    group = freezer / "agent"
    agent, helper = agent_with(network, config, SLOW, group=str(group))
    assert helper in pids(freezer / "koordlet-network")
    assert agent.pid in pids(group)

    kill(group)

    assert "htb" in network.shown
    until(lambda: "htb" not in network.shown)
    until(lambda: ended(helper))
    assert changes(config) == []


@pytest.mark.parametrize("milliseconds", [0, 2, 5, 10, 20, 50])
def test_the_agent_s_cgroup_may_be_killed_amid_a_change(network, config, freezer, milliseconds):
    """Wherever the helper is with it then: all of it is made and confirmed, or nothing is."""
    config["cgroups"] = [str(freezer)]
    group = freezer / "agent"
    _, helper = agent_that_writes(network, config, LIMITS, group=str(group))
    time.sleep(milliseconds / 1000)

    kill(group)

    until(lambda: ended(helper))
    path = Path(config["state"]) / "changes.json"
    assert not path.exists() or changes(config) == []
    traffic = HelperTraffic(lambda: start(config), SystemClock())
    try:
        assert traffic.read("va") in (f"{LIMITS}\n".encode(), b"absent\n")
    finally:
        traffic.close()


def kill(group):
    """As a container runtime or systemd ends a cgroup."""
    for pid in pids(group):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def freezer():
    """A cgroup that stands for the root of a hierarchy, with one for an agent."""
    for parent in (Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup")):
        if (parent / "cgroup.procs").exists():
            break
    else:
        pytest.skip("no cgroup hierarchy at /sys/fs/cgroup")
    root = parent / f"koordlet-test-{os.getpid()}"
    try:
        (root / "agent").mkdir(parents=True)
    except OSError as err:
        pytest.skip(f"no cgroup can be made here: {err.strerror}")
    yield root
    until(lambda: not any(pids(each) for each in root.iterdir() if each.is_dir()))
    for each in (root / "agent", root / "koordlet-network", root):
        if each.is_dir():
            each.rmdir()


def pids(group):
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def test_the_helper_is_in_the_node_s_cgroup_namespace(network, config):
    """Also for an agent in the node's network, else levels of cgroups count from the agent's."""
    node = os.readlink("/proc/self/ns/cgroup")
    config["cgroup"] = f"/proc/{os.getpid()}/ns/cgroup"
    agent, helper = agent_with(network, config, GOOD, within=["unshare", "--cgroup"])
    assert os.readlink(f"/proc/{agent.pid}/ns/cgroup") != node
    assert os.readlink(f"/proc/{helper}/ns/cgroup") == node


def test_a_cgroup_namespace_that_cannot_be_entered_is_told(network, config, traffic, capfd):
    """The rest works: a node without one has no levels to count."""
    config["cgroup"] = "/proc/nothing/ns/cgroup"
    write(traffic, GOOD)
    assert "/proc/nothing/ns/cgroup: No such file" in capfd.readouterr().err


def test_the_next_start_goes_on_for_a_killed_helper(network, config, traffic):
    """kill -9 of both before it is confirmed: the next ones confirm it."""
    agent, helper = agent_with(network, config, GOOD)
    for pid in (helper, agent.pid):
        os.kill(pid, signal.SIGKILL)
    until(lambda: ended(helper))

    assert traffic.read("va") == f"{GOOD}\n".encode()

    until(lambda: not changes(config))
    assert "htb" in network.shown


def test_a_helper_that_cannot_enter_says_why(config):
    """The reason is what the agent shows."""
    traffic = HelperTraffic(
        lambda: start({**config, "network": "/proc/nothing/ns/net"}), SystemClock()
    )
    with pytest.raises(KernelFileError, match="cannot work here: No such file"):
        traffic.read("va")
    with pytest.raises(KernelFileError, match="next start is in"):
        traffic.read("va")


def test_without_an_api_server_the_gateway_is_asked(network, config):
    """It answers ARP; when its interface is down, the change is rolled back."""
    network.on(network.node, "ip route add default via 10.9.0.2")
    network.run(network.node, CONNECT)  # so that the kernel knows the gateway
    traffic = HelperTraffic(lambda: start({**config, "api": None}), SystemClock())
    try:
        write(traffic, GOOD)
        until(lambda: not changes(config))

        write(traffic, SLOW)
        assert len(changes(config)) == 1
        network.on(network.peer, "ip link set vb down")

        until(lambda: traffic.read("va") == b"absent\n")
        with pytest.raises(TrafficRefused, match="the default gateway could not be reached"):
            write(traffic, SLOW)
    finally:
        traffic.close()


LS_FLOOD = FLOOD.replace("time.sleep(.05)", "pass")  # more than the link has: sends wait for it


def sent(network, minor):
    """Bytes that a class has sent, and when."""
    found = network.on(network.node, "tc -s class show dev va")
    [count] = re.findall(rf"^class htb 6b6c:{minor:x} .*\n Sent (\d+) bytes", found, re.M)
    return int(count), time.monotonic()


def rate(network, minor, seconds=2.5):
    """Bytes per second of a class."""
    before, began = sent(network, minor)
    time.sleep(seconds)
    after, ended_at = sent(network, minor)
    return (after - before) / (ended_at - began)


def settled(network, minor, wanted):
    """The rate once it is near the wanted one: a flood may wait for a CPU, or have none yet."""
    for _ in range(8):
        found = rate(network, minor)
        if found == pytest.approx(wanted, rel=0.1):
            break
    return found


def test_best_effort_gets_its_rates(network, config, traffic):
    """10 Mbit/s of an idle link of 50, its 5 Mbit/s beside a flood of others; within 10 %."""
    write(traffic, LIMITS)
    network.run(network.node, BE_FLOOD)
    assert settled(network, 4, 1250000) == pytest.approx(1250000, rel=0.1)

    network.run(network.node, LS_FLOOD)
    assert settled(network, 2, 5625000) == pytest.approx(5625000, rel=0.1)
    assert settled(network, 4, 625000) == pytest.approx(625000, rel=0.1)
