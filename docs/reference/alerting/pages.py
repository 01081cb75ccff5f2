"""docs/alerts.md, and the rules in deploy/alerts: a PrometheusRule, and Prometheus' own file."""

from collections.abc import Mapping, Sequence

import yaml

from reference.alerting.agent import ALERTS
from reference.alerting.alert import Alert
from reference.alerting.controlplane import DESCHEDULER_ALERTS, MANAGER_ALERTS, SCHEDULER_ALERTS
from reference.alerting.recording import (
    AGENT_RECORDINGS,
    DESCHEDULER_RECORDINGS,
    MANAGER_RECORDINGS,
    SCHEDULER_RECORDINGS,
    Recording,
)
from reference.fakedaemon import measured_exposition
from reference.markdown import page, table
from reference.promql import check_names, known_metrics

GROUPS: Mapping[str, Sequence[Alert]] = {
    "koordlet": ALERTS,
    "koord-descheduler": DESCHEDULER_ALERTS,
    "koord-manager": MANAGER_ALERTS,
    "koord-scheduler": SCHEDULER_ALERTS,
}
RECORDINGS: Mapping[str, Sequence[Recording]] = {
    "koordlet-recordings": AGENT_RECORDINGS,
    "koord-descheduler-recordings": DESCHEDULER_RECORDINGS,
    "koord-manager-recordings": MANAGER_RECORDINGS,
    "koord-scheduler-recordings": SCHEDULER_RECORDINGS,
}
_HEADER = "# Written by `make docs` from docs/reference/alerting; do not edit.\n"
_RUNBOOK = "docs/alerts.md#"  # in this repository
_INTRO = """
Rules for Prometheus on the metrics of the four daemons. With the Prometheus operator add
`../koordlet/deploy/alerts` to the `components` of your kustomization.yaml; without it,
[rules.yml](../deploy/alerts/rules.yml) is a file for `rule_files`. A program that is not there has
no series, and no alerts.

Jobs have these names: `koordlet`, `koord-descheduler`, `koord-manager` and `koord-scheduler`, alone
or after a `/`, as the [PodMonitors](operations.md#components) make them. `critical` wants a person
now, `warning` today; `info` explains others. Thresholds are those of the default sizes; change them
in a copy. Each alert below is tested on a case where it fires, and on one where it must not.
"""
_RECORDED = """
These are computed once a minute. Ask for them where a question covers weeks or thousands of nodes:
they have few series, and stay when those of pods are dropped. The dashboards do not need them.
"""


def alerts_page() -> str:
    """The page: a section for each alert, which is its runbook."""
    parts = []
    for title, alerts in GROUPS.items():
        parts += [f"## {title}", *map(_section, alerts)]
    rows = [
        (f"`{each.name}`", each.meaning, f"`{each.expr}`")
        for recordings in RECORDINGS.values()
        for each in recordings
    ]
    recorded = table(("Series", "What it is", "Rule"), rows)
    return page("Alerts", _INTRO, *parts, "## Recording rules", _RECORDED.strip(), recorded)


def rules_file() -> str:
    """deploy/alerts/rules.yml."""
    known = known_metrics(measured_exposition())
    for alerts in GROUPS.values():
        for alert in alerts:
            check_names(f"alert {alert.name}", alert.expr, known)
    for recordings in RECORDINGS.values():
        for recording in recordings:
            check_names(f"recording rule {recording.name}", recording.expr, known)
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
        *(
            {"name": name, "rules": [_rule(alert) for alert in alerts]}
            for name, alerts in GROUPS.items()
        ),
        *(
            {
                "name": name,
                "interval": "1m",
                "rules": [{"record": each.name, "expr": each.expr} for each in recordings],
            }
            for name, recordings in RECORDINGS.items()
        ),
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
