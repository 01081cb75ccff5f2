"""The command `koordletctl`: asks the koordlet of this machine over its control socket.

Modules of commands are imported when they run: the start should not cost more than the response.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from koord.util.errors import KoordError
from koord.util.text import printable
from koordlet.cli.ctl.arguments import CtlOptions, parse
from koordlet.cli.ctl.client import BadRequest, CtlClient, default_run_dirs

MAX_ERROR = 4000  # characters of an error: it may quote a response
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


_COMMANDS = {  # module of koordlet.cli.ctl, and its function
    "": ("top", "run"),
    "status": ("status", "run"),
    "doctor": ("doctor", "run"),
    "plugins": ("plugins", "run"),
    "dry-run": ("plugins", "run_dry_run"),
    "metrics": ("metrics", "run"),
    "nodemetric": ("metrics", "run_nodemetric"),
    "explain": ("explain", "run"),
    "audit": ("explain", "run_audit"),
    "record": ("record", "run"),
    "replay": ("replay", "run"),
    "restore": ("restore", "run"),
    "page": ("page", "run"),
    "completion": ("completion", "run"),
    "words": ("completion", "run_words"),
}


def _command(name: str) -> Callable[[CtlClient, CtlOptions], int]:
    module, function = _COMMANDS.get(name) or _COMMANDS[""]
    found: Callable[[CtlClient, CtlOptions], int]
    found = getattr(import_module(f"koordlet.cli.ctl.{module}"), function)
    return found


def _client(options: CtlOptions) -> CtlClient:
    if options.run_dir is not None:
        return CtlClient([options.run_dir])
    return CtlClient(default_run_dirs(os.geteuid(), os.environ))


def _print_error(err: KoordError, code: int) -> int:
    print(f"koordletctl: {printable(err)[:MAX_ERROR]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
