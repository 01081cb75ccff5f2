"""The command `koord-descheduler`: the daemon and its other commands."""

import sys
from collections.abc import Sequence

from koord.controlplane.dispatch import Command, dispatch

COMMANDS = {
    **{name: Command(f"koord_descheduler.cli.{name}") for name in ("plan", "explain", "replay")},
    "record": Command("koord_descheduler.cli.record", handles_interrupt=False),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the help of each for the exit status."""
    return dispatch(COMMANDS, "koord_descheduler.daemon.run", argv)


if __name__ == "__main__":
    sys.exit(main())
