"""The status of quotas: what the scheduler writes into the objects, and shows of them.

Conditions are an annotation, as Koordinator's amounts are: the kind has no field for them, and one
that a definition does not name is dropped.

Source: Koordinator, pkg/scheduler/plugins/elasticquota/controller.go.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol, cast

from prometheus_client import CollectorRegistry, Gauge

from koord.api.elasticquota import (
    ALLOCATED,
    ALLOW_LENT_RESOURCE,
    API_VERSION,
    CHILD_REQUEST,
    CONDITIONS,
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
from koord.plugin import InvalidObject, LastingFailure, PartHealth, Stop, get_logger
from koord.plugin.kube import (
    AlreadyExists,
    ApiResource,
    Conflict,
    Event,
    EventType,
    KubeError,
    NotFound,
    ObjectRef,
)
from koord_scheduler.plugin import ClusterPod, Services, SharedPart
from koord_scheduler_plugins.elastic_quota.preemption import over_use
from koord_scheduler_plugins.elastic_quota.quotas import Quotas
from koord_scheduler_plugins.elastic_quota.runtime import QuotaState

MAX_MESSAGE = 1000  # characters


class ConditionType(StrEnum):
    """A thing that is to be known of a quota. Where it does not hold there is no condition."""

    INVALID = "Invalid"  # of the object, or of its place in the tree
    OVERUSED = "Overused"  # its pods use more than its limit
    UNDERSERVED = "Underserved"  # they lack some of its min while others are overused


@dataclass(frozen=True, slots=True)
class QuotaCondition:
    """A condition that holds."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class WrittenConditions:
    """The conditions that an object says, and since when."""

    text: str | None = None  # of the annotation; None: it has none
    since: Mapping[QuotaCondition, str] | None = None  # None: it cannot be read


def read_conditions(text: object) -> WrittenConditions:
    """Return the conditions of an annotation."""
    if not isinstance(text, str):
        return WrittenConditions()
    found = {}
    try:
        listed = parse_json(text, "conditions")
        for item in listed if isinstance(listed, list) else [listed]:
            one = Fields(item, "conditions")
            key = QuotaCondition(one.text("type"), one.text("message"))
            found[key] = one.text("lastTransitionTime")
    except InvalidObject:
        return WrittenConditions(text)
    return WrittenConditions(text, found)


def written_text(
    before: WrittenConditions, found: Sequence[QuotaCondition], now: float
) -> str | None:
    """Return the annotation for conditions; None: there are none. now: Unix seconds.

    It stays as it is while the same conditions hold; the time of one is when it began to hold.
    """
    if before.since is not None and list(before.since) == list(found):
        return before.text if found else None
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    since = {one.type: time for one, time in (before.since or {}).items()}
    listed = [
        {
            "type": one.type,
            "status": "True",
            "message": one.message,
            "lastTransitionTime": since.get(one.type) or moment,
        }
        for one in found
    ]
    return json.dumps(listed, separators=(",", ":")) if listed else None


def overused_resources(state: QuotaState) -> frozenset[str]:
    """Return the resources of which some quota of a tree uses more than its limit."""
    found: set[str] = set()
    for quota in state.tree.quotas:
        found.update(over_use(state.used(quota.name), state.limit(quota.name)))
    return frozenset(found)


def conditions_of(
    state: QuotaState | None,
    quota: ElasticQuota | None,
    problems: Iterable[str],
    overused: frozenset[str] = frozenset(),
) -> list[QuotaCondition]:
    """Return the conditions of an object that hold.

    state, quota: None if the object does not count. overused: see overused_resources.
    """
    found, text = [], "; ".join(problems)
    if text:
        found.append(QuotaCondition(ConditionType.INVALID, text[:MAX_MESSAGE]))
    if state is None or quota is None:
        return found
    used = state.used(quota.name)
    over = over_use(used, state.limit(quota.name))
    if over:
        text = f"its pods use more than it may: {', '.join(over)}"
        found.append(QuotaCondition(ConditionType.OVERUSED, text[:MAX_MESSAGE]))
    request = state.request(quota.name)
    short = [
        key
        for key, low in sorted(quota.min.items())
        if key in overused and used.get(key, 0) < min(low, request.get(key, 0))
    ]
    if short and quota.name in state.tree.places:
        text = f"its pods lack some of its min, and other quotas use too much: {', '.join(short)}"
        found.append(QuotaCondition(ConditionType.UNDERSERVED, text[:MAX_MESSAGE]))
    return found


PERIOD = 5.0  # seconds between two looks at all quotas
PAUSE = 0.1  # seconds between two writes: at most ten a second
RETRY = 10.0  # seconds after an error
MAX_MEASURED = 2000  # quotas that metrics show
SLICE = 64  # quotas that are looked at in one step

log = get_logger("koord_scheduler.elastic_quota")


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """The status of a quota as its object has it."""

    annotations: Mapping[str, Amounts] = field(default_factory=dict)  # by key; readable ones
    used: Amounts = field(default_factory=dict)
    used_keys: tuple[str, ...] = ()  # of status.used as it is written
    conditions: WrittenConditions = field(default_factory=WrittenConditions)


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
    conditions = read_conditions(texts.get(CONDITIONS))
    try:
        raw = fields.nested("status").nested("used").raw
        used = _amounts(raw, "status.used")
    except InvalidObject:
        return WrittenStatus(annotations, conditions=conditions)
    return WrittenStatus(annotations, used, tuple(map(str, raw)), conditions)


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


def status_patch(
    written: WrittenStatus,
    state: QuotaState | None,
    name: str,
    conditions: Sequence[QuotaCondition] = (),
    now: float = 0.0,
) -> Mapping[str, object]:
    """Return what of the status of a quota has changed as a merge patch; empty: nothing.

    state: None if the object does not count; then only conditions are written. now: Unix seconds.
    """
    annotations: dict[str, str | None] = {}
    used = written.used
    if state is not None:
        used = _without_zeros(state.used(name))
        for key, read in _READ.items():
            amounts = _without_zeros(read(state, name))
            if written.annotations.get(key, {}) != amounts:
                annotations[key] = json.dumps(_texts(amounts), separators=(",", ":"))
    text = written_text(written.conditions, conditions, now)
    if text != written.conditions.text:
        annotations[CONDITIONS] = text
    patch: dict[str, object] = {}
    if annotations:
        patch["metadata"] = {"annotations": annotations}
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
    """Return the values of the gauge for a quota, by its label field."""
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
        self.problems = Gauge(
            "scheduler_elastic_quota_problems",
            "What is wrong with ElasticQuota objects: how many things, of those with any.",
            ["namespace", "name"],
            registry=registry,
        )
        self._wrong: set[str] = set()  # keys of objects with problems
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

    def show_problems(self, key: str, count: int) -> None:
        """Set how many things are wrong with an object, namespace/name; 0: it is not shown."""
        namespace, _, name = key.rpartition("/")
        if count and (key in self._wrong or len(self._wrong) < MAX_MEASURED):
            self._wrong.add(key)
            self.problems.labels(namespace, name).set(count)
        elif key in self._wrong:
            self._wrong.remove(key)
            self.problems.remove(namespace, name)

    def keep(self, names: Collection[str]) -> None:
        """Remove the values of all other quotas."""
        for name in self._shown.keys() - names:
            self._remove(self._shown.pop(name))

    def _remove(self, shown: Iterable[tuple[str, ...]]) -> None:
        for labels in shown:
            self.status.remove(*labels)


class QuotaSource(Protocol):
    """The source of a cluster's quotas. A QuotaTracker is one."""

    def current(self) -> Quotas:
        """The quotas as they are now."""

    def problems_of(self, key: str) -> tuple[str, ...]:
        """Return the problems of an object, namespace/name."""

    @property
    def items(self) -> Mapping[str, Mapping[str, Any]]:
        """ElasticQuotas as they are in JSON, by namespace/name; they follow the cluster."""


class QuotaStatuses(SharedPart):
    """Writes the status of quotas while this process leads, only of those that have changed.

    It says once what is wrong with an object: a log, an event and the condition Invalid.
    """

    def __init__(
        self,
        services: Services,
        resource: ApiResource,
        source: QuotaSource,
        fixed: Iterable[Mapping[str, object]],
        extra: Callable[[str], Mapping[str, str]] = lambda quota: {},
    ) -> None:
        """fixed: objects that are made where there are none of their name.

        extra: returns further annotations of a quota by name.
        """
        self._extra = extra
        self._client = services.client
        self._events = services.events
        self._clock = services.clock
        self._resource = resource
        self._source = source
        self._fixed = tuple(fixed)
        self._read: dict[str, tuple[object, WrittenStatus]] = {}  # objects with what they say
        self._said: dict[str, tuple[str, ...]] = {}  # problems that were reported, by key
        self._metrics = services.metrics.own(QuotaMetrics)
        self._failure = LastingFailure(log)

    async def run(self, stop: Stop) -> None:
        """Write statuses until stop; another replica may have left some unwritten."""
        await self._make_fixed()
        try:
            await self._keep_writing(stop)
        finally:
            self._metrics.keep(())

    async def _keep_writing(self, stop: Stop) -> None:
        while not await stop.sleep(PERIOD):
            quotas, items = self._source.current(), self._source.items
            self._metrics.keep(quotas.objects.keys())
            for key in [key for key in self._said if key not in items]:
                self._report(key, {}, ())
            for key in [key for key in self._read if key not in items]:
                del self._read[key]
            overused = {tree: overused_resources(one) for tree, one in quotas.states.items()}
            for number, key in enumerate(tuple(items)):
                if stop.is_set():
                    return
                if number % SLICE == 0:
                    await asyncio.sleep(0)
                if await stop.sleep(await self._sync(key, overused)):
                    return

    async def wait_ready(self) -> None:
        """No cycle waits for it."""

    def health(self) -> PartHealth:
        """Degraded while statuses cannot be written."""
        return self._failure.health()

    async def _make_fixed(self) -> None:
        """Make the fixed quotas where they are missing; without them they have their defaults."""
        known = {name for name, quota in self._source.current().objects.items() if quota.uid}
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

    async def _sync(self, key: str, overused: Mapping[str, frozenset[str]]) -> float:
        """Write a status if something of it has changed; return seconds to wait afterwards."""
        quotas, item = self._source.current(), self._source.items.get(key)
        namespace, _, name = key.rpartition("/")
        if item is None:
            return 0.0
        quota = quotas.objects.get(name)
        state = quotas.states[""] if name == ROOT_QUOTA else quotas.state_of(name)
        if quota is None or state is None or quota.key != key:
            quota = state = None  # it does not count: another one has its name, or it is rejected
        else:
            self._metrics.show(state, quota)
        problems = self._source.problems_of(key)
        self._report(key, item, problems)
        read = self._read.get(key)
        if read is None or read[0] is not item:
            read = self._read[key] = item, read_written(item)
        short = frozenset() if state is None else overused.get(state.tree.id, frozenset())
        conditions = conditions_of(state, quota, problems, short)
        patch = dict(status_patch(read[1], state, name, conditions, self._clock.wall()))
        annotations = cast("dict[str, Any]", patch.pop("metadata", {})).get("annotations", {})
        if state is not None:
            present = Fields(item, "elasticquota").nested("metadata").nested("annotations").raw
            for extra, text in self._extra(name).items():
                if present.get(extra) != text:
                    annotations[extra] = text
        if not (patch or annotations):
            return 0.0
        meta = {"uid": _uid(item), **({"annotations": annotations} if annotations else {})}
        path = self._resource.object(name, namespace=namespace)
        try:
            await self._client.merge_patch(path, {"metadata": meta, **patch})
        except (NotFound, Conflict):
            return PAUSE  # it has gone, or another one has its name: the watch says so
        except KubeError as err:
            reason = f"status of ElasticQuota {key} cannot be written: {err}"
            self._failure.failed("quota.patch_failed", reason, quota=key, error=str(err))
            return RETRY
        self._failure.ended("quota.patch_ok", quota=key)
        return PAUSE

    def _report(self, key: str, item: Mapping[str, Any], problems: tuple[str, ...]) -> None:
        """Say once what is wrong with an object."""
        if self._said.get(key, ()) == problems:
            return
        self._metrics.show_problems(key, len(problems))
        if not problems:
            del self._said[key]
            return
        self._said[key] = problems
        text, (namespace, _, name) = "; ".join(problems), key.rpartition("/")
        log.warning("quota.invalid", quota=key, error=text)
        about = ObjectRef(API_VERSION, KIND, name, namespace, _uid(item))
        event = Event(about, EventType.WARNING, "InvalidQuota", text[:1000], "koord-scheduler")
        self._events.emit(event)


def _uid(item: Mapping[str, Any]) -> str:
    return Fields(item, "elasticquota").nested("metadata").text("uid")


def summary(
    quotas: Quotas, name: str, problems_of: Callable[[str], tuple[str, ...]]
) -> Mapping[str, object] | None:
    """Return a quota as Koordinator's endpoint has it; None: there is none of that name.

    problems_of: what is wrong with an object, by its key.
    """
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
        "problems": list(problems_of(quota.key)),
    }


def pod_summary(pod: ClusterPod, request: Amounts) -> Mapping[str, object]:
    """Return a pod of a quota as the endpoint has it."""
    return {"isAssigned": bool(pod.node), "resource": _texts(request)}
