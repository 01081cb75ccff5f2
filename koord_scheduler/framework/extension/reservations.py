"""Reservations: the interfaces of plugins, and what runs them in the order of the profile."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from koord.cluster.account import FrozenAccount
from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, LoadedPlugins
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    SUCCESS,
    CycleState,
    StateData,
    Status,
    status_of,
)
from koord_scheduler.framework.types import NodeInfo

ORDER_LABEL = "scheduling.koordinator.sh/reservation-order"
"""Label with the order of reservations: a pod gets the one with the least positive number."""


class NamedReservation(Protocol):
    """A reservation on a node, as plugins of other subjects need it."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservationRoom:
    """The room of a reservation on a node, for the pod of a cycle; a NamedReservation for plugins.

    Of a pod that may use all reservations of its node, it is the room of them together.
    """

    name: str
    labels: Mapping[str, str]
    node: NodeInfo
    account: FrozenAccount
    """The node with the pods of all its reservations: they hold what is reserved."""
    pods: tuple[ClusterPod, ...] = ()
    """The pods that stand for it, with what consumers have left; none: beside all reservations."""
    reserved: tuple[ClusterPod, ...] = ()
    """The same pods, as if nobody consumed them."""
    restricted: bool = False  # of what it reserves, nothing comes from the rest of the node
    taken_over: bool = False
    """The pods run, and a reservation takes them over: it must get all that they have."""

    def without(self) -> FrozenAccount:
        """The account without the pods that stand for it."""
        if not self.pods:
            return self.account
        return self.account.with_pods([(pod, self.node.name) for pod in self.pods], ())

    def on(self, node: NodeInfo) -> "ReservationRoom":
        """The same room on its node in another view, as when the node is chosen."""
        uids = {pod.uid for pod in self.pods}
        pods = tuple(pod for pod in node.pods if pod.uid in uids)
        return replace(self, node=node, pods=pods, account=node.view.account)


@dataclass(slots=True)
class ReservationScore:
    """The score of a reservation, which a plugin may normalize."""

    name: str
    score: int


class ReservationRestorePlugin(Plugin, ABC):
    """Gives back what reservations hold beyond amounts of resources, such as CPUs and devices."""

    def pre_restore_reservation(self, state: CycleState, pod: ClusterPod) -> Status | None:
        """Prepare it for one pod; anything but success ends the cycle."""
        return None

    @abstractmethod
    def restore_reservation(
        self,
        state: CycleState,
        pod: ClusterPod,
        matched: Sequence[NamedReservation],
        unmatched: Sequence[NamedReservation],
        node: NodeInfo,
    ) -> StateData | Status | None:
        """Return what the plugin's Filter needs of this node; None: nothing.

        matched: reservations that the pod could have. unmatched: those that other pods have.
        """


class ReservationPreAllocationRestorePlugin(Plugin, ABC):
    """The same for a reservation that takes over what running pods have."""

    def pre_restore_reservation_pre_allocation(
        self, state: CycleState, reservation: NamedReservation
    ) -> Status | None:
        """Prepare it for one reservation; anything but success ends the cycle."""
        return None

    @abstractmethod
    def restore_reservation_pre_allocation(
        self,
        state: CycleState,
        reservation: NamedReservation,
        pods: Sequence[ClusterPod],
        node: NodeInfo,
    ) -> StateData | Status | None:
        """Return what the plugin's Filter needs of this node; None: nothing."""


class ReservationFilterPlugin(Plugin, ABC):
    """Says which reservations a pod can use.

    It is given a ReservationRoom, also one beside all reservations of a node.
    """

    def filters_reservations(self, state: CycleState, pod: ClusterPod) -> bool:
        """Whether it may reject any for this pod: if no plugin does, none is asked."""
        return True

    @abstractmethod
    def filter_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        """Let the pod have it, in Filter, or reject it."""

    def filter_nominate_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        """Let it be nominated, when the node is looked at alone, or reject it."""
        return None


class ReservationScorePlugin(Plugin, ABC):
    """Ranks the reservations of one node."""

    def scores_reservations(self, state: CycleState, pod: ClusterPod) -> bool:
        """Whether it may prefer one for this pod: if no plugin does, none is asked."""
        return True

    @abstractmethod
    def score_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> int:
        """Return the score: 0 to 100, unless the plugin normalizes it."""


class ReservationScoreExtensions(Plugin, ABC):
    """Brings the scores of one plugin into the range from 0 to 100."""

    @abstractmethod
    def normalize_reservation_score(
        self, state: CycleState, pod: ClusterPod, scores: list[ReservationScore]
    ) -> Status | None:
        """Change the scores."""


class ReservationNominator(Plugin, ABC):
    """Remembers which reservation a pod is to have; of several such plugins the last one counts."""

    @abstractmethod
    def nominate_reservation(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> NamedReservation | Status | None:
        """Return the reservation that a pod would have on a node; None: none."""

    @abstractmethod
    def add_nominated_reservation(
        self, pod: ClusterPod, node_name: str, reservation: NamedReservation
    ) -> None:
        """Remember it."""

    @abstractmethod
    def nominated_reservation(self, pod: ClusterPod, node_name: str) -> NamedReservation | None:
        """Return what is remembered; None: nothing."""

    @abstractmethod
    def delete_nominated(self, pod: ClusterPod) -> None:
        """Forget a pod, or a reservation's own pod; called after Reserve, failed or not."""

    def reservation_nominate(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        """Called when the node is chosen, before Reserve; anything but success ends the cycle."""
        return None


class ReservationCache(Plugin, ABC):
    """Finds reservations; of several such plugins the last one counts."""

    @abstractmethod
    def delete_reservation(self, reservation: NamedReservation) -> None:
        """Forget one that has gone."""

    @abstractmethod
    def reservation_of(self, pod: ClusterPod, node_name: str) -> NamedReservation | None:
        """Return the reservation that a pod has; None: none."""


class ReservationPreBindPlugin(Plugin, ABC):
    """Prepares what a reservation needs before it is bound; active where enabled at preBind."""

    @abstractmethod
    async def pre_bind_reservation(
        self, state: CycleState, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        """Prepare it; anything but success ends the binding."""


P = TypeVar("P", bound=Plugin)
R = TypeVar("R", bound=NamedReservation)

_MAX_DIGITS = 18  # a number of so many is below 2**63; a longer text costs time to read

Call = tuple[Loaded, Callable[..., object]]
"""Something that a plugin does."""
Restored = Mapping[str, StateData]
"""The values that plugins have restored for one node, by plugin."""


class ReservationPlugins:
    """The plugins of one profile, as far as they look at reservations.

    Raises ExtensionPointError where a plugin has failed.
    """

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._calls = plugins.calls
        self._limits = plugins.limits
        self._all = tuple((plugins.loaded(name), one) for name, one in plugins.plugins.items())
        self._at_pre_bind = tuple(plugins.at(Point.PRE_BIND))
        nominators = _reservation_plugins(self._all, ReservationNominator)  # type: ignore[type-abstract]
        caches = _reservation_plugins(self._all, ReservationCache)  # type: ignore[type-abstract]
        self._filters = _reservation_plugins(self._all, ReservationFilterPlugin)  # type: ignore[type-abstract]
        self._scorers = _reservation_plugins(self._all, ReservationScorePlugin)  # type: ignore[type-abstract]
        idle = plugins.idle_at(Point.RESERVE)
        self._nominator = nominators[-1] if nominators else None
        if self._nominator is not None and self._nominator[0].name in idle:
            self._nominator = None
        self.cache = caches[-1][1] if caches else None
        """Finds reservations; None: no plugin does."""

    @property
    def nominator(self) -> ReservationNominator | None:
        """Remembers nominations; None: no plugin knows reservations."""
        return None if self._nominator is None else self._nominator[1]

    def restore(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: Iterable[tuple[NodeInfo, Sequence[NamedReservation], Sequence[NamedReservation]]],
    ) -> dict[str, Restored] | Status:
        """Return the resources that plugins restore, by node; a status other than success ends it.

        nodes: each with the reservations that the pod could have, and those of other pods.
        """
        plugins = _reservation_plugins(self._all, ReservationRestorePlugin)  # type: ignore[type-abstract]
        return self._restored_all(
            state,
            [(one, partial(each.pre_restore_reservation, state, pod)) for one, each in plugins],
            [(one, partial(each.restore_reservation, state, pod)) for one, each in plugins],
            ((node, (matched, unmatched, node)) for node, matched, unmatched in nodes),
        )

    def restore_pre_allocation(
        self,
        state: CycleState,
        reservation: NamedReservation,
        nodes: Iterable[tuple[NodeInfo, Sequence[ClusterPod]]],
    ) -> dict[str, Restored] | Status:
        """The same for a reservation that takes over what running pods have."""
        kind = ReservationPreAllocationRestorePlugin
        plugins = _reservation_plugins(self._all, kind)  # type: ignore[type-abstract]
        prepare = [(one, each.pre_restore_reservation_pre_allocation) for one, each in plugins]
        restore = [(one, each.restore_reservation_pre_allocation) for one, each in plugins]
        return self._restored_all(
            state,
            [(one, partial(work, state, reservation)) for one, work in prepare],
            [(one, partial(work, state, reservation)) for one, work in restore],
            ((node, (pods, node)) for node, pods in nodes),
        )

    def filters(self, state: CycleState, pod: ClusterPod) -> bool:
        """Whether any plugin may reject a reservation for a pod."""
        if not self._filters:  # it is asked several times a cycle
            return False
        return any(plugin.filters_reservations(state, pod) for _, plugin in self._filters)

    def filter(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node: str
    ) -> Status:
        """Whether the pod can use a reservation, as all plugins say: the first rejection counts."""
        for loaded, plugin in self._filters:
            work = partial(plugin.filter_reservation, state, pod, reservation, node)
            status = self._status(loaded, state, work)
            if not status.ok:
                return status
        return SUCCESS

    def nominate(
        self,
        state: CycleState,
        pod: ClusterPod,
        node: str,
        matched: Sequence[R],
        *,
        required: bool,
        earlier: R | None = None,
    ) -> R | None:
        """The reservation that a pod is to have, of those that it could have on a node.

        required: the pod goes nowhere without one. earlier: what was nominated before.
        """
        if not matched:
            return None
        if len(matched) == 1 and required:
            return matched[0]
        if earlier is not None:
            return earlier
        usable = [one for one in matched if self._can_be_nominated(state, pod, one, node)]
        if len(usable) < 2:
            return usable[0] if usable else None
        ordered = [(order, one) for one in usable if (order := _order(one)) is not None]
        if ordered:
            return min(ordered, key=lambda one: one[0])[1]
        totals = self.scores(state, pod, usable, node)
        return max(usable, key=lambda one: totals[one.name])

    def ranks(self, state: CycleState, pod: ClusterPod) -> bool:
        """Whether any plugin may prefer a reservation for a pod."""
        return any(plugin.scores_reservations(state, pod) for _, plugin in self._scorers)

    def scores(
        self,
        state: CycleState,
        pod: ClusterPod,
        reservations: Sequence[NamedReservation],
        node: str,
    ) -> dict[str, int]:
        """The sum of all plugins' scores, by the name of the reservation."""
        totals = {one.name: 0 for one in reservations}
        for loaded, plugin in self._scorers:
            scored = partial(self._scored, loaded, plugin, state, pod, reservations, node)
            for one in self._calls.call(loaded, Point.SCORE, state, scored):
                totals[one.name] += one.score
        return totals

    def chosen(self, state: CycleState, pod: ClusterPod, node: str) -> Status:
        """Notify the nominator of the node that was chosen."""
        if self._nominator is None:
            return SUCCESS
        loaded, nominator = self._nominator
        try:
            work = partial(nominator.reservation_nominate, state, pod, node)
            return self._status(loaded, state, work)
        except ExtensionPointError as err:
            return err.status

    def reserved(self, state: CycleState, pod: ClusterPod) -> None:
        """Make the nominator forget a pod; raises nothing."""
        if self._nominator is None:
            return
        loaded, nominator = self._nominator
        try:
            self._calls.call(loaded, Point.RESERVE, state, nominator.delete_nominated, pod)
        except ExtensionPointError:
            return  # it is logged

    async def pre_bind(self, state: CycleState, reservation: NamedReservation, node: str) -> Status:
        """Prepare a reservation for its binding, plugin by plugin, until one fails."""
        for loaded in self._at_pre_bind:
            plugin = loaded.plugin
            if not isinstance(plugin, ReservationPreBindPlugin):
                continue
            make = partial(plugin.pre_bind_reservation, state, reservation, node)
            try:
                answer = await self._calls.run(
                    loaded, Point.PRE_BIND, state, make, self._limits.bind
                )
                status = status_of(answer, loaded.name)
            except ExtensionPointError as err:
                return err.status
            except PluginError as err:
                return self._calls.failed(loaded, Point.PRE_BIND, err)
            if not status.ok:
                return status
        return SUCCESS

    def _restored_all(
        self,
        state: CycleState,
        prepare: Iterable[Call],
        restore: Sequence[Call],
        nodes: Iterable[tuple[NodeInfo, tuple[object, ...]]],
    ) -> dict[str, Restored] | Status:
        """Prepare all plugins, then restore node by node; the first rejection is the answer.

        nodes: each with the further arguments of restore.
        """
        for loaded, work in prepare:
            status = self._status(loaded, state, work)
            if not status.ok:
                return status
        found: dict[str, Restored] = {}
        for node, extra in nodes:
            calls = [(loaded, partial(work, *extra)) for loaded, work in restore]
            restored = self._restored(state, calls)
            if isinstance(restored, Status):
                return restored
            found[node.name] = restored
        return found

    def _restored(self, state: CycleState, each: Iterable[Call]) -> Restored | Status:
        found: dict[str, StateData] = {}
        for loaded, work in each:
            answer = self._calls.call(loaded, Point.PRE_FILTER, state, work)
            if isinstance(answer, StateData) and not isinstance(answer, Status):
                found[loaded.name] = answer
                continue
            status = self._checked(loaded, answer)
            if not status.ok:
                return status
        return found

    def _can_be_nominated(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node: str
    ) -> bool:
        for loaded, plugin in self._filters:
            work = partial(plugin.filter_nominate_reservation, state, pod, reservation, node)
            if not self._status(loaded, state, work).ok:
                return False
        return True

    def _scored(
        self,
        loaded: Loaded,
        plugin: ReservationScorePlugin,
        state: CycleState,
        pod: ClusterPod,
        reservations: Sequence[NamedReservation],
        node: str,
    ) -> list[ReservationScore]:
        scores = [
            ReservationScore(one.name, int(plugin.score_reservation(state, pod, one, node)))
            for one in reservations
        ]
        given = list(scores)
        if isinstance(plugin, ReservationScoreExtensions):
            status = status_of(plugin.normalize_reservation_score(state, pod, scores), loaded.name)
            if not status.ok:
                raise PluginError(status.message, loaded.name)
        wrong = [one for one in given if not MIN_NODE_SCORE <= one.score <= MAX_NODE_SCORE]
        if wrong:
            wanted = f"a score from {MIN_NODE_SCORE} to {MAX_NODE_SCORE}"
            found = f"{wrong[0].score} of reservation {wrong[0].name}"
            raise PluginError(f"plugin {loaded.name}: wanted {wanted}, found {found}", loaded.name)
        return given

    def _status(self, loaded: Loaded, state: CycleState, work: Callable[[], object]) -> Status:
        """Success or a rejection."""
        return self._checked(loaded, self._calls.call(loaded, Point.FILTER, state, work))

    def _checked(self, loaded: Loaded, answer: object) -> Status:
        try:
            status = status_of(answer, loaded.name)
        except PluginError as err:
            raise ExtensionPointError(self._calls.failed(loaded, Point.FILTER, err)) from err
        if status.ok or status.rejected:
            return status
        raise ExtensionPointError(
            self._calls.failed(loaded, Point.FILTER, ExtensionPointError(status))
        )


def _reservation_plugins(
    plugins: Iterable[tuple[Loaded, Plugin]], kind: type[P]
) -> list[tuple[Loaded, P]]:
    return [(loaded, one) for loaded, one in plugins if isinstance(one, kind)]


def _order(reservation: NamedReservation) -> int | None:
    """The positive number in its label; None: there is none."""
    text = reservation.labels.get(ORDER_LABEL, "")
    usable = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) or None if usable else None
