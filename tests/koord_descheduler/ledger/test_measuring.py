"""Relief from two reports: worked examples, and what cannot be measured."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ReportedPodUsage, ReportedUsage
from koord.cluster.kinds import UsageReport
from koord_descheduler.ledger.entries import Baseline
from koord_descheduler.ledger.ledger import baseline, is_relieved, measured_relief

GI = float(1 << 30)
ROOM = ReportedUsage(16.0, 64 * GI)


def report(node: float | None, system: float | None = None, **pods: float) -> UsageReport:
    """Of cores; memory is a GiB for each. web-2 is a pod of the evicted web-1's workload."""
    return UsageReport(
        "n1",
        100.0,
        None if node is None else ReportedUsage(node, node * GI),
        None if system is None else ReportedUsage(system, system * GI),
        pods=tuple(
            ReportedPodUsage(
                name=name.replace("_", "-"), namespace="ns", usage=ReportedUsage(cores, cores * GI)
            )
            for name, cores in pods.items()
        ),
    )


def compared(found: UsageReport) -> Baseline:
    result = baseline(found, "ns/web-1", lambda key: not key.startswith("ns/web-"))
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("before", "after", "cores"),
    [
        pytest.param(report(8, 1, web_1=2, db=5), report(6, 1, db=5), 2.0, id="all is still"),
        pytest.param(report(8, 1, web_1=2, db=5), report(9, 1, db=8), 2.0, id="neighbour grows"),
        pytest.param(
            report(8, 1, web_1=2, db=5), report(1, 1), 7.0, id="no pods reported any more"
        ),
        pytest.param(report(8, 1, web_1=2, db=5), report(4, 1, db=3), 2.0, id="neighbour shrinks"),
        pytest.param(report(8, 1, web_1=2, db=5), report(8, 1, db=5, new=2), 2.0, id="newcomer"),
        pytest.param(report(8, 1, web_1=2, db=5), report(8, 3, db=5), 2.0, id="system grows"),
        pytest.param(
            report(8, 1, web_1=2, web_2=2, db=3),
            report(8, 1, web_2=4, db=3),
            0.0,
            id="its sibling takes over the load",
        ),
        pytest.param(report(8, 1, web_1=2, db=5), report(8, 1, db=5), 0.0, id="load of no sum"),
        pytest.param(report(8, web_1=2, db=5), report(6, db=4), 1.0, id="no system: it counts"),
        pytest.param(report(8), report(7), 1.0, id="only the node"),
        pytest.param(report(8, 1, web_1=2, db=5), report(9), -1.0, id="the later one is bare"),
    ],
)
def test_relief_is_what_the_node_lost_of_what_is_no_neighbours(
    before: UsageReport, after: UsageReport, cores: float
) -> None:
    """Of memory a GiB for each core."""
    found = measured_relief(compared(before), compared(after))

    assert found.cores == pytest.approx(cores)
    assert found.memory_bytes == pytest.approx(cores * GI)


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0, 50), st.floats(0, 50), st.floats(0, 50))
def test_what_others_do_never_changes_the_relief(
    own: float, one: float, other: float, system: float, surge: float
) -> None:
    """Where the reports have the pods and the system."""
    before = report(own + one + system, system, web_1=own, db=one)
    after = report(other + surge, surge, db=other)

    assert measured_relief(compared(before), compared(after)).cores == pytest.approx(own, abs=1e-6)


@pytest.mark.parametrize(
    ("predicted", "measured", "relieved"),
    [
        (ReportedUsage(2.0, 4 * GI), ReportedUsage(1.0, 2 * GI), True),
        (ReportedUsage(2.0, 4 * GI), ReportedUsage(0.99, 4 * GI), False),
        (ReportedUsage(2.0, 4 * GI), ReportedUsage(2.0, 1.9 * GI), False),
        (
            ReportedUsage(2.0, 0.5 * GI),
            ReportedUsage(2.0, -3 * GI),
            True,
        ),  # memory below 1 % of the node
        (ReportedUsage(0.1, 0.5 * GI), ReportedUsage(0.0, 0.0), None),
        (ReportedUsage(0.0, 0.0), ReportedUsage(5.0, 5.0), None),
        (ReportedUsage(2.0, 0.0), ReportedUsage(-1.0, 0.0), False),
    ],
)
def test_half_of_each_resource_that_counts(
    predicted: ReportedUsage, measured: ReportedUsage, relieved: bool | None
) -> None:
    """On a node of 16 cores and 64 GiB."""
    assert is_relieved(predicted, measured, ROOM) is relieved


@pytest.mark.parametrize(
    "usage",
    [None, ReportedUsage(math.nan, 1.0), ReportedUsage(-1.0, 1.0), ReportedUsage(1.0, math.inf)],
)
def test_a_report_without_a_usage_of_the_node_that_can_be_is_not_compared(
    usage: ReportedUsage | None,
) -> None:
    """Neither is one without a time."""
    assert baseline(UsageReport("n1", 100.0, usage), "ns/web-1", lambda key: True) is None
    assert (
        baseline(UsageReport("n1", None, ReportedUsage(1.0, 1.0)), "ns/web-1", lambda key: True)
        is None
    )


def test_absurd_usage_of_one_pod_leaves_the_others() -> None:
    """And that of the system is as good as absent."""
    found = compared(report(8, -1, web_1=2, db=math.nan, cache=3))

    assert found.neighbours == ReportedUsage(3.0, 3 * GI)
    assert found.pod == ReportedUsage(2.0, 2 * GI)
    assert found.system is None


def test_host_applications_count_like_the_system() -> None:
    """Koordinator's system is what neither they nor the pods use."""
    before = replace(report(8, 1, web_1=2, db=4), host_usage=ReportedUsage(1.0, GI))
    after = replace(report(10, 1, db=4), host_usage=ReportedUsage(5.0, 5 * GI))

    assert measured_relief(compared(before), compared(after)) == ReportedUsage(2.0, 2 * GI)
