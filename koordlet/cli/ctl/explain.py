"""koordletctl explain and audit: values in force, decisions about pods, and the audit log."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType

from koord.component.terminal import emit, figure, heading, pairs, prose, show, table
from koord.util.errors import OptionError
from koord.util.text import printable_json
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import BadRequest, CtlClient
from koordlet.cli.ctl.plugins import dry_run_text
from koordlet.cli.ctl.units import kernel_value, number, span
from koordlet.executor.audit.files import MAX_EVENTS, AuditQuery

_Json = Mapping[str, Any]

_STALE = 5.0  # seconds; times in answers are whole seconds, and clocks differ a little

_STYLES = {
    "in force": "green",
    "would": "cyan",
    "evicted": "green",
    "killed": "green",
    "would_evict": "cyan",
    "gone": "dim",
    "unsupported": "dim",
    "failed": "red",
}


def run(client: CtlClient, options: CtlOptions) -> int:
    """Show values and decisions; in detail when it is about one pod or cgroup."""
    found = client.get("explain", query={"pod": options.pod})
    now = datetime.now(UTC)
    show(found, lambda: view(found, options.pod, now), options.output)
    return 0


def view(found: _Json, pod: str | None, now: datetime) -> Iterator[RenderableType]:
    """The lines for all plugins, the values in force, then the decisions."""
    budget = found["evictionBudget"]
    yield pairs(
        [
            ("evictions", prose(budget_text(budget["used"], budget["perHour"]))),
            ("dry-run", prose(dry_run_text(found["dryRun"], found["observeOnly"]))),
        ]
    )
    values, decisions = found["values"], found["decisions"]
    asked, refused = found.get("runtimeHooks", ()), found.get("refusedAllocations", ())
    if not values and not decisions and not asked and not refused:
        yield prose("")
        yield prose(f"nothing was decided about {pod}" if pod else "nothing was decided yet")
    if values:
        yield from (_details(values, now) if pod else _overview(values, now))
    if decisions:
        yield from (_decision_details(decisions) if pod else _decisions(decisions))
    if asked:
        yield from _hooks(asked)
    if refused:
        yield from _rejected(refused)


def _hooks(responses: Sequence[_Json]) -> Iterator[RenderableType]:
    """The answers to the container runtime, before containers were made or updated."""
    rows = table("<AT", "<POD", "<CONTAINER", "<VALUE", ">ASKED", ">GIVEN", "<BY", "WHY")
    for response in responses:
        head = (figure(response["at"]), figure(response["pod"]), figure(response["container"]))
        for kind, note in (("adjusted", ""), ("inDryRun", "in dry-run: ")):
            for one in response[kind]:
                rows.add_row(
                    *head,
                    figure(one["resource"]),
                    figure(kernel_value(one["asked"], one["unit"])),
                    figure(kernel_value(one["value"], one["unit"])),
                    figure(", ".join(one["plugins"])),
                    prose(note + one["reason"]),
                )
        for kind, note in (("injected", "added"), ("injectedInDryRun", "in dry-run: added")):
            for one in response.get(kind, ()):  # an older agent has none
                added = [f"{name}={value}" for name, value in one["env"].items()]
                for what in (*added, *one["mounts"], *one["devices"]):
                    given = (figure(""), figure(""), figure(what), figure(one["by"]))
                    rows.add_row(*head, *given, prose(note))
        for why in response["left"]:
            rows.add_row(*head, figure(""), figure(""), figure(""), figure(""), prose(why))
    yield prose("")
    yield rows


def _rejected(refused: Sequence[_Json]) -> Iterator[RenderableType]:
    """Annotations that do not count, as if the pods had none."""
    rows = table("<POD", "<ANNOTATION THAT DOES NOT COUNT", "IT GIVES")
    for each in refused:
        rows.add_row(figure(each["pod"]), figure(each["annotation"]), prose(each["reason"]))
    yield prose("")
    yield rows


def budget_text(used: int, per_hour: int) -> str:
    """The number of evicted pods, of the budget."""
    limit = f"of {per_hour}" if per_hour else "without bound"
    return f"{used} {limit} in the past hour"


def _overview(values: Sequence[_Json], now: datetime) -> Iterator[RenderableType]:
    rows = table("<VALUE", "<WHERE", ">NOW", ">WANTED", ">BEFORE", "<STATE", ">SINCE", "<BY", "WHY")
    for value in values:
        rows.add_row(
            figure(value["resource"]),
            figure(_place_name(value)),
            figure(_now(value, now)),
            figure(kernel_value(value["wanted"], value["unit"])),
            figure(kernel_value(value["original"], value["unit"])),
            figure(value["state"], _STYLES.get(value["state"], "yellow")),
            figure(_age(value["since"], now)),
            figure(", ".join(claim["plugin"] for claim in value["claims"])),
            prose("; ".join(_claim_reason(claim) for claim in value["claims"])),
        )
    yield heading("")
    yield rows


def _details(values: Sequence[_Json], now: datetime) -> Iterator[RenderableType]:
    for value in values:
        unit = value["unit"]
        lines = [
            ("now", _now(value, now)),
            ("wanted", kernel_value(value["wanted"], unit)),
            ("before", kernel_value(value["original"], unit)),
            ("state", f"{value['state']} since {value['since']} ({_age(value['since'], now)})"),
            ("message", value["message"]),
        ]
        for claim in value["claims"]:
            part = "" if len(value["claims"]) == 1 else f" ({claim['part']} {claim['value']})"
            lines.append((claim["plugin"] + part, claim["reason"]))
            lines.append(("", _inputs(claim["inputs"])))
        yield heading("")
        yield heading(f"{value['resource']} of {_place_name(value)}, in {unit}")
        yield pairs([(f"  {name}", prose(text)) for name, text in lines if text], style="")


def _decisions(decisions: Sequence[_Json]) -> Iterator[RenderableType]:
    rows = table("<LAST", ">TIMES", "<PLUGIN", "<POD", "<OUTCOME", "<WHY")
    for each in decisions:
        rows.add_row(
            figure(each["last"]),
            str(each["times"]),
            figure(each["plugin"]),
            prose(each["pod"]),
            figure(each["outcome"], _STYLES.get(each["outcome"], "yellow")),
            prose("; ".join(filter(None, (each["reason"], each["message"])))),
        )
    yield prose("")
    yield rows


def _decision_details(decisions: Sequence[_Json]) -> Iterator[RenderableType]:
    for each in decisions:
        times = f", {each['times']} times since {each['first']}" if each["times"] > 1 else ""
        lines = [
            ("by", f"{each['plugin']}, feature {each['feature']}"),
            ("because", each["reason"]),
            ("", _inputs(each["inputs"])),
            ("candidates", ", ".join(each["candidates"])),
            ("answer", each["message"]),
            ("freed", _inputs(each["freed"])),
        ]
        yield heading("")
        yield heading(f"{each['pod'] or 'no pod'} {each['outcome']} {each['last']}{times}")
        yield pairs([(f"  {name}", prose(text)) for name, text in lines if text], style="")


def _now(value: _Json, now: datetime) -> str:
    """The kernel's value, with its age where it could not be read just now."""
    text = kernel_value(value["value"], value["unit"])
    age = (now - datetime.fromisoformat(value["valueAt"])).total_seconds()
    return f"{text}, {span(age)} ago" if age >= _STALE else text


def _place_name(value: _Json) -> str:
    """A pod by its name, what is in it by the name of its cgroup, too; the rest by its place."""
    own = "" if value["level"] == "pod" else f" {value['target'].rpartition('/')[2]}"
    return f"{value['pod']}{own}" if value["pod"] else value["target"]


def _claim_reason(claim: _Json) -> str:
    inputs = _inputs(claim["inputs"])
    return f"{claim['reason']} ({inputs})" if inputs else str(claim["reason"])


def _inputs(inputs: _Json) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else number(value)}"
        for name, value in inputs.items()
    )


def _age(since: str, now: datetime) -> str:
    return span(max((now - datetime.fromisoformat(since)).total_seconds(), 0))


FOLLOW_INTERVAL = 1.0  # seconds between two looks

_Event = Mapping[str, Any]
_Response = Mapping[str, Any]


def run_audit(client: CtlClient, options: CtlOptions) -> int:
    """Show the events, latest last; with --follow until ^C."""
    response = _request(client, options, options.lines)
    if options.follow:
        _follow(response, lambda: _request(client, options, MAX_EVENTS), options.output)
    else:
        show(response, lambda: audit_view(response), options.output)
    return 0


def audit_view(response: _Response) -> Iterator[RenderableType]:
    """One row per event, and why there are none or may be no new ones."""
    events = response["events"]
    if events:
        rows = table("<TIME", "<ABOUT", "<REASON", "MESSAGE")
        for event in events:
            rows.add_row(*_cells(event))
        yield rows
    else:
        yield prose(f"no events in {response['directory']}")
    if not response["enabled"]:
        yield prose("the gate AuditEvents is off: nothing is recorded", "yellow")
    if response["problem"]:
        yield prose(f"not everything is on disk: {response['problem']}", "yellow")


def newer(events: list[_Event], last: _Event | None) -> list[_Event]:
    """Return the events after the one seen last; all, when that one is not among them."""
    return events[events.index(last) + 1 :] if last in events else events


def _request(client: CtlClient, options: CtlOptions, lines: int) -> _Response:
    if options.dir is None:
        query = {"lines": str(lines), "pod": options.pod, "reason": options.reason}
        found: _Response = client.get("audit", query=query)
        return found
    try:
        wanted = AuditQuery(most=lines, pod=options.pod or "", reason=options.reason or "")
    except OptionError as err:
        raise BadRequest(str(err)) from err
    events = wanted.find(options.dir)
    return {"enabled": True, "directory": str(options.dir), "problem": "", "events": events}


def _follow(response: _Response, look: Callable[[], _Response], output: str) -> None:
    events: list[_Event] = response["events"]
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
