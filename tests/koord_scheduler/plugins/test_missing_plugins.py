"""Pods that ask for what a missing plugin would give."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord.controlplane.testing import make_pod
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PodClaims, claims_of, claims_pods_with
from koord_scheduler.framework.status import Code, CycleState, Status
from koord_scheduler.framework.types import QueueingHint
from koord_scheduler_plugins.missing_plugins import MissingPlugins
from tests.support.scheduler.framework import Kit, PlainFilter, make_view

VIEW = make_view(a="1", b="2")
DOMAIN = "scheduling.koordinator.sh"


def plugin(*claimed: str, **registered: list[str]) -> MissingPlugins:
    """It in a profile whose plugins claim keys; registered: keys that plugins claim, by plugin."""
    kit = Kit()
    return MissingPlugins(
        None,
        Handle(
            profile="p",
            services=kit.services,
            filters=lambda: pytest.fail("no filters are needed"),
            claims=PodClaims(
                profile="p",
                enabled=frozenset(claimed),
                registered={key: [name] for name, keys in registered.items() for key in keys},
            ),
        ),
    )


def requesting(
    labels: dict[str, str] | None = None,
    annotations: dict[str, Any] | None = None,
    resource: str = "",
) -> ClusterPod:
    """A pod; annotations that are no text are JSON."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (annotations or {}).items()
    }
    amounts = {resource: "50"} if resource else {}
    containers = [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]
    return make_pod("web", labels=labels, annotations=texts, spec={"containers": containers})


REQUESTS = [
    (
        "Coscheduling",
        requesting(annotations={"gang.scheduling.koordinator.sh/name": "train"}),
        'gang "train" (annotation gang.scheduling.koordinator.sh/name)',
    ),
    (
        "Coscheduling",
        requesting({"pod-group.scheduling.sigs.k8s.io": "train"}),
        'pod group "train" (label pod-group.scheduling.sigs.k8s.io)',
    ),
    (
        "Coscheduling",
        requesting({"pod-group.scheduling.sigs.k8s.io/name": "train"}),
        'pod group "train" (label pod-group.scheduling.sigs.k8s.io/name)',
    ),
    (
        "ElasticQuota",
        requesting({"quota.scheduling.koordinator.sh/name": "team"}),
        'quota "team" (label quota.scheduling.koordinator.sh/name)',
    ),
    (
        "Reservation",
        requesting(annotations={f"{DOMAIN}/reservation-affinity": {"name": "r" * 900}}),
        f"a required reservation (annotation {DOMAIN}/reservation-affinity)",
    ),
    (
        "Reservation",
        requesting({f"{DOMAIN}/operating-mode": "Reservation"}),
        f"a pod that is a reservation (label {DOMAIN}/operating-mode)",
    ),
    (
        "NodeNUMAResource",
        requesting(annotations={f"{DOMAIN}/resource-spec": {"requiredCPUBindPolicy": "FullPCPUs"}}),
        f'required CPU binding "FullPCPUs" (annotation {DOMAIN}/resource-spec)',
    ),
    (
        "NodeNUMAResource",
        requesting(annotations={f"{DOMAIN}/resource-spec": "{"}),
        f'required CPU binding "unreadable" (annotation {DOMAIN}/resource-spec)',
    ),
    (
        "NodeNUMAResource",
        requesting(
            annotations={f"{DOMAIN}/numa-topology-spec": {"numaTopologyPolicy": "SingleNUMANode"}}
        ),
        f'NUMA topology policy "SingleNUMANode" (annotation {DOMAIN}/numa-topology-spec)',
    ),
    (
        "NodeNUMAResource",
        requesting(annotations={f"{DOMAIN}/numa-topology-spec": "[1]"}),
        f'NUMA topology policy "unreadable" (annotation {DOMAIN}/numa-topology-spec)',
    ),
    (
        "NodeNUMAResource",
        requesting(
            annotations={f"{DOMAIN}/numa-topology-spec": {"singleNUMANodeExclusive": "Required"}}
        ),
        f"a NUMA node of its own (annotation {DOMAIN}/numa-topology-spec)",
    ),
    *(
        ("DeviceShare", requesting(resource=name), f"resource {name}")
        for name in ("koordinator.sh/gpu", "koordinator.sh/gpu-memory-ratio", "kubernetes.io/rdma")
    ),
    (
        "DeviceShare",
        requesting(
            annotations={f"{DOMAIN}/device-joint-allocate": {"deviceTypes": ["gpu", "rdma"]}}
        ),
        f"allocation of devices (annotation {DOMAIN}/device-joint-allocate)",
    ),
]


def key_of(request_text: str) -> str:
    """The annotation, label or resource that a text names."""
    return request_text.rpartition("(")[2].rstrip(")").rpartition(" ")[2]


@pytest.mark.parametrize(("missing", "pod", "request_text"), REQUESTS)
def test_the_reason_says_what_is_asked_for_and_what_would_give_it(
    missing: str, pod: ClusterPod, request_text: str
) -> None:
    """While nobody claims it; then it is that plugin's business."""
    key = key_of(request_text)
    begin = f"{request_text} needs a plugin that claims it: "
    install = (
        f"install a plugin that claims {key}, such as Koordinator's {missing}, and enable it in "
        "profile p, or have another scheduler place the pod"
    )
    wanted = Status.unresolvable(begin + install)
    assert plugin().pre_filter(CycleState(), pod, VIEW) == wanted
    wanted = Status.unresolvable(f"{begin}enable {missing} in profile p")
    assert plugin(**{missing: [key]}).pre_filter(CycleState(), pod, VIEW) == wanted
    status = plugin(key, **{missing: [key]}).pre_filter(CycleState(), pod, VIEW)
    assert status is not None
    assert status.code is Code.SKIP


@pytest.mark.parametrize(
    "pod",
    [
        requesting(),
        requesting(resource="nvidia.com/gpu"),
        requesting(resource="kubernetes.io/batch-cpu"),
        requesting({"quota.scheduling.koordinator.sh/name": ""}),
        requesting({"quota.scheduling.koordinator.sh/preemptible": "false"}),
        requesting(
            {f"{DOMAIN}/reservation-ignored": "true", f"{DOMAIN}/operating-mode": "Runnable"}
        ),
        requesting(
            annotations={f"{DOMAIN}/resource-spec": {"preferredCPUBindPolicy": "FullPCPUs"}}
        ),
        requesting(
            annotations={f"{DOMAIN}/numa-topology-spec": {"numaTopologyPolicy": "BestEffort"}}
        ),
        requesting(annotations={f"{DOMAIN}/resource-spec": ""}),
    ],
)
def test_what_any_scheduler_can_do_and_preferences_are_no_reason(pod: ClusterPod) -> None:
    """Extended resources of device plugins are amounts like others."""
    status = plugin().pre_filter(CycleState(), pod, VIEW)
    assert status is not None
    assert status.code is Code.SKIP


async def test_the_event_has_all_reasons_and_no_node_is_looked_at() -> None:
    """Removing pods would not help."""
    kit = Kit()
    plain = PlainFilter({})
    kit.registry.register("MissingPlugins", lambda args, handle: MissingPlugins(args, handle))
    missing: Any = {"MissingPlugins": None}
    search = await kit.search(preFilter=missing, filter={"A": plain})
    pod = requesting(
        {"quota.scheduling.koordinator.sh/name": "team"}, resource="koordinator.sh/gpu"
    )
    found = search.search(CycleState(), pod, VIEW)
    assert found.status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    message = found.diagnosis.message()
    assert message.startswith(
        '0/2 nodes are available: quota "team" (label quota.scheduling.koordinator.sh/name) needs '
        "a plugin that claims it: install"
    )
    assert "resource koordinator.sh/gpu needs a plugin that claims it" in message
    assert found.diagnosis.unschedulable_plugins == {"MissingPlugins"}
    assert plain.asked == []


@claims_pods_with("quota.scheduling.koordinator.sh/name")
class TeamQuota(PlainFilter):
    """A team's own plugin, whatever its name."""

    def __init__(self, args: object = None, handle: object = None) -> None:
        super().__init__({})


async def test_a_plugin_claims_pods_where_its_profile_enables_it() -> None:
    """Under any name; being registered is not enough."""
    pod = requesting({"quota.scheduling.koordinator.sh/name": "team"})
    for enabled in (False, True):
        kit = Kit()
        kit.registry.register("MissingPlugins", lambda args, handle: MissingPlugins(args, handle))
        kit.registry.register("TeamQuota", TeamQuota)
        points: Any = {"preFilter": {"MissingPlugins": None}}
        if enabled:
            points["filter"] = {"TeamQuota": None}
        search = await kit.search(**points)
        found = search.search(CycleState(), pod, VIEW)
        assert found.status.ok is enabled
        if not enabled:
            assert "enable TeamQuota in profile" in found.diagnosis.message()


@pytest.mark.parametrize("keys", [("",), ("k" * 318,), (1,), [str(at) for at in range(257)]])
def test_what_cannot_be_claimed(keys: Any) -> None:
    with pytest.raises(PluginError, match="claims_pods_with: wanted"):
        claims_pods_with(*keys)


def test_a_derived_class_claims_what_its_base_does() -> None:
    @claims_pods_with("more")
    class Derived(TeamQuota):
        pass

    assert claims_of(Derived) == {"more", "quota.scheduling.koordinator.sh/name"}
    assert claims_of(PlainFilter) == frozenset()


def test_a_pod_is_tried_again_when_it_asks_for_nothing_of_that_kind_any_more() -> None:
    """As its labels and annotations say then."""
    (event,) = plugin().events_to_register()
    assert event.hint is not None
    old = requesting({"quota.scheduling.koordinator.sh/name": "team"})
    assert event.hint(old, old, old) is QueueingHint.SKIP
    assert event.hint(old, old, requesting()) is QueueingHint.QUEUE


@given(st.text(max_size=400), st.text(max_size=400))
def test_no_annotation_can_break_it(one: str, other: str) -> None:
    """Whatever it says, the pod is refused or not."""
    annotations = {f"{DOMAIN}/resource-spec": one, f"{DOMAIN}/numa-topology-spec": other}
    pod = requesting(
        annotations={key: text for key, text in annotations.items() if text.isprintable()}
    )
    status = plugin().pre_filter(CycleState(), pod, VIEW)
    assert status is not None
    assert status.code in (Code.SKIP, Code.UNSCHEDULABLE_AND_UNRESOLVABLE)
