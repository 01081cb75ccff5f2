"""What was read of a dump, as JSON and for people, and its time."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from koord.cluster.dump import Dump
from koord.component.tables import prose
from koord.util.clock import SystemClock
from koord.util.errors import OptionError

Json = dict[str, Any]


def dump_report(dump: Dump) -> Json:
    """Return which objects were read, and which were not."""
    return {
        "objects": dict(sorted(dump.objects.items())),
        "skipped": dict(sorted(dump.skipped.items())),
        "rejections": dump.rejections,
        "rejected": [str(one) for one in dump.rejected],
        "cuts": dump.cuts,
        "cut": dump.cut,
    }


def time_of(dump: Dump, path: Path | None) -> float:
    """The time of a dump's newest NodeMetric in Unix seconds; without one, now.

    Raises:
        OptionError: there is no node in what was read from the path.
    """
    if not dump.objects["node"]:
        wrong = f"; {dump.rejected[0]}" if dump.rejected else ""
        hint = f"make one with `kubectl get nodes,pods,… -A -o json`{wrong}"
        raise OptionError(str(path), "no node", hint)
    return SystemClock().wall() if dump.newest_report is None else dump.newest_report


def dump_view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The lines of such a report."""
    yield prose(f"read: {_amounts(report['objects']) or 'nothing'}")
    if report["skipped"]:
        yield prose(f"not read, as of no use here: {_amounts(report['skipped'])}")
    for text in report["rejected"]:
        yield prose(f"malformed, left out: {text}", "yellow")
    more = report["rejections"] - len(report["rejected"])
    if more:
        yield prose(f"malformed, left out: {more} more", "yellow")
    for text in report["cut"]:
        yield prose(f"read in part, left out of {text}", "yellow")
    if report["cuts"] > len(report["cut"]):
        yield prose(f"read in part: {report['cuts'] - len(report['cut'])} more", "yellow")


def moment(seconds: float) -> str:
    """Unix seconds as Kubernetes writes them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _amounts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
