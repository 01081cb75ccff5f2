"""A dashboard as a table of panels, and what Grafana reads."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders.common import (
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

WIDTH, HEIGHT = 8, 8  # of a panel, in Grafana's grid of 24 columns
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_EVERYWHERE = ["koordlet"]  # a tag of all


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the name of each of its series, in Grafana's template form."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart over time. unit: Grafana's name of one. sometimes: when there is nothing to show."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    sometimes: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice on top of the dashboard: the values of a metric's label."""

    name: str
    metric: str
    label: str
    many: bool = False  # more than one, or all


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard."""

    name: str  # of its file, and in its address
    title: str
    text: str
    variables: tuple[Variable, ...]
    sections: tuple[Section, ...]

    def queries(self) -> Iterator[tuple[Panel, Query]]:
        """All of them, with their panels."""
        for section in self.sections:
            for panel in section.panels:
                for query in panel.queries:
                    yield panel, query


def dashboard_json(board: Board) -> str:
    """Return what Grafana imports, from version 11 on."""
    built = (
        Dashboard(board.title)
        .uid(board.name)
        .description(board.text)
        .tags(_EVERYWHERE)
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        built = built.with_variable(_variable(variable))
    for section in board.sections:
        built = built.with_row(Row(section.title))
        for panel in section.panels:
            built = built.with_panel(_panel(panel))
    return json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(variable: Variable) -> QueryVariable:
    query = f"label_values({variable.metric}, {variable.label})"
    built = (
        QueryVariable(variable.name)
        .label(variable.name)
        .datasource(_SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return built.multi(True).include_all(True).all_value(".*") if variable.many else built


def _panel(panel: Panel) -> TimeSeries:
    built = (
        TimeSeries()
        .title(panel.title)
        .description(panel.text)
        .unit(panel.unit)
        .datasource(_SOURCE)
        .span(WIDTH)
        .height(HEIGHT)
        .fill_opacity(30.0 if panel.stacked else 8.0)
        .legend(_legend())
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if panel.stacked:
        built = built.stacking(StackingConfig().mode(StackingMode.NORMAL))
    for number, query in enumerate(panel.queries):
        target: Any = Dataquery().expr(query.expr).legend_format(query.legend)
        built = built.with_target(target.ref_id(chr(ord("A") + number)))
    return built


def _legend() -> VizLegendOptions:
    return (
        VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
    )
