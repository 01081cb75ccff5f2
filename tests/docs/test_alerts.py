"""Alerts ask for metrics that there are, and say where each is explained."""

from pathlib import Path

import pytest
import yaml
from reference.promql import UnknownMetric, check_names, names_of

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "alerts" / "rules.yml"
OPERATORS = ROOT / "deploy" / "alerts" / "prometheusrule.yaml"
KNOWN = {"koordlet_lag_seconds": ("node",), "koordlet_rounds_total": ("plugin", "outcome")}


@pytest.mark.parametrize(
    "expr",
    [
        "histogram_quantile(0.99, rate(koordlet_lag_seconds_bucket[5m])) > 1",
        'koordlet_lag_seconds_bucket{le="1",node=~"a|b"}',
        'sum by (plugin) (rate(koordlet_rounds_total{outcome!="ok", job="koordlet"}[5m])) > 0',
        'up{job=~"(.*/)?koordlet"} == 0',
        'koordlet_rounds_total{outcome="koordlet_elsewhere_total"}',
    ],
)
def test_what_is_exported_is_accepted(expr: str) -> None:
    check_names("x", expr, KNOWN)


@pytest.mark.parametrize(
    ("expr", "named"),
    [
        ("rate(koordlet_round_total[5m]) > 0", "found koordlet_round_total"),
        ("koordlet_lag_seconds > on (job) scheduler_lag_seconds_count", "scheduler_lag_seconds"),
        (
            'koordlet_rounds_total{result="ok"}',
            "wanted a label of koordlet_rounds_total, found res",
        ),
        ('up{pod="a"}', "found pod"),
    ],
)
def test_what_was_renamed_is_found(expr: str, named: str) -> None:
    with pytest.raises(UnknownMetric, match=named):
        check_names("x", expr, KNOWN)


def test_families_of_an_expression() -> None:
    expr = 'a(koordlet_x_count{b="koordlet_y"}[5m]) / process_z_total and up == 1'
    assert list(names_of(expr)) == ["koordlet_x", "process_z_total", "up"]


def test_the_operators_rules_are_prometheus_rules() -> None:
    [rule] = yaml.safe_load_all(OPERATORS.read_text())
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_each_alert_has_a_runbook() -> None:
    """A section of its page; and no other alert has its name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor == rule["alert"].lower()
        assert f"### {rule['alert']}\n" in (ROOT / page).read_text()


def test_each_recorded_series_is_explained() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    groups = yaml.safe_load(RULES.read_text())["groups"]
    names = [rule["record"] for group in groups for rule in group["rules"] if "record" in rule]
    assert names
    for name in names:
        assert f"| `{name}` |" in page
