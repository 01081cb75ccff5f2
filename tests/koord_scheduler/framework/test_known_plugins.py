"""What the configuration learns of registered plugins."""

from dataclasses import dataclass
from typing import Any

import pytest

from koord.component.plugins.args import takes_args
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profile import PluginRegistry, known_plugins
from tests.support.scheduler.framework import FirstCome, FreeCpu


@dataclass(frozen=True)
class SizeArgs:
    """Arguments of a test's plugin."""

    size: int = 1


@takes_args(SizeArgs)
class Sized(FreeCpu):
    """A plugin that declares its arguments."""

    def __init__(self, args: SizeArgs, handle: Handle) -> None:
        self.size = args.size


def annotated(args: Any, handle: Handle) -> FreeCpu:
    return FreeCpu()


def vague(args: Any, handle: Handle) -> Plugin:
    return FirstCome()


def unannotated(args, handle):  # type: ignore[no-untyped-def]
    return FirstCome()


def elsewhere(args: Any, handle: Handle) -> "Nowhere":  # type: ignore[name-defined] # noqa: F821
    return None


@pytest.mark.parametrize(
    ("factory", "points", "opaque"),
    [
        (Sized, {Point.FILTER, Point.SCORE}, False),
        (annotated, {Point.FILTER, Point.SCORE}, False),
        (vague, set(Point), True),
        (unannotated, set(Point), True),
        (elsewhere, set(Point), True),
    ],
)
def test_the_points_of_a_plugin(factory: Any, points: set[Point], opaque: bool) -> None:
    """A class's are known, and those of what a function is annotated to return."""
    registry = PluginRegistry()
    registry.register("One", factory)

    found = known_plugins(registry)["One"]

    assert (set(found.points), found.is_opaque) == (points, opaque)


def test_declared_arguments_are_known() -> None:
    registry = PluginRegistry()
    registry.register("Sized", Sized)

    args = known_plugins(registry)["Sized"].args

    assert args is not None
    assert args.cls is SizeArgs
