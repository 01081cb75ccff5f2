"""The status of quotas: what is written into the objects, and when."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from koord.api.elasticquota import (
    CHILD_REQUEST,
    CONDITIONS,
    NON_PREEMPTIBLE_REQUEST,
    NON_PREEMPTIBLE_USED,
    PARENT,
    REQUEST,
    RUNTIME,
    ElasticQuota,
    read_elastic_quota,
)
from koord.controlplane.testing import api_error_response
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler_plugins.elastic_quota.quotas import QuotaOptions, Quotas, start
from koord_scheduler_plugins.elastic_quota.runtime import Sums, compute
from koord_scheduler_plugins.elastic_quota.status import (
    PERIOD,
    QuotaCondition,
    QuotaStatuses,
    WrittenStatus,
    conditions_of,
    fixed_objects,
    overused_resources,
    read_conditions,
    read_written,
    status_patch,
    summary,
    written_text,
)
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS
from koord_scheduler_plugins.elastic_quota.tree import build_trees
from tests.support.scheduler.framework import Kit

GI = 2**30


def item(**annotations: str) -> dict[str, Any]:
    meta = {"namespace": "quotas", "name": "a", "uid": "u", "annotations": annotations}
    amounts = {"cpu": "20", "memory": "40Gi"}
    return {"metadata": meta, "spec": {"min": amounts, "max": amounts}}


def state(cpu: int = 5000) -> Any:
    quota = read_elastic_quota(item())
    own = {"a": {"cpu": cpu, "memory": 2 * GI}}
    sums = Sums(requested=own, used=own, non_preemptible_used=own)
    return compute(build_trees({"a": quota})[""], sums, {"cpu": 100_000, "memory": 100 * GI})


def test_what_is_written_is_read_again_and_then_nothing_is_to_be_written():
    patch: Any = status_patch(WrittenStatus(), state(), "a")
    annotations = patch["metadata"]["annotations"]
    amounts = '{"cpu":"5","memory":"2147483648"}'
    assert annotations == dict.fromkeys(
        (RUNTIME, REQUEST, CHILD_REQUEST, NON_PREEMPTIBLE_USED), amounts
    )
    assert patch["status"] == {"used": {"cpu": "5", "memory": "2147483648"}}
    there = {**item(**annotations), "status": patch["status"]}
    assert status_patch(read_written(there), state(), "a") == {}


def test_nothing_is_written_that_is_there_zeros_do_not_count():
    patch: Any = status_patch(WrittenStatus(), state(), "a")
    there = item(**patch["metadata"]["annotations"], **{NON_PREEMPTIBLE_REQUEST: '{"cpu":"0"}'})
    there["status"] = {"used": {"cpu": "5000m", "memory": "2Gi", "gpu": "0"}}
    assert status_patch(read_written(there), state(), "a") == {}


def test_what_is_not_used_any_more_is_removed_and_garbage_is_replaced():
    there = item(**{RUNTIME: "nonsense", REQUEST: "[]"})
    there["status"] = {"used": {"cpu": "1", "gpu": "3"}}
    patch: Any = status_patch(read_written(there), state(), "a")
    assert patch["status"]["used"] == {"cpu": "5", "memory": "2147483648", "gpu": None}
    assert {RUNTIME, REQUEST} <= patch["metadata"]["annotations"].keys()
    there["status"] = {"used": "all"}
    assert read_written(there).used == {}


class Api:
    """An API server that takes patches and new objects, or answers with an error."""

    def __init__(self) -> None:
        self.patches: list[Any] = []
        self.made: list[Any] = []
        self.code = 0

    async def merge_patch(self, path: str, body: Any) -> Any:
        self.patches.append((path, body))
        if self.code:
            call: Any = type("Call", (), {"where": f"PATCH {path}"})()
            raise api_error_response(call, self.code, "Forbidden", "no")
        return {}

    async def create(self, path: str, body: Any) -> Any:
        self.made.append((path, body["metadata"]["name"]))
        return body


def quotas_of(*found: ElasticQuota) -> Quotas:
    return start(QuotaOptions()).with_objects(found).with_nodes({"cpu": 100_000})


class Source:
    """Objects, and what is wrong with them besides."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.rejected: dict[str, str] = {}
        self.quotas = quotas_of()
        self.put(*objects)

    def put(self, *objects: dict[str, Any]) -> None:
        self.items |= {f"quotas/{one['metadata']['name']}": one for one in objects}
        read = map(read_elastic_quota, self.items.values())
        self.quotas = quotas_of(*(one for one in read if one.key not in self.rejected))

    def current(self) -> Quotas:
        return self.quotas

    def problems_of(self, key: str) -> tuple[str, ...]:
        if key in self.rejected:
            return (self.rejected[key],)
        return self.quotas.problems_of(read_elastic_quota(self.items[key]))


def statuses_of(clock: SimulatedClock, api: Api, source: Source) -> tuple[Kit, QuotaStatuses]:
    fixed = fixed_objects("system", {"cpu": 1000}, {"cpu": 2000})
    kit = Kit(clock)
    services = replace(kit.services, client=api)  # type: ignore[arg-type]
    return kit, QuotaStatuses(services, QUOTAS, source, fixed)


async def test_statuses_are_written_for_changes_only_and_errors_are_said():
    clock, api, source = SimulatedClock(), Api(), Source(item())
    stop, items = Stop(clock), source.items
    kit, statuses = statuses_of(clock, api, source)
    registry = kit.exposition
    running = asyncio.create_task(statuses.run(stop))
    await clock.advance(PERIOD + 1)
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces"
    assert [name for _, name in api.made] == [
        "koordinator-root-quota",
        "koordinator-system-quota",
        "koordinator-default-quota",
    ]
    assert {where for where, _ in api.made} == {f"{path}/system/elasticquotas"}
    assert api.patches == []  # nothing is used, and nothing said to be
    items["quotas/a"] = {**item(), "status": {"used": {"cpu": "1"}}}
    api.code = 403
    await clock.advance(PERIOD)
    assert api.patches == [
        (
            f"{path}/quotas/elasticquotas/a",
            {"metadata": {"uid": "u"}, "status": {"used": {"cpu": None}}},
        )
    ]
    assert statuses.health().status is HealthStatus.DEGRADED
    api.code = 0
    await clock.advance(20.0)
    assert statuses.health().status is HealthStatus.OK
    labels = {"name": "a", "tree": "", "is_parent": "false", "parent": "koordinator-root-quota"}
    for field, value in (("max", 20_000), ("runtime", 0)):
        shown = registry.get_sample_value(
            "scheduler_elastic_quota_status", {**labels, "resource": "cpu", "field": field}
        )
        assert shown == value
    items.clear()
    source.put()
    await clock.advance(PERIOD)
    assert not [one for one in shown_samples(registry) if one.labels.get("name") == "a"]
    stop.set()
    await clock.settle()
    assert running.done()


async def test_further_annotations_are_written_when_they_are_others():
    """Those that hooks of quotas want."""
    clock, api, source = SimulatedClock(), Api(), Source(item())
    kit, stop = Kit(clock), Stop(clock)
    services = replace(kit.services, client=api)  # type: ignore[arg-type]
    statuses = QuotaStatuses(services, QUOTAS, source, (), lambda name: {"mine": name})
    running = asyncio.create_task(statuses.run(stop))
    await clock.advance(PERIOD + 1)
    ((_, body),) = api.patches
    assert body == {"metadata": {"uid": "u", "annotations": {"mine": "a"}}}
    source.items["quotas/a"]["metadata"]["annotations"] = {"mine": "a"}
    await clock.advance(PERIOD)
    assert len(api.patches) == 1
    stop.set()
    await clock.settle()
    assert running.done()


def shown_samples(registry: CollectorRegistry) -> list[Any]:
    return [
        sample
        for one in registry.collect()
        for sample in one.samples
        if sample.name.startswith("scheduler_elastic_quota")
    ]


async def test_what_is_wrong_is_a_condition_an_event_and_a_metric_until_it_is_mended():
    """Of a rejected object, too; each is said once."""
    clock, api = SimulatedClock(), Api()
    child, other = item(), item()
    child["metadata"]["labels"] = {PARENT: "nobody"}
    other["metadata"] |= {"name": "b", "uid": "v"}
    source = Source(child, other)
    source.rejected["quotas/b"] = "absurd"
    source.put()
    stop = Stop(clock)
    kit, statuses = statuses_of(clock, api, source)
    running = asyncio.create_task(statuses.run(stop))
    with capture_logs() as logs:
        await clock.advance(3 * PERIOD)
    wrong = {path.rpartition("/")[2]: body for path, body in api.patches}
    text = "a has parentName nobody but it does not exist"
    for name, uid, message in (("a", "u", text), ("b", "v", "absurd")):
        assert wrong[name]["metadata"]["uid"] == uid
        (condition,) = json.loads(wrong[name]["metadata"]["annotations"][CONDITIONS])
        assert (condition["type"], condition["message"]) == ("Invalid", message)
    said = [(one.about.name, one.reason, one.message) for one in kit.services.events.events]
    assert said == [("a", "InvalidQuota", text), ("b", "InvalidQuota", "absurd")]
    assert [one["event"] for one in logs] == ["quota.invalid", "quota.invalid"]
    samples = shown_samples(kit.exposition)
    shown = [(one.labels["name"], one.value) for one in samples if "problems" in one.name]
    assert shown == [("a", 1.0), ("b", 1.0)]
    for name, body in wrong.items():
        before = source.items[f"quotas/{name}"]
        annotations = body["metadata"]["annotations"]
        meta = {**before["metadata"], "annotations": annotations}
        source.items[f"quotas/{name}"] = {**before, "metadata": meta}
    api.patches.clear()
    await clock.advance(PERIOD)
    assert api.patches == []
    del source.rejected["quotas/b"]
    source.put(item(**wrong["a"]["metadata"]["annotations"]))
    await clock.advance(PERIOD)
    assert [body["metadata"]["annotations"] for _, body in api.patches] == [
        {CONDITIONS: None},
        {CONDITIONS: None},
    ]
    samples = shown_samples(kit.exposition)
    assert not [one for one in samples if "problems" in one.name]
    stop.set()
    await clock.settle()
    assert running.done()


def test_quotas_with_too_much_and_with_too_little():
    """b lends a what it does not ask for; when it asks, a has too much and b too little."""
    quotas = {
        name: ElasticQuota(name=name, min={"cpu": 2000}, max={"cpu": 4000}, weight={"cpu": 1})
        for name in ("a", "b")
    }
    used, asked = {"a": {"cpu": 3000}}, {"a": {"cpu": 3000}, "b": {"cpu": 2000}}
    sums = Sums(requested=asked, used=used)
    state = compute(build_trees(quotas)[""], sums, {"cpu": 4000})
    over = overused_resources(state)
    assert over == {"cpu"}
    found = {name: conditions_of(state, quotas[name], (), over) for name in quotas}
    assert {name: [one.type for one in each] for name, each in found.items()} == {
        "a": ["Overused"],
        "b": ["Underserved"],
    }
    assert "cpu" in found["b"][0].message


def test_a_condition_keeps_its_time_while_it_holds():
    one, other = QuotaCondition("Invalid", "odd"), QuotaCondition("Invalid", "very odd")
    first = written_text(read_conditions(None), [one], 0.0)
    assert first is not None
    assert "1970-01-01T00:00:00Z" in first
    assert written_text(read_conditions(first), [one], 9.0) == first
    second = written_text(read_conditions(first), [other], 9.0)
    assert second is not None
    assert ("very odd" in second, "1970-01-01T00:00:00Z" in second) == (True, True)
    assert written_text(read_conditions(second), [], 9.0) is None
    assert written_text(read_conditions("nonsense"), [one], 0.0) == first


@pytest.mark.parametrize("name", ["a", "koordinator-default-quota"])
def test_a_summary_has_what_koordinators_endpoint_has(name):
    found: Any = summary(quotas_of(read_elastic_quota(item())), name, lambda key: ())
    assert found["name"] == name
    assert found["tree"] == ""
    assert found["problems"] == []
    assert found["parentName"] == "koordinator-root-quota"
    assert found["max"] == ({"cpu": "20", "memory": str(40 * GI)} if name == "a" else {})


def test_a_quota_that_is_not_there_has_no_summary():
    assert summary(quotas_of(), "a", lambda key: ()) is None
