"""docs/alerts.md, and the rules in deploy/alerts: as a PrometheusRule, and as Prometheus' file."""

from collections.abc import Mapping, Sequence

import yaml

from reference.alerting.agent import ALERTS
from reference.alerting.alert import Alert
from reference.alerting.controlplane import DESCHEDULER_ALERTS, SCHEDULER_ALERTS
from reference.fakedaemon import measured_exposition
from reference.markdown import page, table
from reference.promql import check_names, known_metrics

GROUPS: Mapping[str, Sequence[Alert]] = {
    "koordlet": ALERTS,
    "koord-descheduler": DESCHEDULER_ALERTS,
    "koord-scheduler": SCHEDULER_ALERTS,
}
_HEADER = "# Written by `make docs` from docs/reference/alerting; do not edit.\n"
_RUNBOOK = "docs/alerts.md#"  # in this repository
_INTRO = """
Rules for Prometheus on the metrics of the three daemons. With the Prometheus operator add
`../koordlet/deploy/alerts` to the `components` of your kustomization.yaml; without it,
[rules.yml](../deploy/alerts/rules.yml) is a file for `rule_files`. A program that is not there has
no series, and no alerts.

Jobs have these names: `koordlet`, `koord-descheduler` and `koord-scheduler`, alone or after
a `/`, as the [PodMonitors](operations.md#components) make them. `critical` wants a person now,
`warning` today; `info` explains others. Thresholds are those of the default sizes; change them in a
copy. Each alert below is tested on a case where it fires, and on one where it must not.
"""


def alerts_page() -> str:
    """The page: a section for each alert, which is its runbook."""
    parts = []
    for title, alerts in GROUPS.items():
        parts += [f"## {title}", *map(_section, alerts)]
    return page("Alerts", _INTRO, *parts)


def rules_file() -> str:
    """deploy/alerts/rules.yml."""
    known = known_metrics(measured_exposition())
    for alerts in GROUPS.values():
        for alert in alerts:
            check_names(f"alert {alert.name}", alert.expr, known)
    return _HEADER + _yaml({"groups": _groups()})


def prometheus_rule() -> str:
    """deploy/alerts/prometheusrule.yaml."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "koordlet", "namespace": "koordlet-system"},
        "spec": {"groups": _groups()},
    }
    return _HEADER + _yaml(rule)


def _groups() -> list[object]:
    return [
        {"name": name, "rules": [_rule(alert) for alert in alerts]}
        for name, alerts in GROUPS.items()
    ]


def _rule(alert: Alert) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "runbook": _RUNBOOK + alert.name.lower(),
        },
    }


def _section(alert: Alert) -> str:
    rule = table(("Severity", "Holds for"), [(alert.severity, alert.wait)])
    return "\n\n".join(
        [
            f"### {alert.name}",
            rule,
            f"```promql\n{alert.expr}\n```",
            alert.meaning,
            f"**What to do**: {alert.action}",
        ]
    )


def _yaml(document: object) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=True)
