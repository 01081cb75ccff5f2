"""Writes the references of docs, alerts and dashboards from the code; --check only compares."""

import argparse
import difflib
import sys
from pathlib import Path

from reference.alerting.pages import alerts_page, prometheus_rule, rules_file
from reference.chart.files import chart_files
from reference.chart.page import chart_page
from reference.configuration import configuration_page
from reference.dashboards.files import dashboard_files
from reference.descheduler import descheduler_page
from reference.deschedulercommand import command_page
from reference.diagrams import diagram_files
from reference.manpages import manual_files
from reference.metrics import metrics_page
from reference.pluginapi import plugin_api_page
from reference.scheduler import scheduler_page
from reference.schedulercommand import scheduler_command_page

ROOT = Path(__file__).parents[1]
FILES = {
    **chart_files(),
    **dashboard_files(),
    **diagram_files(),
    **manual_files(),
    "deploy/alerts/prometheusrule.yaml": prometheus_rule,
    "deploy/alerts/rules.yml": rules_file,
    "docs/alerts.md": alerts_page,
    "docs/chart.md": chart_page,
    "docs/configuration.md": configuration_page,
    "docs/descheduler-configuration.md": descheduler_page,
    "docs/koord-descheduler.md": command_page,
    "docs/koord-scheduler.md": scheduler_command_page,
    "docs/metrics.md": metrics_page,
    "docs/plugin-api.md": plugin_api_page,
    "docs/scheduler-configuration.md": scheduler_page,
}


def main() -> int:
    """Return 0 when the files say what the code says, or do so now."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file is stale")
    check = parser.parse_args().check
    stale = False
    for name, make in FILES.items():
        path, text = ROOT / name, make()
        before = path.read_text() if path.exists() else ""
        if check and text != before:
            stale = True
            _show(name, before, text)
        elif text != before:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return int(stale)


def _show(name: str, before: str, after: str) -> None:
    print(f"{name} is not what the code says; run make docs")
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, "code", "", "", 0)
    print("\n".join(line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
