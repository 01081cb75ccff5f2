"""The quota of an ElasticQuotaProfile: the root of a tree, as large as the nodes it selects.

Source: Koordinator, pkg/quota-controller/profile, which koord-manager runs there.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from koord.api.elasticquota import (
    API_VERSION,
    IS_ROOT,
    KIND,
    PLURAL,
    PROFILE,
    PROFILE_API_VERSION,
    PROFILE_KIND,
    PROFILE_PLURAL,
    TOTAL_RESOURCE,
    TREE_ID,
    UNSCHEDULABLE_RESOURCE,
    Amounts,
    ElasticQuotaProfile,
    quantity_text,
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

ROOT_MAX = (2**63 - 1) // 2000  # units of each resource; as good as no limit
_RATIO = re.compile(r"[0-9]{0,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class ProfileNode:
    """A node as profiles look at it."""

    labels: Mapping[str, str]
    allocatable: Amounts
    schedulable: bool = True  # ready and not cordoned


def tree_id(profile: ElasticQuotaProfile) -> str:
    """Return the id of the tree of a profile: the one it has, or the FNV-1a hash of its key."""
    if profile.tree:
        return profile.tree
    found = 0xCBF29CE484222325
    for byte in profile.key.encode(errors="surrogatepass"):
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return str(found)


def root_quota(profile: ElasticQuotaProfile, nodes: Iterable[ProfileNode]) -> dict[str, object]:
    """Return the ElasticQuota of a profile as JSON.

    Source: Koordinator, pkg/quota-controller/profile.
    """
    total: dict[str, int] = {}
    unschedulable: dict[str, int] = {}
    for node in nodes:
        if profile.selector.matches(node.labels):
            for sums in (total,) if node.schedulable else (total, unschedulable):
                for key, amount in node.allocatable.items():
                    sums[key] = sums.get(key, 0) + amount
    ratio = _ratio(profile.ratio)
    annotations = {
        TOTAL_RESOURCE: _list_text(total, ratio),
        UNSCHEDULABLE_RESOURCE: _list_text(unschedulable, ratio),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "namespace": profile.namespace,
            "name": profile.quota,
            "labels": {
                PROFILE: profile.name,
                **profile.labels,
                TREE_ID: tree_id(profile),
                IS_ROOT: "true",
            },
            "annotations": annotations,
        },
        "spec": {
            "min": {
                key: quantity_text(key, int(total.get(key, 0) * ratio)) for key in profile.resources
            },
            "max": {key: str(ROOT_MAX) for key in profile.resources},
        },
    }


def _ratio(text: str) -> Fraction:
    """The share of nodes that the quota gets; what is not above 0 and at most 1 stands for 1."""
    if _RATIO.fullmatch(text):
        try:
            found = Fraction(text)
        except ValueError:
            return Fraction(1)
        if 0 < found <= 1:
            return found
    return Fraction(1)


def _list_text(amounts: Amounts, ratio: Fraction) -> str:
    found = {key: quantity_text(key, int(amounts[key] * ratio)) for key in sorted(amounts)}
    return json.dumps(found, separators=(",", ":"))


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
        """Write the id of its tree on the profile."""
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
