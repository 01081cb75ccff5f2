"""The command `koord-descheduler`: the daemon, and the commands beside it."""

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the help of each for the exit status.

    ^C ends it without a traceback also while it is being imported.
    """
    given = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        command = given[0] if given else ""
        if command in ("plan", "explain", "replay"):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if command == "plan":
            from koord_descheduler.cli.plan import main as plan

            return plan(given[1:])
        if command == "explain":
            from koord_descheduler.cli.explain import main as explain

            return explain(given[1:])
        if command == "replay":
            from koord_descheduler.cli.replay import main as replay

            return replay(given[1:])
        if command == "record":
            from koord_descheduler.cli.record import main as record

            return record(given[1:])
        from koord_descheduler.cli.daemon import run as run_daemon

        return run_daemon(given)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the event loop left Python's own handler


if __name__ == "__main__":
    sys.exit(main())
