"""What cycles log on request."""

import numpy as np
from structlog.testing import capture_logs

from koord_scheduler.framework.nodes.filtering import ScoreTable
from koord_scheduler.framework.status import NodeStatuses, Status
from koord_scheduler.scheduling.cycle import Debugging, score_lines
from tests.support.scheduler.framework import make_pod, make_view

NODES = make_view(a="1", b="2", c="4")


def table() -> ScoreTable:
    """Of the nodes a and c."""
    columns = {"Room": np.array([10, 90]), "Taste": np.array([30, 0])}
    return ScoreTable(np.array([0, 2]), np.array([40, 90]), lambda: columns)


def test_the_best_nodes_come_first_as_markdown() -> None:
    """With each plugin's part; the scores themselves stay in their order."""
    scores = table()

    assert list(score_lines(make_pod(), NODES, scores, 5)) == [
        "| # | Pod | Node | Score | Room | Taste |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 0 | default/web | c | 90 | 90 | 0 |",
        "| 1 | default/web | a | 40 | 10 | 30 |",
    ]
    assert len(list(score_lines(make_pod(), NODES, scores, 1))) == 3
    assert scores.totals.tolist() == [40, 90]


def test_nothing_is_logged_unless_it_was_asked_for() -> None:
    statuses = NodeStatuses(np.array([0, 1, 1], np.int32), (Status.unschedulable("too small"),))
    debugging = Debugging()
    with capture_logs() as logs:
        debugging.scored(make_pod(), NODES, table())
        debugging.filtered(make_pod(), NODES, statuses)
        assert logs == []
        debugging.scores, debugging.filters = 1, True
        debugging.scored(make_pod(), NODES, table())
        debugging.filtered(make_pod(), NODES, statuses)
        debugging.filtered(make_pod(), NODES, None)

    [scores, rejected] = logs
    assert (scores["event"], scores["table"].count("\n")) == ("scores.table", 2)
    assert (rejected["event"], rejected["reason"], rejected["nodes"], rejected["first"]) == (
        "nodes.rejected",
        "too small",
        2,
        ["b", "c"],
    )
