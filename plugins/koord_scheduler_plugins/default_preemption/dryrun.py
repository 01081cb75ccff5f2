"""The nodes on which a pod would have room if pods of lower priority left them."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from koord_scheduler.plugin import (
    ABSENT,
    BudgetsByNamespace,
    Candidate,
    ClusterPod,
    Code,
    CycleState,
    Diagnosis,
    LowerPods,
    Mask,
    NodeFilters,
    NodeStatuses,
    NodeWhatIf,
    PointFailed,
    Status,
    View,
    find_victims,
    rest,
    time_is_over,
)

NO_HELP = Status.unresolvable("Preemption is not helpful for scheduling")
NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")

_FIT = "NodeResourcesFit"
_PODS = "pods"  # the resource of which each pod takes one
_INSUFFICIENT, _TOO_MANY = "Insufficient ", "Too many pods"  # the reasons of that plugin


class Findings:
    """Candidates, and why the other nodes that were tried are none."""

    def __init__(self, nodes: int) -> None:
        self.candidates: list[Candidate] = []
        self.failure: Status | None = None  # of a plugin, on the first node where one has failed
        self._numbers = np.full(nodes, ABSENT, np.int32)
        self._statuses: list[Status] = []

    @property
    def harmless(self) -> bool:
        """Whether some candidate violates no budget."""
        return any(not one.violations for one in self.candidates)

    def reject(self, rows: Mask | int, status: Status) -> None:
        """Note why nodes are no candidates."""
        self._statuses.append(status)
        self._numbers[rows] = len(self._statuses)

    def message(self) -> str:
        """Why there is no candidate, in kube-scheduler's words."""
        statuses = NodeStatuses(self._numbers, tuple(self._statuses), NO_HELP)
        return Diagnosis(nodes=len(self._numbers), node_statuses=statuses).message()


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A pod that no node is feasible for, and the cluster in its cycle. None of it is changed.

    The same one finds the same candidates.
    """

    pod: ClusterPod
    state: CycleState  # after PreFilter
    nodes: View
    statuses: NodeStatuses  # of Filter
    filters: NodeFilters
    rivals: Mapping[str, Sequence[ClusterPod]]  # by node: nominated pods that go first
    budgets: BudgetsByNamespace

    async def run(self, rows: Mask, enough: int) -> Findings:
        """Try nodes one by one, with the event loop's other work in between all steps.

        rows: those that may become a candidate. They are tried from a place on that the pod's uid
        decides, so that not all pods take their victims from the same nodes. It ends with enough
        candidates, of which one at least violates no budget.
        """
        found = Findings(len(self.nodes))
        worth, lower = rows.copy(), LowerPods(self.pod, self.nodes)
        await rest()
        for hopeless, status in self._hopeless(lower):
            given_up = hopeless & worth
            if given_up.any():
                found.reject(given_up, status)
                worth ^= given_up
            await rest()
        order = np.flatnonzero(rows)
        order = np.roll(order, -(zlib.crc32(self.pod.uid.encode()) % max(len(order), 1)))
        for row in order[worth[order]].tolist():
            self._try(row, found)
            if (len(found.candidates) >= enough and found.harmless) or time_is_over():
                break  # the candidates that there are have to do
            await rest()
        return found

    def _try(self, row: int, found: Findings) -> None:
        name = self.nodes.node(row).name
        try:
            rivals = self.rivals.get(name, ())
            trial = NodeWhatIf(self.filters, self.state, self.pod, self.nodes, row, rivals)
            victims = find_victims(
                self.pod, self.nodes.pods(row), trial, self.budgets, self._lacking(row)
            )
        except PointFailed as err:
            found.failure = found.failure or err.status
            found.reject(row, err.status)
            return
        if victims is None:
            found.reject(row, trial.status)
        elif victims[0]:
            found.candidates.append(Candidate(name, tuple(victims[0]), victims[1]))
        else:  # it fits as the node is: some plugin has changed its mind since Filter
            found.reject(row, Status.failed(f'expected at least one victim pod on node "{name}"'))

    def _hopeless(self, lower: LowerPods) -> Iterator[tuple[Mask, Status]]:
        """Nodes that need not be tried, as columns say it.

        No pod could leave them, or what NodeResourcesFit found missing is so even without those.
        """
        yield lower.count == 0, NO_VICTIMS
        for number, status in enumerate(self.statuses.statuses, 1):
            if status.plugin == _FIT and status.code is Code.UNSCHEDULABLE:
                yield from self._still_short(self.statuses.numbers == number, status, lower)

    def _still_short(
        self, mine: Mask, status: Status, lower: LowerPods
    ) -> Iterator[tuple[Mask, Status]]:
        missing = np.zeros(len(self.nodes), np.int64)  # one bit for each of the reasons
        for bit, reason in enumerate(status.reasons):
            resource = _resource_of(reason)
            if resource:
                short = lower.short_of(resource, self._wanted(resource))
                missing |= (short & mine).astype(np.int64) << bit
        for bits in np.unique(missing[missing != 0]).tolist():
            reasons = (each for bit, each in enumerate(status.reasons) if bits >> bit & 1)
            yield missing == bits, Status.unschedulable(*reasons)

    def _lacking(self, row: int) -> Mapping[str, int]:
        """What a node lacks of the resources that NodeResourcesFit found missing there.

        Nothing of a pod with affinity, which may need pods that would leave in Kubernetes.
        """
        status = self.statuses.status(row)
        if status is None or status.plugin != _FIT or self.pod.spec.affinity:
            return {}
        return {
            resource: self._wanted(resource) - self._free(row, resource)
            for reason in status.reasons
            if (resource := _resource_of(reason))
        }

    def _wanted(self, resource: str) -> int:
        return 1 if resource == _PODS else dict(self.pod.spec.requests).get(resource, 0)

    def _free(self, row: int, resource: str) -> int:
        column = self.nodes.resources.get(resource)
        if column is None:
            return 0
        nodes = self.nodes
        return nodes.allocatable_of(row, column) - nodes.requested_of(row, column)


def _resource_of(reason: str) -> str:
    """The resource that a reason of NodeResourcesFit is about; "": none."""
    if reason == _TOO_MANY:
        return _PODS
    return reason.removeprefix(_INSUFFICIENT) if reason.startswith(_INSUFFICIENT) else ""
