"""Profiles are built whole, or not at all."""

from typing import Any

import pytest

from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profile import ProfileError, build_profile
from koord_scheduler.framework.status import CycleState, Status
from tests.support.scheduler.framework import (
    Binder,
    FirstCome,
    FreeCpu,
    Kit,
    PlainFilter,
    make_pod,
    make_view,
)


class Closes(FirstCome):
    """Writes down that it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True
        raise ValueError("broken")


async def test_a_plugin_is_made_once_for_all_its_points() -> None:
    """With the arguments of its profile, and its name."""
    kit, made = Kit(), []

    def factory(args: Any, handle: Any) -> Plugin:
        made.append((args, handle.profile))
        return FreeCpu()

    kit.registry.register("F", factory)
    for name, plugin in {"Q": FirstCome(), "B": Binder()}.items():
        kit.registry.register(name, lambda args, handle, plugin=plugin: plugin)
    settings = Profile(
        scheduler_name="mine",
        plugins={
            Point.QUEUE_SORT: (EnabledPlugin("Q"),),
            Point.FILTER: (EnabledPlugin("F"),),
            Point.SCORE: (EnabledPlugin("F", 3),),
            Point.BIND: (EnabledPlugin("B"),),
        },
        args={"F": {"some": "thing"}},
    )
    profile = await build_profile(settings, kit.registry, kit.services)
    assert made == [({"some": "thing"}, "mine")]
    assert profile.at(Point.FILTER)[0].plugin is profile.at(Point.SCORE)[0].plugin
    assert profile.plugins["F"].name == "F"


async def test_everything_that_is_wrong_is_in_the_message() -> None:
    """And what was made is closed, also if closing fails."""
    kit, closes = Kit(), Closes()

    def broken(args: Any, handle: Any) -> Plugin:
        raise ValueError("no args")

    kit.registry.register("Q", lambda args, handle: closes)
    kit.registry.register("Broken", broken)
    kit.registry.register("Text", lambda args, handle: "text")  # type: ignore[arg-type,return-value]
    kit.registry.register("F", lambda args, handle: PlainFilter({}))
    settings = Profile(
        scheduler_name="mine",
        plugins={
            Point.QUEUE_SORT: (EnabledPlugin("Q"), EnabledPlugin("F")),
            Point.FILTER: tuple(map(EnabledPlugin, ("F", "F", "Broken", "Text", "Unknown"))),
        },
    )
    with pytest.raises(ProfileError) as caught:
        await build_profile(settings, kit.registry, kit.services)
    for text in (
        'plugin "Broken" from ',
        "could not be made: ValueError('no args')",
        "wanted a Plugin, found 'text'",
        'plugin "Unknown" does not exist; registered are: Broken, F, Q, Text',
        'plugin "F" is enabled 2 times at filter',
        'plugin "F" does not extend queueSort: it is no QueueSortPlugin',
        "wanted exactly one queueSort plugin, found 2",
        "wanted at least one bind plugin, found none",
    ):
        assert text in str(caught.value)
    assert closes.closed


@pytest.mark.parametrize("names", [("First", "Second"), ("Second", "First"), ("First",)])
async def test_a_plugin_says_which_one_must_not_come_first(names: tuple[str, ...]) -> None:
    kit = Kit()
    first = PlainFilter({})
    first.comes_before = {"filter": "Second"}  # type: ignore[misc]
    kit.registry.register("First", lambda args, handle: first)
    kit.registry.register("Second", lambda args, handle: PlainFilter({}))
    profile = kit.profile(filter=dict.fromkeys(names))
    if names[0] == "First":
        await profile
        return
    with pytest.raises(ProfileError, match='"First" must come before "Second" at filter'):
        await profile


async def test_a_plugin_that_is_only_named_somewhere_is_not_called_there() -> None:
    kit = Kit()
    named = PlainFilter({"a": Status.unschedulable("never asked")})
    named.named_only_at = frozenset({"filter"})  # type: ignore[misc]
    search = await kit.search(filter={"Named": named})
    found = search.search(CycleState(), make_pod(), make_view(a="4"))
    assert found.status.ok
