"""Records the daemon: the facts about it, and what happens in it."""

from collections.abc import AsyncGenerator

from koordlet.daemon.components import DaemonComponents
from koordlet.replay.recorder import RecordSources


def record(components: DaemonComponents, seconds: float) -> AsyncGenerator[bytes]:
    """Return the lines of a record of so many seconds; raises what Recorder.record does."""
    sources = RecordSources(
        states=components.states,
        cache=components.measuring.cache,
        facts=lambda: _facts(components),
        in_force=components.acting.actions.claims.in_force,
        decisions=components.acting.actions.decisions.explain,
    )
    return components.measuring.recorder.record(sources, seconds)


def _facts(components: DaemonComponents) -> dict[str, object]:
    settings = components.settings
    layout = components.acting.actions.kernel.layout
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
