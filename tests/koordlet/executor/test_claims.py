"""Claims become kernel values on a fake host, and are taken back."""

import pytest

from koord.api.qos import KubeQoS
from koord.plugin import OptionError, Unavailable
from koordlet.plugin import Claim, ClaimScope, ExtensionPlugin, Level, Target, resources
from koordlet.plugin.kernel import ClaimState
from koordlet.plugin.testing import FakeHost, PluginHarness

BE = KubeQoS.BEST_EFFORT
FILES = {1: "cpu/cpu.cfs_quota_us", 2: "cpu.max"}
TEXTS = {1: ("-1", "50000"), 2: ("max 100000", "50000 100000")}


class Squeeze(ExtensionPlugin):
    """Makes the claims that a test asks for."""

    may_claim = (
        ClaimScope(resources.CPU_QUOTA, Level.QOS, frozenset({BE})),
        ClaimScope(resources.CPU_SHARES, Level.QOS),
        ClaimScope(resources.CPU_BVT, Level.QOS),
    )

    def setup(self, client, metric_cache, states_informer):
        """Needs nothing."""

    async def run(self, stop):
        await stop.wait()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request, tmp_path):
    return FakeHost(tmp_path, request.param)


@pytest.fixture
def harness(host):
    return PluginHarness(Squeeze(), gates=(), host=host)


@pytest.fixture
def group(host):
    return host.qos_group(BE)


def be(host):
    return Target.qos_class(host.layout, BE)


def quota(host, group):
    return group.read(FILES[host.version])


async def test_a_claim_is_in_force_until_it_is_withdrawn(harness, host, group):
    """Written once, explained while it holds, and restored."""
    before, squeezed = TEXTS[host.version]
    async with harness:
        plugin = harness.plugin
        outcome = await plugin.claim(
            be(host), resources.CPU_QUOTA, 50000, reason="BE is squeezed", inputs={"ls_cores": 3.5}
        )
        assert (outcome.state, outcome.changed) == (ClaimState.IN_FORCE, True)
        assert quota(host, group) == squeezed
        [value] = harness.claims("kubepods/besteffort")
        assert (value["value"], value["original"], value["state"]) == (50000, -1, "in force")
        [claim] = value["claims"]
        assert claim["plugin"] == "Squeeze"
        assert claim["reason"] == "BE is squeezed"
        assert claim["inputs"] == {"ls_cores": 3.5}

        again = await plugin.claim(be(host), resources.CPU_QUOTA, 50000, reason="BE is squeezed")
        assert (again.state, again.changed) == (ClaimState.IN_FORCE, False)
        await plugin.withdraw(be(host), resources.CPU_QUOTA)
        assert quota(host, group) == before
        assert harness.claims() == []
    assert [change.what for change in harness.changes] == ["set", "restored"]


async def test_the_end_of_a_run_takes_all_claims_back(harness, host, group):
    """However it ended; the next run starts from nothing."""
    async with harness:
        await harness.plugin.claim(be(host), resources.CPU_QUOTA, 50000, reason="r")
        await harness.stop()
        assert quota(host, group) == TEXTS[host.version][0]
        await harness.start()
        assert harness.claims() == []


async def test_dry_run_writes_nothing_and_can_be_switched(harness, host, group):
    """What would be in force is reported; with dry-run off it is written, and on again restored."""
    before, squeezed = TEXTS[host.version]
    harness.dry_run = True
    async with harness:
        plugin = harness.plugin
        outcome = await plugin.claim(be(host), resources.CPU_QUOTA, 50000, reason="r")
        assert (outcome.state, outcome.changed) == (ClaimState.WOULD, True)
        assert quota(host, group) == before
        [value] = harness.claims()
        assert (value["value"], value["wanted"], value["dryRun"]) == (-1, 50000, True)

        harness.dry_run = False
        await harness.advance(10)
        assert quota(host, group) == squeezed
        harness.dry_run = True
        await harness.advance(20)
        assert quota(host, group) == before
        [value] = harness.claims()
        assert value["state"] == "would"
    what = [change.what for change in harness.changes]
    assert what == ["would_set", "set", "restored", "would_set", "would_restore"]


async def test_what_is_only_in_dry_run_is_not_in_force(harness, host):
    """Nor what was withdrawn: such a daemon needs no lock."""
    manager, quota = harness._manager, (be(host), resources.CPU_QUOTA)
    harness.dry_run = True
    async with harness:
        await harness.plugin.claim(*quota, 50000, reason="r")
        assert not manager.any_in_force()
        harness.dry_run = False
        await harness.advance(10)
        assert manager.any_in_force()
        await harness.plugin.withdraw(*quota)
        assert not manager.any_in_force()


async def test_what_this_kernel_lacks_is_an_outcome(harness, host):
    """No exception, and no second attempt."""
    async with harness:
        for _ in range(2):
            outcome = await harness.plugin.claim(be(host), resources.CPU_BVT, 2, reason="r")
            assert outcome.state is ClaimState.UNSUPPORTED
            assert "Anolis" in outcome.message


async def test_an_ended_cgroup_is_an_outcome(harness, host):
    """A pod may end at any moment."""
    host.remove(host.layout.qos_dir(BE))
    async with harness:
        outcome = await harness.plugin.claim(be(host), resources.CPU_QUOTA, 50000, reason="r")
        assert outcome.state is ClaimState.GONE


async def test_a_set_of_claims_is_all_or_nothing(harness, host, group):
    """One that was not declared leaves the others as they were."""
    before = TEXTS[host.version][0]
    burstable = Target.qos_class(host.layout, KubeQoS.BURSTABLE)
    async with harness:
        fine = Claim(target=be(host), resource=resources.CPU_QUOTA, value=50000, reason="r")
        wrong = Claim(target=burstable, resource=resources.CPU_QUOTA, value=50000, reason="r")
        with pytest.raises(OptionError, match="declare it in may_claim"):
            await harness.plugin.claim_all([fine, wrong])
        assert quota(host, group) == before
        assert harness.claims() == []


async def test_claims_that_are_left_out_of_the_set_are_withdrawn(harness, host, group):
    """The plugin says each round what it wants, and need not remember what it had."""
    shares = Claim(target=be(host), resource=resources.CPU_SHARES, value=2, reason="r")
    squeeze = Claim(target=be(host), resource=resources.CPU_QUOTA, value=50000, reason="r")
    async with harness:
        await harness.plugin.claim_all([shares, squeeze])
        await harness.plugin.claim_all([shares])
        assert quota(host, group) == TEXTS[host.version][0]
        assert [value["resource"] for value in harness.claims()] == ["cpu_shares"]


async def test_a_plugin_without_an_executor_cannot_claim(host):
    """The error says how to get one."""
    async with PluginHarness(Squeeze(), gates=()) as harness:
        with pytest.raises(Unavailable, match=r"PluginHarness\(host="):
            await harness.plugin.claim(be(host), resources.CPU_QUOTA, 50000, reason="r")


async def test_a_plugin_sees_the_kernel(harness, host, group):
    """Values, what is not there, and the cgroups below one."""
    pod = host.add_pod("u1", BE)
    group.use_cpu(2.0)
    async with harness:
        kernel = harness.plugin.kernel
        path = host.layout.qos_dir(BE)
        assert await kernel.read(resources.CPU_QUOTA, path) == -1
        assert await kernel.read(resources.CPU_BVT, path) is None
        usage, nothing = await kernel.read_many(
            [(resources.CPU_USAGE, path), (resources.CPU_USAGE, "kubepods/none")]
        )
        assert (usage.value, usage.at) == (3_000_000_000, harness.clock.monotonic())
        assert nothing is None
        below = await kernel.groups_below(path, 2)
        assert below == [
            pod.group.path,
            pod.containers["c1"].path,
            pod.sandbox.path,
        ]
        assert await kernel.supports(resources.CPU_IDLE, path)
        assert kernel.layout == host.layout
