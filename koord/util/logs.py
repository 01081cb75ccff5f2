"""Structured logs on stderr: a constant event name, facts as keys, a level per logger name."""

import io
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from koord.util.clock import Clock
from koord.util.errors import OptionError
from koord.util.text import nearest, printable, printable_json

if "rich" not in sys.modules:
    # structlog imports rich when it is installed, for tracebacks that we do not use: 3 MiB.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]
else:
    import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor

LogFormat = Literal["json", "console"]
LEVELS = ("debug", "info", "warning", "error", "critical")
SHARED = "koord"  # first part of the names of loggers that all daemons have
MAX_ONCE = 256  # values of the fact `once` that are remembered
_BLOCKS = ("exception", "stack")  # facts that the console shows as lines of their own
_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")
_NUMBERS = {name: logging.getLevelNamesMapping()[name.upper()] for name in LEVELS} | {
    "exception": logging.ERROR
}


@dataclass(frozen=True, slots=True)
class LevelSpec:
    """The least level that is shown: in general, and by logger name or dotted prefix of it."""

    default: str = "info"
    by_name: Mapping[str, str] = field(default_factory=dict)

    def level_of(self, name: str) -> str:
        """The level of the longest entry that is the name itself or a dotted prefix."""
        while name:
            if name in self.by_name:
                return self.by_name[name]
            name = name.rpartition(".")[0]
        return self.default


def parse_levels(spec: str) -> LevelSpec:
    """Return the levels of a text like "info,MyPlugin=debug,PROGRAM.kube=warning".

    Raises:
        OptionError: a level is unknown, a name is empty, or there are two general levels.
    """
    default = ""
    by_name: dict[str, str] = {}
    for piece in filter(None, map(str.strip, spec.split(","))):
        name, named, level = (part.strip() for part in piece.rpartition("="))
        if level.lower() not in LEVELS:
            hint = f"levels are {', '.join(LEVELS)}; the nearest is {nearest(level, LEVELS)}"
            raise OptionError("log-level", piece, hint)
        if named and name:
            by_name[name] = level.lower()
        elif named or default:
            raise OptionError("log-level", spec, "write it like info,MyPlugin=debug")
        else:
            default = level.lower()
    return LevelSpec(default or "info", by_name)


class _Levels:
    """The levels in force. Swapped as a whole, so any thread may ask."""

    def __init__(self) -> None:
        self._spec = LevelSpec()
        self._least: dict[str, int] = {}
        self.program = SHARED

    def shown_name(self, name: str) -> str:
        """The name that logs and --log-level use: a shared part goes by its daemon's name."""
        shared, _, part = name.partition(".")
        return f"{self.program}.{part}" if shared == SHARED and part else name

    def set(self, spec: LevelSpec) -> None:
        self._spec, self._least = spec, {}

    def show(self, name: str, method: str) -> bool:
        least = self._least
        if name not in least:
            least[name] = _NUMBERS[self._spec.level_of(self.shown_name(name))]
        return _NUMBERS.get(method, logging.INFO) >= least[name]


_levels = _Levels()


class _Once:
    """Drops an event whose fact `once` it has seen with that event before, and then the fact.

    Of so many values the oldest is forgotten: memory is bounded, and values are few.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[object, object], None] = {}

    def __call__(self, _logger: object, _method: str, event: "EventDict") -> "EventDict":
        key = (event.get("event"), event.pop("once", None))
        if key[1] is None:
            return event
        if key in self._seen:
            raise structlog.DropEvent
        if len(self._seen) >= MAX_ONCE:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return event


class _NamedLogger(structlog.make_filtering_bound_logger(logging.DEBUG)):  # type: ignore[misc]
    """structlog's own filter is fixed when a logger is made; this one follows set_levels."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, **facts: Any) -> Any:
        name = getattr(self._logger, "name", "")
        if not _levels.show(name, method_name):
            return None
        facts.setdefault("logger", _levels.shown_name(name))
        return super()._proxy_to_logger(method_name, event, **facts)


class _Stderr:
    """Writes lines to whatever stderr is now. A log that cannot be written must not stop work."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # nowhere left to report it

    debug = info = warning = error = critical = exception = msg


def configure(log_format: LogFormat, levels: LevelSpec, program: str = SHARED) -> None:
    """Set the form and levels of all logs, past loggers included.

    program takes the place of "koord" in the names of shared loggers: the logger "koord.kube" is
    "PROGRAM.kube" in the log and in --log-level. An event with the fact `once` is logged once for
    each of its values, from this call on.
    """
    _levels.program = program
    set_levels(levels)
    structlog.configure(
        processors=[
            _Once(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("iso", utc=True, key="ts"),
            *_rendering(log_format),
        ],
        wrapper_class=_NamedLogger,
        logger_factory=_Stderr,
        cache_logger_on_first_use=False,  # a logger made before this call must follow it
    )


def set_levels(levels: LevelSpec) -> None:
    """Change the levels of all loggers, from the next event on."""
    _levels.set(levels)


def get_logger(name: str, **facts: object) -> "FilteringBoundLogger":
    """Return a logger; facts go with each of its events."""
    return cast("FilteringBoundLogger", structlog.get_logger(name, **facts))


class LogState:
    """Logs a failure that lasts when it starts and when it ends, and not in between."""

    def __init__(self, log: "FilteringBoundLogger") -> None:
        self._log = log
        self.failing = False

    def failed(self, event: str, **facts: object) -> None:
        """Log a warning, unless the failure has been logged already."""
        if not self.failing:
            self.failing = True
            self._log.warning(event, **facts)

    def ended(self, event: str, **facts: object) -> None:
        """Log the end of a failure, if there was one."""
        if self.failing:
            self.failing = False
            self._log.info(event, **facts)


class LimitedLog:
    """Logs events that others can cause at will: each name once, then once a minute at most.

    `left_out` counts the events of that name since the line before. Events with different `of`, as
    of plugins, do not keep each other out; there are few of them.
    """

    def __init__(self, log: "FilteringBoundLogger", clock: Clock, seconds: float = 60.0) -> None:
        self._log = log
        self._clock = clock
        self._seconds = seconds
        self._silent_until: dict[tuple[str, str], float] = {}  # by event and of; monotonic
        self._left_out: Counter[tuple[str, str]] = Counter()

    def warning(self, event: str, *, of: str = "", **facts: object) -> None:
        """Log a warning, unless there was one of that name a short while ago."""
        if self.wants(event, of):
            self._write(self._log.warning, event, of, facts)

    def error(self, event: str, *, of: str = "", **facts: object) -> None:
        """Log an error, in the same way."""
        if self.wants(event, of):
            self._write(self._log.error, event, of, facts)

    def wants(self, event: str, of: str = "") -> bool:
        """Whether an event would be logged now; one that would not is counted as left out."""
        now = self._clock.monotonic()
        wanted = now >= self._silent_until.get((event, of), now)
        if not wanted:
            self._left_out[event, of] += 1
        return wanted

    def _write(
        self, write: Callable[..., object], event: str, of: str, facts: dict[str, object]
    ) -> None:
        self._silent_until[event, of] = self._clock.monotonic() + self._seconds
        if left_out := self._left_out.pop((event, of), 0):
            facts["left_out"] = left_out
        write(event, **facts)


class _LibraryLogs(logging.Handler):
    """Writes what libraries log, asyncio above all, as events of our log; one a second at most."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._log = LimitedLog(get_logger("koord.library"), clock, seconds=1.0)

    def emit(self, record: logging.LogRecord) -> None:
        """Log an event in place of the record."""
        write = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        error = record.exc_info[1] if record.exc_info else None
        write("library.message", library=record.name, message=record.getMessage(), exc_info=error)


def redirect_library_logs(clock: Clock) -> None:
    """Redirect libraries that use Python's own logging to our log. Called once, at the start."""
    logging.getLogger().addHandler(_LibraryLogs(clock))


def _rendering(log_format: LogFormat) -> "list[Processor]":
    if log_format == "json":
        return [structlog.processors.format_exc_info, _render_json]
    colors = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, timestamp_key="ts", exception_formatter=_write_traceback
    )
    lines = _colored_lines if colors else _plain_lines

    def render(logger: object, method: str, event: "EventDict") -> str:
        return lines(str(renderer(logger, method, _printable_facts(event))))

    return [render]


def _render_json(_logger: object, _method: str, event: "EventDict") -> str:
    """Return one line; its first keys are time, level, logger and event."""
    head = {key: event.pop(key) for key in ("ts", "level", "logger", "event") if key in event}
    return printable_json({**head, **event}, default=str)


def _printable_facts(event: "EventDict") -> "EventDict":
    """Escape what facts from outside could steer a terminal or forge a line with."""
    return {printable(key): _printable_fact(key, value) for key, value in event.items()}


def _printable_fact(key: str, value: object) -> object:
    if key in _BLOCKS:
        return _block(value)
    if isinstance(value, str):
        return printable(value)
    text = repr(value)
    return value if key == "exc_info" or text.isprintable() else printable(text)


def _block(text: object) -> object:
    """Return a text of several lines so that none of them looks like one of the log."""
    return "\n".join(f"    {line}" for line in text.split("\n")) if isinstance(text, str) else text


def _write_traceback(out: TextIO, error: "ExcInfo") -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(f"\n{_block(text.getvalue().strip())}")


def _plain_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _colored_lines(text: str) -> str:
    """Leave the colours of the renderer; those of facts were escaped before."""
    return "".join(
        part if _COLOR.fullmatch(part) else _plain_lines(part) for part in _COLOR.split(text)
    )


configure("console" if sys.stderr and sys.stderr.isatty() else "json", LevelSpec())
