"""The status of quotas: what the scheduler writes into the objects, and shows of them.

Source: Koordinator, pkg/scheduler/plugins/elasticquota/controller.go.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge

from koord.api.elasticquota import (
    ALLOCATED,
    ALLOW_LENT_RESOURCE,
    API_VERSION,
    CHILD_REQUEST,
    DEFAULT_QUOTA,
    GUARANTEED,
    IS_PARENT,
    KIND,
    NON_PREEMPTIBLE_REQUEST,
    NON_PREEMPTIBLE_USED,
    PARENT,
    REQUEST,
    ROOT_QUOTA,
    RUNTIME,
    SYSTEM_QUOTA,
    Amounts,
    ElasticQuota,
    amounts_of,
    quantity_text,
)
from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.plugin import OK, HealthStatus, InvalidObject, PartHealth, Stop, get_logger
from koord.plugin.kube import AlreadyExists, ApiClient, ApiResource, Conflict, KubeError, NotFound
from koord_scheduler.plugin import ClusterPod, SharedPart
from koord_scheduler_plugins.elastic_quota.pods import pod_request
from koord_scheduler_plugins.elastic_quota.quotas import Quotas
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState

PERIOD = 5.0  # seconds between two looks at all quotas
PAUSE = 0.1  # seconds between two writes: at most ten a second
RETRY = 10.0  # seconds after an error
MAX_MEASURED = 2000  # quotas that metrics show
SLICE = 64  # quotas that are looked at in one step

log = get_logger("koord_scheduler.elastic_quota")


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """What an object says of its quota."""

    annotations: Mapping[str, Amounts] = field(default_factory=dict)  # by key; readable ones
    used: Amounts = field(default_factory=dict)
    used_keys: tuple[str, ...] = ()  # of status.used as it is written


def read_written(item: object) -> WrittenStatus:
    """Return the status of an ElasticQuota from its JSON; what is malformed is absent."""
    fields = Fields(item, "elasticquota")
    annotations: dict[str, Amounts] = {}
    texts = fields.nested("metadata").nested("annotations").raw
    for key in _READ:
        text = texts.get(key)
        if isinstance(text, str):
            try:
                annotations[key] = _amounts(parse_json(text, key), key)
            except InvalidObject:
                continue
    try:
        raw = fields.nested("status").nested("used").raw
        used = _amounts(raw, "status.used")
    except InvalidObject:
        return WrittenStatus(annotations)
    return WrittenStatus(annotations, used, tuple(map(str, raw)))


def _amounts(value: object, where: str) -> Amounts:
    raw = Fields(value, where).raw
    return _without_zeros(amounts_of(((str(key), one) for key, one in raw.items()), where))


def _without_zeros(amounts: Amounts) -> Amounts:
    return {key: amount for key, amount in amounts.items() if amount}


def _runtime(state: QuotaState, name: str) -> Amounts:
    """The limit of a quota that takes part in the division; of others max says it."""
    if name == ROOT_QUOTA:
        return state.available
    return {} if name in state.tree.fixed else state.limit(name)


_READ: Mapping[str, Callable[[QuotaState, str], Amounts]] = {
    RUNTIME: _runtime,
    REQUEST: QuotaState.request,
    CHILD_REQUEST: QuotaState.child_request,
    ALLOCATED: QuotaState.allocated,
    GUARANTEED: QuotaState.guaranteed,
    NON_PREEMPTIBLE_REQUEST: QuotaState.non_preemptible_requested,
    NON_PREEMPTIBLE_USED: QuotaState.non_preemptible_used,
}
"""Annotations that are written, with where they come from."""


def status_patch(written: WrittenStatus, state: QuotaState, name: str) -> Mapping[str, object]:
    """Return what of the status of a quota has changed as a merge patch; empty: nothing."""
    annotations = {}
    for key, read in _READ.items():
        amounts = _without_zeros(read(state, name))
        if written.annotations.get(key, {}) != amounts:
            annotations[key] = json.dumps(_texts(amounts), separators=(",", ":"))
    patch: dict[str, object] = {}
    if annotations:
        patch["metadata"] = {"annotations": annotations}
    used = _without_zeros(state.used(name))
    if used != written.used:
        gone = dict.fromkeys((key for key in written.used_keys if key not in used), None)
        patch["status"] = {"used": {**gone, **_texts(used)}}
    return patch


def _texts(amounts: Amounts) -> dict[str, str | None]:
    return {key: quantity_text(key, amounts[key]) for key in sorted(amounts)}


def fixed_objects(
    namespace: str, default: Amounts, system: Amounts
) -> Iterator[Mapping[str, object]]:
    """Return the objects of the fixed quotas, which are made where they are missing."""
    for name, high in ((ROOT_QUOTA, None), (SYSTEM_QUOTA, system), (DEFAULT_QUOTA, default)):
        meta: dict[str, object] = {"namespace": namespace, "name": name}
        if high is None:
            meta["labels"] = {IS_PARENT: "true", ALLOW_LENT_RESOURCE: "false", PARENT: ""}
        spec = {} if high is None else {"max": _texts(high)}
        yield {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}


def _measured(state: QuotaState, quota: ElasticQuota) -> Mapping[str, Amounts]:
    """What the gauge shows of a quota, by its label field."""
    found = {key.rpartition("/")[2]: read(state, quota.name) for key, read in _READ.items()}
    own = {"max": quota.max, "min": quota.min, "sharedWeight": quota.weight}
    return {**own, **found, "used": state.used(quota.name)}


class QuotaMetrics:
    """The gauge of quotas, with Koordinator's name and labels; cpu in millicores."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.status = Gauge(
            "scheduler_elastic_quota_status",
            "Amounts of quotas: what they request, use, and may use. CPU in millicores.",
            ["name", "resource", "tree", "is_parent", "parent", "field"],
            registry=registry,
        )
        self._shown: dict[str, set[tuple[str, ...]]] = {}  # labels by name of the quota

    def show(self, state: QuotaState, quota: ElasticQuota) -> None:
        """Set all values of a quota; those that it had before are gone."""
        if quota.name not in self._shown and len(self._shown) >= MAX_MEASURED:
            return
        fixed = state.tree.id, str(quota.is_parent).lower(), quota.parent
        shown: set[tuple[str, ...]] = set()
        for name, amounts in _measured(state, quota).items():
            for resource, amount in amounts.items():
                labels = quota.name, resource, *fixed, name
                self.status.labels(*labels).set(amount)
                shown.add(labels)
        self._remove(self._shown.get(quota.name, set()) - shown)
        self._shown[quota.name] = shown

    def keep(self, names: Collection[str]) -> None:
        """Remove the values of all other quotas."""
        for name in self._shown.keys() - names:
            self._remove(self._shown.pop(name))

    def _remove(self, shown: Iterable[tuple[str, ...]]) -> None:
        for labels in shown:
            self.status.remove(*labels)


class QuotaStatuses(SharedPart):
    """Writes the status of quotas while this process leads, only of those that have changed."""

    def __init__(
        self,
        client: ApiClient,
        resource: ApiResource,
        quotas: Callable[[], Quotas],
        objects: Mapping[str, object],
        fixed: Iterable[Mapping[str, object]],
        metrics: QuotaMetrics,
    ) -> None:
        """objects: ElasticQuotas as they are in JSON, by namespace/name; they follow the cluster.

        fixed: objects that are made where there are none of their name.
        """
        self._client = client
        self._resource = resource
        self._quotas = quotas
        self._objects = objects
        self._fixed = tuple(fixed)
        self._read: dict[str, tuple[object, WrittenStatus]] = {}  # objects with what they say
        self._metrics = metrics
        self._error = ""

    async def run(self, stop: Stop) -> None:
        """Write statuses until stop; another replica may have left some unwritten."""
        await self._make_fixed()
        try:
            await self._keep_writing(stop)
        finally:
            self._metrics.keep(())

    async def _keep_writing(self, stop: Stop) -> None:
        while not await stop.sleep(PERIOD):
            quotas = self._quotas()
            self._metrics.keep(quotas.objects.keys())
            for number, quota in enumerate(tuple(quotas.objects.values())):
                if stop.is_set():
                    return
                if number % SLICE == 0:
                    await asyncio.sleep(0)
                if quota.key in self._objects and await stop.sleep(await self._sync(quota)):
                    return

    async def wait_ready(self) -> None:
        """No cycle waits for it."""

    def health(self) -> PartHealth:
        """Degraded while statuses cannot be written."""
        return PartHealth(HealthStatus.DEGRADED, self._error) if self._error else OK

    async def _make_fixed(self) -> None:
        """Make the fixed quotas where they are missing; without them they have their defaults."""
        known = {name for name, quota in self._quotas().objects.items() if quota.uid}
        for item in self._fixed:
            meta = item["metadata"]
            assert isinstance(meta, dict)  # noqa: S101 - they are made above
            if meta["name"] in known:
                continue
            path = self._resource.collection(meta["namespace"])
            try:
                await self._client.create(path, dict(item))
            except AlreadyExists:
                continue
            except KubeError as err:
                log.warning("quota.create_failed", quota=meta["name"], error=str(err))

    async def _sync(self, quota: ElasticQuota) -> float:
        """Write a status if something of it has changed; return seconds to wait afterwards."""
        quotas, item = self._quotas(), self._objects.get(quota.key)
        state = quotas.states[""] if quota.name == ROOT_QUOTA else quotas.state_of(quota.name)
        if item is None or state is None:
            self._read.pop(quota.key, None)
            return 0.0
        self._metrics.show(state, quota)
        found = self._read.get(quota.key)
        if found is None or found[0] is not item:
            found = self._read[quota.key] = item, read_written(item)
        patch = dict(status_patch(found[1], state, quota.name))
        if not patch:
            return 0.0
        annotations = patch.pop("metadata", {})
        meta = {"uid": quota.uid, **(annotations if isinstance(annotations, dict) else {})}
        path = self._resource.object(quota.name, namespace=quota.namespace)
        try:
            await self._client.merge_patch(path, {"metadata": meta, **patch})
        except (NotFound, Conflict):
            return PAUSE  # it has gone, or another one has its name: the watch says so
        except KubeError as err:
            if not self._error:
                log.warning("quota.patch_failed", quota=quota.key, error=str(err))
            self._error = f"status of ElasticQuota {quota.key} cannot be written: {err}"
            return RETRY
        if self._error:
            self._error = ""
            log.info("quota.patch_ok", quota=quota.key)
        return PAUSE


def summary(quotas: Quotas, name: str) -> Mapping[str, object] | None:
    """Return a quota as Koordinator's endpoint has it; None: there is none of that name."""
    state = quotas.state_of(name)
    quota = None if state is None else state.tree.find(name)
    if state is None or quota is None:
        return None
    own = state.sums
    return {
        "name": name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "allowLentResource": quota.lends,
        "tree": state.tree.id,
        "max": _texts(quota.max),
        "min": _texts(quota.min),
        "sharedWeight": _texts(quota.weight),
        "autoScaleMin": _texts(state.scaled_min(name)),
        "runtime": _texts(_runtime(state, name)),
        "request": _texts(state.request(name)),
        "childRequest": _texts(state.child_request(name)),
        "used": _texts(state.used(name)),
        "nonPreemptibleRequest": _texts(state.non_preemptible_requested(name)),
        "nonPreemptibleUsed": _texts(state.non_preemptible_used(name)),
        "allocated": _texts(state.allocated(name)),
        "guaranteed": _texts(state.guaranteed(name)),
        "selfRequest": _texts(own.requested.get(name, {})),
        "selfUsed": _texts(own.used.get(name, {})),
        "selfNonPreemptibleRequest": _texts(own.non_preemptible_requested.get(name, {})),
        "selfNonPreemptibleUsed": _texts(own.non_preemptible_used.get(name, {})),
        "problems": list(quotas.problems_of(quota)),
    }


def pod_summary(pod: ClusterPod) -> Mapping[str, object]:
    """Return a pod of a quota as the endpoint has it."""
    return {"isAssigned": bool(pod.node), "resource": _texts(pod_request(pod))}
