"""The quotas of profiles: made, changed with the nodes, and left alone while nothing changes."""

import asyncio
from dataclasses import replace
from typing import Any

from koord.api.elasticquota import IS_ROOT, PROFILE, TOTAL_RESOURCE, TREE_ID
from koord.controlplane.testing import api_error_response
from koord.util.health import HealthStatus
from koord_scheduler_plugins.elastic_quota.profile import (
    PERIOD,
    PROFILES,
    QuotaProfiles,
)
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS
from tests.koord_scheduler.plugins.elastic_quota.test_elastic_quota import World


class Api:
    """An API server that keeps quotas and labels of profiles, or answers with an error."""

    def __init__(self, world: World) -> None:
        self._informers = world.services.informers
        self.made: list[Any] = []
        self.patched: list[tuple[str, Any]] = []
        self.code = 0

    async def create(self, path: str, body: Any) -> Any:
        self._fail(path)
        self.made.append(body)
        self._informers.apply(QUOTAS, body)
        return body

    async def merge_patch(self, path: str, body: Any) -> Any:
        self._fail(path)
        self.patched.append((path, body))
        name = path.rpartition("/")[2]
        resource = PROFILES if "elasticquotaprofiles" in path else QUOTAS
        before: Any = self._informers.informer(resource).objects[f"ns/{name}"]
        meta = {**before["metadata"]}
        for part in ("labels", "annotations"):
            meta[part] = {**meta.get(part, {}), **body["metadata"].get(part, {})}
        spec = {"spec": body["spec"]} if "spec" in body else {}
        self._informers.apply(resource, {**before, "metadata": meta, **spec})
        return {}

    def _fail(self, path: str) -> None:
        if self.code:
            call: Any = type("Call", (), {"where": path})()
            raise api_error_response(call, self.code, "Forbidden", "no")


async def test_a_profile_has_a_quota_as_large_as_its_nodes():
    world = await World().begin(4, 6, profile_controller=True)
    api = Api(world)
    services = replace(world.services, client=api)  # type: ignore[arg-type]
    profiles = world.plugin._profiles
    assert profiles is not None
    controller = QuotaProfiles(services, profiles, world.plugin.tracker.followed)
    assert "QuotaProfileController" in world.plugin.new_controllers()
    spec = {"quotaName": "root-a", "nodeSelector": {}, "resourceRatio": "0.5"}
    world.services.informers.apply(
        PROFILES, {"metadata": {"namespace": "ns", "name": "p", "uid": "u"}, "spec": spec}
    )
    api.code = 403
    running = asyncio.create_task(controller.run(world.stop))
    await world.advance(1.0)
    assert controller.health().status is HealthStatus.DEGRADED
    assert world.events[-1][:2] == ("p", "CreateQuotaFailed")
    said = len(world.events)
    await world.advance(PERIOD)
    assert len(world.events) == said
    api.code = 0
    await world.advance(PERIOD)
    assert controller.health().status is HealthStatus.OK
    (made,) = api.made
    labels, annotations = made["metadata"]["labels"], made["metadata"]["annotations"]
    assert (labels[PROFILE], labels[IS_ROOT]) == ("p", "true")
    assert '"cpu":"5"' in annotations[TOTAL_RESOURCE]
    assert made["spec"]["min"]["cpu"] == "5"
    ((path, label),) = api.patched
    assert path.endswith("/elasticquotaprofiles/p")
    assert label == {"metadata": {"labels": {TREE_ID: labels[TREE_ID]}}}
    await world.advance(3 * PERIOD)
    assert (len(api.made), len(api.patched)) == (1, 1)
    world.api.add_node("more", cpu="10")
    await world.settle()
    await world.advance(2 * PERIOD)
    ((_, _), (path, patch)) = api.patched
    assert path.endswith("/elasticquotas/root-a")
    assert patch["spec"]["min"]["cpu"] == "10"
    await world.end()
    await running


async def test_without_the_argument_profiles_are_not_followed():
    world = await World().begin(4)
    assert world.plugin._profiles is None
    assert "QuotaProfileController" not in world.plugin.new_controllers()
    await world.end()
