"""Policy cfsQuota on a fake host: fast attack, slow release, and everything restored."""

import random
from itertools import pairwise

import pytest

from koord.api.qos import KubeQoS
from koord.plugin import OptionError
from koordlet.plugin import FlagSet, kinds
from koordlet.plugin.testing import make_pod
from koordlet_plugins.be_cpu_suppress import STALE_ROUNDS, SuppressFlags

NO_LIMIT = float("inf")


async def test_best_effort_pods_get_what_is_left(make_node):
    """65 % of 2 cores, less what others use: at once, as there was no limit before."""
    async with make_node() as node:
        node.use(ls=0.2, system=0.1)
        await node.run(1.5)
        assert node.quota == pytest.approx(1.0, abs=0.02)
        assert node.gauge("cpu_cores", type="cfsQuota") == pytest.approx(node.quota)
        assert node.gauge("ls_used_cpu_cores") == pytest.approx(0.2, abs=0.01)
        [value] = node.harness.claims()
        assert value["claims"][0]["inputs"]["threshold_percent"] == 65


@pytest.mark.parametrize("offset", [0.0, 0.05, 0.4, 0.95])
async def test_a_burner_is_met_within_four_tenths_of_a_second(make_node, offset):
    """Whenever it starts, best-effort pods have given way long before the next round."""
    async with make_node() as node:
        await node.run(1.5 + offset)
        assert node.quota == pytest.approx(1.3)
        node.use(ls=1.0)
        assert await node.until(lambda: node.quota < 1.0) <= 0.4
        await node.run(0.2)
        assert node.quota == pytest.approx(0.3, abs=0.02)


async def test_a_burner_outside_of_pods_is_met_too(make_node):
    """At once where the kernel counts it exactly, else by the next rounds."""
    async with make_node() as node:
        await node.run(1.5)
        node.use(system=1.0)
        took = await node.until(lambda: node.quota < 1.0)
        assert took <= (0.4 if node.host.version == 1 else 2.0)


@pytest.mark.parametrize("offset", [0.0, 0.05, 0.4, 0.9, 0.95])
async def test_a_burst_of_less_than_a_tenth_of_a_second_moves_nothing(make_node, offset):
    """Neither the looks nor the rounds follow it, wherever in a second it falls."""
    async with make_node() as node:
        await node.run(4.0 + offset)
        before = node.changes
        node.use(ls=2.0)
        await node.run(0.05)
        node.use()
        await node.run(4.0)
        assert node.changes == before


async def test_growth_is_slow(make_node):
    """A tenth of the node's CPU per round, once the others have been calm for a second."""
    async with make_node(cpus=4) as node:
        node.use(ls=2.0)
        await node.run(4.0)
        assert node.quota == pytest.approx(0.6)
        node.use()
        steps = []
        for _ in range(8):
            await node.run(1.0)
            steps.append(round(node.quota, 2))
        assert max(after - before for before, after in pairwise(steps)) <= 0.41
        assert steps[-1] == pytest.approx(2.6)


async def test_a_steady_load_is_left_in_peace(make_node):
    """Noise of a twentieth of a core changes the quota at most six times a minute."""
    noise = random.Random(7)
    async with make_node() as node:
        for second in range(75):
            if second == 15:
                settled = node.changes
            for _ in range(10):
                node.use(ls=max(noise.gauss(0.5, 0.05), 0), system=max(noise.gauss(0.1, 0.03), 0))
                await node.run(0.1)
        assert node.changes - settled <= 6


async def test_with_koordinators_pace_only_rounds_count(make_node):
    """--be-suppress-fast-interval=0: one measurement a second decides, up by 1 % already."""
    async with make_node(args=["--be-suppress-fast-interval=0"]) as node:
        await node.run(3.1)
        node.use(ls=1.0)
        await node.run(0.8)
        assert node.quota == pytest.approx(1.3)
        await node.run(2.0)
        assert node.quota == pytest.approx(0.3)
        node.use(ls=0.96)
        await node.run(1.5)
        assert node.quota == pytest.approx(0.34)


async def test_the_floor_of_the_node_slo(make_node):
    """cpuSuppressMinPercent is kept for best-effort pods whatever others use."""
    async with make_node() as node:
        node.set_slo(cpuSuppressMinPercent=20)
        node.use(ls=1.9)
        await node.run(1.5)
        assert node.quota == pytest.approx(0.4)


async def off(node):
    node.set_slo(enable=False)


async def gone(node):
    node.harness.set_node_slo(None)


async def stopped(node):
    await node.harness.stop()


@pytest.mark.parametrize("end", [off, gone, stopped])
async def test_the_quota_is_restored(make_node, end):
    """The strategy off, the NodeSLO gone or the gate off: as before within one round."""
    async with make_node() as node:
        await node.run(1.5)
        assert node.quota < NO_LIMIT
        await end(node)
        await node.run(1.05)
        assert node.quota == NO_LIMIT
        assert node.harness.claims() == []
        assert node.gauge("cpu_cores", type="cfsQuota") is None or end is stopped


async def test_nothing_is_written_without_a_strategy(make_node):
    """The default of a NodeSLO is off."""
    node = make_node()
    node.set_slo(enable=False)
    async with node:
        await node.run(1.5)
        assert node.changes == 0


@pytest.mark.parametrize("lacks", ["pods", "capacity", "no capacity", "usage"])
async def test_nothing_is_done_on_half_the_facts(make_node, lacks):
    """No pods, no capacity of the node, or no usage: no decision."""
    node = make_node(pods=() if lacks == "pods" else None)
    if lacks == "capacity":
        node.set_node()
    elif lacks == "no capacity":
        node.set_node(capacity={"cpu": "0"})
    elif lacks == "usage":
        node.measure = lambda: None
    async with node:
        await node.harness.advance(3.0)
        assert node.changes == 0


async def test_stale_samples_decide_nothing(make_node):
    """When the sampling hangs, rounds stop deciding, and looks after three rounds."""
    async with make_node() as node:
        await node.run(1.5)
        for kind, *key in ((kinds.NODE_CPU_USAGE,), (kinds.POD_CPU_USAGE, "ls")):
            node.harness.drop(kind, *key)
        await node.harness.advance(STALE_ROUNDS + 3.0)
        before = node.quota
        node.measure = lambda: None
        node.use(ls=1.0)
        await node.run(2.0)
        assert node.quota == before


async def test_dry_run_decides_the_same(make_node):
    """Nothing is written, and what would be does not change with every round."""
    async with make_node(dry_run=True) as node:
        await node.run(10.0)
        assert node.quota == NO_LIMIT
        assert node.changes == 1
        node.use(ls=1.0)
        await node.run(1.5)
        [value] = node.harness.claims()
        assert value["state"] == "would"
        assert value["wanted"] == pytest.approx(30_000, abs=1000)
        node.harness.dry_run = False
        await node.run(12.0)
        assert node.quota == pytest.approx(0.3, abs=0.02)


async def test_a_strange_label_does_not_make_a_pod_an_other(make_node):
    """A pod labelled BE in another class's group counts as best-effort in looks as in rounds."""
    odd = make_pod("ls", labels={"koordinator.sh/qosClass": "BE"})
    be = make_pod("be", qos=KubeQoS.BEST_EFFORT)
    async with make_node(pods=(odd, be)) as node:
        node.use(ls=1.0)
        await node.run(1.5)
        assert node.quota == pytest.approx(1.3, abs=0.02)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cpu-suppress-interval-seconds", "-1"), ("be-suppress-fast-interval", "1ms")],
)
def test_bad_flags(name, value):
    """A bad value names its flag when the plugin is set up."""
    flags = FlagSet()
    suppress = SuppressFlags(flags)
    flags.parse([f"--{name}={value}"])
    with pytest.raises(OptionError, match=name):
        suppress.options()


async def test_an_interval_of_zero_switches_it_off(make_node):
    """As in Koordinator."""
    async with make_node(args=["--cpu-suppress-interval-seconds=0"]) as node:
        await node.run(2.0)
        assert node.changes == 0


async def test_a_round_is_cheap(make_node):
    """150 pods and ten looks a second."""
    pods = tuple(make_pod(f"p{n}", qos=KubeQoS.BEST_EFFORT) for n in range(150))
    async with make_node(pods=pods) as node:
        for pod in pods:
            node.harness.hold(kinds.POD_CPU_USAGE, 0.01, pod.uid)
        await node.run(5.0)
        assert node.harness.cost.cpu_per_round < 0.02
        assert node.harness.cost.longest_step < 0.05
