"""CoreSched: which pods share a cookie, and how processes get it, on a fake prctl."""

import errno
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container
from koord.api.qos import KubeQoS
from koordlet.host.cpu_scheduler import CookieReader, CookieWriter
from koordlet.host.objects import COOKIES
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet_plugins.core_sched import (
    GROUP_ID,
    POLICY,
    ClassRule,
    CoreSched,
    CoreSchedRule,
    cookie_of,
    core_sched_rule,
    group_of,
    has_foreign_cookie,
)
from tests.support.node.fake_cookies import FIRST, FakeCookies

STAT = "{} (a ) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n"
QOS = "koordinator.sh/qosClass"
ON, EXPELLER, OFF = ClassRule(True), ClassRule(True, True), ClassRule()
RULE = CoreSchedRule(lsr=OFF, ls=EXPELLER, be=ON)


def slo(policy="coreSched", **classes):
    """A NodeSLO with these settings of CPU QoS by class."""
    strategy = {name: {"cpuQOS": {"enable": True, **given}} for name, given in classes.items()}
    strategy["policies"] = {"cpuPolicy": policy}
    return merge_nodeslo({"spec": {"resourceQOSStrategy": strategy}})[0]


@pytest.mark.parametrize(
    ("labels", "qos", "rule", "group"),
    [
        ({QOS: "LS", GROUP_ID: "group-xxx"}, KubeQoS.BURSTABLE, RULE, (True, "group-xxx-expeller")),
        ({QOS: "BE"}, KubeQoS.BEST_EFFORT, RULE, (True, "")),
        ({}, KubeQoS.BURSTABLE, RULE, (True, "-expeller")),
        ({QOS: "LS", POLICY: "exclusive"}, KubeQoS.BURSTABLE, RULE, (True, "xxx-expeller")),
        ({QOS: "LS", POLICY: "none"}, KubeQoS.BURSTABLE, RULE, (False, "-expeller")),
        ({QOS: "LS", POLICY: "other"}, KubeQoS.BURSTABLE, RULE, (True, "-expeller")),
        ({GROUP_ID: "group-xxx"}, KubeQoS.BURSTABLE, CoreSchedRule(), (False, "group-xxx")),
        ({QOS: "LSR"}, KubeQoS.GUARANTEED, RULE, (False, "")),
        ({}, KubeQoS.GUARANTEED, RULE, (True, "-expeller")),
        ({}, KubeQoS.GUARANTEED, CoreSchedRule(lsr=ON, ls=EXPELLER), (True, "")),
        ({QOS: "LSE"}, KubeQoS.GUARANTEED, CoreSchedRule(lsr=ON), (True, "")),
        ({QOS: "SYSTEM"}, KubeQoS.BURSTABLE, RULE, (False, "")),
    ],
)
def test_the_group_of_a_pod(labels, qos, rule, group):
    """By its labels and its class; Koordinator's table."""
    assert group_of(make_pod("xxx", qos=qos, labels=labels).pod, qos, rule) == group


def test_the_rule_of_a_node_slo():
    """With the policy coreSched only; schedIdle and coreExpeller by class."""
    given = {"lsClass": {"coreExpeller": True}, "beClass": {"schedIdle": 1}}
    found = core_sched_rule(slo(**given).resource_qos)
    assert (found.ls, found.be, found.lsr) == (EXPELLER, ClassRule(True, False, True), OFF)
    assert not core_sched_rule(slo("groupIdentity", **given).resource_qos).enabled


@pytest.mark.parametrize(
    ("known", "found", "taken", "cookie"),
    [
        (0, [0, 0], [], 0),
        (7, [7, 0, 9, 9], [], 7),
        (7, [0, 9, 9, 8], [], 9),
        (0, [9, 9, 8], [9], 8),
        (7, [7], [7], 0),
        (0, [8, 9], [], 8),
        (7, [], [], 0),
    ],
)
def test_the_cookie_of_a_group(known, found, taken, cookie):
    """The known one while a process has it, after a restart that of most."""
    assert cookie_of(known, found, taken) == cookie


@given(st.integers(0, 5), st.lists(st.integers(0, 5)), st.sets(st.integers(1, 5)))
def test_a_cookie_is_one_that_is_there_and_no_other_groups(known, found, taken):
    cookie = cookie_of(known, found, taken)
    assert cookie == 0 or (cookie in found and cookie not in taken)


def test_cookies_of_others_are_left_alone():
    """Those that a process, or another agent, has made; not none, a group's own or an older one."""
    cookies = {"a": 7, "b": 8}
    assert has_foreign_cookie(9, 7, ours=False, cookies=cookies)
    assert not any(has_foreign_cookie(found, 7, ours=False, cookies=cookies) for found in (0, 7, 8))
    assert not has_foreign_cookie(9, 7, ours=True, cookies=cookies)


class Node:
    """A host whose kernel has core scheduling; processes by container."""

    def __init__(self, root, dry_run=False):
        self.host = FakeHost(root, 2)
        self.kernel = FakeCookies()
        self.host.objects[COOKIES] = CookieReader(self.host.paths, self.kernel)
        self.host.object_writers[COOKIES] = lambda paths: CookieWriter(paths, self.kernel)
        self.metas, self.pods = {}, {}
        self.make_harness(dry_run)

    def make_harness(self, dry_run=False):
        self.harness = PluginHarness(
            CoreSched(),
            pods=list(self.metas.values()),
            host=self.host,
            gates={"CoreSched", "BECPUSuppress"},
            dry_run=dry_run,
        )
        self.harness.set_node_slo(slo(lsClass={"coreExpeller": True}, beClass={"schedIdle": 0}))

    def run(self, name, *pids, qos=KubeQoS.BEST_EFFORT, **labels):
        names = {"group": GROUP_ID, "policy": POLICY}
        labels = {names[key]: value for key, value in labels.items()}
        containers = (Container("main"),)
        self.metas[name] = make_pod(name, qos=qos, labels=labels, containers=containers)
        if name not in self.pods:
            self.pods[name] = self.host.add_pod(name, qos, containers=(f"{name}-main",))
        self.processes(name, *pids)
        self.harness.set_pods(*self.metas.values())

    def processes(self, name, *pids, cookie=0):
        for pid in pids:
            if pid not in self.kernel.cookies:
                self.kernel.cookies[pid] = cookie
                self.host.write(f"proc/{pid}/stat", STAT.format(pid, 100 + pid))
        self.pods[name].containers[f"{name}-main"].set_processes(*pids)

    def end(self, *pids):
        for pid in pids:
            del self.kernel.cookies[pid]
            shutil.rmtree(self.host.paths.proc / f"{pid}")


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


async def test_pods_of_a_group_share_a_cookie(node):
    """Koordinator's sequence: made for the first process, shared with all, also later ones."""
    node.run("a", 12344, 12345, group="g")
    node.run("web", 300, qos=KubeQoS.BURSTABLE)
    async with node.harness as harness:
        await harness.rounds(1)
        web, batch = node.kernel.cookies[300], node.kernel.cookies[12344]
        assert {web, batch} == {FIRST, FIRST + 1}
        assert node.kernel.cookies[12345] == batch
        labels = {"pod_name": "a", "container_name": "main", "core_sched_group": "g"}
        labels |= {"core_sched_cookie": str(batch), "node": "test-node", "pod_uid": "a"}
        labels |= {"pod_namespace": "default", "container_id": "containerd://a-main"}
        gauge = "koordlet_container_core_sched_cookie"
        assert harness.registry.get_sample_value(gauge, labels) == 1

        node.run("b", 20000, group="g")
        await harness.rounds(1)
        assert node.kernel.cookies[20000] == batch

        node.end(12344)
        node.processes("a", 30000, 12345)
        await harness.rounds(1)
        assert node.kernel.cookies[30000] == batch

        node.run("b", 20000, group="g", policy="none")
        await harness.rounds(1)
        assert node.kernel.cookies[20000] == 0
        assert node.kernel.cookies[30000] == batch
        values = harness.claims()
        assert {value["value"] for value in values} == {web, batch}
    assert set(node.kernel.cookies.values()) == {0}
    assert node.kernel.own == 0


async def test_all_siblings_dead_is_a_new_cookie(node):
    node.run("a", 1, 2)
    async with node.harness as harness:
        await harness.rounds(1)
        node.end(1, 2)
        node.processes("a", 3)
        await harness.rounds(1)
        assert node.kernel.cookies == {3: FIRST + 1}


async def test_children_inherit_and_are_restored(node):
    """Their cookie costs no call, and goes with the others."""
    node.run("a", 1)
    async with node.harness as harness:
        await harness.rounds(1)
        node.processes("a", 1, 2, cookie=FIRST)
        node.kernel.calls.clear()
        await harness.rounds(1)
        assert node.kernel.calls == []
    assert node.kernel.cookies == {1: 0, 2: 0}


async def test_a_pod_changes_its_group(node):
    """Its processes get the cookie of the other one."""
    node.run("a", 1, group="x")
    node.run("b", 2, group="y")
    async with node.harness as harness:
        await harness.rounds(1)
        y = node.kernel.cookies[2]
        node.run("a", 1, group="y")
        await harness.rounds(1)
        assert node.kernel.cookies == {1: y, 2: y}
    assert node.kernel.cookies == {1: 0, 2: 0}


async def test_a_cookie_of_its_own_is_left_alone(node):
    """It keeps the process apart from all others anyhow; it is counted."""
    node.run("a", 1, 2, 3)
    async with node.harness as harness:
        await harness.rounds(1)
        node.processes("a", 1, 2, 3, 4, cookie=77)
        await harness.rounds(2)
        assert node.kernel.cookies == {1: FIRST, 2: FIRST, 3: FIRST, 4: 77}
        assert harness.metric("left_processes") == 1
    assert node.kernel.cookies[4] == 77


async def test_quiet_rounds_change_nothing(node):
    node.run("a", 1, 2)
    async with node.harness as harness:
        await harness.rounds(1)
        node.kernel.calls.clear()
        harness.changes.clear()
        await harness.rounds(3)
        assert (node.kernel.calls, harness.changes) == ([], [])


async def test_another_policy_ends_it(node):
    node.run("a", 1, 2)
    async with node.harness as harness:
        await harness.rounds(1)
        harness.set_node_slo(slo("groupIdentity", beClass={}))
        await harness.rounds(1)
        assert node.kernel.cookies == {1: 0, 2: 0}
        assert harness.claims() == []


async def test_idle_classes(node):
    """schedIdle is cpu.idle of the class's cgroup, with or without hyper-threading."""
    node.kernel.broken = errno.ENODEV
    group = node.host.qos_group(KubeQoS.BEST_EFFORT)
    node.run("a", 1)
    async with node.harness as harness:
        harness.set_node_slo(slo(beClass={"schedIdle": 1}))
        await harness.rounds(1)
        print(harness.claims(), harness.log.events if hasattr(harness.log, "events") else "")
        assert group.read("cpu.idle") == "1"
        assert "no core scheduling" in harness.degraded
        assert len(harness.log.named("kernel.unsupported")) == 1
    assert group.read("cpu.idle") == "0"


async def test_in_dry_run_no_cookie_is_made(tmp_path):
    """What would be is shown for the first process of each group."""
    node = Node(tmp_path, dry_run=True)
    node.run("a", 1, 2)
    async with node.harness as harness:
        await harness.rounds(2)
        assert node.kernel.calls == []
        [value] = harness.claims()
        assert (value["state"], value["target"]) == ("would", "process 1")
        assert "core scheduling group ''" in str(value)


async def test_a_refusal_is_counted_and_tried_again(node):
    node.run("a", 1, 2)
    node.kernel.refuses = errno.EPERM
    async with node.harness as harness:
        await harness.rounds(1)
        assert harness.metric("failures_total") >= 1
        node.kernel.refuses = 0
        await harness.advance(30)
        assert node.kernel.cookies == {1: FIRST, 2: FIRST}


async def test_after_a_restart_the_cookies_are_known_again(node):
    """Of most of its processes: one that made its own meanwhile does not lead the group."""
    node.run("a", 1, 2, 3)
    node.kernel.cookies.update({1: 77, 2: 88, 3: 88})
    async with node.harness as harness:
        await harness.rounds(1)
        assert node.kernel.cookies == {1: 77, 2: 88, 3: 88}
        node.processes("a", 1, 2, 3, 4)
        await harness.rounds(1)
        assert node.kernel.cookies[4] == 88
