"""PromQL in alerts and dashboards: its metrics and labels must be those of the code."""

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from reference.commands import described
from reference.deschedulercommand import descheduler_exposition
from reference.fakedaemon import FamilyExposition
from reference.families import all_families
from reference.managercommand import manager_exposition
from reference.schedulercommand import scheduler_exposition

_NAME = re.compile(
    r"\b(?:koordlet|descheduler|scheduler|slo_controller|leader_election|process|up)\w*"
)
_SELECTOR = re.compile(r"([a-z_]\w*)\s*\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_SERIES = re.compile(r"_(?:bucket|sum|count)$")
_TARGETS = frozenset({"job", "instance", "node"})  # Prometheus and our PodMonitors add them

Known = Mapping[str, Collection[str]]
"""Names of labels, by metric."""


class UnknownMetric(Exception):
    """An expression asks for what no daemon exports."""


def known_metrics(agent: FamilyExposition) -> Known:
    """The families of all daemons. agent: the exposition of one that has measured everything."""
    known = {family.name: family.labels for family in all_families(agent)}
    for exposition in (descheduler_exposition(), manager_exposition(), scheduler_exposition()):
        known |= {each.name: each.labels for each in described(exposition)}
    return known


def check_names(place: str, expr: str, known: Known) -> None:
    """Check an expression; place says where it is.

    Raises:
        UnknownMetric: a metric or label is not there: it was renamed, or misspelt.
    """
    for name in names_of(expr, known):
        if name not in known and name != "up":
            raise UnknownMetric(f"{place}: wanted a metric that a daemon exports, found {name}")
    for name, selector in _SELECTOR.findall(expr):
        labels = {*known.get(_family(name, known), ()), *_TARGETS}
        for label in _LABEL.findall(re.sub(r'"[^"]*"', '""', selector)):
            if label not in labels and label != "le":
                raise UnknownMetric(
                    f"{place}: wanted a label of {name}, found {label}; it has "
                    f"{', '.join(sorted(labels))}"
                )


def names_of(expr: str, known: Known = MappingProxyType({})) -> Iterator[str]:
    """The families in an expression; a known one may end as a series of another does."""
    bare = re.sub(r'"[^"]*"', '""', expr)
    return (_family(name, known) for name in _NAME.findall(bare))


def _family(name: str, known: Known) -> str:
    """The family of a series."""
    return name if name in known else _SERIES.sub("", name)
