"""koordletctl doctor: what this host supports and lacks, which gate needs it, and the fix."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding

from koord.component.terminal import figure, heading, pairs, prose, show, table
from koordlet.cli.ctl.arguments import CtlOptions, given_roots, host_paths
from koordlet.cli.ctl.client import BadResponse, CtlClient, NoDaemon, NotPermitted

_Finding = Mapping[str, Any]  # as koordlet.doctor.probes.Finding, and "wanted" by a gate at work


def run(client: CtlClient, options: CtlOptions) -> int:
    """Show the findings; fails when something is missing for the gates that are on."""
    report = _report(client, options)
    show(report, lambda: view(report), options.output)
    return 1 if any(_is_missing(finding) for finding in report["findings"]) else 0


def view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Findings in order: present, needed by other gates only, unknown, and last what lacks."""
    findings = report["findings"]
    missing = [finding for finding in findings if _is_missing(finding)]
    unknown = [finding for finding in findings if finding["supported"] is None]
    unused = [
        finding for finding in findings if finding["supported"] is False and finding not in missing
    ]
    present = [finding for finding in findings if finding["supported"]]
    yield prose(f"{report['seen_by']}; gates on: {', '.join(report['gates_on']) or 'none'}")
    for title, style, of, shown in (
        ("Supported", "bold green", present, _present),
        ("Missing, but needed only by gates that are off", "bold", unused, _unused),
        ("Not known", "bold", unknown, _present),
        ("Missing", "bold red", missing, _missing),
    ):
        if of:
            yield prose("")
            yield prose(title, style)
            yield from shown(of)
    yield prose("")
    counts = f"{len(present)} supported, {len(missing)} missing, {len(unused)} not needed now"
    yield prose(f"{counts}, {len(unknown)} not known" if unknown else counts)


def _report(client: CtlClient, options: CtlOptions) -> dict[str, Any]:
    if given_roots(options):
        return _local(options, "seen by this command with the given directories")
    try:
        findings, gates = client.get("doctor"), client.get("status")["gates_on"]
    except (NoDaemon, NotPermitted, BadResponse) as err:
        return _local(options, f"seen by this command, as no daemon answered: {err}")
    return _judged("seen by the daemon", gates, findings)


def _local(options: CtlOptions, seen_by: str) -> dict[str, Any]:
    """The findings of this process. Imports are here because asking a daemon needs none of them."""
    from dataclasses import asdict

    from koord.component.plugins.discovery import discover
    from koordlet.doctor.support import findings
    from koordlet.features import feature_gates
    from koordlet.host.host import Host
    from koordlet.plugin.registry import PluginRegistry
    from koordlet.qosmanager.config import claimable_by_others

    gates, registry = feature_gates(), PluginRegistry()
    discover(registry)  # what cannot be imported is logged, as by the daemon
    claimable = claimable_by_others(registry)
    found = findings(Host(host_paths(options)), options.run_dir, claimable)
    return _judged(seen_by, gates.working(), [asdict(finding) for finding in found])


def _judged(seen_by: str, gates: Sequence[str], findings: Iterable[_Finding]) -> dict[str, Any]:
    """Add to each finding whether a gate that is on, or every run, makes use of it."""
    judged = [
        {
            **finding,
            "wanted": not finding["needed_by"] or not set(gates).isdisjoint(finding["needed_by"]),
        }
        for finding in findings
    ]
    return {"seen_by": seen_by, "gates_on": list(gates), "findings": judged}


def _is_missing(finding: _Finding) -> bool:
    return bool(finding["wanted"]) and finding["supported"] is False


def _missing(findings: Iterable[_Finding]) -> Iterator[RenderableType]:
    for finding in findings:
        yield heading(f"  {_what(finding)}")
        yield pairs(
            [
                ("    found", prose(finding["detail"])),
                ("    needed by", prose(_users(finding["needed_by"]))),
                ("    fix", prose(finding["fix"])),
            ],
            style="",
        )


def _unused(findings: Iterable[_Finding]) -> Iterator[RenderableType]:
    rows = table("<WHAT", "NEEDED BY", "FIX")
    for finding in findings:
        users = prose(_users(finding["needed_by"]))
        rows.add_row(figure(_what(finding)), users, prose(finding["fix"]))
    yield Padding.indent(rows, 2)


def _present(findings: Iterable[_Finding]) -> Iterator[RenderableType]:
    """All gates that make use of it would be a long list; --output json has it."""
    rows = table("<WHAT", "FOUND", "USED BY")
    for finding in findings:
        users = prose(_users(finding["needed_by"], most=2))
        rows.add_row(figure(_what(finding)), prose(finding["detail"] or "yes"), users)
    yield Padding.indent(rows, 2)


def _what(finding: _Finding) -> str:
    return f"{finding['area']}: {finding['name']}"


def _users(gates: Sequence[str], most: int | None = None) -> str:
    if not gates:
        return "every run"
    named = ", ".join(gates[:most])
    return named if most is None or len(gates) <= most else f"{named} and {len(gates) - most} more"
