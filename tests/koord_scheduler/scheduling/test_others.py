"""Nominations of other schedulers, and what the auditor records, in the loop."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.framework.extension.auditor import AuditRecord, WorkloadAuditor
from koord_scheduler.framework.nominator import Nominator
from tests.support.scheduler.framework import make_pod
from tests.support.scheduler.loop import Loop


async def loop_with_others(priority: int, **settings: Any) -> Loop:
    """Node a has room for one pod; another scheduler has nominated its pod to it."""
    loop = await Loop().build(**settings)
    loop.services.nominator.others = Nominator()
    loop.api.add_node("a", cpu="1")
    key = loop.api.add_pod("theirs", schedulerName="other", priority=priority)
    loop.api.change(key, status={"nominatedNodeName": "a"})
    await loop.start()
    await loop.settle()
    return loop


@pytest.mark.parametrize(("priority", "node"), [(6, ""), (5, "a"), (4, "a")])
async def test_pods_that_others_have_nominated_go_first_if_their_priority_is_higher(
    priority: int, node: str
) -> None:
    """Strictly: an equal one of ours goes before it."""
    loop = await loop_with_others(priority)
    key = loop.api.add_pod("ours", priority=5)
    await loop.settle()
    assert loop.where(key) == node


@pytest.mark.parametrize("how", ["deleted", "elsewhere", "withdrawn"])
async def test_ours_gets_the_room_when_the_nomination_ends(how: str) -> None:
    loop = await loop_with_others(9)
    loop.api.add_node("b", cpu="0")
    key = loop.api.add_pod("ours", priority=5)
    await loop.settle()
    assert loop.where(key) == ""
    if how == "deleted":
        loop.api.delete_pod("default/theirs")
    else:
        elsewhere = "b" if how == "elsewhere" else ""
        loop.api.change("default/theirs", status={"nominatedNodeName": elsewhere})
    await loop.settle()
    await loop.advance(15.0)
    assert loop.where(key) == "a"


async def test_without_the_gate_others_nominations_do_not_count() -> None:
    loop = await Loop().build()
    loop.api.add_node("a", cpu="1")
    theirs = loop.api.add_pod("theirs", schedulerName="other", priority=9)
    loop.api.change(theirs, status={"nominatedNodeName": "a"})
    key = loop.api.add_pod("ours", priority=5)
    await loop.start()
    assert loop.where(key) == "a"


async def test_the_auditor_knows_what_became_of_a_workload() -> None:
    loop = Loop()
    auditor = WorkloadAuditor(loop.exposition, loop.clock)
    loop.services = replace(loop.services, auditor=auditor)
    await loop.build()
    loop.api.add_node("a", cpu="1")
    loop.api.add_pod("web", cpu="2")
    await loop.start()
    found = auditor.find("Pod/default/web")
    assert found is not None
    assert found.counts == {AuditRecord.ATTEMPT: 1, AuditRecord.SCHEDULE_FAILURE: 1}
    assert found.last_message == "0/1 nodes are available: 1 Insufficient cpu."
    loop.api.add_node("b", cpu="4")
    await loop.settle()
    await loop.advance(5.0)
    assert found.counts[AuditRecord.SCHEDULED] == 1
    assert found.last_record is AuditRecord.SCHEDULED
    name = "scheduler_workload_audit_records_total"
    assert loop.sample(name, record="attempt") == 2.0


def test_the_auditor_is_bounded_and_forgets_the_oldest() -> None:
    auditor = WorkloadAuditor(CollectorRegistry(), SimulatedClock(), most=2)
    for name in ("a", "b", "a", "c"):
        auditor.record(make_pod(name), AuditRecord.GANG_ATTEMPTED)
    assert list(auditor.workloads) == ["Pod/default/a", "Pod/default/c"]
    assert auditor.workloads["Pod/default/a"].counts[AuditRecord.GANG_ATTEMPTED] == 2
