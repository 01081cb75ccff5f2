"""What a record says of the daemon beside what happens in it."""

from collections.abc import AsyncGenerator

from koordlet.daemon.parts import Parts
from koordlet.replay.recorder import RecordSources


def record(parts: Parts, seconds: float) -> AsyncGenerator[bytes]:
    """Return the lines of a record of so many seconds; raises what Recorder.record does."""
    sources = RecordSources(
        states=parts.states,
        cache=parts.cache,
        facts=lambda: _facts(parts),
        in_force=parts.actions.claims.in_force,
        decisions=parts.actions.decisions.explain,
    )
    return parts.recorder.record(sources, seconds)


def _facts(parts: Parts) -> dict[str, object]:
    settings = parts.settings
    layout = parts.actions.kernel.layout
    return {
        "node": settings.node_name,
        "driver": layout.driver.value,
        "root": layout.root,
        "gates": settings.gates.working(),
        "flags": {
            flag.name: flag.kind.write(flag.value)
            for flag in settings.flags
            if flag.is_set and flag.owner.startswith("plugin ")
        },
    }
