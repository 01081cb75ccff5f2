"""The command `koord-scheduler`: the daemon, and the commands beside it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from koord.controlplane.dispatch import Command, dispatch

if TYPE_CHECKING:
    from koord_scheduler.framework.profile import Additions

COMMANDS = {
    "place": Command("koord_scheduler.cli.place", takes_more=True),
    "simulate": Command("koord_scheduler.cli.simulate", takes_more=True),
    "explain": Command("koord_scheduler.cli.explain"),
}


def main(argv: Sequence[str] | None = None, additions: "Additions" = ()) -> int:
    """Run the command; see the help of each for the exit status.

    additions register further plugins, when the installed ones are registered.
    """
    return dispatch(COMMANDS, "koord_scheduler.cli.daemon", argv, additions)


if __name__ == "__main__":
    sys.exit(main())
