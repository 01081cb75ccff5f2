"""Label selectors as one text, as kubectl has them: "zone=a,disk in (ssd,nvme),!old".

Source: Kubernetes, apimachinery labels.Parse. Its comparisons of numbers are not taken.
"""

import re

from koord.api.labelselector import LabelSelector, Requirement, check_selector
from koord.util.errors import InvalidObject

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
