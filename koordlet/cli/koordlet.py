"""The command `koordlet`: the daemon."""

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; see koordlet.cli.daemon.run for the exit status.

    ^C ends it without a traceback also where the daemon does not look at signals: while it is being
    imported, which is most of the start, and after its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from koord.component.process import default_cas_on_use

        with default_cas_on_use():
            from koordlet.cli.daemon import run

        return run(sys.argv[1:] if argv is None else argv)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the event loop left Python's own handler


if __name__ == "__main__":
    sys.exit(main())
