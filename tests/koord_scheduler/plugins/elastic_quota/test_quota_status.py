"""The status of quotas: what is written into the objects, and when."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.api.elasticquota import (
    CHILD_REQUEST,
    NON_PREEMPTIBLE_REQUEST,
    NON_PREEMPTIBLE_USED,
    REQUEST,
    RUNTIME,
    ElasticQuota,
    read_elastic_quota,
)
from koord.controlplane.testing import api_error_response
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler_plugins.elastic_quota.columns import Sums
from koord_scheduler_plugins.elastic_quota.quotas import QuotaOptions, Quotas, start
from koord_scheduler_plugins.elastic_quota.runtime import compute
from koord_scheduler_plugins.elastic_quota.status import (
    PERIOD,
    QuotaMetrics,
    QuotaStatuses,
    WrittenStatus,
    fixed_objects,
    read_written,
    status_patch,
    summary,
)
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS
from koord_scheduler_plugins.elastic_quota.tree import build_trees

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


async def test_statuses_are_written_for_changes_only_and_errors_are_said():
    clock, api, items = SimulatedClock(), Api(), {"quotas/a": item()}
    stop, quotas = Stop(clock), [quotas_of(read_elastic_quota(item()))]
    fixed = fixed_objects("system", {"cpu": 1000}, {"cpu": 2000})
    registry = CollectorRegistry()
    metrics = QuotaMetrics(registry)
    statuses = QuotaStatuses(
        api,  # type: ignore[arg-type]
        QUOTAS,
        lambda: quotas[0],
        items,
        fixed,
        metrics,
    )
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
    quotas[0] = quotas_of()
    await clock.advance(PERIOD)
    assert [one.samples for one in registry.collect()] == [[]]
    stop.set()
    await clock.settle()
    assert running.done()


@pytest.mark.parametrize("name", ["a", "koordinator-default-quota"])
def test_a_summary_has_what_koordinators_endpoint_has(name):
    found: Any = summary(quotas_of(read_elastic_quota(item())), name)
    assert found["name"] == name
    assert found["tree"] == ""
    assert found["problems"] == []
    assert found["parentName"] == "koordinator-root-quota"
    assert found["max"] == ({"cpu": "20", "memory": str(40 * GI)} if name == "a" else {})


def test_a_quota_that_is_not_there_has_no_summary():
    assert summary(quotas_of(), "a") is None
