"""The ledger on a fake cluster: what it measures, refuses, reports and forgets."""

from dataclasses import replace

import pytest

from koord.cluster.facts import ReportedUsage
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.config import EvictionLedger
from koord_descheduler.framework.interfaces import EvictOptions, Relief
from koord_descheduler.ledger.entries import Entry, LedgerDocument, Outcome, Pause, WorkloadRef
from tests.support.descheduler.ledger import FOR_LOAD, GI, LedgerKit

WEB = WorkloadRef("StatefulSet", "default", "web", "uid-StatefulSet-default-web")


def test_an_eviction_that_relieves_is_measured_after_five_minutes(kit: LedgerKit) -> None:
    """From the last report with the pod and the first that cannot have anything of it any more."""
    pod = kit.pod("web-1", workload="web")
    neighbour = kit.pod("db-1", workload="db", cpu=3.0)
    kit.after(60)
    kit.evict(pod)
    kit.after(30)
    kit.gone(pod)
    kit.pod(neighbour.name, workload="db", cpu=6.0)
    kit.after(290)
    assert kit.entry().outcome is Outcome.PENDING
    kit.after(80)

    entry = kit.entry()
    assert (entry.workload, entry.node, entry.plugin) == (WEB, "n1", "A")
    assert entry.predicted == ReportedUsage(2.0, GI)
    assert entry.before is not None
    assert (entry.before.node.cores, entry.before.pod) == (6.0, ReportedUsage(2.0, GI))
    assert entry.measured is not None
    assert entry.measured.cores == pytest.approx(2.0)
    assert entry.outcome is Outcome.RELIEVED
    assert kit.reject_reason(kit.pod("web-2", workload="web")) == ""
    assert not kit.events
    labels = {"outcome": "relieved"}
    assert kit.exposition.get_sample_value("descheduler_eviction_outcomes_total", labels) == 1


def test_a_workload_whose_eviction_does_not_relieve_is_left_alone_with_an_event(
    kit: LedgerKit,
) -> None:
    """Its sibling on the node took over the load. Ten minutes, then it may be evicted again."""
    sibling = kit.pod("web-2", workload="web")
    pod = kit.pod("web-1", workload="web")
    kit.after(60)
    kit.evict(pod)
    kit.gone(pod)
    kit.cluster.pod(
        sibling.name,
        "n1",
        uses={"cpu": 4.0, "memory": 2 * GI},
        owner=next(one for one in kit.cluster.state.workloads.all() if one.name == "web"),
        created=sibling.created,
    )
    kit.after(420)

    assert kit.outcomes() == ["not-relieved"]
    [event] = kit.events
    assert (event.about.kind, event.about.name, event.about.uid) == ("StatefulSet", "web", WEB.uid)
    assert event.reason == "EvictionDidNotRelieve"
    assert event.message == (
        "Pod default/web-1 was evicted from node n1 to take 2.00 cores and 1024 MiB off it: "
        "measured 0.00 cores and 0 MiB; no pod is evicted for load for 10m0s"
    )
    [pause] = kit.ledger.pauses
    assert "StatefulSet default/web is left alone until" in kit.reject_reason(sibling)
    assert kit.reject_reason(sibling, EvictOptions(reason="too old")) == ""
    assert kit.reject_reason(kit.pod("db-1", workload="db")) == ""
    kit.clock.tick(pause.until - kit.clock.wall())
    assert kit.reject_reason(sibling) == ""


def test_a_replacement_on_the_same_node_is_a_failure_at_once(kit: LedgerKit) -> None:
    """Also while the evicted pod is still shutting down; on another node it is none."""
    pod = kit.pod("web-1", workload="web")
    kit.after(60)
    kit.evict(pod)
    kit.after(20)
    kit.pod("web-2", node="n2", workload="web")
    kit.after(10)
    assert kit.outcomes() == ["pending"]
    kit.pod("web-3", node="n1", workload="web")
    kit.after(10)

    assert kit.outcomes() == ["returned"]
    [event] = kit.events
    assert event.reason == "EvictedPodReturned"
    assert kit.reject_reason(pod)


def test_a_bare_pod_is_its_own_workload(kit: LedgerKit) -> None:
    """One of the same name that comes back is it, another bare pod is not."""
    pod = kit.pod("tool")
    kit.after(60)
    kit.evict(pod)
    kit.gone(pod)
    kit.pod("other")
    kit.after(400)

    assert kit.entry().workload == WorkloadRef("Pod", "default", "tool")
    assert kit.outcomes() == ["relieved"]


@pytest.mark.parametrize(
    ("relief", "outcome"),
    [
        (Relief(cpu=0.01, memory=0.0), "unknown"),
        (Relief(cpu=0.0, memory=1.0 * GI), "relieved"),
        (Relief(cpu=9.0, memory=0.0), "not-relieved"),
        (None, "not-for-load"),
    ],
)
def test_what_was_predicted_decides(kit: LedgerKit, relief: Relief | None, outcome: str) -> None:
    """A pod that uses 2 cores and 1 GiB leaves a node of 10 and 64."""
    pod = kit.pod("web-1", workload="web")
    kit.after(60)
    kit.evict(pod, replace(FOR_LOAD, relief=relief))
    kit.gone(pod)
    kit.after(480)

    assert kit.outcomes() == [outcome]


def test_what_is_never_measured_ends_without_a_verdict(kit: LedgerKit) -> None:
    """A pod that stays, a node that does not report any more, one that is deleted."""
    stays = kit.pod("web-1", workload="web")
    silent = kit.pod("db-1", node="n2", workload="db")
    deleted = kit.pod("tool", node="n3")
    kit.after(60)
    for pod in (stays, silent, deleted):
        kit.evict(pod)
    kit.gone(silent)
    kit.gone(deleted)
    kit.cluster.delete("nodemetric", "n2")
    kit.cluster.delete("node", "n3")
    for _ in range(26):
        kit.clock.tick(180.0)
        kit.cluster.report("n1", "n3")
        kit.ledger.observe(kit.clock.wall())

    assert kit.outcomes() == ["unknown"] * 3
    assert not kit.events
    assert kit.reject_reason(stays) == ""


@pytest.mark.parametrize("late", [0.0, -7200.0])
def test_a_report_of_an_old_state_or_from_the_future_does_not_decide(
    kit: LedgerKit, late: float
) -> None:
    """Neither before the pod's five minutes are over."""
    pod = kit.pod("web-1", workload="web")
    kit.after(60)
    kit.evict(pod)
    kit.gone(pod)
    for _ in range(29):
        kit.clock.tick(10.0)
        kit.cluster.report(at=kit.clock.wall() + 7200.0 + 2 * late)
        kit.ledger.observe(kit.clock.wall())

    assert kit.outcomes() == ["pending"]


def test_spacing_between_evictions_of_a_workload(kit: LedgerKit) -> None:
    """A minute; evictions for other reasons count, but are never refused."""
    one, other = kit.pod("web-1", workload="web"), kit.pod("web-2", node="n2", workload="web")
    assert kit.reject_reason(one) == ""
    kit.evict(one, EvictOptions(reason="too old"))

    assert "1m0s lie between them" in kit.reject_reason(other)
    assert kit.reject_reason(other, EvictOptions(reason="too old")) == ""
    assert kit.reject_reason(kit.pod("db-1", workload="db")) == ""
    kit.clock.tick(59.0)
    assert kit.reject_reason(other)
    kit.clock.tick(1.0)
    assert kit.reject_reason(other) == ""


def test_a_dry_run_is_spaced_by_itself(kit: LedgerKit) -> None:
    """Nothing leaves in it: nothing is measured, and real evictions do not wait for it."""
    one, other = kit.pod("web-1", workload="web"), kit.pod("web-2", node="n2", workload="web")
    kit.ledger.noted(one, FOR_LOAD, kit.clock.wall(), dry_run=True)

    assert kit.reject_reason(other, dry_run=True)
    assert kit.reject_reason(other) == ""
    assert kit.ledger.entries == ()
    kit.after(60)
    assert kit.reject_reason(other, dry_run=True) == ""
    assert not kit.ledger.changed


def test_an_eviction_that_failed_leaves_what_was_before(kit: LedgerKit) -> None:
    """A second one of the same pod does not end the measurement of the first."""
    pod = kit.pod("web-1", workload="web")
    kit.evict(pod)
    first = kit.entry()
    kit.clock.tick(100.0)
    kit.evict(pod)
    kit.ledger.undone(pod)
    assert kit.ledger.entries == (first,)

    fresh = kit.pod("db-1", workload="db")
    kit.evict(fresh)
    kit.ledger.undone(fresh)
    assert kit.ledger.entries == (first,)
    assert kit.reject_reason(fresh) == ""


def test_what_another_leader_has_written_goes_on_here(clock: SimulatedClock) -> None:
    """A pending entry is measured, a pause holds; a pause beyond any is none."""
    one = LedgerKit(clock)
    pod = one.pod("web-1", workload="web")
    one.after(60)
    one.evict(pod)
    now = clock.wall()
    db = WorkloadRef("StatefulSet", "default", "db", "uid-StatefulSet-default-db")
    far = WorkloadRef("Pod", "default", "tool")
    pauses = (
        Pause(workload=db, strikes=1, began=now, until=now + 600.0),
        Pause(workload=far, strikes=1, began=now, until=now + 1e9),
    )
    other = LedgerKit(clock)
    other.ledger.take_over(LedgerDocument(one.ledger.document().entries, pauses))
    other.after(400)

    assert other.outcomes() == ["relieved"]
    assert other.reject_reason(other.pod("db-1", workload="db"))
    assert other.reject_reason(other.pod("tool")) == ""


def test_an_entry_of_a_clock_that_is_ahead_does_not_block_a_workload(kit: LedgerKit) -> None:
    """Two replicas' clocks may be 30 s apart, not a year."""
    pod = kit.pod("web-1", workload="web")
    now = kit.clock.wall()
    ahead = Entry(pod=pod.key, uid="u", node="n1", workload=WEB, at=now + 3e7)
    kit.ledger.take_over(LedgerDocument((ahead,)))
    assert kit.reject_reason(pod) == ""

    near = Entry(pod=pod.key, uid="v", node="n1", workload=WEB, at=now + 30.0)
    kit.ledger.take_over(LedgerDocument((near,)))
    assert kit.reject_reason(pod)


def test_off_it_notes_and_refuses_nothing(clock: SimulatedClock) -> None:
    """With evictionLedger.enabled: false."""
    kit = LedgerKit(clock, EvictionLedger(enabled=False))
    pod = kit.pod("web-1", workload="web")
    kit.evict(pod)

    assert kit.reject_reason(pod) == ""
    assert kit.ledger.entries == ()


def test_ten_thousand_evictions_are_bounded_and_cheap(kit: LedgerKit) -> None:
    """The oldest are forgotten; pending ones last."""
    for number in range(3000):
        relief = None if number % 2 else FOR_LOAD.relief
        kit.evict(kit.pod(f"p{number}"), EvictOptions(relief=relief))

    outcomes = kit.outcomes()
    assert len(outcomes) == 2000
    assert outcomes.count("pending") == 1500
