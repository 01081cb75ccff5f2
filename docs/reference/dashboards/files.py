"""deploy/dashboards: the dashboards' JSON."""

from collections.abc import Callable, Mapping
from functools import partial

from reference.dashboards.agent import FLEET_BOARD, NODE_BOARD, PLUGINS_BOARD
from reference.dashboards.board import Board, dashboard_json
from reference.dashboards.controlplane import DESCHEDULER_BOARD, MANAGER_BOARD, SCHEDULER_BOARD
from reference.fakedaemon import measured_exposition
from reference.promql import Known, check_names, known_metrics

BOARDS = (
    NODE_BOARD,
    FLEET_BOARD,
    PLUGINS_BOARD,
    DESCHEDULER_BOARD,
    MANAGER_BOARD,
    SCHEDULER_BOARD,
)


def dashboard_files() -> Mapping[str, Callable[[], str]]:
    """Return the function that makes each file, by its path in the repository."""
    return {f"deploy/dashboards/{each.name}.json": partial(_checked, each) for each in BOARDS}


def check_board(board: Board, known: Known) -> None:
    """Check all expressions. Raises UnknownMetric."""
    for panel, query in board.queries():
        check_names(f"dashboard {board.name}, {panel.title}", query.expr, known)
    for variable in board.variables:
        expr = f'{variable.metric}{{{variable.label}=""}}'
        check_names(f"dashboard {board.name}, variable {variable.name}", expr, known)


def _checked(board: Board) -> str:
    check_board(board, known_metrics(measured_exposition()))
    return dashboard_json(board)
