"""Logs: one line per event, levels by name, lasting failures at start and end."""

import io
import json
import logging
import subprocess
import sys
from contextlib import redirect_stderr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util import logs
from koord.util.errors import OptionError
from koord.util.health import OK, HealthStatus, LastingFailure, PartHealth
from koord.util.logs import LevelSpec, LimitedLog, LogState, get_logger, parse_levels
from koord.util.simulatedclock import SimulatedClock


@pytest.fixture(autouse=True)
def _restore():
    yield
    logs.configure("json", LevelSpec())


def lines(capsys) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_lines_begin_with_when_how_bad_who_and_what(capsys):
    """Machines find the same four keys first in every line; facts follow as they are."""
    logs.configure("json", LevelSpec())
    get_logger("koordlet.host", cgroup="be").warning("value.set", old_us=-1, path=sys)

    (line,) = lines(capsys)

    assert list(line)[:4] == ["ts", "level", "logger", "event"]
    assert line["level"] == "warning"
    assert line["logger"] == "koordlet.host"
    assert (line["event"], line["cgroup"], line["old_us"]) == ("value.set", "be", -1)
    assert isinstance(line["path"], str)


def test_exceptions_stay_on_one_line(capsys):
    logs.configure("json", LevelSpec())
    try:
        int("broken")
    except ValueError:
        get_logger("x").exception("x.failed")
    (line,) = lines(capsys)
    assert "ValueError: invalid literal" in str(line["exception"])
    assert line["level"] == "error"


def test_a_logger_that_has_logged_already_follows_a_new_form(capsys):
    log = get_logger("x", bound=1)
    logs.configure("console", LevelSpec())
    log.info("x.first")
    shown = capsys.readouterr().err
    logs.configure("json", LevelSpec())
    log.info("x.second")
    (line,) = lines(capsys)

    assert "x.first" in shown
    assert not shown.startswith("{")
    assert (line["event"], line["bound"], line["level"]) == ("x.second", 1, "info")


def test_an_event_that_is_logged_once(capsys):
    """For each value of that fact, which is not shown; of many, the oldest are forgotten."""
    logs.configure("json", LevelSpec())
    log = get_logger("x")
    for once in ("a", "b", "a", "b"):
        log.warning("server.verification_disabled", once=once, server=once)
    log.warning("other", once="a")

    assert [(line["event"], line.get("server")) for line in lines(capsys)] == [
        ("server.verification_disabled", "a"),
        ("server.verification_disabled", "b"),
        ("other", None),
    ]

    for number in range(logs.MAX_ONCE):
        log.warning("many", once=number)
    log.warning("server.verification_disabled", once="a")
    written = lines(capsys)
    assert len(written) == logs.MAX_ONCE + 1
    assert not any("once" in line for line in written)


def test_console_lines_are_plain_without_a_terminal(capsys):
    """No colour codes in a file; name, event and facts are there."""
    logs.configure("console", LevelSpec())
    get_logger("koordlet.host").info("value.set", old_us=-1)
    text = capsys.readouterr().err
    assert "value.set" in text
    assert "koordlet.host" in text
    assert "old_us=-1" in text
    assert "\x1b" not in text


def test_levels_follow_at_once_by_name(capsys):
    """A logger made before the change obeys it, and only the named one does."""
    mine, other = get_logger("MyPlugin"), get_logger("koordlet.host")
    logs.configure("json", parse_levels("warning"))
    mine.info("a.hidden")
    logs.set_levels(parse_levels("warning,MyPlugin=debug"))
    mine.debug("b.shown")
    other.info("c.hidden")
    other.error("d.shown")
    assert [line["event"] for line in lines(capsys)] == ["b.shown", "d.shown"]


@pytest.mark.parametrize(
    ("spec", "name", "level"),
    [
        ("", "x", "info"),
        ("debug", "x", "debug"),
        ("info,MyPlugin=debug", "MyPlugin", "debug"),
        ("info,MyPlugin=debug", "MyPluginB", "info"),
        ("info, koordlet=error ,koordlet.host=DEBUG", "koordlet.host.procfiles", "debug"),
        ("info,koordlet=error,koordlet.host=debug", "koordlet.server", "error"),
        ("koordlet=error", "x", "info"),
    ],
)
def test_longest_dotted_prefix_decides(spec, name, level):
    assert parse_levels(spec).level_of(name) == level


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("inof", "the nearest is info"),
        ("info,x=verbose", "levels are debug, info"),
        ("info,=debug", "write it like"),
        ("info,debug", "write it like"),
        ("x=", "levels are"),
    ],
)
def test_bad_levels_are_explained(spec, message):
    with pytest.raises(OptionError, match=message):
        parse_levels(spec)


def test_a_lasting_failure_is_logged_at_start_and_end(capsys):
    """Ten failures in a row are two lines, and so is the next row."""
    logs.configure("json", LevelSpec())
    state = LogState(get_logger("x"))
    state.ended("x.recovered")
    for _ in range(2):
        for _ in range(10):
            state.failed("x.failed", error="e")
        state.ended("x.recovered")
        state.ended("x.recovered")
    events = [line["event"] for line in lines(capsys)]
    assert events == ["x.failed", "x.recovered"] * 2


def test_a_lasting_failure_is_a_health_with_its_last_reason(capsys):
    """Two reasons in a row are one line; well again it is another."""
    logs.configure("json", LevelSpec())
    failure = LastingFailure(get_logger("x"))
    failure.ended("x.recovered")
    assert failure.health() is OK
    failure.failed("x.failed", "first", error="e")
    failure.failed("x.failed", "second", error="f")
    assert failure.health() == PartHealth(HealthStatus.DEGRADED, "second")
    failure.ended("x.recovered")
    assert failure.health() is OK
    found = [(line["event"], line.get("error")) for line in lines(capsys)]
    assert found == [("x.failed", "e"), ("x.recovered", None)]


STEERING = [
    *map(chr, range(0x20)), "\x7f", *map(chr, range(0x80, 0xA0)), "\u061c", "\u200e", "\u200f",
    *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u2028", "\ud800",
]  # fmt: skip


class Odd:
    """What a plugin may log: an object that is not careful with its own text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def fail(message: str) -> None:
    raise ValueError(message)


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("wrap", [str, lambda text: [text], lambda text: {text: text}, Odd])
def test_nothing_from_outside_steers_a_terminal(capsys, log_format, wrap):
    """C0, C1 and bidi controls are escaped in events, facts and errors."""
    logs.configure(log_format, LevelSpec())
    hostile = "".join(STEERING)
    get_logger("x").warning("x.found", said=wrap(f"a{hostile}b"), stack=f"one\n{hostile}")
    try:
        fail(hostile)
    except ValueError:
        get_logger("x").exception("x.failed", error=hostile)

    text = capsys.readouterr().err
    assert not {*text} & {*STEERING} - {"\n"}
    assert "\\u202e" in text


@given(st.text())
def test_json_logs_say_what_was_logged(text):
    """Escaped or not, it is the same text."""
    out = io.StringIO()
    logs.configure("json", LevelSpec())
    with redirect_stderr(out):
        get_logger("x").info("x.found", said=text, listed=[text])

    [line] = out.getvalue().split("\n")[:-1]
    assert json.loads(line)["said"] == text
    assert json.loads(line)["listed"] == [text]


def test_an_error_forges_no_line(capsys):
    """On the console a traceback has lines of its own, all of them indented."""
    logs.configure("console", LevelSpec())
    try:
        fail("x\n2026-01-01T00:00:00Z [info] all is well")
    except ValueError:
        get_logger("x").exception("x.failed")

    first, *more = capsys.readouterr().err.rstrip().split("\n")
    assert "x.failed" in first
    assert "    2026-01-01T00:00:00Z [info] all is well" in more
    assert all(line.startswith("    ") for line in more if line)


def test_what_others_can_cause_is_logged_once_a_minute(capsys):
    """With the number of those left out; each name for itself."""
    logs.configure("json", LevelSpec())
    clock = SimulatedClock()
    limited = LimitedLog(get_logger("x"), clock)
    for _ in range(5):
        limited.warning("x.malformed")
        limited.error("x.failed", why="y")
    clock.tick(60)
    limited.warning("x.malformed")

    assert [(line["event"], line.get("left_out")) for line in lines(capsys)] == [
        ("x.malformed", None),
        ("x.failed", None),
        ("x.malformed", 4),
    ]


def test_what_is_logged_of_one_plugin_does_not_keep_another_out(capsys):
    """Each has its own minute, and its own count."""
    logs.configure("json", LevelSpec())
    clock = SimulatedClock()
    limited = LimitedLog(get_logger("x"), clock)
    for of in ("a", "b", "a"):
        limited.error("x.failed", of=of, plugin=of)
    clock.tick(60)
    limited.error("x.failed", of="a", plugin="a")

    assert [(line["plugin"], line.get("left_out")) for line in lines(capsys)] == [
        ("a", None),
        ("b", None),
        ("a", 1),
    ]


def test_what_libraries_log_is_in_our_format(capsys):
    """With the error, on one line; and no more than one a second."""
    logs.configure("json", LevelSpec())
    handler = logs._LibraryLogs(SimulatedClock())
    library = logging.Logger("asyncio")
    library.addHandler(handler)
    for _ in range(3):
        library.error("Task exception was never %s", "retrieved", exc_info=ValueError("why"))

    [line] = lines(capsys)
    assert line["library"] == "asyncio"
    assert line["message"] == "Task exception was never retrieved"
    assert "ValueError: why" in str(line["exception"])


def test_a_broken_stderr_stops_no_caller(monkeypatch):
    """The pipe to the log collector may break; the daemon goes on."""

    class Broken:
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    get_logger("x").error("x.failed")


def test_structlog_does_not_bring_rich(tmp_path):
    """The daemon does not pay 3 MiB for tracebacks in colour; koordletctl can still import rich."""
    code = "import sys, koord.util.logs; assert 'rich' not in sys.modules; import rich"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_shared_parts_go_by_the_name_of_their_daemon(capsys):
    """In the log and for levels; names outside koord stay as they are."""
    logs.configure("json", parse_levels("error,koordlet.kube=debug"), "koordlet")

    get_logger("koord.kube").debug("watch.begun")
    get_logger("koord.server").warning("request.malformed")
    get_logger("koordinator").error("other.failed")

    assert [line["logger"] for line in lines(capsys)] == ["koordlet.kube", "koordinator"]
