"""Where a pod would go now: search and scores of a cycle without effects, and what blocks it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import PODS, ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.nodes.filtering import NodeScoring, ScoreTable
from koord_scheduler.framework.nodes.search import NodeSearch, SearchResult
from koord_scheduler.framework.status import SUCCESS, CycleState, PostFilterResult, Status, Verdicts

MAX_ADVICE = 3  # groups of nodes that advice is given about


@dataclass(frozen=True, slots=True)
class Blocker:
    """A plugin that rejects nodes."""

    plugin: str
    nodes: int  # that it rejects
    alone: int  # of those, the ones that no other plugin rejects
    reasons: Mapping[str, int]  # nodes by reason


@dataclass(frozen=True, slots=True)
class Blockers:
    """The plugins that keep a pod from nodes, and advice."""

    plugins: tuple[Blocker, ...] = ()  # first those that alone stand before the most nodes
    advice: tuple[str, ...] = ()  # what would help, where the least would do first


def blockers_of(verdicts: Mapping[str, Verdicts], pod: ClusterPod, nodes: View) -> Blockers:
    """Return the plugins that reject nodes.

    verdicts: of each plugin about all nodes, as if it were the only one.
    """
    rejected: dict[str, Mask] = {
        plugin: each.numbers != 0 for plugin, each in verdicts.items() if each.numbers.any()
    }
    times = np.zeros(len(nodes), np.intp)
    for mask in rejected.values():
        times += mask
    found = [
        Blocker(
            plugin,
            int(np.count_nonzero(mask)),
            int(np.count_nonzero(mask & (times == 1))),
            dict(_reasons(verdicts[plugin]).most_common()),
        )
        for plugin, mask in rejected.items()
    ]
    found.sort(key=lambda one: (-one.alone, -one.nodes, one.plugin))
    groups = _groups(rejected, times)
    advice = [text for plugins, group in groups for text in _advice(plugins, group, pod, nodes)]
    return Blockers(tuple(found), tuple(advice))


def _groups(
    rejected: Mapping[str, Mask], times: NDArray[np.intp]
) -> list[tuple[tuple[str, ...], Mask]]:
    """Nodes by the plugins that reject them: those with the fewest, the largest groups first."""
    if not times.any():
        return []
    table = np.array(list(rejected.values()))
    table &= times == times[times > 0].min()
    sets, group, counts = np.unique(table, axis=1, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    names = list(rejected)
    order = [int(at) for at in np.argsort(-counts, kind="stable") if sets[:, at].any()]
    return [
        (tuple(name for name, yes in zip(names, sets[:, at], strict=True) if yes), group == at)
        for at in order[:MAX_ADVICE]
    ]


def _reasons(verdicts: Verdicts) -> Counter[str]:
    """How many nodes have each reason."""
    counts = np.bincount(verdicts.numbers, minlength=len(verdicts.rejections) + 1)[1:]
    found: Counter[str] = Counter()
    for status, nodes in zip(verdicts.rejections, counts.tolist(), strict=True):
        for reason in status.reasons if nodes else ():
            found[reason] += nodes
    return found


def _advice(plugins: tuple[str, ...], group: Mask, pod: ClusterPod, nodes: View) -> Iterator[str]:
    """Yield sentences on what would help with nodes that only these plugins reject."""
    count = int(np.count_nonzero(group))
    which = f"{plugins[0]} alone" if len(plugins) == 1 else f"{' and '.join(plugins)} together"
    yield f"{count} of {len(nodes)} nodes are rejected by {which}"
    for resource, wanted in ((PODS, 1), *pod.spec.requests):
        column = nodes.resources.get(resource)
        if column is None:
            yield f"no node has {resource}, of which {wanted} is requested"
            continue
        free = nodes.allocatable[:, column] - nodes.requested[:, column]
        if (free[group] < wanted).all():
            most = int(free[group].max())
            name = nodes.node(int(np.flatnonzero(group & (free == most))[0])).name
            yield (
                f"{resource}: {_amount(resource, wanted)} is requested, the most that such a node "
                f"has free is {_amount(resource, max(most, 0))} on {name}"
            )


def _amount(resource: str, amount: int) -> str:
    """Return an amount of a resource in the form that Kubernetes writes."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if resource != PODS and amount >= size:
            return f"{amount / size:.4g}{unit}"
    return str(amount)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The result of a cycle for a pod, in dry-run."""

    pod: ClusterPod
    profile: str
    nodes: View
    found: SearchResult
    table: ScoreTable | None  # None: no node is feasible, or only one, or a plugin failed
    status: Status  # Success: there is a best node; a rejection; Error: a plugin failed
    state: CycleState

    @property
    def best(self) -> Sequence[int]:
        """Rows of the nodes with the highest total, by name; one of them is chosen."""
        if not self.status.ok:
            return ()
        if self.table is None:
            rows = np.flatnonzero(self.found.feasible)
        else:
            rows = self.table.rows[self.table.totals == self.table.totals.max()]
        return sorted(rows.tolist(), key=lambda row: self.nodes.node(row).name)

    @property
    def message(self) -> str:
        """Return the text of the event FailedScheduling; "" when there is a node."""
        if self.status.rejected and self.found.diagnosis.node_statuses is not None:
            return self.found.diagnosis.message()  # with what PostFilter has said since
        return "" if self.status.ok else self.status.message

    def choose(self, draw: Random | None = None) -> str | None:
        """The name of the node that is chosen; without draw the first one by name; None: none."""
        best = self.best
        if not best:
            return None
        return self.nodes.node(best[0] if draw is None else draw.choice(best)).name


class Decider:
    """Decides by the plugins of one profile."""

    def __init__(
        self, profile: str, search: NodeSearch, scoring: NodeScoring, binding: PodBinding
    ) -> None:
        self.profile = profile
        self._binding = binding
        self._search = search
        self._scoring = scoring

    def decide(self, pod: ClusterPod, nodes: View, *, dry_run: bool = False) -> Decision:
        """Return where a pod would go. Raises nothing that a plugin raises.

        dry_run: the plugins are those of a scheduler at work, which is not to notice it.
        """
        state = CycleState(dry_run=dry_run)
        found = self._search.search(state, pod, nodes)
        table, status = None, found.status
        if status.ok and np.count_nonzero(found.feasible) > 1:
            try:
                table = self._scoring.scores(found.cycle, found.feasible)
            except ExtensionPointError as err:
                status = err.status
        return Decision(
            pod=pod,
            profile=self.profile,
            nodes=nodes,
            found=found,
            table=table,
            status=SUCCESS if status.ok else status,
            state=state,
        )

    async def preemption(self, decision: Decision) -> PostFilterResult | None:
        """Return what PostFilter would do for a pod without feasible node; nothing is changed.

        None: there is a node, or PostFilter is not called, or no plugin says what it would do.
        """
        statuses = decision.found.diagnosis.node_statuses
        if not decision.status.rejected or statuses is None or not self._binding.has_post_filters:
            return None
        result = await self._binding.post_filter_dry_run(
            decision.state, decision.pod, decision.found.cycle.nodes, statuses
        )
        decision.found.diagnosis.post_filter_message = result.status.message
        return result

    def blockers(self, decision: Decision) -> Blockers:
        """Which plugins reject nodes, each asked about all of them; see blockers_of."""
        found, state = decision.found, decision.state
        if found.statuses is None:  # Filter was not reached: the decision says why
            return Blockers()
        pod, nodes = found.cycle.pod, found.cycle.nodes
        try:
            return blockers_of(self._search.verdicts(state, pod, nodes), pod, nodes)
        except ExtensionPointError:
            return Blockers()  # it is logged
