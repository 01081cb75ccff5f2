"""An alert, and the check that its metrics and labels are those of the code."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

_NAME = re.compile(r"\b(?:koordlet|descheduler|scheduler|leader_election|process|up)\w*")
_SELECTOR = re.compile(r"([a-z_]\w*)\s*\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_SERIES = re.compile(r"_(?:bucket|sum|count)$")
_TARGETS = frozenset({"job", "instance"})  # labels that Prometheus adds itself
_OF_PROMETHEUS = {"up": _TARGETS}

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule. summary may have Prometheus' templates; the rest is for its page."""

    name: str
    expr: str  # PromQL
    wait: str  # how long it must hold, in Prometheus' form
    severity: Severity
    summary: str
    meaning: str
    action: str


class UnknownMetric(Exception):
    """An alert asks for what no daemon exports."""


def check_names(alert: Alert, known: Mapping[str, Collection[str]]) -> None:
    """Check an alert against label names by metric.

    Raises:
        UnknownMetric: a metric or label is not there: it was renamed, or misspelt.
    """
    for name in names_of(alert.expr):
        if name not in known and name not in _OF_PROMETHEUS:
            raise UnknownMetric(
                f"alert {alert.name}: wanted a metric that a daemon exports, found {name}"
            )
    for name, selector in _SELECTOR.findall(alert.expr):
        labels = {*known.get(_family(name), ()), *_TARGETS, "le"}
        for label in _LABEL.findall(selector):
            if label not in labels:
                raise UnknownMetric(
                    f"alert {alert.name}: wanted a label of {name}, found {label}; it has "
                    f"{', '.join(sorted(labels - {'le'}))}"
                )


def names_of(expr: str) -> Iterator[str]:
    """The families in an expression."""
    bare = re.sub(r'"[^"]*"', '""', expr)
    return (_family(name) for name in _NAME.findall(bare))


def _family(name: str) -> str:
    """The family of a series."""
    return _SERIES.sub("", name)
