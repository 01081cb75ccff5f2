"""The section of a page that every daemon has: its health."""

from collections.abc import Mapping

from koord.util.health import Health, worst


def health_section(health: Health) -> Mapping[str, object]:
    """The state of the whole and of each part."""
    parts = health.parts()
    return {
        "status": worst(parts).value,
        "parts": [
            {"name": name, "status": part.status.value, "reason": part.reason}
            for name, part in parts.items()
        ],
    }
