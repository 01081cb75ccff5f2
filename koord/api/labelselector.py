"""Label selectors: as JSON objects and as kubectl's text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.gojson import shape_of, wire
from koord.util.errors import InvalidObject

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY = re.compile(rf"(?:(?P<prefix>{_LABEL}(?:\.{_LABEL})*)/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")
_LONGEST_PREFIX = 253  # characters
_WITH_VALUES, _WITHOUT_VALUES = ("In", "NotIn"), ("Exists", "DoesNotExist")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement on one label."""

    key: str = wire("key", "")
    operator: str = wire("operator", "")
    values: tuple[str, ...] = wire("values", ())

    def matches(self, labels: Mapping[str, str]) -> bool:
        """A label that is absent is in no list of values."""
        if self.operator in _WITH_VALUES:
            return (labels.get(self.key) in self.values) == (self.operator == "In")
        return (self.key in labels) == (self.operator == "Exists")


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A conjunction of requirements; the empty one matches everything."""

    match_labels: Mapping[str, str] = wire("matchLabels", factory=dict)
    match_expressions: tuple[Requirement, ...] = wire("matchExpressions", ())

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector matches an object with these labels."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            one.matches(labels) for one in self.match_expressions
        )


SELECTOR = shape_of(LabelSelector)


def parse_selector(value: object, where: str) -> LabelSelector:
    """Return the selector of a canonical JSON object.

    Raises:
        InvalidObject: Kubernetes would reject it: an operator is unknown, has the wrong number of
            values, or a key or value cannot be that of a label.
    """
    selector = SELECTOR.load(value)
    check_selector(selector, where)
    return selector


def check_selector(selector: LabelSelector, where: str) -> None:
    """See that Kubernetes would accept a selector. Raises InvalidObject as parse_selector does."""
    for key, text in selector.match_labels.items():
        _check_key(key, f"{where}.matchLabels")
        _check_value(text, f"{where}.matchLabels.{key}")
    for index, one in enumerate(selector.match_expressions):
        _check(one, f"{where}.matchExpressions[{index}]")


def _check(one: Requirement, where: str) -> None:
    _check_key(one.key, f"{where}.key")
    if one.operator not in _WITH_VALUES + _WITHOUT_VALUES:
        wanted = " or ".join(_WITH_VALUES + _WITHOUT_VALUES)
        raise InvalidObject(f"{where}.operator", wanted=wanted, found=one.operator)
    if bool(one.values) != (one.operator in _WITH_VALUES):
        wanted = f"values only with {' and '.join(_WITH_VALUES)}, and there always"
        raise InvalidObject(f"{where}.values", wanted=wanted, found=list(one.values))
    for text in one.values:
        _check_value(text, f"{where}.values")


def _check_key(key: str, where: str) -> None:
    match = _KEY.fullmatch(key)
    if match is None or len(match["prefix"] or "") > _LONGEST_PREFIX:
        raise InvalidObject(where, wanted="a label key", found=key)


def _check_value(text: str, where: str) -> None:
    if not _VALUE.fullmatch(text):
        raise InvalidObject(where, wanted="a label value", found=text)


_LONGEST = 4096  # characters
_REQUIREMENT = re.compile(
    r"\s*(?:"
    r"!\s*(?P<absent>[^\s!=<>(),]+)"
    r"|(?P<key>[^\s!=<>(),]+)(?:"
    r"\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s!=<>(),]*)"
    r"|\s+(?P<set>in|notin)\s*\((?P<values>[^!=<>()]*)\)"
    r")?"
    r")\s*(?P<end>,|\Z)"
)


def parse_selector_text(text: str, where: str) -> LabelSelector:
    """Return the selector; an empty text matches everything.

    Raises:
        InvalidObject: it is none, or has a key or value that cannot be that of a label.
    """
    found: list[Requirement] = []
    at, is_open = 0, bool(text.strip())
    while is_open:
        match = _REQUIREMENT.match(text, at) if len(text) <= _LONGEST else None
        if match is None:
            raise InvalidObject(where, wanted='a selector like "a=b,c in (d,e),!f"', found=text)
        found.append(_requirement(match))
        at, is_open = match.end(), match["end"] == ","
    selector = LabelSelector(match_expressions=tuple(found))
    check_selector(selector, where)
    return selector


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(match["absent"], "DoesNotExist")
    if match["set"]:
        operator = "In" if match["set"] == "in" else "NotIn"
        values = tuple(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], operator, values)
    if match["operator"]:
        operator = "NotIn" if match["operator"] == "!=" else "In"
        return Requirement(match["key"], operator, (match["value"],))
    return Requirement(match["key"], "Exists")
