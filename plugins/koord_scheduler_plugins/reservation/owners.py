"""The owners of a Reservation: which pods may consume it; read from bounded lists of JSON."""

from dataclasses import dataclass
from typing import TypeVar

from koord.api.fields import Fields
from koord.api.gojson import TEXT
from koord.api.labelselector import LabelSelector, Requirement, check_selector
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod

MAX_ITEMS = 256

T = TypeVar("T")


def bounded_texts(fields: Fields, key: str) -> tuple[str, ...]:
    """Return a list of texts. Raises InvalidObject: it is none, or has more than MAX_ITEMS."""
    return tuple(
        str(one) for one in _bounded(fields, key, fields.list_of(key, TEXT.accept, "a text"))
    )


def bounded_objects(fields: Fields, key: str) -> list[Fields]:
    """Return a list of objects. Raises likewise."""
    return _bounded(fields, key, list(fields.objects(key)))


def requirements(fields: Fields, key: str) -> tuple[Requirement, ...]:
    """Return the requirements of a selector, whatever their operators. Raises likewise."""
    return tuple(
        Requirement(one.text("key"), one.text("operator"), bounded_texts(one, "values"))
        for one in bounded_objects(fields, key)
    )


def _bounded(fields: Fields, key: str, found: list[T]) -> list[T]:
    if len(found) > MAX_ITEMS:
        wanted = f"at most {MAX_ITEMS} items"
        raise InvalidObject(fields.path(key), wanted=wanted, found=len(found))
    return found


_POD_VERSIONS = ("", "v1")


@dataclass(frozen=True, slots=True)
class PodReference:
    """One pod; "": it may be any."""

    uid: str = ""
    namespace: str = ""
    name: str = ""
    api_version: str = ""

    def matches(self, pod: ClusterPod) -> bool:
        return (
            self.uid in ("", pod.uid)
            and self.namespace in ("", pod.namespace)
            and self.name in ("", pod.name)
            and self.api_version in _POD_VERSIONS
        )


@dataclass(frozen=True, slots=True)
class ControllerReference:
    """The pods of one owner; "": it may be any."""

    uid: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    controller: bool | None = None  # whether it must be the pods' controller, or must not be

    def matches(self, pod: ClusterPod) -> bool:
        """Whether a pod has it among its owners.

        apiVersion is not compared: a uid says more, and no pod's owners differ in it alone.
        """
        return self.namespace in ("", pod.namespace) and any(
            self.uid in ("", one.uid)
            and self.kind in ("", one.kind)
            and self.name in ("", one.name)
            and self.controller in (None, one.controller)
            for one in pod.owners
        )


@dataclass(frozen=True, slots=True)
class Owner:
    """Pods that match all parts that are there. One without any part is never made."""

    pod: PodReference | None = None
    controller: ControllerReference | None = None
    selector: LabelSelector | None = None

    def matches(self, pod: ClusterPod) -> bool:
        return (
            (self.pod is None or self.pod.matches(pod))
            and (self.controller is None or self.controller.matches(pod))
            and (self.selector is None or self.selector.matches(pod.labels))
        )

    @property
    def matches_all(self) -> bool:
        """Whether it says nothing about its pods, but that they have an owner."""
        return (
            self.pod in (None, PodReference())
            and self.controller in (None, ControllerReference())
            and not self.requirements
        )

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """All requirements of the selector, in one form."""
        if self.selector is None:
            return ()
        equal = (
            Requirement(key, "In", (text,)) for key, text in self.selector.match_labels.items()
        )
        return (*equal, *self.selector.match_expressions)


def owners_match(owners: tuple[Owner, ...], pod: ClusterPod) -> bool:
    """Whether one of the owners matches a pod; of none, none does."""
    return any(one.matches(pod) for one in owners)


def read_owners(fields: Fields, key: str) -> tuple[Owner, ...]:
    """Return the owners of a list.

    Raises:
        InvalidObject: an owner is malformed or matches every pod, or there are too many.
    """
    found = tuple(map(_owner, bounded_objects(fields, key)))
    for at, owner in enumerate(found):
        if owner.matches_all:
            where = f"{fields.path(key)}[{at}]"
            raise InvalidObject(where, wanted="an owner", found="one that every pod is")
    return found


def _owner(item: Fields) -> Owner:
    return Owner(
        pod=_pod(item.nested("object")) if item.get("object") is not None else None,
        controller=(
            _controller(item.nested("controller")) if item.get("controller") is not None else None
        ),
        selector=_selector(item) if item.get("labelSelector") is not None else None,
    )


def _selector(item: Fields) -> LabelSelector:
    fields = item.nested("labelSelector")
    labels = fields.texts("matchLabels")
    if len(labels) > MAX_ITEMS:
        wanted = f"at most {MAX_ITEMS} labels"
        raise InvalidObject(fields.path("matchLabels"), wanted=wanted, found=len(labels))
    selector = LabelSelector(labels, requirements(fields, "matchExpressions"))
    check_selector(selector, fields.where)
    return selector


def _pod(fields: Fields) -> PodReference:
    return PodReference(
        uid=fields.text("uid"),
        namespace=fields.text("namespace"),
        name=fields.text("name"),
        api_version=fields.text("apiVersion"),
    )


def _controller(fields: Fields) -> ControllerReference:
    return ControllerReference(
        uid=fields.text("uid"),
        kind=fields.text("kind"),
        name=fields.text("name"),
        namespace=fields.text("namespace"),
        controller=None if fields.get("controller") is None else fields.boolean("controller"),
    )
