"""Pods with resource claims."""

from koord.controlplane.testing import make_pod
from koord_scheduler.framework.status import Code
from koord_scheduler_plugins.missing_plugins import DynamicResources
from tests.support.scheduler.volumes import Storage


async def test_a_pod_with_resource_claims_is_refused_and_the_event_says_why() -> None:
    """Preemption would not help it, and no event does."""
    storage = Storage()
    storage.node("n1")
    plugin = DynamicResources(None, storage.handle())
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    pod = make_pod("web", spec={"resourceClaims": claims})

    found = await storage.search_pre_filter(plugin, pod)

    assert found.status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    message = found.diagnosis.message()
    assert message.startswith("0/1 nodes are available: resource claims (spec.resourceClaims,")
    assert "are not supported by this scheduler" in message
    assert list(plugin.events_to_register()) == []


def test_other_pods_cost_nothing() -> None:
    storage = Storage()
    plugin = DynamicResources(None, storage.handle())
    assert storage.pre_filter(plugin, make_pod("web")).code is Code.SKIP
    assert storage.pre_filter(plugin, make_pod("w", spec={"resourceClaims": []})).code is Code.SKIP
