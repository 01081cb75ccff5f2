"""Dashboards ask for metrics that there are, and Grafana gets them whole."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from reference.dashboards.board import HEIGHT, WIDTH, Board, Panel, Query, Section, Variable
from reference.dashboards.files import BOARDS, check_board
from reference.promql import UnknownMetric

DIRECTORY = Path(__file__).parents[2] / "deploy" / "dashboards"
KNOWN = {"koordlet_x": ("node", "kind")}
BOARD = Board(
    "b",
    "B",
    "",
    (Variable("node", "koordlet_x", "node"),),
    (Section("S", (Panel("P", "", "short", (Query('koordlet_x{kind="a"}', ""),)),)),),
)


def panels(board: Board) -> list[Panel]:
    return [panel for section in board.sections for panel in section.panels]


def written(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DIRECTORY / f"{board.name}.json").read_text())
    return found


def test_what_is_exported_is_accepted() -> None:
    check_board(BOARD, KNOWN)


@pytest.mark.parametrize(
    ("board", "named"),
    [
        (replace(BOARD, variables=(Variable("node", "koordlet_y", "node"),)), "koordlet_y"),
        (replace(BOARD, variables=(Variable("node", "koordlet_x", "pod"),)), "found pod"),
        (
            replace(
                BOARD,
                sections=(Section("S", (Panel("P", "", "", (Query("koordlet_z", ""),)),)),),
            ),
            "dashboard b, P: wanted a metric that a daemon exports, found koordlet_z",
        ),
    ],
)
def test_what_was_renamed_is_found(board: Board, named: str) -> None:
    with pytest.raises(UnknownMetric, match=named):
        check_board(board, KNOWN)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_is_whole(board: Board) -> None:
    """Each panel says what it shows, and in what unit; variables that are used are there."""
    titles = [
        (section.title, panel.title) for section in board.sections for panel in section.panels
    ]
    assert len(set(titles)) == len(titles)
    assert all(panel.text and panel.unit and panel.queries for panel in panels(board))
    used = {
        name
        for _, query in board.queries()
        for name in re.findall(r"\$(\w+)", query.expr)
        if not name.startswith("__")
    }
    assert used == {variable.name for variable in board.variables}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_its_file_is_what_grafana_wants(board: Board) -> None:
    """No panel lies on another; each asks the chosen data source; references are unique."""
    found = written(board)
    shown = [panel for panel in found["panels"] if panel["type"] != "row"]
    assert (found["uid"], found["title"]) == (board.name, board.title)
    assert [panel["title"] for panel in shown] == [panel.title for panel in panels(board)]
    places = [panel["gridPos"] for panel in found["panels"]]
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart
    for panel in shown:
        assert (panel["gridPos"]["w"], panel["gridPos"]["h"]) == (WIDTH, HEIGHT)
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    assert [each["name"] for each in found["templating"]["list"]] == [
        "datasource",
        *(variable.name for variable in board.variables),
    ]


def test_the_component_has_all_files() -> None:
    component = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text())
    [generator] = component["configMapGenerator"]
    assert generator["files"] == sorted(path.name for path in DIRECTORY.glob("*.json"))
    assert generator["files"] == sorted(f"{board.name}.json" for board in BOARDS)
