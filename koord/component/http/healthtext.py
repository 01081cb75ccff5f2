"""Health reports as text for people and probes, and as JSON."""

import json

from koord.util.health import PartHealth, Status, worst

Parts = dict[str, PartHealth]

_MARKS = {Status.OK: "+", Status.DEGRADED: "!", Status.UNHEALTHY: "-"}


def brief(parts: Parts) -> str:
    """`ok` or `unhealthy`, then one line for each part that is not ok."""
    lines = [
        f"{part.status.value}: {name}: {part.reason}"
        for name, part in _worst_first(parts)
        if part.status is not Status.OK
    ]
    return "\n".join([_verdict(parts), *lines]) + "\n" if lines else _verdict(parts)


def verbose(parts: Parts) -> str:
    """One line per part, details included, then the verdict."""
    lines = [_line(name, part) for name, part in parts.items()]
    return "\n".join([*lines, _verdict(parts)]) + "\n"


def as_json(parts: Parts) -> str:
    """JSON with the status of the whole, and status, reason and detail of each part."""
    return json.dumps(
        {
            "status": worst(parts).value,
            "parts": {
                name: {"status": part.status.value, "reason": part.reason, "detail": part.detail}
                for name, part in parts.items()
            },
        },
        default=str,
    )


def _verdict(parts: Parts) -> str:
    return "unhealthy" if worst(parts) is Status.UNHEALTHY else "ok"


def _line(name: str, part: PartHealth) -> str:
    line = f"[{_MARKS[part.status]}]{name} {part.status.value}"
    if part.reason:
        line += f": {part.reason}"
    if part.detail:
        line += " (" + ", ".join(f"{key}={value}" for key, value in part.detail.items()) + ")"
    return line


def _worst_first(parts: Parts) -> list[tuple[str, PartHealth]]:
    order = list(Status)
    return sorted(parts.items(), key=lambda item: -order.index(item[1].status))
