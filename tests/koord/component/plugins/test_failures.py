"""What plugins' code raises, as people get to see it."""

import pytest
from structlog.testing import capture_logs

from koord.component.plugins.execution import MAX_TRACED, FailureLog
from koord.util.errors import MAX_ERROR_LENGTH, KoordError, error_text
from koord.util.logs import get_logger
from koord.util.simulatedclock import SimulatedClock


class Unprintable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OwnUnprintable(Unprintable, KoordError):
    """The same, of our family."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("gone"), "KeyError('gone')"),
        (TimeoutError(), "TimeoutError()"),
        (ValueError("no\nline"), "ValueError('no\\nline')"),
        (KoordError("weight: found -1; use 0 to 100"), "weight: found -1; use 0 to 100"),
        (KoordError(), "KoordError()"),
        (
            FileNotFoundError(2, "No such file", "/x"),
            "FileNotFoundError: [Errno 2] No such file: '/x'",
        ),
        (KoordError("half \ud800"), "half \\ud800"),
        (Unprintable(), "Unprintable"),
        (OwnUnprintable(), "OwnUnprintable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_shown_with_its_type_unless_it_is_ours(error: Exception, text: str) -> None:
    """The text of a KeyError is the key alone, and that of a TimeoutError is empty."""
    assert error_text(error) == text


def test_the_text_of_a_foreign_error_is_bounded() -> None:
    """A plugin may put a whole response of a server into it."""
    text = error_text(ValueError("x" * 10**6))
    assert (len(text), text[-1]) == (MAX_ERROR_LENGTH, "…")


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def raised(error: Exception) -> Exception:
    """The error with a traceback."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        fail()
    return error


def test_a_traceback_is_logged_once_and_a_plugin_once_a_minute(clock: SimulatedClock) -> None:
    """Those of other plugins are logged all the same."""
    failures = FailureLog(get_logger("x"), clock)
    with capture_logs() as lines:
        for number in range(3):
            assert (
                failures.failed("plugin.failed", "A", raised(KeyError(str(number))))
                == f"KeyError('{number}')"
            )
        failures.failed("plugin.failed", "B", raised(KeyError("b")), pod="default/web")
        clock.tick(60)
        failures.failed("plugin.failed", "A", raised(KeyError("later")))

    seen = [(one["plugin"], one["error"], "exc_info" in one, one.get("left_out")) for one in lines]
    assert seen == [
        ("A", "KeyError('0')", True, None),
        ("B", "KeyError('b')", True, None),
        ("A", "KeyError('later')", False, 2),
    ]
    assert lines[1]["pod"] == "default/web"


def test_an_error_of_ours_has_no_traceback(clock: SimulatedClock) -> None:
    """Its text says what was wanted and found; one that was only returned has no line either."""
    failures = FailureLog(get_logger("x"), clock)
    with capture_logs() as lines:
        failures.failed("a", "A", raised(KoordError("wanted more")))
        failures.failed("b", "A", ValueError("returned"))

    assert ["exc_info" in line for line in lines] == [False, False]


def test_what_is_remembered_of_tracebacks_is_bounded(clock: SimulatedClock) -> None:
    """A plugin that makes a class for each error fills nothing."""
    failures = FailureLog(get_logger("x"), clock)
    with capture_logs():
        for number in range(MAX_TRACED + 10):
            failures.failed("failed", "A", raised(type(f"E{number}", (Exception,), {})()))
            clock.tick(60)

    assert len(failures._traced) == 10
