"""What cycles log on request, for people who ask why: score tables, and rejected nodes.

Source: Koordinator, pkg/scheduler/frameworkext (debug.go), --debug-scores, --debug-filters, and
--debug-diagnosis.
"""

from collections.abc import Iterator

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.logs import get_logger
from koord_scheduler.framework.diagnosis import FEASIBLE, NodeStatuses
from koord_scheduler.framework.nodes.scoring import ScoreTable

MOST_NODES = 10  # that a line names

log = get_logger("koord_scheduler.debug")


class Debugging:
    """What is logged now; it can be changed at any time."""

    def __init__(
        self,
        *,
        scores: int = 0,
        filters: bool = False,
        diagnosis: bool = False,
        diagnosis_blocking: bool = False,
    ) -> None:
        self.scores = scores  # so many nodes with the highest totals; 0: none
        self.filters = filters
        self.diagnosis = diagnosis  # of pods that found no node
        self.diagnosis_blocking = diagnosis_blocking  # before the next cycle, and none dropped

    def scored(self, pod: ClusterPod, nodes: View, table: ScoreTable) -> None:
        """Log the highest totals of a cycle, with the part of each plugin."""
        if self.scores:
            text = "\n".join(score_lines(pod, nodes, table, self.scores))
            log.info("scores.table", pod=pod.key, table=text)

    def filtered(self, pod: ClusterPod, nodes: View, statuses: NodeStatuses | None) -> None:
        """Log what plugins have rejected, a line for each reason."""
        if not self.filters or statuses is None:
            return
        for number, status in enumerate(statuses.statuses, FEASIBLE + 1):
            rows = np.flatnonzero(statuses.numbers == number)
            if len(rows):
                named = [nodes.node(int(row)).name for row in rows[:MOST_NODES]]
                log.info(
                    "nodes.rejected",
                    pod=pod.key,
                    plugin=status.plugin,
                    reason=status.message,
                    nodes=len(rows),
                    first=named,
                )


def score_lines(pod: ClusterPod, nodes: View, table: ScoreTable, most: int) -> Iterator[str]:
    """The lines of a Markdown table of the nodes with the highest totals, the best first.

    The scores of plugins are normalized, times their weights.
    """
    columns = table.columns
    yield f"| {' | '.join(['#', 'Pod', 'Node', 'Score', *columns])} |"
    yield f"| {' | '.join(['---'] * (4 + len(columns)))} |"
    best = np.argsort(-table.totals, kind="stable")[:most]
    for place, at in enumerate(best.tolist()):
        node = nodes.node(int(table.rows[at])).name
        scores = [str(int(column[at])) for column in columns.values()]
        cells = [str(place), pod.key, node, str(int(table.totals[at])), *scores]
        yield f"| {' | '.join(cells)} |"
