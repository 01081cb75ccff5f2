"""Health as people, probes and programs read it."""

import json

import pytest

from koord.component.http.endpoints import as_json, summary_text, verbose_text
from koord.util.health import OK, HealthStatus, PartHealth

DEGRADED = PartHealth(HealthStatus.DEGRADED, "stopped after 5 failures", {"plugin": "Mine"})
UNHEALTHY = PartHealth(HealthStatus.UNHEALTHY, "no round for 9 s")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "ok"),
        ({"loop": OK}, "ok"),
        ({"loop": OK, "Mine": DEGRADED}, "ok\ndegraded: Mine: stopped after 5 failures\n"),
        (
            {"Mine": DEGRADED, "psi": UNHEALTHY},
            "unhealthy\nunhealthy: psi: no round for 9 s\n"
            "degraded: Mine: stopped after 5 failures\n",
        ),
    ],
)
def test_brief_names_only_what_is_wrong(parts, text):
    """ok alone when all is well; the worst part first when not."""
    assert summary_text(parts) == text


def test_verbose_names_every_part():
    """One line per part, with its details."""
    text = verbose_text({"Mine": DEGRADED, "loop": OK, "psi": UNHEALTHY})

    assert text == (
        "[!]Mine degraded: stopped after 5 failures (plugin=Mine)\n"
        "[+]loop ok\n"
        "[-]psi unhealthy: no round for 9 s\n"
        "unhealthy\n"
    )


def test_json_has_status_and_reason_of_every_part():
    """For programs: the same facts by name."""
    assert json.loads(as_json({"Mine": DEGRADED, "loop": OK})) == {
        "status": "degraded",
        "parts": {
            "Mine": {
                "status": "degraded",
                "reason": "stopped after 5 failures",
                "detail": {"plugin": "Mine"},
            },
            "loop": {"status": "ok", "reason": "", "detail": {}},
        },
    }
