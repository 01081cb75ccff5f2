"""Building a profile, and the rounds of its plugins."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pytest

from koord.cluster.facts import ClusterNode
from koord_descheduler.framework.handle import Handle
from koord_descheduler.framework.interfaces import BalancePlugin, DeschedulePlugin, Plugin, Status
from koord_descheduler.framework.profile import ProfileError, TimeLimits
from tests.support.descheduler.framework import NODES, Both, Kit, Recording


async def test_one_instance_serves_all_extension_points_of_its_profile(kit: Kit) -> None:
    """And another profile has another one."""
    one = await kit.profile("one", deschedule=("A",), balance=("A",))
    await kit.profile("two", balance=("A",))

    assert len(kit.made["A"]) == 2
    assert len(kit.made["Evict"]) == 2
    calls: list[Any] = []
    kit.made["A"][0].args["calls"] = calls  # type: ignore[attr-defined]
    await one.run_deschedule_plugins(NODES)
    await one.run_balance_plugins(NODES)
    assert [point for _, _, point, _ in calls] == ["deschedule", "balance"]


async def test_a_factory_gets_args_and_handle_and_may_be_a_coroutine(kit: Kit) -> None:
    """Slow set-up is awaited; absent args are None."""
    seen: list[Any] = []

    async def slow(args: Any, handle: Handle) -> Plugin:
        await asyncio.sleep(0)
        seen.append((args, handle.profile, handle.dry_run, handle.node_selector))
        return Both(args, handle)

    kit.registry.register("Slow", slow)
    await kit.profile("p", balance=("Slow",), args={"Slow": {"weight": 2}}, dry_run=True)
    await kit.profile("q", balance=("Slow",))

    assert seen == [({"weight": 2}, "p", True, None), (None, "q", False, None)]


class Nameless:
    """Not a plugin."""

    def __init__(self, args: Any, handle: Handle) -> None:
        pass


class Bad(Both):
    """Cannot be made."""

    def __init__(self, args: Any, handle: Handle) -> None:
        raise ValueError("weight: found -1")


@pytest.mark.parametrize(
    ("settings", "errors"),
    [
        ({"balance": ("X",)}, ['BalancePlugin "X" does not exist']),
        ({"deschedule": ("X",)}, ['DeschedulePlugin "X" does not exist']),
        ({"filter": ("A",)}, ['plugin "A" does not extend FilterPlugin plugin']),
        ({"balance": ("A", "A")}, ['plugin "A" already registered as "BalancePlugin"']),
        ({"evict": ()}, ["no evict plugin is enabled"]),
        ({"evict": ("Evict", "Other")}, ["only one evict plugin can be enabled"]),
        (
            {"balance": ("Bad",)},
            ['plugin "Bad" from', "could not be made: ValueError('weight: found -1')"],
        ),
        ({"balance": ("Nameless",)}, ["wanted a Plugin, found"]),
        (
            {"deschedule": ("X",), "balance": ("Evict", "Bad"), "evict": ()},
            [
                'DeschedulePlugin "X" does not exist',
                'plugin "Evict" does not extend BalancePlugin plugin',
                "weight: found -1",
                "no evict plugin is enabled",
            ],
        ),
    ],
)
async def test_everything_that_is_wrong_with_a_profile_is_said_at_once(
    kit: Kit, settings: dict[str, Any], errors: list[str]
) -> None:
    """And what was made is closed."""
    kit.add("Other", Recording)
    kit.registry.register("Bad", Bad)
    kit.registry.register("Nameless", lambda args, handle: Nameless(args, handle))  # type: ignore[arg-type,return-value]
    with pytest.raises(ProfileError) as caught:
        await kit.profile("shop", **{"deschedule": ("B",), **settings})

    assert str(caught.value).startswith("profile shop: ")
    for error in errors:
        assert error in str(caught.value)
    assert all(plugin.closed for plugin in kit.made.get("B", []))  # type: ignore[attr-defined]


async def test_a_factory_that_hangs_or_blocks_is_ended(kit: Kit) -> None:
    """Awaiting for ever costs the build time, a loop the step time."""

    async def hangs(args: Any, handle: Handle) -> Plugin:
        await asyncio.Event().wait()
        raise AssertionError

    def blocks(args: Any, handle: Handle) -> Plugin:
        while True:
            time.sleep(0.01)

    kit.registry.register("Hangs", hangs)
    kit.registry.register("Blocks", blocks)
    limits = TimeLimits(build=30.0, step=0.3)
    building = asyncio.create_task(kit.profile(balance=("Hangs", "Blocks"), limits=limits))
    await kit.clock.advance(30.0)

    with pytest.raises(ProfileError) as caught:
        await building
    assert "wanted an end within 30 s" in str(caught.value)
    assert "wanted an end within 0.3 s, found it at" in str(caught.value)


async def test_plugins_run_in_order_and_an_error_of_one_does_not_end_the_others(kit: Kit) -> None:
    """Errors are those raised and those returned; several are in one status."""
    calls: list[Any] = []

    async def raises(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        raise ValueError("e1")

    async def returns(plugin: Both, nodes: Sequence[ClusterNode]) -> Status:
        return Status(ValueError("e2"))

    args = {
        "A": {"calls": calls, "balance": raises},
        "B": {"calls": calls, "balance": returns},
        "C": {"calls": calls},
    }
    profile = await kit.profile(balance=("B", "A", "C"), args=args)
    status = await profile.run_balance_plugins(NODES)

    assert [name for _, name, _, _ in calls] == ["B", "A", "C"]
    assert str(status) == "[plugin B: ValueError('e2'), plugin A: ValueError('e1')]"
    labels = {"profile": "p", "extension_point": "balance"}
    for plugin, outcome in (("A", "failed"), ("B", "failed"), ("C", "ok")):
        found = kit.sample(
            "descheduler_plugin_rounds_total", plugin=plugin, outcome=outcome, **labels
        )
        assert found == 1


async def test_a_status_that_is_none_is_an_error(kit: Kit) -> None:
    """True is not success."""

    async def true(plugin: Both, nodes: Sequence[ClusterNode]) -> Any:
        return True

    profile = await kit.profile(balance=("A",), args={"A": {"balance": true}})

    assert "wanted a Status or None, found True" in str(await profile.run_balance_plugins(NODES))


async def test_a_plugin_that_hangs_is_cancelled_and_the_next_one_runs(kit: Kit) -> None:
    """Also one that ignores being cancelled: it is left behind and not resumed."""
    calls: list[Any] = []
    resumed: list[str] = []

    async def hangs(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        await asyncio.Event().wait()

    async def ignores(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError, GeneratorExit):
                await asyncio.Event().wait()
            resumed.append("again")

    args = {"A": {"balance": hangs}, "B": {"balance": ignores}, "C": {"calls": calls}}
    profile = await kit.profile(balance=("A", "B", "C"), args=args, limits=TimeLimits(round=60.0))
    running = asyncio.create_task(profile.run_balance_plugins(NODES))
    await kit.clock.advance(60.0 + 60.0 + 5.0)
    status = await running

    assert [name for _, name, _, _ in calls] == ["C"]
    assert str(status).count("wanted an end within 60 s") == 2
    many = len(resumed)
    await kit.clock.advance(600.0)
    assert len(resumed) == many
    labels = {"profile": "p", "extension_point": "balance", "outcome": "late"}
    assert kit.sample("descheduler_plugin_rounds_total", plugin="A", **labels) == 1


async def test_a_plugin_that_holds_the_event_loop_is_interrupted(kit: Kit) -> None:
    """After the step time, in real seconds; its cost is on its account."""
    calls: list[Any] = []

    async def blocks(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        while True:
            pass

    profile = await kit.profile(
        balance=("A", "B"),
        args={"A": {"balance": blocks}, "B": {"calls": calls}},
        limits=TimeLimits(step=0.3),
    )
    status = await profile.run_balance_plugins(NODES)

    assert "wanted an end within 0.3 s, found it at" in str(status)
    assert len(calls) == 1
    labels = {"profile": "p", "plugin": "A"}
    outcome = {"extension_point": "balance", "outcome": "blocked"}
    assert kit.sample("descheduler_plugin_rounds_total", **labels, **outcome) == 1
    spent = kit.sample("descheduler_plugin_cpu_seconds_total", **labels)
    assert spent is not None
    assert spent > 0


async def test_a_plugin_that_cancels_itself_or_exits_fails_alone(kit: Kit) -> None:
    """The daemon goes on."""

    async def cancels(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        raise asyncio.CancelledError

    async def exits(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        raise SystemExit(3)

    args = {"A": {"balance": cancels}, "B": {"balance": exits}}
    status = await (await kit.profile(balance=("A", "B"), args=args)).run_balance_plugins(NODES)

    assert "cancelled from within" in str(status)
    assert "sys.exit" in str(status)


async def test_closing_closes_all_plugins_whatever_one_does(kit: Kit) -> None:
    """The last one made first; twice does no harm."""

    class Sticky(Both):
        async def close(self) -> None:
            raise ValueError("stuck")

    kit.add("Sticky", Sticky)
    profile = await kit.profile(deschedule=("A", "Sticky"), balance=("B",))
    await profile.close()
    await profile.close()

    assert kit.made["A"][0].closed  # type: ignore[attr-defined]
    assert kit.made["B"][0].closed  # type: ignore[attr-defined]


def test_interfaces_cannot_be_used_without_their_methods() -> None:
    """Forgetting one is found when the plugin is made."""

    class Half(DeschedulePlugin, BalancePlugin):
        async def balance(self, nodes: Sequence[ClusterNode]) -> None:
            return None

    with pytest.raises(TypeError, match="deschedule"):
        Half()  # type: ignore[abstract]
