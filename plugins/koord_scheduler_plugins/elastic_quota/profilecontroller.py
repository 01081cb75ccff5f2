"""Keeps the quota of each ElasticQuotaProfile as large as the nodes that it selects.

Source: Koordinator, pkg/quota-controller/profile, which koord-manager runs there.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from koord.api.elasticquota import (
    API_VERSION,
    PLURAL,
    PROFILE_API_VERSION,
    PROFILE_KIND,
    PROFILE_PLURAL,
    TREE_ID,
    ElasticQuotaProfile,
    read_elastic_quota_profile,
)
from koord.plugin import OK, HealthStatus, PartHealth, Stop, get_logger
from koord.plugin.kube import (
    ApiResource,
    Event,
    EventType,
    KubeError,
    NotFound,
    ObjectRef,
)
from koord_scheduler.plugin import FollowedResource, Services, SharedPart
from koord_scheduler_plugins.elastic_quota.profile import ProfileNode, root_quota, tree_id

PROFILES, QUOTAS = (
    ApiResource(PROFILE_API_VERSION, PROFILE_PLURAL),
    ApiResource(API_VERSION, PLURAL),
)
WITHOUT = "no quotas are made of ElasticQuotaProfiles"
PERIOD = 10.0  # seconds between two looks at all profiles
PAUSE = 0.1  # seconds between two writes: at most ten a second
SLICE = 256  # nodes that are looked at in one step

log = get_logger("koord_scheduler.elastic_quota")


def follow_profiles(services: Services) -> FollowedResource[ElasticQuotaProfile]:
    """Follow the profiles of the cluster; call it while the plugin is made."""
    return services.custom_resources.follow(PROFILES, read_elastic_quota_profile, without=WITHOUT)


class QuotaProfiles(SharedPart):
    """Makes and changes quotas by their profiles while this process leads."""

    def __init__(
        self,
        services: Services,
        profiles: FollowedResource[ElasticQuotaProfile],
        quotas: FollowedResource[Any],
    ) -> None:
        self._services = services
        self._profiles = profiles
        self._quotas = quotas
        self._failed: dict[str, str] = {}  # why quotas could not be written, by key of the profile

    async def run(self, stop: Stop) -> None:
        """Look at all profiles again and again until stop."""
        while not stop.is_set():
            self._failed = {
                key: why for key, why in self._failed.items() if key in self._profiles.objects
            }
            if self._profiles.objects:
                nodes = [one async for one in self._nodes()]
                for profile in tuple(self._profiles.objects.values()):
                    await asyncio.sleep(0)
                    if await self._sync(profile, nodes) and await stop.sleep(PAUSE):
                        return
            if await stop.sleep(PERIOD):
                return

    async def wait_ready(self) -> None:
        """No cycle waits for it."""

    def health(self) -> PartHealth:
        """Degraded while a quota cannot be written."""
        for key, why in self._failed.items():
            text = f"quota of ElasticQuotaProfile {key} cannot be written: {why}"
            return PartHealth(HealthStatus.DEGRADED, text)
        return OK

    async def _nodes(self) -> AsyncIterator[ProfileNode]:
        view = self._services.cluster.view()
        for row in range(len(view)):
            if row % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            node = view.node(row)
            yield ProfileNode(
                node.labels, dict(node.allocatable), node.ready and not node.unschedulable
            )

    async def _sync(self, profile: ElasticQuotaProfile, nodes: list[ProfileNode]) -> bool:
        """Write the quota of a profile if it differs; return whether something was written."""
        wanted = root_quota(profile, nodes)
        path = QUOTAS.object(profile.quota, namespace=profile.namespace)
        there = self._quotas.items.get(f"{profile.namespace}/{profile.quota}")
        if there is not None and not list(_differences(there, wanted)):
            self._failed.pop(profile.key, None)
            return False
        reason = "CreateQuotaFailed" if there is None else "UpdateQuotaFailed"
        try:
            await self._keep_tree_id(profile)
            if there is None:
                await self._services.client.create(QUOTAS.collection(profile.namespace), wanted)
            else:
                patch = {key: wanted[key] for key in ("metadata", "spec")}
                await self._services.client.merge_patch(path, patch)
        except KubeError as err:
            self._fail(profile, reason, str(err))
        else:
            self._failed.pop(profile.key, None)
            log.info("quota.written", quota=f"{profile.namespace}/{profile.quota}",
                     profile=profile.key)  # fmt: skip
        return True

    async def _keep_tree_id(self, profile: ElasticQuotaProfile) -> None:
        """Have the profile say its tree, too."""
        if profile.tree:
            return
        path = PROFILES.object(profile.name, namespace=profile.namespace)
        labels = {"labels": {TREE_ID: tree_id(profile)}}
        try:
            await self._services.client.merge_patch(path, {"metadata": labels})
        except NotFound:
            return  # it has gone: the watch says so

    def _fail(self, profile: ElasticQuotaProfile, reason: str, why: str) -> None:
        """Say once for each reason that a quota cannot be written; the next round tries again."""
        if self._failed.get(profile.key) == why:
            return
        self._failed[profile.key] = why
        log.warning("quota.write_failed", profile=profile.key, error=why)
        item = self._profiles.items.get(profile.key, {})
        uid = str(item.get("metadata", {}).get("uid", ""))
        verb = "create" if reason == "CreateQuotaFailed" else "update"
        about = ObjectRef(PROFILE_API_VERSION, PROFILE_KIND, profile.name, profile.namespace, uid)
        text = f"failed to {verb} quota, err: {why}"[:1000]
        self._services.events.emit(Event(about, EventType.WARNING, reason, text, "koord-scheduler"))


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Names of the parts of a quota that are not as its profile wants them."""
    meta = there.get("metadata", {})
    for part in ("labels", "annotations"):
        found = meta.get(part) or {}
        if any(found.get(key) != value for key, value in wanted["metadata"][part].items()):
            yield part
    if there.get("spec") != wanted["spec"]:
        yield "spec"
