"""A daemon with network QoS in a network namespace of its own: killed, ended, restored."""

import json

import pytest

from koordlet.plugin.testing import FakeHost
from tests.support.kube.daemon_flags import LAID_OUT
from tests.support.node.network_namespace import ip, needs_namespaces, own_network, tc

pytestmark = needs_namespaces

ROUTES = (
    "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    "va 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n"
)
SLO = {
    "spec": {
        "systemStrategy": {"totalNetworkBandwidth": "1G"},
        "resourceQOSStrategy": {"beClass": {"networkQOS": {"enable": True, "egressLimit": 50}}},
    }
}


@pytest.fixture
def start(koordlet, tmp_path):
    """Starts a daemon on a fake host, whose network is that of the test."""
    host = FakeHost(tmp_path / "host")
    host.write("proc/1/net/route", ROUTES)
    host.write("proc/self/cgroup", "0::/\n")
    host.write("proc/sys/net/core/netdev_max_backlog", "1000\n")
    (tmp_path / "slo.json").write_text(json.dumps(SLO))
    roots = [
        f"--cgroup-root-dir={host.paths.cgroup}",
        f"--proc-root-dir={host.paths.proc}",
        f"--sys-root-dir={host.paths.sys}",
        f"--var-run-root-dir={host.paths.var_run}",
    ]

    def start(gates):
        flags = [f"--nodeslo-file={tmp_path}/slo.json", f"--feature-gates={gates}", *roots]
        daemon = koordlet(
            "--standalone", *flags, run_dir=tmp_path / "run", program=(LAID_OUT,), cold=True
        )
        daemon.wait_ready()
        return daemon

    with own_network():
        ip("link set lo up")
        yield start


def shown():
    return tc("qdisc show dev va")


def test_what_a_killed_daemon_leaves_is_restored_by_the_next(start):
    """Which has the gate off; the kernel's own root is back."""
    before = shown()
    daemon = start("TCNetworkQoS=true")
    daemon.until(lambda: "htb 6b6c: root" in shown())
    [value] = daemon.until(
        lambda: [v for v in daemon.ctl("explain")["values"] if v["state"] == "in force"]
    )
    assert value["target"] == "interface va"
    assert value["original"] == "absent"
    daemon.kill()
    assert "htb 6b6c: root" in shown()

    daemon = start("TCNetworkQoS=false")
    daemon.until(lambda: shown() == before)
    assert daemon.stop() == 0


def test_it_is_gone_with_the_gate_at_the_end(start):
    before = shown()
    daemon = start("TCNetworkQoS=true")
    daemon.until(lambda: "htb 6b6c: root" in shown())

    assert daemon.stop() == 0
    assert shown() == before
