"""The command `koordletctl`: asks the koordlet of this machine over its control socket.

Modules of commands are imported when they run: the start should not cost more than the answer.
"""

import os
import sys
from collections.abc import Callable, Sequence

from koord.util.errors import KoordError
from koord.util.text import printable
from koordlet.cli.ctl.arguments import CtlOptions, parse
from koordlet.cli.ctl.client import BadRequest, CtlClient, default_run_dirs

MAX_ERROR = 4000  # characters of an error: it may quote an answer
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 when done, 1 after a failure, 2 for wrong usage; see --help."""
    options = parse(argv)
    try:
        code = _command(options.command)(_client(options), options)
        sys.stdout.flush()
    except BadRequest as err:
        return _print_error(err, USAGE)
    except KoordError as err:
        return _print_error(err, FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest has no reader
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _command(name: str) -> Callable[[CtlClient, CtlOptions], int]:
    match name:
        case "status":
            from koordlet.cli.ctl.status import run as run_nodemetric
        case "doctor":
            from koordlet.cli.ctl.doctor import run as run_nodemetric
        case "plugins":
            from koordlet.cli.ctl.plugins import run as run_nodemetric
        case "metrics":
            from koordlet.cli.ctl.metrics import run as run_nodemetric
        case "explain":
            from koordlet.cli.ctl.explain import run as run_nodemetric
        case "dry-run":
            from koordlet.cli.ctl.plugins import run_dry_run as run_nodemetric
        case "audit":
            from koordlet.cli.ctl.explain import run_audit as run_nodemetric
        case "record":
            from koordlet.cli.ctl.record import run as run_nodemetric
        case "replay":
            from koordlet.cli.ctl.replay import run as run_nodemetric
        case "restore":
            from koordlet.cli.ctl.restore import run as run_nodemetric
        case "completion":
            from koordlet.cli.ctl.completion import run as run_nodemetric
        case "page":
            from koordlet.cli.ctl.page import run as run_nodemetric
        case "words":
            from koordlet.cli.ctl.completion import run_words as run_nodemetric
        case "nodemetric":
            from koordlet.cli.ctl.metrics import run_nodemetric
        case _:
            from koordlet.cli.ctl.top import run as run_nodemetric
    return run_nodemetric


def _client(options: CtlOptions) -> CtlClient:
    if options.run_dir is not None:
        return CtlClient([options.run_dir])
    return CtlClient(default_run_dirs(os.geteuid(), os.environ))


def _print_error(err: KoordError, code: int) -> int:
    print(f"koordletctl: {printable(err)[:MAX_ERROR]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
