"""Kinds of plugins' own: each plugin decodes its objects, and changes of them wake its pods."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import KeptFields
from koord.kube.client import Resource
from koord.plugin import InvalidObject
from koord.util.health import OK, HealthStatus
from koord_scheduler.framework.customresources import event_resource_of
from koord_scheduler.framework.handle import PodDecoder
from koord_scheduler.framework.types import Action, QueueingHint
from koord_scheduler.plugin import (
    ClusterEvent,
    CycleState,
    EnqueueExtensions,
    FilterPlugin,
    FollowedResource,
    Handle,
    HintedEvent,
    NodeInfo,
    Status,
)
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod

GROUPS = Resource("scheduling.sigs.k8s.io/v1alpha1", "podgroups")
EVENT = "podgroups.v1alpha1.scheduling.sigs.k8s.io"
LABEL = "pod-group.scheduling.sigs.k8s.io"


def group(name: str = "train", minimum: object = 3) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": minimum}}


class RegistersOnly(FilterPlugin, EnqueueExtensions):
    """Registers events of a kind that it does not follow."""

    def __init__(self, args: object, handle: Handle) -> None:
        self.seen: list[tuple[object, object]] = []
        self.handle = handle

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return Status.unschedulable("no")

    def events_to_register(self) -> Iterable[HintedEvent]:
        return (HintedEvent(ClusterEvent(EVENT, Action.ALL), self._hint),)

    def _hint(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        self.seen.append((old, new))
        return QueueingHint.QUEUE if self._is_smaller(old, new) else QueueingHint.SKIP

    def _is_smaller(self, old: object, new: object) -> bool:
        return True


class Follows(RegistersOnly):
    """Follows it, too: keeps the minimum of each group."""

    def __init__(self, args: object, handle: Handle) -> None:
        super().__init__(args, handle)
        self.changes: list[tuple[int | None, int | None]] = []
        self.groups: FollowedResource[int] = handle.services.custom_resources.follow(
            GROUPS, self._read, lambda old, new: self.changes.append((old, new))
        )

    @staticmethod
    def _read(found: Mapping[str, Any]) -> int:
        minimum = found["spec"]["minMember"]
        if not isinstance(minimum, int):
            raise InvalidObject("PodGroup: minMember", wanted="a number", found=minimum)
        return minimum

    def _is_smaller(self, old: object, new: object) -> bool:
        return isinstance(old, int) and isinstance(new, int) and new < old


def test_a_kind_has_the_name_that_plugins_of_koordinator_register() -> None:
    assert event_resource_of(GROUPS) == EVENT
    assert event_resource_of(Resource("v1", "secrets")) == "secrets.v1"


async def test_hints_get_the_objects_that_the_plugin_has_decoded() -> None:
    """Before and after; another plugin gets what it decodes, or JSON."""
    async with PluginHarness(
        Follows, fake_cluster(), extra_plugins={"Registers": RegistersOnly}
    ) as harness:
        plugin, other = harness.subject, harness.plugin("Registers")
        assert isinstance(plugin, Follows)
        assert isinstance(other, RegistersOnly)
        pod = make_pod("web")
        assert not harness.is_retried_by(pod, "Follows", GROUPS, group())
        assert harness.is_retried_by(pod, "Follows", GROUPS, group(minimum=2))
        assert not harness.is_retried_by(pod, "Follows", GROUPS, group(minimum=4))
        assert not harness.is_retried_by(pod, "Follows", GROUPS, deleted="default/train")
        assert plugin.seen == [(None, 3), (3, 2), (2, 4), (4, None)]
        assert plugin.changes == plugin.seen
        assert not plugin.groups.objects

        assert harness.is_retried_by(pod, "Registers", GROUPS, group())
        assert other.seen == [(None, group())]


async def test_objects_from_before_the_plugin_was_made_are_known_to_it() -> None:
    harness = PluginHarness(Follows, fake_cluster())
    harness.informers.apply(GROUPS, group())
    async with harness:
        plugin = harness.subject
        assert isinstance(plugin, Follows)
        assert dict(plugin.groups.objects) == {"default/train": 3}


async def test_what_a_plugin_cannot_read_leaves_the_last_good_object() -> None:
    """It is logged once, and health names plugin and object until it can be read, or is gone."""
    async with PluginHarness(Follows, fake_cluster()) as harness:
        plugin, resources = harness.subject, harness.services.custom_resources
        assert isinstance(plugin, Follows)
        harness.informers.apply(GROUPS, group())
        with capture_logs() as logs:
            harness.informers.apply(GROUPS, group(minimum="many"))
            harness.informers.apply(GROUPS, group(minimum="many"))
            harness.informers.apply(GROUPS, {**group("other"), "spec": 7})
        assert dict(plugin.groups.objects) == {"default/train": 3}
        rejected = [one["object"] for one in logs if one["event"] == "object.rejected"]
        assert rejected == ["default/train", "default/other"]
        health = resources.health()
        assert health.status is HealthStatus.DEGRADED
        assert f"plugin Follows: 2 of {EVENT} not understood: default/train: " in health.reason
        assert plugin.changes == [(None, 3)]

        harness.informers.apply(GROUPS, group(minimum=5))
        harness.informers.delete(GROUPS, "default/other")
        assert resources.health() == OK
        assert plugin.changes == [(None, 3), (3, 5)]


async def test_an_object_of_another_uid_does_not_leave_the_one_before() -> None:
    async with PluginHarness(Follows, fake_cluster()) as harness:
        plugin = harness.subject
        assert isinstance(plugin, Follows)
        for uid, minimum in (("u", 3), ("v", "many")):
            found = group(minimum=minimum)
            found["metadata"]["uid"] = uid
            harness.informers.apply(GROUPS, found)
        assert not plugin.groups.objects
        assert plugin.changes == [(None, 3), (3, None)]
        assert plugin.groups.rejected.keys() == plugin.groups.items.keys() == {"default/train"}


async def test_a_plugin_that_fails_in_its_handler_does_not_keep_the_event_from_the_queue() -> None:
    class Fails(Follows):
        def __init__(self, args: object, handle: Handle) -> None:
            RegistersOnly.__init__(self, args, handle)
            handle.services.custom_resources.follow(GROUPS, self._read, self._fail)

        def _fail(self, old: object, new: object) -> None:
            raise KeyError("gone")

        def _is_smaller(self, old: object, new: object) -> bool:
            return True

    async with PluginHarness(Fails, fake_cluster()) as harness:
        with capture_logs() as logs:
            assert harness.is_retried_by(make_pod("web"), "Fails", GROUPS, group())
        assert [one["plugin"] for one in logs if one["event"] == "change.failed"] == ["Fails"]


SEAT = "example.com/seat"
PODS = PodDecoder(Decoder(KeptFields(pod_annotations={SEAT: 10})))
TEMPLATE = {
    "metadata": {"labels": {"app": "web"}, "annotations": {SEAT: "7", "b": "8"}, "name": "x"},
    "spec": {
        "nodeName": "elsewhere",
        "priority": 9,
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}],
    },
}


def test_a_pod_of_a_template_has_its_fields_and_the_identity_that_is_given() -> None:
    found = PODS.read_template(TEMPLATE, name="own", namespace="shop", uid="u")
    assert (found.key, found.uid, found.node, found.priority) == ("shop/own", "u", "", 9)
    assert (found.labels, found.annotations) == ({"app": "web"}, ((SEAT, "7"),))
    assert found.spec.requests == (("cpu", 2000),)
    placed = PODS.read_template(
        TEMPLATE, name="own", namespace="shop", uid="u", node="n", priority=1
    )
    assert (placed.node, placed.priority) == ("n", 1)
    assert placed.spec is found.spec


def test_a_pod_of_an_object() -> None:
    found = PODS.read({**TEMPLATE, "metadata": {"name": "a", "namespace": "b"}})
    assert (found.key, found.node) == ("b/a", "elsewhere")


def test_what_cannot_be_read_of_a_template_is_named_and_fits_no_node() -> None:
    wrong = {**TEMPLATE, "spec": {"containers": [], "affinity": 7}}
    found = PODS.read_template(wrong, name="own", namespace="shop", uid="u")
    assert "affinity" in found.spec.unread[0]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "spec", "containers", "name", "labels", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_a_template_is_it_is_a_pod_or_an_invalid_object(found: Any) -> None:
    """So a Reservation with an absurd template costs only itself."""
    for read in (
        lambda: PODS.read(found),
        lambda: PODS.read_template(found, name="own", namespace="shop", uid="u"),
    ):
        try:
            pod = read()
        except InvalidObject:
            continue
        assert isinstance(pod, ClusterPod)


def test_a_template_nested_beyond_all_bounds_is_an_invalid_object() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"spec": deep}
    with pytest.raises(InvalidObject):
        PODS.read_template({"spec": deep}, name="own", namespace="shop", uid="u")
    while deep:  # freed from the outside in: in one go it would be too deep for the interpreter
        deep = deep.pop("spec")
