"""The chart has the files that `make docs` writes, and no others."""

import re
from pathlib import Path

from reference.chart.files import VALUES, chart_files
from reference.chart.overlay import UnknownPatch, patch
from reference.chart.page import KOORDINATORS
from reference.chart.template import Either, When, document

ROOT = Path(__file__).parents[2]


def test_no_file_is_left_of_what_is_gone():
    """Helm would install it."""
    there = {path for path in (ROOT / "deploy/chart").rglob("*") if path.is_file()}
    assert there == {ROOT / name for name in chart_files()}


def test_what_stands_for_a_value_of_koordinators_chart_is_there():
    """Names that are said to be the same are values here, others are not."""
    ours = {each.path for each in VALUES}
    for theirs, text in KOORDINATORS:
        same = text.startswith(("The same", "A list"))
        assert {name in ours for name in theirs} == {same}
        named = set(re.findall(r"`(\w+\.[\w.]+)`", text))
        assert named <= ours


def test_patches_become_conditions():
    role = {"kind": "Role", "metadata": {"name": "r"}, "rules": [{"verbs": ["get"]}], "on": True}
    component = {
        "patches": [
            {
                "target": {"kind": "Role", "name": "r"},
                "patch": """[
                    {"op": "add", "path": "/rules/-", "value": {"verbs": ["list"]}},
                    {"op": "add", "path": "/rules/0/named", "value": "{{ x }}"},
                    {"op": "replace", "path": "/on", "value": false},
                    {"op": "remove", "path": "/rules/0"}
                ]""",
            }
        ]
    }

    patch([role], component, ".Values.a")

    first = {"verbs": ["get"], "named": When(".Values.a", "{{ x }}")}
    assert role["rules"] == [
        When("not .Values.a", first),
        When(".Values.a", {"verbs": ["list"]}),
    ]
    assert role["on"] == Either(".Values.a", False, True)
    assert document(role).splitlines()[3:12] == [
        "rules:",
        "  {{- if not .Values.a }}",
        "  - verbs:",
        "      - get",
        "    {{- if .Values.a }}",
        """    named: '{{ "{{" }} x }}'""",
        "    {{- end }}",
        "  {{- end }}",
        "  {{- if .Values.a }}",
    ]


def refusal_of(operation: str) -> str:
    role = {"kind": "Role", "metadata": {"name": "r"}, "rules": []}
    target = {"kind": "Role", "name": "r"}
    try:
        patch([role], {"patches": [{"target": target, "patch": f"[{operation}]"}]}, ".Values.a")
    except UnknownPatch as err:
        return str(err)
    return ""


def test_a_patch_without_a_form_in_the_chart_is_refused():
    """`make docs` fails, before a chart without it ships."""
    assert "found {'op': 'move'" in refusal_of('{"op": "move", "path": "/rules", "from": "/x"}')
    assert "wanted" in refusal_of('{"op": "replace", "path": "/rules", "value": []}')
    assert "wanted" in refusal_of('{"op": "test", "path": "/kind", "value": "ClusterRole"}')
