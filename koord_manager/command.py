"""The command `koord-manager`: the daemon and its other commands."""

import sys
from collections.abc import Sequence

from koord.controlplane.dispatch import Command, dispatch

COMMANDS = {name: Command(f"koord_manager.cli.{name}") for name in ("plan", "explain")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see the help of each for the exit status."""
    return dispatch(COMMANDS, "koord_manager.daemon.run", argv)


if __name__ == "__main__":
    sys.exit(main())
