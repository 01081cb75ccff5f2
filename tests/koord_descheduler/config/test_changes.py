"""The parts of a running descheduler that a newly read configuration changes."""

import asyncio

import pytest

from koord.component.config.document import read_config
from koord.component.config.follower import ConfigFollower
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_descheduler.config import config_parser
from koord_descheduler.daemon.live import ConfigurationChanges, compare
from tests.support.descheduler.shipped_plugins import IN_TREE
from tests.support.kube.inline_executor import InlineExecutor

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"
TOP = "deschedulingInterval: 10s\n"


def profile(name="a", balance="LowNodeLoad", selector="", args="", more=""):
    config = f"pluginConfig: [{{name: LowNodeLoad, args: {{{args}}}}}]" if args else ""
    enabled = ", ".join(f"{{name: {one}}}" for one in balance.split())
    parts = [
        f"name: {name}",
        f"plugins: {{balance: {{enabled: [{enabled}]}}}}",
        f"nodeSelector: {{matchLabels: {{{selector}}}}}" if selector else "",
        config,
        more,
    ]
    return "- {" + ", ".join(filter(None, parts)) + "}\n"


def document(*profiles, top=TOP):
    return f"{top}profiles:\n{''.join(profiles)}"


BASE = document(profile())


def test_the_same_changes_nothing(config):
    assert not compare(config(BASE), config(BASE))
    assert compare(config(BASE), config(BASE)) == ConfigurationChanges()


@pytest.mark.parametrize(
    ("line", "live", "needs_restart"),
    [
        ("nodeSelector: {matchLabels: {a: b}}", ("nodeSelector",), ()),
        ("maxNoOfPodsToEvictPerNode: 1", ("maxNoOfPodsToEvictPerNode",), ()),
        ("maxNoOfPodsToEvictPerNamespace: 1", ("maxNoOfPodsToEvictPerNamespace",), ()),
        ("maxNoOfPodsToEvictTotal: 0", ("maxNoOfPodsToEvictTotal",), ()),
        ("evictionLedger: {spacing: 0s}", ("evictionLedger",), ()),
        ("leaderElection: {leaseDuration: 1m}", (), ("leaderElection",)),
        ("clientConnection: {qps: 1}", (), ("clientConnection",)),
        ("healthzBindAddress: ':1'", (), ("healthzBindAddress",)),
        ("metricsBindAddress: ':1'", (), ("metricsBindAddress",)),
        ("enableProfiling: false", (), ("enableProfiling", "enableContentionProfiling")),
    ],
)
def test_process_wide_fields(config, line, live, needs_restart):
    """They leave the profiles and their plugins alone."""
    changes = compare(config(BASE), config(f"{line}\n{BASE}"))

    assert (changes.live, changes.needs_restart) == (live, needs_restart)
    assert not changes.profiles
    assert changes
    assert changes.applied().changed == live
    assert changes.applied().needs_restart == needs_restart


MC = "MigrationController"


@pytest.mark.parametrize(
    ("after", "build", "end"),
    [
        (profile(args="numberOfNodes: 3"), {"LowNodeLoad"}, {"LowNodeLoad"}),
        (profile(balance="LowNodeLoad RemoveDuplicates"), {"RemoveDuplicates"}, set()),
        (profile(balance="RemoveDuplicates"), {"RemoveDuplicates"}, {"LowNodeLoad"}),
        (profile(selector="a: b"), {"LowNodeLoad", MC}, {"LowNodeLoad", MC}),
        (profile(more="dryRun: true"), {"LowNodeLoad", MC}, {"LowNodeLoad", MC}),
    ],
)
def test_plugins_of_a_profile(config, after, build, end):
    """Only what the change concerns is built anew; the others keep their state."""
    changes = compare(config(BASE), config(document(after)))

    (change,) = changes.profiles
    assert (change.name, set(change.build), set(change.end)) == ("a", build, end)
    assert (changes.live, changes.needs_restart) == ((), ())
    assert changes.applied().changed == ("profiles[a]",)


def test_another_order_of_plugins_builds_nothing(config):
    before = document(profile(balance="LowNodeLoad RemoveDuplicates"))
    after = document(profile(balance="RemoveDuplicates LowNodeLoad"))

    (change,) = compare(config(before), config(after)).profiles

    assert change.after.plugins != change.before.plugins
    assert not change.build
    assert not change.end


def test_profiles_come_and_go(config):
    before = document(profile("a"), profile("b"))
    after = document(profile("c"), profile("a"))

    new, gone = compare(config(before), config(after)).profiles

    assert (new.name, new.before, new.build) == ("c", None, {"LowNodeLoad", MC})
    assert (gone.name, gone.after, gone.end) == ("b", None, {"LowNodeLoad", MC})


def test_another_order_of_profiles_is_a_change(config):
    before, after = document(profile("a"), profile("b")), document(profile("b"), profile("a"))

    changes = compare(config(before), config(after))

    assert changes.is_reordered
    assert not changes.profiles
    assert changes.applied().changed == ("profiles",)


def test_dry_run_of_all_builds_all_that_were_not_in_it(config):
    """A profile that was in dry-run by itself stays as it is."""
    profiles = profile("a"), profile("b", more="dryRun: true")

    before, after = (
        config(document(*profiles)),
        config(document(*profiles, top=f"{TOP}dryRun: true\n")),
    )
    changes = compare(before, after)

    assert changes.live == ("dryRun",)
    assert [(change.name, bool(change.build)) for change in changes.profiles] == [("a", True)]


def test_another_interval_concerns_who_depends_on_it(config):
    """LowNodeLoad keeps counters for two cycles; 10 and 20 s are both below its timeout."""
    same = compare(config(BASE), config(document(profile(), top="deschedulingInterval: 20s\n")))
    other = compare(config(BASE), config(document(profile(), top="deschedulingInterval: 1h\n")))

    assert (same.live, same.profiles) == (("deschedulingInterval",), ())
    assert [change.build for change in other.profiles] == [{"LowNodeLoad"}]


async def test_a_file_is_followed_and_a_bad_one_changes_nothing(tmp_path):
    """The shared follower: the last good configuration stays in force, /healthz has the line."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    path = tmp_path / "descheduler.yaml"
    path.write_text(HEAD + BASE)
    parse = config_parser(IN_TREE)
    clock = SimulatedClock()
    stop = Stop(clock)
    in_force = [read_config(path, parse).configuration]
    seen = []

    def apply(read):
        changes = compare(in_force[-1], read.configuration)
        in_force.append(read.configuration)
        seen.append(changes.applied().changed)
        return changes.applied()

    async def seconds(count):
        for _ in range(count * 10):
            await clock.advance(0.1)
            await asyncio.sleep(0.002)

    follower = ConfigFollower(path, parse, apply)
    task = asyncio.create_task(follower.run(stop), name="config")
    await seconds(3)
    path.write_text(HEAD + document(profile(args="numberOfNodes: -3")))
    await seconds(3)
    health, count = follower.health(), len(in_force)
    path.write_text(HEAD + document(profile(args="numberOfNodes: 3")))
    await seconds(3)
    stop.set()
    await task

    assert health.status is HealthStatus.DEGRADED
    assert "descheduler.yaml:5: profiles[0].pluginConfig[0].args.numberOfNodes" in health.reason
    assert all(one == in_force[0] for one in in_force[:count])
    assert follower.health().status is HealthStatus.OK
    assert seen[-1] == ("profiles[a]",)
    assert in_force[-1].profiles[0].args["LowNodeLoad"].number_of_nodes == 3
