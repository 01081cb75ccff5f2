"""Names and messages from outside steer neither a terminal nor who reads the JSON."""

import json

import pytest

from koordlet.cli.ctl import client

HOSTILE = "\x1b[2J\x9b31m\u202e\u200b\n\x07"
NAMES = {
    "name", "pod", "reason", "message", "detail", "fix", "mode_reason", "source", "version", "node",
    "directory", "address", "run_dir", "observe_only", "namespace", "container", "plugin",
}  # fmt: skip
COMMANDS = [
    ["status"], ["doctor"], ["plugins"], ["metrics"], ["metrics", "pod_cpu_usage"], ["explain"],
    ["explain", "jobs/sort"], ["dry-run"], ["audit"], ["nodemetric"], ["top", "--once"],
]  # fmt: skip


def poisoned(value):
    """The same with something in every name and message that no terminal should obey."""
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: each + HOSTILE if key in NAMES and isinstance(each, str) else poisoned(each)
        for key, each in value.items()
    }


@pytest.fixture
def hostile(daemon, monkeypatch):
    """A daemon whose answers are poisoned on the way."""
    daemon.status["problems"] = {f"part{HOSTILE}": f"why{HOSTILE}"}
    daemon.status["claims"] = {f"P{HOSTILE}": {"in force": 1}}
    decoded = client._decoded
    monkeypatch.setattr(client, "_decoded", lambda *args: poisoned(decoded(*args)))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("output", ["table", "json"])
def test_every_command_prints_only_what_is_printable(ctl, hostile, command, output):
    code, out, err = ctl(*command, "-o", output)

    assert code in (0, 1), err
    assert (out + err).replace("\n", "").isprintable()
    if output == "json":
        json.loads(out)


def test_json_keeps_what_was_said(ctl, hostile):
    """A program gets the very name."""
    _, out, _ = ctl("status", "-o", "json")

    assert json.loads(out)["problems"] == {f"part{HOSTILE}": f"why{HOSTILE}"}


def test_followed_events_are_printable_too(capsys):
    from koordlet.cli.ctl.explain import _print

    event = {"createdAt": f"2026-07-24{HOSTILE}", "name": HOSTILE, "message": HOSTILE}
    _print([event], "json")
    _print([event], "table")

    first, *rest = capsys.readouterr().out.splitlines()
    assert json.loads(first) == event
    assert first.isprintable()
    assert len(rest) == 1
    assert rest[0].isprintable()


def test_an_error_that_quotes_an_answer_is_short_and_printable(ctl, daemon):
    daemon.plugins[0]["name"] = HOSTILE

    _, _, err = ctl("plugins", "release", "x" * 10_000 + HOSTILE)

    *logged, said = err.splitlines()  # the server's log is on the same stderr here
    assert said.startswith("koordletctl: ")
    assert said.isprintable()
    assert len(said) < 4100
    assert all(line.isprintable() for line in logged)
