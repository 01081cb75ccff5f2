"""Bounded lists in JSON from outside."""

from typing import TypeVar

from koord.api.fields import Fields
from koord.api.gojson import TEXT
from koord.api.labelselector import Requirement
from koord.plugin import InvalidObject

MAX_ITEMS = 256

T = TypeVar("T")


def texts(fields: Fields, key: str) -> tuple[str, ...]:
    """Return a list of texts. Raises InvalidObject: it is none, or has more than MAX_ITEMS."""
    return tuple(
        str(one) for one in _bounded(fields, key, fields.list_of(key, TEXT.accept, "a text"))
    )


def objects(fields: Fields, key: str) -> list[Fields]:
    """Return a list of objects. Raises as texts does."""
    return _bounded(fields, key, list(fields.objects(key)))


def requirements(fields: Fields, key: str) -> tuple[Requirement, ...]:
    """Return the requirements of a selector, whatever their operators. Raises as texts does."""
    return tuple(
        Requirement(one.text("key"), one.text("operator"), texts(one, "values"))
        for one in objects(fields, key)
    )


def _bounded(fields: Fields, key: str, found: list[T]) -> list[T]:
    if len(found) > MAX_ITEMS:
        wanted = f"at most {MAX_ITEMS} items"
        raise InvalidObject(fields.path(key), wanted=wanted, found=len(found))
    return found
