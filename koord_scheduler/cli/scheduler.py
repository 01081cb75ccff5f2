"""The command `koord-scheduler`: the daemon, and the commands beside it."""

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
        if command in ("place", "simulate", "explain"):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if command == "place":
            from koord_scheduler.cli.place import main as place

            return place(given[1:])
        if command == "simulate":
            from koord_scheduler.cli.simulate import main as simulate

            return simulate(given[1:])
        if command == "explain":
            from koord_scheduler.cli.explain import main as explain

            return explain(given[1:])
        from koord_scheduler.cli.daemon import run

        return run(given)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the event loop left Python's own handler


if __name__ == "__main__":
    sys.exit(main())
