"""A profile that changes while it runs: plugins that changed are new, the others go on."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from koord_descheduler.config import Point, Profile
from koord_descheduler.framework.handle import Handle
from koord_descheduler.framework.interfaces import Evictor, Plugin
from koord_descheduler.framework.profile import ProfileError, ProfilePlugins
from tests.support.descheduler.framework import NODES, Both, Kit, make_pod


def changed(profile: ProfilePlugins, **points: tuple[str, ...]) -> Profile:
    plugins = {point: points.get(point.value, profile.settings.enabled(point)) for point in Point}
    return replace(profile.settings, plugins=plugins)


class Keeps(Evictor):
    """A filter that lets nothing go."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.closed = False

    def filter(self, pod: object) -> bool:
        return False

    async def evict(self, pod: object, options: object) -> bool:
        return True

    async def close(self) -> None:
        self.closed = True


async def test_what_is_not_built_anew_is_kept(kit: Kit) -> None:
    """A stays, B gets a new instance, C ends; nothing of that before it is applied."""
    calls: list[Any] = []
    args = {"A": {"calls": calls}, "B": {"calls": calls}, "C": {"calls": calls}}
    profile = await kit.profile(balance=("A", "B", "C"), args=args)
    before = profile.plugins

    staged = await profile.stage(changed(profile, balance=("B", "A")), kit.registry, {"B"})
    assert profile.plugins == before
    await profile.run_balance_plugins(NODES)
    assert [call[1] for call in calls] == ["A", "B", "C"]
    staged.apply()
    await profile.run_balance_plugins(NODES)
    assert [call[1] for call in calls[3:]] == ["B", "A"]
    assert profile.plugins["A"] is before["A"]
    assert profile.plugins["B"] is not before["B"]
    await staged.finish()

    assert [name for name in "ABC" if before[name].closed] == ["B", "C"]  # type: ignore[attr-defined]


async def test_evictors_that_plugins_hold_follow_the_change(kit: Kit) -> None:
    """Filters and the evict plugin are those of now, for plugins that were kept, too."""
    kit.add("Keeps", Keeps)
    profile = await kit.profile(balance=("A",))
    evictor = profile.handle.evictor()
    assert evictor.filter(make_pod())

    wanted = changed(profile, filter=("Keeps",), evict=("Keeps",))
    staged = await profile.stage(wanted, kit.registry, {"Keeps"})
    assert evictor.filter(make_pod())
    staged.apply()

    assert not evictor.filter(make_pod())
    assert await evictor.evict(make_pod())
    assert kit.made["Evict"][0].evicted == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", ["raises", "nowhere", "twice"])
async def test_a_change_that_fails_changes_nothing(kit: Kit, fault: str) -> None:
    """What was made for it is closed, and what runs goes on."""

    def raises(args: Any, handle: Handle) -> Plugin:
        raise ValueError("no")

    kit.registry.register("Raises", raises)
    profile = await kit.profile(balance=("A",))
    before = profile.plugins
    faulty = {"raises": ("B", "Raises"), "nowhere": ("B", "Nowhere"), "twice": ("B", "B")}[fault]
    with pytest.raises(ProfileError):
        await profile.stage(
            changed(profile, balance=faulty), kit.registry, {"B", "Raises", "Nowhere"}
        )

    assert profile.plugins == before
    assert [plugin.closed for plugin in kit.made["B"]] == [True]  # type: ignore[attr-defined]
    assert not before["A"].closed  # type: ignore[attr-defined]


async def test_a_change_that_is_given_up_closes_what_it_made(kit: Kit) -> None:
    """Discarded, or cancelled while a plugin is being made."""

    async def hangs(args: Any, handle: Handle) -> Plugin:
        await asyncio.Event().wait()
        raise AssertionError

    kit.registry.register("Hangs", hangs)
    profile = await kit.profile(balance=("A",))
    staged = await profile.stage(changed(profile, balance=("B",)), kit.registry, {"B"})
    await staged.discard()
    staging = asyncio.create_task(
        profile.stage(changed(profile, balance=("B", "Hangs")), kit.registry, {"B", "Hangs"})
    )
    await kit.clock.settle()
    staging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staging

    made = [plugin for plugin in kit.made["B"] if isinstance(plugin, Both)]
    assert [plugin.closed for plugin in made] == [True, True]
    assert list(profile.plugins) == ["Evict", "A"]
