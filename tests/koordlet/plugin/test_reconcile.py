"""Plugins that reconcile pods: when they look, at which pods, and what a quiet round costs."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from koord.api.pod import Pod
from koord.component.flags import FlagSet
from koord.plugin import InvalidObject
from koord.util.errors import OptionError
from koordlet.plugin import Claim, ClaimScope, Level, PodMeta, Target, resources
from koordlet.plugin.pods import ReconcilingPlugin, containers_of, pods_of
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod

SHARES = resources.CPU_SHARES
PODS = 150


class Shares(ReconcilingPlugin[int, int]):
    """Gives pods the shares that their annotation asks for, times a factor."""

    may_claim = tuple(ClaimScope(SHARES, level) for level in (Level.POD, Level.CONTAINER))
    factor: int | None = 1
    made = 0  # how often claims were made

    def rule(self) -> int | None:
        return self.factor

    def pod_settings(self, pod: Pod) -> int | None:
        text = pod.annotations.get("shares")
        if text is not None and not text.isdigit():
            raise InvalidObject("shares", wanted="a number", found=text)
        return None if text is None else int(text)

    def claims(self, meta: PodMeta, pod_settings: int, rule: int) -> Iterator[Claim]:
        self.made += 1
        for target in (Target.of_pod(meta), *_containers(meta)):
            yield Claim(
                target=target, resource=SHARES, value=pod_settings * rule, reason="asked for"
            )


def _containers(meta: PodMeta) -> list[Target]:
    return [Target.of_container(meta, container) for container in containers_of(meta)]


def shares_of(host: FakeHost, uid: str) -> int:
    return int(host.group_of(uid).read("cpu/cpu.shares"))


class Pods(FakeHost):
    """A v1 host that remembers the groups of its pods."""

    def with_pods(self, *uids: str) -> "Pods":
        self._pods = {uid: self.add_pod(uid, containers=(f"{uid}-main",)).group for uid in uids}
        return self

    def group_of(self, uid: str):
        return self._pods[uid]


@pytest.fixture
def host(tmp_path) -> Pods:
    return Pods(tmp_path).with_pods("a", "b")


def requesting(name: str, shares: str | None = "100") -> PodMeta:
    return make_pod(name, annotations={} if shares is None else {"shares": shares})


async def test_changes_of_pods_are_seen_at_once(host: Pods) -> None:
    """A new pod, another setting, and a setting that is withdrawn."""
    harness = PluginHarness(Shares(), gates=(), pods=[requesting("a")], host=host)
    async with harness:
        assert shares_of(host, "a") == 100
        harness.set_pods(requesting("a", "200"), requesting("b", "300"))
        await harness.advance(0.1)
        assert (shares_of(host, "a"), shares_of(host, "b")) == (200, 300)
        harness.set_pods(requesting("a", None), requesting("b", "300"))
        await harness.advance(0.1)
        assert (shares_of(host, "a"), shares_of(host, "b")) == (1024, 300)


async def test_the_rule_is_looked_at_once_in_an_interval(host: Pods) -> None:
    """Its inputs need not notify of their changes. No rule: nothing is claimed."""
    plugin = Shares()
    harness = PluginHarness(
        plugin,
        gates=(),
        args=["--runtime-hooks-reconcile-interval=5s"],
        pods=[requesting("a"), requesting("b")],
        host=host,
    )
    async with harness:
        plugin.factor = 3
        await harness.advance(4.9)
        assert shares_of(host, "a") == 100
        await harness.advance(0.2)
        assert (shares_of(host, "a"), shares_of(host, "b")) == (300, 300)
        plugin.factor = None
        await harness.advance(5)
        assert (shares_of(host, "a"), harness.claims()) == (1024, [])


async def test_a_bad_setting_changes_nothing_and_that_of_a_new_pod_is_none(host: Pods) -> None:
    """A pod keeps its last good setting for its new containers, too."""
    harness = PluginHarness(Shares(), gates=(), pods=[requesting("a")], host=host)
    async with harness:
        harness.set_pods(requesting("a", "many"), requesting("b", "few"))
        await harness.rounds(2)
        assert (shares_of(host, "a"), shares_of(host, "b")) == (100, 1024)
        assert harness.metric("rejected_total", object="pod") == 2
        assert len(harness.evictions.events) == 2
        harness.set_pods(requesting("a", "7"))
        await harness.advance(0.1)
        assert shares_of(host, "a") == 7
        assert len(harness.log.named("setting.accepted")) == 1


async def test_a_second_run_claims_everything_again(host: Pods) -> None:
    """What the first run had claimed ended with it."""
    harness = PluginHarness(Shares(), gates=(), pods=[requesting("a")], host=host)
    async with harness:
        await harness.stop()
        assert shares_of(host, "a") == 1024
        await harness.start()
        assert shares_of(host, "a") == 100


@pytest.mark.parametrize(
    ("meta", "counts"),
    [
        (requesting("a"), True),
        (replace(requesting("a"), containers=()), False),
        (replace(requesting("a"), containers=(), sandbox="kubepods/burstable/poda/s"), True),
        (replace(requesting("a"), pod=replace(requesting("a").pod, phase="Pending")), True),
        (replace(requesting("a"), pod=replace(requesting("a").pod, phase="Succeeded")), False),
    ],
)
def test_which_pods_count(meta: PodMeta, counts: bool) -> None:
    """Those that have begun and not ended, and have a cgroup."""
    harness = PluginHarness(Shares(), gates=(), pods=[meta])

    assert bool(list(pods_of(harness.states))) is counts


async def test_times_are_exported_under_koordinators_name(host: Pods) -> None:
    """Once for each level and resource of a pod that has changed, and of no other."""
    harness = PluginHarness(Shares(), gates=(), pods=[requesting("a")], host=host)
    family = "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds_count"

    def count(level: str) -> float | None:
        labels = {"node": "test-node", "resource_type": "cpu.shares", "status": "succeeded"}
        return harness.registry.get_sample_value(family, {"level": level, **labels})

    async with harness:
        await harness.rounds(3)
        assert (count("pod"), count("container"), count("sandbox")) == (1, 1, None)
        harness.set_pods(requesting("a", "200"), requesting("b"))
        await harness.rounds(1)
        assert (count("pod"), count("container")) == (3, 3)


async def test_a_quiet_round_looks_at_nothing(tmp_path) -> None:
    """At 150 pods: no claim is made again and no file is read, also when equal pods come anew."""
    names = [f"p{number}" for number in range(PODS)]
    host = Pods(tmp_path).with_pods(*names)
    plugin = Shares()
    harness = PluginHarness(plugin, gates=(), pods=[requesting(name) for name in names], host=host)
    async with harness:
        assert plugin.made == PODS
        harness.changes.clear()
        await harness.rounds(3)
        harness.set_pods(*(requesting(name) for name in names[:-1]), requesting(names[-1], "9"))
        await harness.rounds(1)
        assert plugin.made == PODS + 1
        assert {change.key.target.uid for change in harness.changes} == {names[-1]}


def test_several_plugins_have_one_interval() -> None:
    """The flag is Koordinator's; each of them may define it, none may mean another one."""
    flags = FlagSet()
    for owner in ("plugin A", "plugin B"):
        Shares().init_flags(flags.owned_by(owner))

    assert flags["runtime-hooks-reconcile-interval"].owner == "plugin A, plugin B"
    with pytest.raises(OptionError, match="plugin A"):
        flags.owned_by("plugin C").duration("runtime-hooks-reconcile-interval", 1.0, "other")
    with pytest.raises(OptionError, match="at least 1s"):
        flags.parse(["--runtime-hooks-reconcile-interval=0.5s"])
