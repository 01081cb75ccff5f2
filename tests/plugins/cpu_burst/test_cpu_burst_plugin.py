"""CPUBurst on fake hosts of both cgroup versions: what it writes, and what it restores."""

import pytest

from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container
from koordlet.plugin import ClaimScope, Level, Target, kinds, resources
from koordlet.plugin.kernel import Part
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet_plugins.cpu_burst import CPUBurst

NODE = Node("n1", capacity={"cpu": "16"})
QUOTA = "koordlet_container_scaled_cfs_quota_us"
BUDGET = "koordlet_container_scaled_cfs_burst_us"


class Bed:
    """A node of 16 idle CPUs with one pod whose containers have limits of two cores each."""

    def __init__(
        self, tmp_path, version, *, names=("main",), annotations=None, plugin=None, **more
    ):
        limits = {"cpu": "2"}
        self.pod = make_pod(
            "web",
            containers=tuple(Container(name, limits=limits) for name in names),
            annotations=annotations,
        )
        self.host = FakeHost(tmp_path, version=version)
        cgroups = self.host.add_pod("web", containers=tuple(f"web-{name}" for name in names))
        self.groups = {"": cgroups.group}
        self.groups |= {name: cgroups.containers[f"web-{name}"] for name in names}
        for name in names:
            self.set_quota(200_000, name)
        self.set_quota(200_000 * len(names), "")
        self.harness = PluginHarness(plugin or CPUBurst(), pods=[self.pod], host=self.host, **more)
        self.harness.states.set_node(NODE)
        self.strategy(policy="cfsQuotaBurstOnly")
        self.load(2.0)
        self.throttle(0.5)

    def strategy(self, **section):
        self.harness.set_node_slo(merge_nodeslo({"spec": {"cpuBurstStrategy": section}})[0])

    def load(self, cores):
        self.harness.hold(kinds.NODE_CPU_USAGE, cores)

    def throttle(self, ratio, name="main"):
        self.harness.hold(kinds.CONTAINER_CPU_THROTTLED, ratio, f"containerd://web-{name}")

    def use(self, cores, name="main"):
        self.harness.hold(kinds.CONTAINER_CPU_USAGE, cores, f"containerd://web-{name}")

    def set_quota(self, us, name="main"):
        group = self.groups[name]
        if self.host.version == 1:
            group.write("cpu/cpu.cfs_quota_us", f"{us}\n")
        else:
            group.write("cpu.max", f"{'max' if us < 0 else us} 100000\n")

    def quota(self, name="main"):
        group = self.groups[name]
        if self.host.version == 1:
            return int(group.read("cpu/cpu.cfs_quota_us"))
        text = group.read("cpu.max").split()[0]
        return -1 if text == "max" else int(text)

    def budget(self, name="main"):
        file = "cpu/cpu.cfs_burst_us" if self.host.version == 1 else "cpu.max.burst"
        return int(self.groups[name].read(file))

    def written(self):
        """When each file of the CPU controller was last written."""
        files = self.host.paths.cgroup.rglob("cpu.*")
        return {file: file.stat().st_mtime_ns for file in files if "stat" not in file.name}

    def gauge(self, name, container="main"):
        labels = {
            "node": "n1",
            "pod_namespace": "default",
            "pod_name": "web",
            "container_id": f"containerd://web-{container}",
            "container_name": container,
        }
        return self.harness.registry.get_sample_value(name, labels)


both = pytest.mark.parametrize("version", [1, 2])


@both
async def test_a_throttled_container_gets_more_and_gives_it_back(tmp_path, version):
    """A fifth more a round up to the ceiling, pod and container alike; off puts both back."""
    bed = Bed(tmp_path, version)
    async with bed.harness as harness:
        await harness.rounds(3)
        grown = bed.quota()
        await harness.rounds(10)
        highest = (bed.quota(), bed.quota(""), bed.gauge(QUOTA))
        bed.strategy(policy="none")
        await harness.rounds(1)

        assert 240_000 <= grown <= 500_000
        assert highest == (600_000, 600_000, 600_000.0)
        assert (bed.quota(), bed.quota(""), bed.gauge(QUOTA)) == (200_000, 200_000, None)
        assert harness.claims() == []


@both
async def test_the_end_of_the_plugin_puts_everything_back(tmp_path, version):
    """The daemon withdraws what a plugin leaves behind."""
    bed = Bed(tmp_path, version)
    bed.strategy(policy="auto")
    async with bed.harness as harness:
        await harness.rounds(5)
        assert bed.quota() > 200_000
        assert bed.budget() > 0

    assert (bed.quota(), bed.quota(""), bed.budget(), bed.budget("")) == (200_000, 200_000, 0, 0)
    assert bed.gauge(BUDGET) is None


@both
async def test_load_takes_back_what_was_given(tmp_path, version):
    """An overloaded share pool shrinks the quota by a fifth a round, whoever is throttled."""
    bed = Bed(tmp_path, version)
    async with bed.harness as harness:
        await harness.rounds(12)
        bed.load(15.0)
        await harness.rounds(20)
        assert (bed.quota(), bed.quota("")) == (200_000, 200_000)


async def test_cooling_keeps_the_quota(tmp_path):
    """Near the threshold nothing grows and nothing is taken back."""
    bed = Bed(tmp_path, 2)
    async with bed.harness as harness:
        await harness.rounds(4)
        bed.load(7.6)
        await harness.rounds(6)
        before = bed.quota()
        await harness.rounds(5)
        assert bed.quota() == before > 200_000


async def test_a_pods_quota_grows_by_what_its_containers_got(tmp_path):
    """Two containers, one of them throttled."""
    bed = Bed(tmp_path, 1, names=("main", "side"))
    async with bed.harness as harness:
        await harness.rounds(4)
        assert bed.quota("side") == 200_000
        assert bed.quota("") - 400_000 == bed.quota() - 200_000 > 0


async def test_a_pod_without_a_limit_stays_so(tmp_path):
    """One container has no limit, hence neither has the pod; the other bursts."""
    bed = Bed(tmp_path, 2, names=("main", "side"))
    containers = (Container("main", limits={"cpu": "2"}), Container("side"))
    bed.harness.set_pods(make_pod("web", containers=containers))
    bed.set_quota(-1, "")
    async with bed.harness as harness:
        await harness.rounds(4)
        assert bed.quota() > 200_000
        assert bed.quota("") == -1


async def test_policy_none_touches_nothing(tmp_path):
    """A quota that is not that of the limit is left alone while bursting is off."""
    bed = Bed(tmp_path, 2)
    bed.set_quota(150_000)
    bed.strategy(policy="none")
    async with bed.harness as harness:
        await harness.rounds(5)
        assert bed.quota() == 150_000
        assert (harness.claims(), harness.changes) == ([], [])


class NormalizedBurst(CPUBurst):
    """CPUBurst beside something that divides the quotas of a pod and its container by two."""

    may_claim = CPUBurst.may_claim + tuple(
        ClaimScope(resources.CPU_QUOTA, level, part=Part.RATIO)
        for level in (Level.POD, Level.CONTAINER)
    )

    async def run(self, stop):
        [pod] = self._states.pods()
        for target in (Target.of_pod(pod), Target.of_container(pod, pod.containers[0])):
            await self.claim(
                target,
                resources.CPU_QUOTA,
                2.0,
                part=Part.RATIO,
                original=200_000,
                reason="twice as fast",
                scope="normalization",
            )
        await super().run(stop)


@both
async def test_a_normalized_quota_bursts_from_where_it_is(tmp_path, version):
    """It is lower than that of the limit, and so is what it may grow to."""
    bed = Bed(tmp_path, version, plugin=NormalizedBurst(), gates=())
    bed.strategy(policy="auto")
    ratio = {"node.koordinator.sh/cpu-normalization-ratio": "2.00"}
    bed.harness.states.set_node(Node("n1", annotations=ratio, capacity={"cpu": "16"}))
    async with bed.harness as harness:
        await harness.rounds(12)
        assert (bed.quota(), bed.quota("")) == (300_000, 300_000)
        assert bed.budget() == 100_000
        bed.strategy(policy="none")
        await harness.rounds(1)
        assert (bed.quota(), bed.quota("")) == (100_000, 100_000)
    assert (bed.quota(), bed.quota("")) == (200_000, 200_000)


@pytest.mark.parametrize("found", [-1, 150_000])
async def test_a_quota_that_another_program_set_stays(tmp_path, found):
    """Removed (a kubelet without CFS quotas, a CPU set) or lowered: there is nothing to add to.

    Koordinator's sets such a quota to that of the limit.
    """
    bed = Bed(tmp_path, 2)
    bed.set_quota(found)
    async with bed.harness as harness:
        await harness.rounds(5)
        assert bed.quota() == found
        assert harness.claims() == []


async def test_a_kubelet_that_resets_a_quota_is_no_reason_to_fight(tmp_path):
    """The container starts from its limit again."""
    bed = Bed(tmp_path, 1)
    async with bed.harness as harness:
        await harness.rounds(4)
        bed.set_quota(200_000)
        await harness.rounds(12)
        assert bed.quota() == 600_000


async def test_a_new_limit_or_ceiling_counts_at_once(tmp_path):
    """Also for a container that is not throttled any more."""
    bed = Bed(tmp_path, 1)
    async with bed.harness as harness:
        await harness.rounds(12)
        bed.throttle(0.0)
        await harness.rounds(2)
        bed.strategy(policy="cfsQuotaBurstOnly", cfsQuotaBurstPercent=200)
        await harness.rounds(1)
        assert bed.quota() == 400_000
        harness.set_pods(make_pod("web", containers=(Container("main", limits={"cpu": "1"}),)))
        await harness.rounds(1)
        assert (bed.quota(), bed.quota("")) == (200_000, 200_000)


async def test_tokens_bound_how_long_a_container_stays_above_its_limit(tmp_path):
    """With a period, what is spent must be saved again first."""
    bed = Bed(tmp_path, 1)
    bed.strategy(policy="auto", cfsQuotaBurstPeriodSeconds=40)
    bed.use(6.0)
    async with bed.harness as harness:
        await harness.rounds(8)
        high = bed.quota()
        await harness.rounds(20)
        spent = bed.quota()
        bed.use(0.2)
        await harness.rounds(60)
        assert high > spent == 200_000
        assert bed.quota() > 200_000


@both
async def test_burst_budgets(tmp_path, version):
    """On a mainline kernel as much as the quota, which is the most it takes."""
    bed = Bed(tmp_path, version, names=("main", "side"))
    bed.strategy(policy="cpuBurstOnly")
    async with bed.harness as harness:
        await harness.rounds(2)
        assert (bed.budget(), bed.budget("side"), bed.budget("")) == (200_000, 200_000, 400_000)
        assert (bed.gauge(BUDGET), bed.gauge(BUDGET, "side")) == (200_000.0, 200_000.0)
        assert bed.quota() == 200_000


async def test_burst_budgets_on_an_anolis_kernel(tmp_path):
    """It takes budgets above the quota."""
    bed = Bed(tmp_path, 1)
    bed.host.root.write("cpu/cpu.bvt_warp_ns", "0\n")
    bed.strategy(policy="cpuBurstOnly")
    async with bed.harness as harness:
        await harness.rounds(2)
        values = {claim["level"]: claim["claims"][0]["value"] for claim in harness.claims()}
        assert values == {"container": 2_000_000, "pod": 2_000_000}


async def test_a_kernel_without_burst_budgets(tmp_path):
    """Nothing fails, nothing is shown, and quotas grow all the same."""
    bed = Bed(tmp_path, 1)
    for path in (bed.host.paths.cgroup / "cpu").rglob("cpu.cfs_burst_us"):
        path.unlink()
    bed.strategy(policy="auto")
    async with bed.harness as harness:
        await harness.rounds(3)
        assert bed.gauge(BUDGET) is None
        assert bed.quota() > 200_000


async def test_a_wrong_annotation_is_reported_once(tmp_path):
    """The node's settings hold, and the log does not fill up."""
    bed = Bed(tmp_path, 1, annotations={"koordinator.sh/cpuBurst": '{"policy":'})
    async with bed.harness as harness:
        await harness.rounds(5)
        assert [event.event for event in harness.log.events] == ["setting.rejected"]
        assert bed.quota() > 200_000


@pytest.mark.parametrize("missing", ["capacity", "node usage", "throttling"])
async def test_without_input_nothing_grows(tmp_path, missing):
    """Missing or stale samples, or an unknown number of CPUs, are no reason to act."""
    bed = Bed(tmp_path, 1)
    async with bed.harness as harness:
        await harness.rounds(3)
        before = bed.quota()
        if missing == "capacity":
            harness.states.set_node(Node("n1"))
        elif missing == "node usage":
            harness.drop(kinds.NODE_CPU_USAGE)
            await harness.rounds(3)
            before = bed.quota()
        else:
            harness.drop(kinds.CONTAINER_CPU_THROTTLED, "containerd://web-main")
            await harness.rounds(3)
            before = bed.quota()
        await harness.rounds(10)
        assert 200_000 < bed.quota() == before < 600_000


async def test_nothing_happens_before_the_first_node_slo_or_without_pods(tmp_path):
    """No strategy, or no pod to apply it to."""
    bed = Bed(tmp_path, 1)
    bed.harness.set_node_slo(None)
    async with bed.harness as harness:
        await harness.rounds(3)
        assert bed.quota() == 200_000
        bed.strategy(policy="auto")
        harness.set_pods()
        await harness.rounds(3)
        assert bed.quota() == 200_000


async def test_dry_run_shows_what_it_would_do(tmp_path):
    """The same decisions, and not a single write."""
    bed = Bed(tmp_path, 1, dry_run=True)
    async with bed.harness as harness:
        await harness.rounds(12)
        [claim] = [one for one in harness.claims() if one["level"] == "container"]
        assert claim["state"] == "would"
        assert claim["claims"][0]["value"] == 400_000
        assert claim["claims"][0]["inputs"]["throttled_ratio"] == 0.5
        assert bed.quota() == 200_000


async def test_a_steady_state_writes_nothing(tmp_path):
    """Bursting has ended: no container is throttled, the quota stays, no kernel file is read."""
    bed = Bed(tmp_path, 2)
    bed.strategy(policy="auto")
    async with bed.harness as harness:
        await harness.rounds(4)
        bed.throttle(0.0)
        await harness.rounds(2)
        changes, written = len(harness.changes), bed.written()
        await harness.rounds(30)
        assert (len(harness.changes), bed.written()) == (changes, written)
        assert bed.quota() > 200_000
