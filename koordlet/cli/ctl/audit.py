"""koordletctl audit: the latest events of the audit log."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from koord.component.tables import emit, figure, prose, show, table
from koord.util.errors import OptionError
from koord.util.printable import printable_json
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import BadQuestion, CtlClient
from koordlet.executor.audit.query import MOST, AuditQuery

FOLLOW_INTERVAL = 1.0  # seconds between two looks

_Event = Mapping[str, Any]
_Answer = Mapping[str, Any]


def run(client: CtlClient, options: Options) -> int:
    """Show the events, latest last; with --follow until ^C."""
    answer = _ask(client, options, options.lines)
    if options.follow:
        _follow(answer, lambda: _ask(client, options, MOST), options.output)
    else:
        show(answer, lambda: view(answer), options.output)
    return 0


def view(answer: _Answer) -> Iterator[RenderableType]:
    """One row per event, and why there are none or may be no new ones."""
    events = answer["events"]
    if events:
        rows = table("<TIME", "<ABOUT", "<REASON", "MESSAGE")
        for event in events:
            rows.add_row(*_cells(event))
        yield rows
    else:
        yield prose(f"no events in {answer['directory']}")
    if not answer["enabled"]:
        yield prose("the gate AuditEvents is off: nothing is recorded", "yellow")
    if answer["problem"]:
        yield prose(f"not everything is on disk: {answer['problem']}", "yellow")


def newer(events: list[_Event], last: _Event | None) -> list[_Event]:
    """Those of the latest events that came after the one seen last; all, when it is not there."""
    return events[events.index(last) + 1 :] if last in events else events


def _ask(client: CtlClient, options: Options, lines: int) -> _Answer:
    if options.dir is None:
        query = {"lines": str(lines), "pod": options.pod, "reason": options.reason}
        found: _Answer = client.get("audit", query=query)
        return found
    try:
        wanted = AuditQuery(most=lines, pod=options.pod or "", reason=options.reason or "")
    except OptionError as err:
        raise BadQuestion(str(err)) from err
    events = wanted.find(options.dir)
    return {"enabled": True, "directory": str(options.dir), "problem": "", "events": events}


def _follow(answer: _Answer, look: Callable[[], _Answer], output: str) -> None:
    events: list[_Event] = answer["events"]
    last: _Event | None = None
    while True:
        last = events[-1] if events else last
        _print(events, output)
        time.sleep(FOLLOW_INTERVAL)
        events = newer(look()["events"], last)


def _print(events: Iterable[_Event], output: str) -> None:
    for event in events:
        if output == "json":
            print(printable_json(event))
        else:
            emit([prose("  ".join(map(str, _cells(event))))])
    sys.stdout.flush()


def _cells(event: _Event) -> tuple[RenderableType, ...]:
    names = (event.get("namespace"), event.get("name"), event.get("container"))
    about = "/".join(str(name) for name in names if name) or event.get("type", "")
    time_text = str(event["createdAt"])
    return (
        figure(time_text[:19] + time_text[29:]),
        figure(about),
        figure(event.get("reason", "")),
        prose(event.get("message", "")),
    )
