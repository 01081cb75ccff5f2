"""Messages of FailedScheduling, in kube-scheduler's words."""

import numpy as np
import pytest

from koord_scheduler.framework.status import Code, Diagnosis, NodeStatuses, Status

CPU = Status.unschedulable("Insufficient cpu").of("NodeResourcesFit")
BOTH = Status.unschedulable("Insufficient cpu", "Insufficient memory").of("NodeResourcesFit")
TAINT = Status.unresolvable("node(s) had untolerated taint(s)").of("TaintToleration")
OUTSIDE = Status.unresolvable("node(s) didn't satisfy plugin(s) [A]")


def statuses(*numbers: int, absent: Status = OUTSIDE) -> NodeStatuses:
    return NodeStatuses(np.array(numbers, np.int32), (CPU, BOTH, TAINT), absent)


@pytest.mark.parametrize(
    ("diagnosis", "wanted"),
    [
        (Diagnosis(nodes=0), "no nodes available to schedule pods"),
        (
            Diagnosis(nodes=4, node_statuses=statuses(1, 2, 3, 1)),
            "0/4 nodes are available: 1 Insufficient memory, 1 node(s) had untolerated taint(s), "
            "3 Insufficient cpu.",
        ),
        (
            Diagnosis(nodes=3, node_statuses=statuses(-1, -1, 1)),
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [A].",
        ),
        (
            Diagnosis(nodes=2, node_statuses=statuses(1, 1), pre_filter_message="no such claim"),
            "0/2 nodes are available: no such claim.",
        ),
        (
            Diagnosis(
                nodes=1,
                node_statuses=statuses(1),
                post_filter_message="preemption: 0/1 nodes are available: 1 No preemption victims "
                "found for incoming pod.",
            ),
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: "
            "1 No preemption victims found for incoming pod.",
        ),
    ],
)
def test_the_message_counts_the_reasons(diagnosis: Diagnosis, wanted: str) -> None:
    """Sorted as texts, as kube-scheduler sorts them; PreFilter's own message stands alone."""
    assert diagnosis.message() == wanted


def test_statuses_by_node() -> None:
    """A node that was not looked at cannot be helped by preemption."""
    found = statuses(0, 2, -1, 3)
    assert [found.status(row) for row in range(4)] == [None, BOTH, OUTSIDE, TAINT]
    assert found.having(Code.UNSCHEDULABLE).tolist() == [False, True, False, False]
    assert found.having(Code.UNSCHEDULABLE_AND_UNRESOLVABLE).tolist() == [False, False, True, True]


def test_plugins_that_reject_are_remembered_by_kind() -> None:
    """Those that answered Pending apart from the others."""
    diagnosis = Diagnosis(nodes=1)
    for status in (CPU, TAINT, Status.pending("soon").of("Gang"), Status.unschedulable("x")):
        diagnosis.note(status)
    assert diagnosis.unschedulable_plugins == {"NodeResourcesFit", "TaintToleration"}
    assert diagnosis.pending_plugins == {"Gang"}
