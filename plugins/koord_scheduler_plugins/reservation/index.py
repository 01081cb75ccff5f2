"""Reservations by what their owners must have: candidates of a pod without a look at all."""

from collections.abc import Iterable, Iterator

from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.reservation.objects import Reservation
from koord_scheduler_plugins.reservation.owners import Owner

_Place = tuple[str, str, str]
_EVERYWHERE: _Place = ("", "", "")  # of owners that say nothing that is indexed
_MAX_VALUES = 8  # of a label; owners with more are found by its key


class ReservationIndex:
    """Reservations by owner. Belongs to one thread."""

    def __init__(self) -> None:
        self._uids: dict[_Place, dict[str, None]] = {}
        self._places: dict[str, tuple[_Place, ...]] = {}

    def put(self, reservation: Reservation) -> None:
        """Add a reservation, in the place of the one with its uid."""
        self.remove(reservation.uid)
        owners = () if reservation.spec is None else reservation.spec.owners
        places = tuple(dict.fromkeys(place for one in owners for place in self._places_of(one)))
        for place in places:
            self._uids.setdefault(place, {})[reservation.uid] = None
        self._places[reservation.uid] = places

    def remove(self, uid: str) -> None:
        for place in self._places.pop(uid, ()):
            uids = self._uids[place]
            del uids[uid]
            if not uids:
                del self._uids[place]

    def candidates(self, pod: ClusterPod) -> list[str]:
        """uids of reservations whose owners may match a pod, each once; others do not match."""
        found: dict[str, None] = {}
        if self._uids:
            for place in _places_of_pod(pod):
                found.update(self._uids.get(place, ()))
        return list(found)

    def names(self, pod: ClusterPod) -> bool:
        """Whether some reservation has this pod as owner by its uid or name.

        Other owners say nothing that equal pods do not have in common.
        """
        return ("pod", pod.uid, "") in self._uids or ("name", pod.name, "") in self._uids

    def among(self, uids: Iterable[str], pod: ClusterPod) -> list[str]:
        """Those of some uids that are candidates of a pod; it costs their number."""
        mine = set(_places_of_pod(pod))
        return [uid for uid in uids if any(place in mine for place in self._places.get(uid, ()))]

    def _places_of(self, owner: Owner) -> tuple[_Place, ...]:
        """Where an owner is found: its pods are in at least one of these places."""
        pod, controller = owner.pod, owner.controller
        if pod is not None and pod.uid:
            return (("pod", pod.uid, ""),)
        if pod is not None and pod.name:
            return (("name", pod.name, ""),)
        if controller is not None and controller.uid:
            return (("controller", controller.uid, ""),)
        if controller is not None and controller.name:
            return (("controller name", controller.name, ""),)
        choices = [
            tuple(("label", one.key, value) for value in dict.fromkeys(one.values))
            if len(one.values) <= _MAX_VALUES
            else (("key", one.key, ""),)
            for one in owner.requirements
            if one.operator == "In"
        ]
        choices += [
            (("key", one.key, ""),) for one in owner.requirements if one.operator == "Exists"
        ]
        return min(choices, key=self._load, default=(_EVERYWHERE,))

    def _load(self, places: tuple[_Place, ...]) -> int:
        """How many reservations a pod there is a candidate for already."""
        return sum(len(self._uids.get(place, ())) for place in places)


def _places_of_pod(pod: ClusterPod) -> Iterator[_Place]:
    yield "pod", pod.uid, ""
    yield "name", pod.name, ""
    for one in pod.owners:
        yield "controller", one.uid, ""
        yield "controller name", one.name, ""
    for key, value in pod.labels.items():
        yield "label", key, value
        yield "key", key, ""
    yield _EVERYWHERE
