"""The loads of all nodes, as columns beside those of a view."""

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.plugin import Clock
from koord_scheduler.plugin import ClusterNode, ClusterPod, UsageReport, View
from koord_scheduler.plugin.vector import Mask
from koord_scheduler_plugins.load_aware.estimates import Estimator, Vector
from koord_scheduler_plugins.load_aware.loads import (
    UNBOUNDED,
    NodeAssessment,
    NodeLoad,
    NodeRules,
    Reason,
    Rules,
    is_estimated,
)

_ROWS = 256  # room for so many at first


class NodeEntry:
    """One node: its rules, its load, and what follows from them."""

    __slots__ = (
        "expired",
        "expires",
        "judgement",
        "load",
        "name",
        "node",
        "row",
        "rules",
        "written",
    )

    def __init__(self, node: ClusterNode, rules: NodeRules, load: NodeLoad) -> None:
        self.name = node.name
        self.node = node
        self.rules = rules
        self.load = load
        self.row = -1
        self.written: tuple[Vector, tuple[Reason, Reason], bool] | None = None
        """The rarely changing inputs of the columns of the row; None: not written yet."""
        self.expires = inf  # Unix seconds
        self.expired = False
        self.judgement: NodeAssessment


class LoadTable:
    """Loads by node, and columns of what follows from them. Belongs to one event loop.

    An entry follows its row's generation, and reports as they come. What is filtered depends on
    the rows' generations and on filter_version, on nothing else; so does what is scored.
    """

    def __init__(
        self, rules: Rules, estimator: Estimator, reports: Mapping[str, UsageReport], clock: Clock
    ) -> None:
        """reports: those there are, by node."""
        # These grow when a report, or its expiry, changes what is filtered or scored.
        self.filter_version = self.score_version = 0
        self._rules = rules
        self._estimator = estimator
        self._reports = reports
        self._clock = clock
        self._entries: dict[str, NodeEntry] = {}
        self._rows: list[NodeEntry | None] = []
        self._imagined: dict[int, tuple[int, NodeAssessment, NodeEntry]] = {}  # by row: of what-ifs
        self._view: View | None = None
        self._next_expiry = inf
        self._checked = -inf  # Unix seconds
        kinds = len(rules.resources)
        self._generation = np.full(_ROWS, -1, np.int64)
        # Generations of what-ifs in which no pod has come to the row, beside the actual ones.
        self._unchanged = np.zeros(_ROWS, np.int64)
        self._room = np.full((2, kinds, _ROWS), UNBOUNDED, np.int64)
        self._reasons = np.zeros((2, _ROWS), np.int8)
        self._spare = np.full((2, kinds, _ROWS), -1.0)  # times 100
        self._capacity = np.ones((kinds, _ROWS))
        self._lacking = np.zeros((kinds, _ROWS), np.bool_)

    # Columns; each is for the nodes of the view that was followed last, and read-only to others.

    def room(self, *, is_prod: bool) -> NDArray[np.int64]:
        """The least estimates that are too much; shape (resources, nodes)."""
        return self._room[int(is_prod), :, : len(self._rows)]

    def reasons(self, *, is_prod: bool) -> NDArray[np.int8]:
        """Why those are too much, as Reason numbers it; shape (nodes,)."""
        return self._reasons[int(is_prod), : len(self._rows)]

    def spare(self, *, is_prod: bool) -> NDArray[np.float64]:
        """Return the unloaded capacity, times 100; below 0: none is left. Shape as room."""
        return self._spare[int(is_prod), :, : len(self._rows)]

    @property
    def capacity(self) -> NDArray[np.float64]:
        """The amounts of nodes; 1 where there is none; shape (resources, nodes)."""
        return self._capacity[:, : len(self._rows)]

    @property
    def lacking(self) -> Mask:
        """Resources that a node does not have, as far as it has others; as room."""
        return self._lacking[:, : len(self._rows)]

    def entry(self, nodes: View, row: int) -> NodeEntry:
        """The node of a row, after follow. In a what-if, pods that were added count."""
        found = self._rows[row]
        assert found is not None  # noqa: S101 - follow has made it
        if row not in nodes.altered:
            return found
        generation, last = nodes.generations[row], self._imagined.get(row)
        if generation == self._unchanged[row]:
            return found
        if last is not None and last[0] == generation and last[1] is found.judgement:
            return last[2]
        known = found.load.assigned
        added = [pod for pod in nodes.pods(row) if pod.uid not in known and is_estimated(pod)]
        if not added:
            self._unchanged[row] = generation
            return found
        imagined = NodeEntry(found.node, found.rules, found.load.with_pods(added))
        self._imagined[row] = int(generation), found.judgement, imagined
        self._judge(imagined)
        return imagined

    def with_more_pods(self, nodes: View) -> list[int]:
        """Rows of a what-if to which pods may have come, after follow; of others none are."""
        if not nodes.altered:
            return []
        generation = nodes.generation
        rows = np.flatnonzero((generation < 0) & (generation != self._unchanged[: len(nodes)]))
        return rows.tolist()

    def known(self, name: str) -> NodeEntry | None:
        """A node by its name, as it was last followed; None: not known."""
        return self._entries.get(name)

    def follow(self, nodes: View) -> None:
        """Update the columns to a view, without what a what-if changes, and to the current time."""
        nodes = nodes.actual
        if nodes is not self._view:
            self._follow(nodes)
        now = self._clock.wall()
        if now >= self._next_expiry or now < self._checked:
            self._expire(now)
        self._checked = now

    def catch_up(self, nodes: View, most: int) -> bool:
        """Take over at most so many rows that have changed; return whether that is all.

        nodes: no what-if.
        """
        if nodes is not self._view:
            self._follow(nodes, most)
        return nodes is self._view

    def take_report(self, name: str) -> None:
        """A NodeMetric has come or gone."""
        entry, report = self._entries.get(name), self._reports.get(name)
        if entry is not None and entry.load.report is not report:
            entry.load.take_report(report)
            self._judge_again(entry)

    def leave(self, pod: ClusterPod) -> None:
        """A pod has left its node for good."""
        entry = self._entries.get(pod.node)
        if entry is not None:
            entry.load.leave(pod)  # judged when its row is followed, which has changed

    def forget(self, name: str) -> None:
        """A node has gone."""
        self._entries.pop(name, None)

    def _follow(self, nodes: View, most: int | None = None) -> None:
        count = len(nodes)
        self._resize(count)
        changed = self._changed(nodes, None if most is None else most + 1)
        for row in changed[:most]:
            self._place(nodes.node(row), row, nodes.pods(row))
            self._generation[row] = nodes.generations[row]
            self._unchanged[row] = 0
        self._view = nodes if most is None or len(changed) <= most else None

    def _changed(self, nodes: View, most: int | None) -> list[int]:
        """Rows that are not as they were placed last; not many more than `most`."""
        placed, now = self._generation[: len(nodes)], nodes.generations
        if self._view is None:
            rows: list[int] = np.flatnonzero(placed != now.array)[:most].tolist()
            return rows
        rows = now.other_rows(self._view.generations)
        return [row for row in rows if row < len(nodes) and placed[row] != now[row]]

    def _place(self, node: ClusterNode, row: int, pods: tuple[ClusterPod, ...]) -> None:
        entry = self._entries.get(node.name)
        if entry is None:
            entry = self._entries[node.name] = self._made(node, pods)
        else:
            if entry.node is not node:
                entry.node, entry.rules = node, self._rules.of_node(node)
            report = self._reports.get(node.name)
            if entry.load.report is not report:
                entry.load.take_report(report)
            entry.load.take_pods(pods)
        if self._rows[row] is not entry or entry.row != row:
            self._rows[row], entry.row, entry.written = entry, row, None
        self._judge(entry)

    def _made(self, node: ClusterNode, pods: tuple[ClusterPod, ...]) -> NodeEntry:
        args = self._rules.args
        load = NodeLoad(self._estimator, prod_includes_system=args.prod_usage_include_sys)
        load.take_pods(pods)
        load.take_report(self._reports.get(node.name))
        return NodeEntry(node, self._rules.of_node(node), load)

    def _judge_again(self, entry: NodeEntry) -> None:
        """Judge a node whose row may be the same, and note if that changes anything."""
        before = entry.judgement
        self._judge(entry)
        now = entry.judgement
        self.filter_version += (before.room, before.reasons) != (now.room, now.reasons)
        self.score_version += before.spare != now.spare

    def _judge(self, entry: NodeEntry) -> None:
        """Judge a node anew, and write its row if it has one."""
        self._time(entry)
        judgement = self._rules.judge(entry.rules, entry.load, expired=entry.expired)
        row, before = entry.row, entry.judgement if entry.written is not None else None
        entry.judgement = judgement
        if not 0 <= row < len(self._rows) or self._rows[row] is not entry:
            return  # imagined, moved or gone, of which the next view knows
        if before is None or before.room != judgement.room:
            self._room[:, :, row] = judgement.room
        capacity, scored = entry.rules.capacity, judgement.spare is not None
        if entry.written != (capacity, judgement.reasons, scored):
            entry.written = capacity, judgement.reasons, scored
            self._reasons[:, row] = judgement.reasons
            has = np.array(capacity) > 0
            counts = scored and has.any()
            self._spare[:, :, row] = -1.0
            self._capacity[:, row] = np.where(counts & has, capacity, 1)
            self._lacking[:, row] = counts & ~has
        if judgement.spare is not None:
            self._spare[:, :, row] = judgement.spare
            if not all(capacity):
                self._spare[:, np.array(capacity) == 0, row] = -1.0

    def _time(self, entry: NodeEntry) -> None:
        """Note when the report of a node expires, and whether it has."""
        reported = entry.load.reported
        if reported is None:
            entry.expires, entry.expired = inf, False
            return
        entry.expires = reported.at + self._rules.args.node_metric_expiration_seconds
        entry.expired = self._clock.wall() >= entry.expires
        if not entry.expired:
            self._next_expiry = min(self._next_expiry, entry.expires)

    def _expire(self, now: float) -> None:
        """Judge nodes anew whose reports have expired, or, after a clock went back, have not."""
        changed = [one for one in self._entries.values() if one.expired != (now >= one.expires)]
        self._next_expiry = min(
            (one.expires for one in self._entries.values() if now < one.expires), default=inf
        )
        for entry in changed:
            self._judge_again(entry)

    def _resize(self, count: int) -> None:
        """Resize the columns to a number of rows; entries beyond it belong to no node."""
        before = len(self._rows)
        if count < before:
            self._imagined.clear()
            del self._rows[count:]
            self._generation[count:before] = -1
        self._rows += [None] * (count - len(self._rows))
        size = len(self._generation)
        if count <= size:
            return
        more = max(count, 2 * size) - size
        self._generation = _longer(self._generation, more, -1)
        self._unchanged = _longer(self._unchanged, more, 0)
        self._room = _longer(self._room, more, UNBOUNDED)
        self._reasons = _longer(self._reasons, more, 0)
        self._spare = _longer(self._spare, more, -1.0)
        self._capacity = _longer(self._capacity, more, 1.0)
        self._lacking = _longer(self._lacking, more, False)


def _longer(column: NDArray[Any], more: int, value: object) -> NDArray[Any]:
    added = np.full((*column.shape[:-1], more), value, column.dtype)
    return np.concatenate((column, added), axis=-1)
