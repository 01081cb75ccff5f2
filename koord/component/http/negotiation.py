"""The format and encoding that a client prefers, by its Accept headers (RFC 9110, section 12.5)."""

import math
from collections.abc import Iterator

from koord.component.http.textformat import OPENMETRICS, TEXT, TextFormat

_OPENMETRICS_TYPE = "application/openmetrics-text"
_OPENMETRICS_VERSIONS = {"1.0.0", "0.0.1", ""}  # what ours can be read as; "": any
_TEXT_TYPES = {"text/plain", "text/*", "*/*"}


def choose_format(accept: str) -> TextFormat:
    """OpenMetrics if the client prefers it or likes both the same, else text 0.0.4."""
    openmetrics = text = 0.0
    for media_type, parameters, weight in _preferences(accept):
        if media_type == _OPENMETRICS_TYPE:
            if parameters.get("version", "") in _OPENMETRICS_VERSIONS:
                openmetrics = max(openmetrics, weight)
        elif media_type in _TEXT_TYPES:
            text = max(text, weight)
    return OPENMETRICS if openmetrics > 0 and openmetrics >= text else TEXT


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the body may be compressed with gzip."""
    weights = {coding: weight for coding, _, weight in _preferences(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def accepts_json(accept: str) -> bool:
    """Whether the client names JSON; one that takes anything has not."""
    return any(name == "application/json" and weight for name, _, weight in _preferences(accept))


def _preferences(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Each element of the list: value, parameters, weight (0 to 1; malformed counts as 0)."""
    for element in header.split(","):
        value, *rest = (part.strip() for part in element.split(";"))
        pairs = (part.partition("=") for part in rest)
        parameters = {name.strip().lower(): text.strip().strip('"') for name, _, text in pairs}
        yield value.lower(), parameters, _weight(parameters.get("q", "1"))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return min(max(weight, 0.0), 1.0) if math.isfinite(weight) else 0.0
