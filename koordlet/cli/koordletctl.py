"""The command `koordletctl`: asks the koordlet of this machine over its control socket.

Modules of commands are imported when they run: the start should not cost more than the answer.
"""

import os
import sys
from collections.abc import Callable, Sequence

from koord.util.errors import KoordError
from koord.util.printable import printable
from koordlet.cli.ctl.arguments import Options, parse
from koordlet.cli.ctl.client import BadQuestion, CtlClient, default_run_dirs

MOST = 4000  # characters of an error: it may quote an answer
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 when done, 1 after a failure, 2 for wrong usage; see --help."""
    options = parse(argv)
    try:
        code = _command(options.command)(_client(options), options)
        sys.stdout.flush()
    except BadQuestion as err:
        return _complain(err, USAGE)
    except KoordError as err:
        return _complain(err, FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest has no reader
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _command(name: str) -> Callable[[CtlClient, Options], int]:
    match name:
        case "status":
            from koordlet.cli.ctl.status import run
        case "doctor":
            from koordlet.cli.ctl.doctor import run
        case "plugins":
            from koordlet.cli.ctl.plugins import run
        case "metrics":
            from koordlet.cli.ctl.metrics import run
        case "explain":
            from koordlet.cli.ctl.explain import run
        case "dry-run":
            from koordlet.cli.ctl.dryrun import run
        case "audit":
            from koordlet.cli.ctl.audit import run
        case "record":
            from koordlet.cli.ctl.record import run
        case "replay":
            from koordlet.cli.ctl.replay import run
        case "restore":
            from koordlet.cli.ctl.restore import run
        case "completion":
            from koordlet.cli.ctl.completion import run
        case "page":
            from koordlet.cli.ctl.page import run
        case "words":
            from koordlet.cli.ctl.words import run
        case "nodemetric":
            from koordlet.cli.ctl.nodemetric import run
        case _:
            from koordlet.cli.ctl.top import run
    return run


def _client(options: Options) -> CtlClient:
    if options.run_dir is not None:
        return CtlClient([options.run_dir])
    return CtlClient(default_run_dirs(os.geteuid(), os.environ))


def _complain(err: KoordError, code: int) -> int:
    print(f"koordletctl: {printable(err)[:MOST]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
