"""koordletctl record: writes what happens on the node to a file."""

import gzip
import json
import os
import time
from pathlib import Path

from koord.component.terminal import ProgressReport, prose, show
from koord.util import goformat
from koord.util.errors import KoordError
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.units import size, span

IDLE_TIMEOUT = 30.0  # seconds without a line after which the daemon is given up
MAX_BYTES = 1 << 30  # of the file

_END = b'["end"'


class CannotWrite(KoordError):
    """The record cannot be written there."""


def run(client: CtlClient, options: CtlOptions) -> int:
    """Record until the time is over, ^C, or the daemon's end; what there is by then is kept."""
    began = time.monotonic()
    complete, full = False, False
    try:
        with _create(options.file) as raw, gzip.GzipFile(fileobj=raw, mode="wb") as file:
            lines = client.stream(
                "record", query={"duration": options.duration}, silence=IDLE_TIMEOUT
            )
            seconds = _seconds(options.duration)
            with ProgressReport(f"recording to {options.file}") as report:
                for line in lines:
                    file.write(line)
                    complete = line.startswith(_END)
                    full = raw.tell() > MAX_BYTES
                    if full:
                        break
                    report.show((time.monotonic() - began) / seconds)
    except KeyboardInterrupt:
        pass  # what has been received is a record, too
    except OSError as err:
        raise CannotWrite(f"{options.file}: wanted to write it, found {err.strerror}") from err
    except KoordError:
        _drop_if_empty(options.file)
        raise
    done = {
        "file": str(options.file),
        "bytes": options.file.stat().st_size,
        "seconds": round(time.monotonic() - began, 1),
        "complete": complete,
    }
    show(done, lambda: [prose(_summary(done, full=full))], options.output)
    return 0 if complete or not full else 1


def _seconds(duration: str) -> float:
    """The daemon says what is wrong with one that cannot be read."""
    try:
        return max(goformat.parse_duration(duration), 1.0)
    except ValueError:
        return 1.0


def _create(path: Path):  # type: ignore[no-untyped-def]  # a binary file
    """Make a new file for its owner only; raises CannotWrite."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as err:
        raise CannotWrite(f"{path}: wanted a new file, found one; name another") from err
    except OSError as err:
        raise CannotWrite(f"{path}: wanted to make it, found {err.strerror}") from err
    return os.fdopen(descriptor, "wb")


def _drop_if_empty(path: Path) -> None:
    """Remove a file in which there is no record at all."""
    try:
        with gzip.open(path) as file:
            json.loads(file.readline())
    except (OSError, EOFError, ValueError):
        path.unlink(missing_ok=True)


def _summary(done: dict[str, object], *, full: bool) -> str:
    text = f"{done['file']}: {span(float(str(done['seconds'])))}, {size(float(str(done['bytes'])))}"
    if full:
        return f"{text}; ended early, as this is the most that a record may be"
    return text if done["complete"] else f"{text}; ended early"
