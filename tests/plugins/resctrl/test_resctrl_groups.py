"""RdtResctrl and Resctrl on a fake resctrl: groups, schemata, processes, and their ends."""

import json

import pytest

from koord.api.machine import NODE_CPU_INFO, CpuBasics, CpuTopology, NodeCpuInfo
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container
from koord.api.qos import QOS_LABEL, KubeQoS
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet.plugin.testing.kernel import FakeResctrl
from koordlet_plugins.resctrl import ANNOTATION, RdtResctrl, Resctrl

HALF = json.dumps({"llc": {"schemata": {"range": [0, 50]}}, "mb": {"schemata": {"percent": 50}}})


def slo(**classes):
    """A NodeSLO with these settings; a class without any is not enabled."""
    spec = {
        f"{name}Class": {"resctrlQOS": {"enable": True, **qos}} for name, qos in classes.items()
    }
    return merge_nodeslo({"spec": {"resourceQOSStrategy": spec}})[0]


def cpu(vendor="GenuineIntel"):
    return NodeCpuInfo(
        CpuBasics("a CPU", vendor, hyper_threading=False, turbo=False, l3_mask="7ff"),
        CpuTopology(()),
    )


class Bench:
    """A fake host with resctrl, and pods whose containers have processes."""

    def __init__(self, root, plugin, **facts):
        self.host = FakeHost(root, 2)
        self.tree = FakeResctrl(self.host, **facts)
        self.groups = {}
        self.plugin = plugin
        self.harness = PluginHarness(plugin, host=self.host)
        self.harness.metrics.cache.put(NODE_CPU_INFO, cpu(facts.get("vendor", "GenuineIntel")))

    def pod(self, name, qos, *pids, annotation=None):
        """A pod of a class; its container has these processes."""
        annotations = {} if annotation is None else {ANNOTATION: annotation}
        if name not in self.groups:
            self.groups[name] = self.host.add_pod(name, containers=(f"{name}-c",))
        for pid in pids:
            if not (self.host.paths.proc / str(pid)).exists():
                self.tree.start(pid)
        self.groups[name].containers[f"{name}-c"].set_processes(*pids)
        return make_pod(
            name,
            qos=KubeQoS.BURSTABLE,
            labels={QOS_LABEL: qos} if qos else {},
            annotations=annotations,
            containers=(Container("c"),),
        )


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path, RdtResctrl())


async def test_pods_run_in_the_groups_of_their_classes(bench):
    """New processes within a round; all of it is gone at the end."""
    pods = [
        bench.pod("exclusive", "LSE", 11),
        bench.pod("reserved", "LSR", 12),
        bench.pod("web", "", 13),
        bench.pod("batch", "BE", 14, 15),
        bench.pod("agent", "SYSTEM", 16),
    ]
    bench.harness.set_pods(*pods)
    bench.harness.set_node_slo(slo(lsr={}, ls={}, be={"mbaPercent": 40}))
    tree = bench.tree

    async with bench.harness as run:
        await run.rounds(1)
        assert tree.groups == ["BE", "LS", "LSR"]
        assert tree.schemata("BE").splitlines() == ["MB:0=40;1=40", "L3:0=f;1=f"]
        assert tree.schemata("LSR").splitlines() == ["MB:0=100;1=100", "L3:0=7ff;1=7ff"]
        assert [tree.tasks(group) for group in ("LSR", "LS", "BE", "")] == [
            [11, 12], [13], [14, 15], [16],
        ]  # fmt: skip
        bench.pod("batch", "BE", 15, 17)
        await run.rounds(1)
        assert 17 in tree.tasks("BE")
        shown = {claim["target"]: claim["wanted"] for claim in run.claims("batch")}
        assert shown["process 17"] == "BE"
        [claim] = [c for c in run.claims("BE") if c["resource"] == "resctrl_l3"]
        assert claim["claims"][0]["reason"].startswith("beClass.resctrlQOS: 0 to 30 % of the L3")

    assert tree.groups == []
    assert tree.tasks() == [11, 12, 13, 14, 15, 16, 17]


async def test_a_class_that_is_switched_off_gives_its_group_back(bench):
    bench.harness.set_pods(bench.pod("web", "LS", 13), bench.pod("batch", "BE", 14))
    bench.harness.set_node_slo(slo(ls={}, be={}))

    async with bench.harness as run:
        await run.rounds(1)
        run.set_node_slo(slo(ls={}))
        await run.advance(0.1)
        assert (bench.tree.groups, bench.tree.tasks()) == (["LS"], [14])
        run.set_node_slo(slo())
        await run.advance(0.1)
        assert (bench.tree.groups, run.claims()) == ([], [])


async def test_dry_run_moves_nothing_and_says_what_it_would(tmp_path):
    bench = Bench(tmp_path, RdtResctrl())
    bench.harness.dry_run = True
    bench.harness.set_pods(bench.pod("batch", "BE", 14))
    bench.harness.set_node_slo(slo(be={}))

    async with bench.harness as run:
        await run.rounds(2)
        assert (bench.tree.groups, bench.tree.tasks()) == ([], [14])
        assert {claim["state"] for claim in run.claims()} == {"would"}
        assert {claim["resource"] for claim in run.claims()} == {
            "resctrl_group", "resctrl_l3", "resctrl_mb", "resctrl_tasks",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("qos", "wanted"),
    [
        ({"catRangeStartPercent": 50, "catRangeEndPercent": 20}, "0 <= start < end"),
        ({"catRangeStartPercent": 30}, "0 <= start < end"),
        ({"catRangeStartPercent": 28, "catRangeEndPercent": 30}, "2 ways at least"),
    ],
)
async def test_bad_settings_of_a_class_leave_the_last_good_ones(tmp_path, qos, wanted):
    """The other classes go on."""
    bench = Bench(tmp_path, RdtResctrl(), fewest_ways=2)
    bench.harness.set_node_slo(slo(be={"catRangeEndPercent": 50}))

    async with bench.harness as run:
        await run.rounds(1)
        run.set_node_slo(slo(be=qos, ls={}))
        await run.rounds(2)
        assert "L3:0=3f;1=3f" in bench.tree.schemata("BE")
        assert bench.tree.groups == ["BE", "LS"]
        [event] = run.log.named("setting.rejected")
        assert "NodeSLO: beClass.resctrlQOS" in event["error"]
        assert wanted in event["error"]
        run.set_node_slo(slo(be={"catRangeEndPercent": 20}))
        await run.rounds(1)
        assert "L3:0=7;1=7" in bench.tree.schemata("BE")


@pytest.mark.parametrize(
    "qos",
    [
        {"catRangeEndPercent": 101},
        {"catRangeEndPercent": -1},
        {"catRangeEndPercent": "30"},
        {"mbaPercent": 101},
        {"mbaPercent": -1},
        {"mbaPercent": 1.5},
    ],
)
def test_settings_that_the_crd_forbids_never_reach_the_plugin(qos):
    found, problems = merge_nodeslo(
        {"spec": {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True, **qos}}}}}
    )[:2]

    assert problems
    assert not found.resource_qos.be.resctrl.enable


async def test_a_group_without_a_closid_costs_only_itself(tmp_path):
    """Its processes wait in the default group, and follow when there is one."""
    bench = Bench(tmp_path, RdtResctrl(), closids=2)
    bench.harness.set_pods(bench.pod("web", "LS", 13), bench.pod("batch", "BE", 14))
    bench.harness.set_node_slo(slo(ls={}, be={}))

    async with bench.harness as run:
        await run.rounds(2)
        assert (bench.tree.groups, bench.tree.tasks()) == (["LS"], [14])
        [failed] = [c for c in run.claims("BE") if c["resource"] == "resctrl_group"]
        assert "Out of CLOSIDs" in failed["message"]
        run.set_node_slo(slo(be={}))
        for _ in range(5):
            await run.advance(30)
        assert (bench.tree.groups, bench.tree.tasks("BE")) == (["BE"], [14])


async def test_processes_in_a_group_of_another_agent_stay_there(bench):
    """As of a container runtime with RDT classes of its own, or a monitoring group."""
    bench.tree.make("gold")
    bench.tree.start(14, group="gold")
    bench.harness.set_pods(bench.pod("batch", "BE", 14, 15))
    bench.harness.set_node_slo(slo(be={}))

    async with bench.harness as run:
        await run.rounds(2)
        assert (bench.tree.tasks("gold"), bench.tree.tasks("BE")) == ([14], [15])
        assert run.metric("foreign_processes") == 1


async def test_a_group_that_another_agent_removes_is_made_again(bench):
    bench.harness.set_pods(bench.pod("batch", "BE", 14))
    bench.harness.set_node_slo(slo(be={}))

    async with bench.harness as run:
        await run.rounds(1)
        bench.tree.remove("BE")
        for _ in range(8):
            await run.advance(10)
        assert bench.tree.tasks("BE") == [14]
        assert "L3:0=f;1=f" in bench.tree.schemata("BE")
        assert {"foreign", "retaken"} <= {change.what for change in run.changes}


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({"vendor": "AuthenticAMD", "mask": 0xFFFF}, ["MB:0=48;1=48", "L3:0=1f;1=1f"]),
        ({"bandwidth": False}, ["L3:0=f;1=f"]),
        ({"mask": 0}, ["MB:0=30;1=30"]),
        ({"caches": (0,)}, ["MB:0=30", "L3:0=f"]),
    ],
)
async def test_machines_that_divide_less_or_in_other_units(tmp_path, facts, lines):
    bench = Bench(tmp_path, RdtResctrl(), **facts)
    bench.harness.set_node_slo(slo(be={"mbaPercent": 30}))

    async with bench.harness as run:
        await run.rounds(1)
        assert bench.tree.schemata("BE").splitlines() == lines


async def test_bandwidth_in_megabytes_is_left_alone(bench):
    """A percentage there would be 30 MB/s."""
    unlimited = "MB:0=4294967295;1=4294967295\nL3:0=7ff;1=7ff\n"
    bench.host.write("sys/fs/resctrl/schemata", unlimited)
    bench.host.write("sys/fs/resctrl/full", unlimited)
    bench.harness.set_node_slo(slo(be={"mbaPercent": 30}))

    async with bench.harness as run:
        await run.rounds(1)
        assert bench.tree.schemata("BE").splitlines() == [
            "MB:0=4294967295;1=4294967295",
            "L3:0=f;1=f",
        ]
        assert "mba_MBps" in run.degraded


async def test_without_resctrl_nothing_is_claimed(bench):
    bench.tree.unmount()
    bench.harness.set_pods(bench.pod("batch", "BE"))
    bench.harness.set_node_slo(slo(be={}))

    async with bench.harness as run:
        await run.rounds(3)
        assert (run.claims(), run.degraded) == ([], "")


async def test_a_pod_gets_a_group_of_its_own(tmp_path):
    """Created, divided, filled; removed with the pod. A pod without the annotation stays out."""
    bench = Bench(tmp_path, Resctrl())
    web = bench.pod("web", "LS", 13, annotation=HALF)
    bench.harness.set_pods(web, bench.pod("batch", "BE", 14))

    async with bench.harness as run:
        await run.rounds(1)
        assert bench.tree.groups == ["koordlet-web"]
        assert bench.tree.schemata("koordlet-web").splitlines() == ["MB:0=50;1=50", "L3:0=3f;1=3f"]
        assert (bench.tree.tasks("koordlet-web"), bench.tree.tasks()) == ([13], [14])
        run.set_pods(bench.pod("batch", "BE", 14))
        await run.advance(0.1)
        assert (bench.tree.groups, bench.tree.tasks()) == ([], [13, 14])


async def test_a_pod_with_a_group_of_its_own_is_not_in_that_of_its_class(bench):
    """Whether or not the gate Resctrl is on; source: 03 §3.7."""
    bench.harness.set_pods(bench.pod("web", "BE", 13, annotation=HALF), bench.pod("b", "BE", 14))
    bench.harness.set_node_slo(slo(be={}))

    async with bench.harness as run:
        await run.rounds(1)
        assert (bench.tree.tasks("BE"), bench.tree.tasks()) == ([14], [13])


@pytest.mark.parametrize(
    "bad", ["{", json.dumps({"llc": {"schemata": {"range": [0, 1, 2]}}}), "x" * 99]
)
async def test_a_bad_annotation_keeps_the_last_group_and_is_reported_on_the_pod(tmp_path, bad):
    bench = Bench(tmp_path, Resctrl())
    bench.harness.set_pods(bench.pod("web", "LS", 13, annotation=HALF))

    async with bench.harness as run:
        await run.rounds(1)
        run.set_pods(bench.pod("web", "LS", 13, annotation=bad))
        await run.rounds(2)
        assert bench.tree.tasks("koordlet-web") == [13]
        assert [event.reason for event in run.evictions.events] == ["SettingRejected"]


async def test_what_the_machine_cannot_do_is_reported_on_the_pod(tmp_path):
    bench = Bench(tmp_path, Resctrl())
    asked = json.dumps({"llc": {"schemataPerCache": [{"cacheID": 5, "range": [0, 50]}]}})
    bench.harness.set_pods(bench.pod("web", "LS", 13, annotation=asked))

    async with bench.harness as run:
        await run.rounds(2)
        assert bench.tree.groups == []
        [event] = run.evictions.events
        assert "found cacheID 5" in event.message


@pytest.mark.parametrize("uid", ["..", "a/b", "x" * 300, "a\nb", "\u0661"])
async def test_a_hostile_uid_never_becomes_a_path(tmp_path, uid):
    bench = Bench(tmp_path, Resctrl())
    bench.harness.set_pods(
        make_pod("web", uid=uid, annotations={ANNOTATION: HALF}, containers=(Container("c"),))
    )

    async with bench.harness as run:
        await run.rounds(1)
        assert [group for group in bench.tree.groups if group != "koordlet-.."] == []


async def test_both_plugins_may_be_on(tmp_path):
    """A pod's own group is a part of its own; neither refuses the other."""
    names = {claim.part for claim in (*RdtResctrl.may_claim, *Resctrl.may_claim)}

    assert len(names) == 2
    PluginHarness(Resctrl(), gates=("RdtResctrl", "Resctrl"), host=FakeHost(tmp_path, 2))


async def test_what_cannot_be_read_for_a_moment_costs_nothing(bench):
    """Groups stay as they are, and go with resctrl itself."""
    bench.harness.set_pods(bench.pod("batch", "BE", 14))
    bench.harness.set_node_slo(slo(be={}))

    async with bench.harness as run:
        await run.rounds(1)
        lines = bench.host.read("sys/fs/resctrl/schemata")
        bench.host.write("sys/fs/resctrl/schemata", "garbage")
        await run.rounds(2)
        assert bench.tree.tasks("BE") == [14]
        bench.host.write("sys/fs/resctrl/schemata", lines + "\n")
        await run.rounds(2)
        assert bench.tree.tasks("BE") == [14]
