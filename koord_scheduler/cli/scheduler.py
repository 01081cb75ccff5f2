"""The command `koord-scheduler`: the daemon, and the commands beside it."""

import sys
from collections.abc import Sequence

from koord.controlplane.dispatch import Command, dispatch

COMMANDS = {
    name: Command(f"koord_scheduler.cli.{name}") for name in ("place", "simulate", "explain")
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the help of each for the exit status."""
    return dispatch(COMMANDS, "koord_scheduler.cli.daemon", argv)


if __name__ == "__main__":
    sys.exit(main())
