"""The command `koord-scheduler`."""

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see run_process for the exit status.

    ^C ends it without a traceback also while it is being imported.
    """
    given = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from koord_scheduler.cli.daemon import run

        return run(given)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the event loop left Python's own handler


if __name__ == "__main__":
    sys.exit(main())
