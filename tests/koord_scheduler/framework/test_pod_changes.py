"""What PreBind plugins change about a pod is applied once, by the first plugin that can."""

import pytest

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.interfaces import (
    PodChanges,
    PreBindExtensions,
    PreBindPlugin,
    pod_changes,
)
from koord_scheduler.framework.status import Code, CycleState, Status
from tests.support.scheduler.framework import Kit, make_pod


class Annotates(PreBindPlugin):
    def __init__(self, key: str) -> None:
        self.key = key

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        pod_changes(state).annotations[self.key] = node_name


class Applies(PreBindPlugin, PreBindExtensions):
    def __init__(self, answer: Status | None = None) -> None:
        self.answer = answer
        self.applied: list[object] = []

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """It has nothing to do itself."""

    async def apply_patch(
        self, state: CycleState, pod: ClusterPod, changes: PodChanges
    ) -> Status | None:
        self.applied.append(changes.metadata)
        return self.answer


async def bind(**plugins: PreBindPlugin) -> Status:
    profile = await Kit().profile(preBind=plugins)
    return await PodBinding(profile).pre_bind(CycleState(), make_pod(), "a")


async def test_all_changes_come_together_after_all_plugins() -> None:
    applies = Applies()
    status = await bind(Applies=applies, One=Annotates("one"), Two=Annotates("two"))
    assert status.ok
    assert applies.applied == [{"annotations": {"one": "a", "two": "a"}}]


async def test_without_changes_nothing_is_applied() -> None:
    applies = Applies()
    assert (await bind(Applies=applies)).ok
    assert applies.applied == []


async def test_the_first_that_does_not_skip_has_applied_them() -> None:
    skips, applies, late = Applies(Status.skip()), Applies(), Applies()
    status = await bind(One=Annotates("one"), Skips=skips, Applies=applies, Late=late)
    assert status.ok
    assert (len(skips.applied), len(applies.applied), len(late.applied)) == (1, 1, 0)


@pytest.mark.parametrize("plugins", [{}, {"Skips": Applies(Status.skip())}])
async def test_changes_that_nothing_applies_are_an_error(plugins: dict[str, Applies]) -> None:
    status = await bind(One=Annotates("one"), **plugins)
    assert status.code is Code.ERROR
    assert "DefaultPreBind" in status.message


async def test_a_failure_ends_the_binding() -> None:
    status = await bind(One=Annotates("one"), Fails=Applies(Status.failed("409")))
    assert (status.code, status.plugin) == (Code.ERROR, "Fails")


def test_a_clone_is_changed_alone() -> None:
    state = CycleState()
    pod_changes(state).labels["a"] = "1"
    pod_changes(state.clone()).labels["b"] = None
    assert pod_changes(state).metadata == {"labels": {"a": "1"}}
