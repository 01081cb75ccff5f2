"""Runs one plugin for one cycle."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from koord_descheduler.plugin import Action, Plugin
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness


class Round(Protocol):
    """One cycle of a plugin; see round_of."""

    def __call__(
        self, plugin: Callable[..., Plugin], cluster: FakeCluster, args: object = None, **more: Any
    ) -> Awaitable[tuple[list[str], dict[str, tuple[Action, str]]]]: ...


@pytest.fixture
def round_of() -> Round:
    """Run a plugin; return names of the pods that left, in order, and the findings by pod."""

    async def run(
        plugin: Callable[..., Plugin], cluster: FakeCluster, args: object = None, **more: Any
    ) -> tuple[list[str], dict[str, tuple[Action, str]]]:
        async with PluginHarness(plugin, cluster, args=args, **more) as harness:
            result = await harness.cycle()
            assert result.errors == []
            found = {
                one.pod.partition("/")[2]: (one.action, one.reason)
                for one in harness.decisions.pods()
            }
            return [one.pod.name for one in harness.evicted], found

    return run
